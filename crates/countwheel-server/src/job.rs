//! The payload of a timer: the request that a delivery makes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One request to make, as it is stored. Its first byte is the format's version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    /// In the order in which they were sent, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) timeout: Duration,
}

/// A payload that no version of this program wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the payload cannot be read")]
pub(crate) struct NotAJob;

const VERSION: u8 = 1;

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Growing a vector is the only way in which this could fail, and it does not.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, NotAJob> {
        let (&VERSION, encoded) = payload.split_first().ok_or(NotAJob)? else {
            return Err(NotAJob);
        };
        match postcard::take_from_bytes(encoded) {
            Ok((job, [])) => Ok(job),
            _ => Err(NotAJob),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_storage_and_anything_else_is_refused() {
        let job = Job {
            url: "https://example.com/hook".to_owned(),
            headers: vec![("x-shop".to_owned(), "7".to_owned())],
            content_type: None,
            body: b"{\"order\":42}".to_vec(),
            timeout: Duration::from_millis(1_500),
        };
        let encoded = job.encode();
        assert_eq!(Job::decode(&encoded), Ok(job));
        for cut in 0..encoded.len() {
            assert_eq!(Job::decode(&encoded[..cut]), Err(NotAJob), "{cut} bytes");
        }
        let mut longer = encoded.clone();
        longer.push(0);
        assert_eq!(Job::decode(&longer), Err(NotAJob));
        let mut later = encoded;
        later[0] = 2;
        assert_eq!(Job::decode(&later), Err(NotAJob));
    }
}
