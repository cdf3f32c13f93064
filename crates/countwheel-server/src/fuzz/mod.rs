//! What a fuzzer hands to the readers of what callers and the operator send, and what those readers have to do with
//! it. Compiled in with the feature `fuzzing` alone.
//!
//! Whatever the bytes are, no reader panics or loops: the fuzzer bounds the time and the memory of each input. Beyond
//! that, each target has rules of its own, which its module states. A rule compares the reader with a second one that
//! is written another way, or writes what was read and reads that again.
//!
//! ```
//! use countwheel_server::fuzz::{Seen, Target};
//!
//! for target in Target::ALL {
//!     let input = &target.seeds()[0];
//!     assert_eq!(target.run(input), Seen::Right, "{target:?}");
//!     target.run(b"of no use");
//! }
//! ```

mod certificate;
mod config;
mod cookie;
mod framing;
mod json;
mod url;

/// A reader of what callers or the operator send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// URLs of targets, paths behind them, queries, and where deliveries may go.
    Url,
    /// Bodies of requests and lines of batches.
    Json,
    /// Where requests begin and end on a connection in HTTP/1.
    Framing,
    /// The command line of the service, and files that it names: keys, tokens.
    Config,
    /// Sessions of the pages.
    Cookie,
    /// The names in a caller's certificate.
    Certificate,
}

/// What a reader made of its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Refused.
    Refused,
    /// Read.
    Right,
}

impl Seen {
    fn of(is_right: bool) -> Self {
        if is_right { Self::Right } else { Self::Refused }
    }
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Url,
        Self::Json,
        Self::Framing,
        Self::Config,
        Self::Cookie,
        Self::Certificate,
    ];

    /// Its name, which its corpus and its program have too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::Json => "json",
            Self::Framing => "framing",
            Self::Config => "config",
            Self::Cookie => "cookie",
            Self::Certificate => "certificate",
        }
    }

    /// Hands an input to the reader.
    ///
    /// # Panics
    /// If the reader breaks one of its rules.
    #[expect(
        clippy::must_use_candidate,
        reason = "a return without a panic is what counts"
    )]
    pub fn run(self, input: &[u8]) -> Seen {
        match self {
            Self::Url => url::run(input),
            Self::Json => json::run(input),
            Self::Framing => framing::run(input),
            Self::Config => config::run(input),
            Self::Cookie => cookie::run(input),
            Self::Certificate => certificate::run(input),
        }
    }

    /// Inputs to begin with. The reader takes each of them.
    #[must_use]
    pub fn seeds(self) -> Vec<Vec<u8>> {
        match self {
            Self::Url => url::seeds(),
            Self::Json => json::seeds(),
            Self::Framing => framing::seeds(),
            Self::Config => config::seeds(),
            Self::Cookie => cookie::seeds(),
            Self::Certificate => certificate::seeds(),
        }
    }
}

/// An input that begins with the number of what is read, and its text.
fn seed(kind: u8, text: impl AsRef<[u8]>) -> Vec<u8> {
    [&[kind], text.as_ref()].concat()
}
