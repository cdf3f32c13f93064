//! The payload of a timer: the request that a delivery makes.

use std::time::Duration;

use axum::http::Method;
use serde::{Deserialize, Serialize};

/// One request to make. As it is stored, its first byte is the format's version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) method: Method,
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

/// A request by `POST`.
const VERSION: u8 = 1;
/// The method stands before what version 1 has: earlier programs read nothing that they would send by another.
const WITH_METHOD: u8 = 2;

/// What version 1 has, borrowed to be written.
#[derive(Serialize)]
struct Written<'a> {
    url: &'a str,
    headers: &'a [(String, String)],
    content_type: Option<&'a str>,
    body: &'a [u8],
    timeout: Duration,
}

#[derive(Deserialize)]
struct Read {
    url: String,
    headers: Vec<(String, String)>,
    content_type: Option<String>,
    body: Vec<u8>,
    timeout: Duration,
}

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let written = Written {
            url: &self.url,
            headers: &self.headers,
            content_type: self.content_type.as_deref(),
            body: &self.body,
            timeout: self.timeout,
        };
        // Growing a vector is the only way in which this could fail, and it does not.
        if self.method == Method::POST {
            postcard::to_extend(&written, vec![VERSION]).unwrap_or_default()
        } else {
            let method = self.method.as_str();
            postcard::to_extend(&(method, written), vec![WITH_METHOD]).unwrap_or_default()
        }
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, NotAJob> {
        let (version, encoded) = payload.split_first().ok_or(NotAJob)?;
        let (method, rest) = match *version {
            VERSION => (Method::POST, encoded),
            WITH_METHOD => {
                let (method, rest) =
                    postcard::take_from_bytes::<&str>(encoded).map_err(|_| NotAJob)?;
                (method.parse().map_err(|_| NotAJob)?, rest)
            }
            _ => return Err(NotAJob),
        };
        let Ok((read, [])) = postcard::take_from_bytes::<Read>(rest) else {
            return Err(NotAJob);
        };
        Ok(Self {
            method,
            url: read.url,
            headers: read.headers,
            content_type: read.content_type,
            body: read.body,
            timeout: read.timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_storage_and_anything_else_is_refused() {
        let post = Job {
            method: Method::POST,
            url: "https://example.com/hook".to_owned(),
            headers: vec![("x-shop".to_owned(), "7".to_owned())],
            content_type: None,
            body: b"{\"order\":42}".to_vec(),
            timeout: Duration::from_millis(1_500),
        };
        let put = Job {
            method: Method::PUT,
            body: vec![0, 0xff],
            ..post.clone()
        };
        for job in [post, put] {
            let encoded = job.encode();
            assert_eq!(Job::decode(&encoded), Ok(job));
            for cut in 0..encoded.len() {
                assert_eq!(Job::decode(&encoded[..cut]), Err(NotAJob), "{cut} bytes");
            }
            let mut longer = encoded.clone();
            longer.push(0);
            assert_eq!(Job::decode(&longer), Err(NotAJob));
            let mut later = encoded;
            later[0] = 3;
            assert_eq!(Job::decode(&later), Err(NotAJob));
        }
    }

    /// As the program wrote it before there were methods.
    #[test]
    fn a_job_of_version_1_is_a_post_and_stays_what_it_was() {
        let stored = b"\x01\x09http://x/\x01\x01a\x01b\x01\x01t\x02{}\x0f\x00";
        let job = Job::decode(stored).unwrap();
        assert_eq!((job.method.as_str(), &*job.url), ("POST", "http://x/"));
        assert_eq!(
            (&*job.body, job.timeout),
            (&b"{}"[..], Duration::from_secs(15))
        );
        assert_eq!(job.encode(), stored);
    }
}
