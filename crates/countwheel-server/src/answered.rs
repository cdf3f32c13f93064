//! What a target answered to an attempt, as the timer's record keeps it.

use std::time::Duration;

use clap::ValueEnum;
use countwheel_durable::Answer;
use serde::{Deserialize, Serialize};

use crate::wishes::Ignored;

/// How much of a body is kept.
pub(crate) const BODY_KEPT_BYTES: usize = 1 << 10;

/// What the service keeps of the answers of targets.
///
/// ```
/// use clap::ValueEnum;
/// use countwheel_server::config::KeepAnswers;
///
/// assert_eq!(KeepAnswers::from_str("redacted", false), Ok(KeepAnswers::Redacted));
/// ```
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeepAnswers {
    /// Status, length, times, and the first 1 KiB of the body
    #[default]
    On,
    /// Status, length and times
    Redacted,
    /// Nothing but the status, which is the detail of an attempt
    Off,
}

/// How long the phases of an attempt took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The look-up of the target's name; `None` for an address, and for a connection that was used before.
    pub(crate) resolve: Option<Duration>,
    /// From there to the open connection; `None` for one that was used before.
    pub(crate) connect: Option<Duration>,
    /// The handshake of TLS on it.
    pub(crate) tls: Option<Duration>,
    /// From the moment when the head of the request was handed over to the head of the answer.
    pub(crate) first_byte: Duration,
}

/// An answer. As it is stored, its first byte is the format's version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// The body as far as it is kept; `None` if bodies are not.
    pub(crate) body: Option<Vec<u8>>,
    /// How much of the body was read.
    pub(crate) body_bytes: u64,
    /// Whether that was all of it.
    pub(crate) is_whole: bool,
    pub(crate) times: Times,
    /// Which wishes of the receiver did not count.
    pub(crate) ignored: Ignored,
}

/// An answer of which all counts.
const VERSION: u8 = 1;
/// The wishes that did not count stand before what version 1 has.
const WITH_IGNORED: u8 = 2;

/// The times are in microseconds.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    status: u16,
    body: Option<&'a [u8]>,
    body_bytes: u64,
    is_whole: bool,
    resolve: Option<u64>,
    connect: Option<u64>,
    tls: Option<u64>,
    first_byte: u64,
}

/// A span in whole microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Answered {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            status: self.status,
            body: self.body.as_deref(),
            body_bytes: self.body_bytes,
            is_whole: self.is_whole,
            resolve: self.times.resolve.map(micros),
            connect: self.times.connect.map(micros),
            tls: self.times.tls.map(micros),
            first_byte: micros(self.times.first_byte),
        };
        // Growing a vector is the only way in which this could fail, and it does not.
        let encoded = if self.ignored.is_empty() {
            postcard::to_extend(&stored, vec![VERSION])
        } else {
            postcard::to_extend(&(self.ignored, stored), vec![WITH_IGNORED])
        };
        encoded.unwrap_or_default()
    }

    /// `None` for bytes that this version of the program did not write, and no earlier one.
    pub(crate) fn decode(answer: &Answer) -> Option<Self> {
        let (ignored, encoded) = match answer.as_bytes().split_first()? {
            (&VERSION, encoded) => (Ignored::default(), encoded),
            (&WITH_IGNORED, encoded) => postcard::take_from_bytes(encoded).ok()?,
            _ => return None,
        };
        let (stored, []) = postcard::take_from_bytes::<Stored<'_>>(encoded).ok()? else {
            return None;
        };
        let span = Duration::from_micros;
        Some(Self {
            status: stored.status,
            body: stored.body.map(<[u8]>::to_vec),
            body_bytes: stored.body_bytes,
            is_whole: stored.is_whole,
            times: Times {
                resolve: stored.resolve.map(span),
                connect: stored.connect.map(span),
                tls: stored.tls.map(span),
                first_byte: span(stored.first_byte),
            },
            ignored,
        })
    }

    /// Takes the next bytes of the body, of which `most` are read in all. `false` once that is so.
    pub(crate) fn take(&mut self, bytes: &[u8], most: usize) -> bool {
        let read = usize::try_from(self.body_bytes).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(most.saturating_sub(read) + 1)];
        let is_too_long = read + bytes.len() > most;
        let bytes = &bytes[..bytes.len() - usize::from(is_too_long)];
        self.body_bytes += bytes.len() as u64;
        if let Some(body) = &mut self.body {
            let room = BODY_KEPT_BYTES.saturating_sub(body.len());
            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        !is_too_long
    }

    /// Whether the body that is kept is the beginning of a longer one, or the body was not read to its end.
    pub(crate) fn is_truncated(&self) -> bool {
        let kept = self.body.as_ref().map(|body| body.len() as u64);
        !self.is_whole || kept.is_some_and(|kept| kept < self.body_bytes)
    }

    /// The body that is kept, if it is a text and not empty. A character that was cut at its end is left out.
    pub(crate) fn text(&self) -> Option<&str> {
        let body = self.body.as_ref().filter(|body| !body.is_empty())?;
        match std::str::from_utf8(body) {
            Ok(text) => Some(text),
            Err(error) if error.error_len().is_none() && self.is_truncated() => {
                let text = std::str::from_utf8(&body[..error.valid_up_to()]).ok()?;
                (!text.is_empty()).then_some(text)
            }
            Err(_) => None,
        }
    }

    /// The phases that there were, by name.
    pub(crate) fn phases(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let Times {
            resolve,
            connect,
            tls,
            first_byte,
        } = self.times;
        let phases = [
            ("resolve", resolve),
            ("connect", connect),
            ("tls", tls),
            ("first byte", Some(first_byte)),
        ];
        phases
            .into_iter()
            .filter_map(|(name, took)| Some((name, took?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(body: Option<&[u8]>) -> Answered {
        Answered {
            status: 503,
            body: body.map(<[u8]>::to_vec),
            body_bytes: body.map_or(7, |body| body.len() as u64),
            is_whole: true,
            times: Times {
                resolve: Some(Duration::from_micros(312)),
                connect: None,
                tls: Some(Duration::ZERO),
                first_byte: Duration::from_micros(u64::MAX),
            },
            ignored: Ignored::default(),
        }
    }

    #[test]
    fn an_answer_survives_storage_and_anything_else_is_none() {
        let longest = vec![0xff; BODY_KEPT_BYTES];
        let bodies = [None, Some(&b""[..]), Some(b"busy"), Some(&longest)];
        for (body, stop) in bodies
            .into_iter()
            .flat_map(|body| [(body, false), (body, true)])
        {
            let ignored = Ignored { next: false, stop };
            let answered = Answered {
                ignored,
                ..answered(body)
            };
            let encoded = answered.encode();
            assert_eq!(encoded[0], if stop { WITH_IGNORED } else { VERSION });
            assert!(encoded.len() <= Answer::MAX_BYTES);
            let decode = |bytes: &[u8]| Answered::decode(&Answer::new(bytes).unwrap());
            assert_eq!(decode(&encoded), Some(answered));
            for cut in 1..encoded.len() {
                assert_eq!(decode(&encoded[..cut]), None, "{cut} bytes");
            }
            let mut longer = encoded.clone();
            longer.push(0);
            assert_eq!(decode(&longer), None);
            let mut later = encoded;
            later[0] = WITH_IGNORED + 1;
            assert_eq!(decode(&later), None);
        }
    }

    #[test]
    fn so_much_of_a_body_is_read_and_so_much_kept() {
        for piece in [1, 1_000, 1_024, 5_000] {
            for (length, most) in [(0, 10), (9, 10), (10, 10), (11, 10), (9_000, 8_000)] {
                let mut answered = answered(Some(b""));
                let body: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
                let goes_on = body.chunks(piece).all(|bytes| answered.take(bytes, most));
                assert_eq!(goes_on, body.len() <= most, "{length} of {most} by {piece}");
                assert_eq!(answered.body_bytes, body.len().min(most) as u64);
                let kept = body.len().min(most).min(BODY_KEPT_BYTES);
                assert_eq!(answered.body.as_deref(), Some(&body[..kept]));
                assert_eq!(answered.is_truncated(), body.len().min(most) > kept);
            }
        }
        let mut redacted = answered(None);
        assert!(redacted.take(b"secret", 64) && redacted.body.is_none());
        assert_eq!((redacted.body_bytes, redacted.is_truncated()), (13, false));
    }

    #[test]
    fn a_text_is_one_also_if_its_last_character_was_cut() {
        let text = |body: &[u8], is_whole| {
            let answered = Answered {
                is_whole,
                ..answered(Some(body))
            };
            answered.text().map(str::to_owned)
        };
        assert_eq!(text("é".as_bytes(), true).as_deref(), Some("é"));
        assert_eq!(text(b"a\xc3", false).as_deref(), Some("a"));
        assert_eq!(text(b"a\xc3", true), None);
        assert_eq!(text(b"\xc3", false), None);
        assert_eq!(text(b"a\xff\xff", false), None);
        assert_eq!(text(b"", true), None);
    }
}
