//! Finds where each request on a connection begins and ends (RFC 9112), before other code acts on
//! it.
//!
//! If two readers of one connection see its requests begin in different places, an attacker can
//! make one of them take a part of one request for another. So this module refuses every request
//! that a second reader could read differently, even if the reader behind would accept it: that
//! reader takes a bare line feed for the end of a line, and drops a length beside a transfer coding
//! before later code can see it.
//!
//! The module is a state machine over bytes, and holds none: its caller keeps the bytes that have
//! not passed yet. The verdict is the same however the bytes were cut.

use axum::http::{Uri, header};
use httparse::{EMPTY_HEADER, Status};

/// Room for the longest path, and 16 KiB of headers.
pub(crate) const HEAD_MAX_BYTES: usize = 24 << 10;
pub(crate) const HEADERS_MAX: usize = 64;
/// The longest trailer section of a body in chunks.
const TRAILERS_MAX_BYTES: usize = 4 << 10;
const TRAILERS_MAX: usize = 16;
/// The digits of a chunk's length; as many as fit 64 bits.
const DIGITS_MAX: u32 = 16;
/// The longest extension of a chunk.
const EXTENSION_MAX_BYTES: u32 = 256;

/// What is wrong with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// They can be read in two ways, or in none.
    Malformed(&'static str),
    /// A transfer coding that nobody knows here.
    UnknownCoding,
    /// A head that is too long, or has too many headers.
    TooLarge,
}

/// What becomes of the bytes that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// So many are a whole head, and can be passed on.
    Head(usize),
    /// So many are of a body, and can be passed on.
    Body(usize),
    /// More are needed.
    More,
    /// What comes next is refused.
    Refused(Fault),
}

/// Where on a connection the bytes are that come next.
#[derive(Debug)]
pub(crate) struct Framing {
    place: At,
    /// So many of the bytes that were not passed on yet were looked at.
    seen: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Head(Line),
    /// In a body with so many bytes left.
    Length(u64),
    /// In a chunk with so many bytes left.
    Chunk(u64),
    /// In the line before a chunk.
    Size {
        digits: u32,
        bytes: u64,
    },
    Extension {
        length: u32,
        bytes: u64,
    },
    /// Before the line feed that ends that line.
    SizeEnd(u64),
    /// Before the carriage return, or the line feed, behind a chunk.
    ChunkEnd {
        has_return: bool,
    },
    Trailers(Line),
    Refused(Fault),
}

/// Where in a line of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    is_empty: bool,
    has_return: bool,
    /// Whether a line before it had anything in it.
    has_before: bool,
}

impl Line {
    const FIRST: Self = Self {
        is_empty: true,
        has_return: false,
        has_before: false,
    };

    /// Goes on by a byte. `Ok(true)` if that ends the last line.
    fn take(&mut self, byte: u8) -> Result<bool, Fault> {
        match (self.has_return, byte) {
            (true, b'\n') => {
                let is_end = self.is_empty && self.has_before;
                *self = Self {
                    is_empty: true,
                    has_return: false,
                    has_before: self.has_before || !self.is_empty,
                };
                Ok(is_end)
            }
            (true, _) | (false, b'\n') => Err(Fault::Malformed("a line ends with CR LF")),
            (false, b'\r') => {
                self.has_return = true;
                Ok(false)
            }
            (false, _) => {
                self.is_empty = false;
                Ok(false)
            }
        }
    }
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            place: At::Head(Line::FIRST),
            seen: 0,
        }
    }
}

impl Framing {
    /// Whether a body has begun that is not at its end.
    pub(crate) const fn is_in_body(&self) -> bool {
        !matches!(self.place, At::Head(_))
    }

    /// How many bytes follow that are a body's, whatever they are.
    pub(crate) const fn plain(&self) -> u64 {
        match self.place {
            At::Length(left) => left,
            _ => 0,
        }
    }

    /// So many plain bytes were passed on without a look.
    pub(crate) fn passed(&mut self, bytes: u64) {
        if let At::Length(left) = &mut self.place {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.place = At::Head(Line::FIRST);
            }
        }
    }

    /// What becomes of `bytes`, which are all that came and were not passed on yet.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Step {
        let step = match self.place {
            At::Head(line) => self.head(line, bytes),
            At::Trailers(line) => self.trailers(line, bytes),
            At::Length(_) if !bytes.is_empty() => {
                let passed = bytes.len().min(clamped(self.plain()));
                self.passed(passed as u64);
                Ok(Step::Body(passed))
            }
            At::Length(_) => Ok(Step::More),
            At::Refused(fault) => Err(fault),
            _ => self.chunks(bytes),
        };
        step.unwrap_or_else(|fault| {
            // Which of the two it was is still asked for.
            if self.is_in_body() {
                self.place = At::Refused(fault);
            }
            Step::Refused(fault)
        })
    }

    /// Looks at lines up to the empty one. Where they end, if they do.
    fn lines(
        &mut self,
        mut line: Line,
        bytes: &[u8],
        most: usize,
    ) -> Result<Result<usize, Line>, Fault> {
        for (index, &byte) in bytes.iter().enumerate().skip(self.seen) {
            if index == most {
                return Err(Fault::TooLarge);
            }
            if line.take(byte)? {
                self.seen = 0;
                return Ok(Ok(index + 1));
            }
        }
        self.seen = bytes.len();
        Ok(Err(line))
    }

    fn head(&mut self, line: Line, bytes: &[u8]) -> Result<Step, Fault> {
        match self.lines(line, bytes, HEAD_MAX_BYTES)? {
            Ok(end) => {
                self.place = after(&bytes[..end])?;
                Ok(Step::Head(end))
            }
            Err(line) => {
                self.place = At::Head(line);
                Ok(Step::More)
            }
        }
    }

    fn trailers(&mut self, line: Line, bytes: &[u8]) -> Result<Step, Fault> {
        match self.lines(line, bytes, TRAILERS_MAX_BYTES)? {
            Ok(end) => {
                let mut trailers = [EMPTY_HEADER; TRAILERS_MAX];
                httparse::parse_headers(&bytes[..end], &mut trailers)
                    .map_err(|_| Fault::Malformed("what follows the last chunk is no header"))?;
                self.place = At::Head(Line::FIRST);
                Ok(Step::Body(end))
            }
            Err(line) => {
                self.place = At::Trailers(line);
                Ok(Step::More)
            }
        }
    }

    fn chunks(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let mut index = 0;
        while let Some(&byte) = bytes.get(index) {
            if let At::Chunk(left) = self.place {
                let passed = (bytes.len() - index).min(clamped(left));
                index += passed;
                self.place = match left - passed as u64 {
                    0 => At::ChunkEnd { has_return: false },
                    left => At::Chunk(left),
                };
                continue;
            }
            match chunk(self.place, byte) {
                Ok(place) => self.place = place,
                // What is right before it goes first.
                Err(fault) if index == 0 => return Err(fault),
                Err(_) => break,
            }
            index += 1;
            if matches!(self.place, At::Trailers(_)) {
                break;
            }
        }
        Ok(if index == 0 {
            Step::More
        } else {
            Step::Body(index)
        })
    }
}

/// What comes behind `byte`, which stands in or around the line before a chunk.
fn chunk(place: At, byte: u8) -> Result<At, Fault> {
    Ok(match (place, byte) {
        (At::Size { digits, bytes }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
            if digits < DIGITS_MAX =>
        {
            let digit = char::from(byte).to_digit(16).unwrap_or_default();
            At::Size {
                digits: digits + 1,
                bytes: bytes << 4 | u64::from(digit),
            }
        }
        (At::Size { digits: 1.., bytes }, b';') => At::Extension { length: 0, bytes },
        (At::Size { digits: 1.., bytes } | At::Extension { bytes, .. }, b'\r') => {
            At::SizeEnd(bytes)
        }
        (At::Size { .. }, _) => {
            return Err(Fault::Malformed("a chunk begins with its length in hex"));
        }
        (At::Extension { length, bytes }, b'\t' | b' '..=b'~' | 0x80..)
            if length < EXTENSION_MAX_BYTES =>
        {
            let length = length + 1;
            At::Extension { length, bytes }
        }
        (At::Extension { .. }, _) => {
            return Err(Fault::Malformed(
                "an extension of a chunk is at most 256 characters",
            ));
        }
        // An empty line may follow at once, as if a line had come before.
        (At::SizeEnd(0), b'\n') => At::Trailers(Line {
            has_before: true,
            ..Line::FIRST
        }),
        (At::SizeEnd(bytes), b'\n') => At::Chunk(bytes),
        (At::ChunkEnd { has_return: false }, b'\r') => At::ChunkEnd { has_return: true },
        (At::ChunkEnd { has_return: true }, b'\n') => At::Size {
            digits: 0,
            bytes: 0,
        },
        (At::ChunkEnd { .. }, _) => {
            return Err(Fault::Malformed(
                "a chunk has as many bytes as it says, and CR LF",
            ));
        }
        _ => return Err(Fault::Malformed("a line ends with CR LF")),
    })
}

/// What comes behind a whole head.
fn after(head: &[u8]) -> Result<At, Fault> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(length)) if length == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooLarge),
        Ok(_) | Err(_) => return Err(Fault::Malformed("this is no head of a request in HTTP/1.1")),
    }
    if !is_target(
        request.method.unwrap_or_default(),
        request.path.unwrap_or_default(),
    ) {
        return Err(Fault::Malformed(
            "what is asked for is a path, or a URL without a fragment, with #, <, > and ` escaped",
        ));
    }
    let values = |name: header::HeaderName| {
        let headers = request.headers.iter();
        headers
            .filter(move |header| header.name.eq_ignore_ascii_case(name.as_str()))
            .map(|header| header.value)
    };
    let mut lengths = values(header::CONTENT_LENGTH);
    let mut codings = values(header::TRANSFER_ENCODING);
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(At::Head(Line::FIRST)),
        (Some(_), Some(_)) => Err(Fault::Malformed(
            "content-length and transfer-encoding exclude each other",
        )),
        (Some(length), None) => {
            let length = length_of(length).filter(|_| lengths.next().is_none());
            match length.ok_or(Fault::Malformed("content-length is one whole number"))? {
                0 => Ok(At::Head(Line::FIRST)),
                length => Ok(At::Length(length)),
            }
        }
        (None, Some(coding)) => {
            if codings.next().is_some() || request.version == Some(0) {
                return Err(Fault::Malformed(
                    "transfer-encoding is one header, in HTTP/1.1",
                ));
            }
            chunked(coding)?;
            Ok(At::Size {
                digits: 0,
                bytes: 0,
            })
        }
    }
}

/// Whether the target of a request (RFC 9112, section 3.2) names what the reader behind takes it for.
/// That one drops what follows a `#`, and would act on the rest.
fn is_target(method: &str, target: &str) -> bool {
    let has_form = match method {
        // A tunnel is nothing that anybody gets here.
        "CONNECT" => false,
        "OPTIONS" if target == "*" => true,
        _ => {
            let scheme = target.split_once("://").map(|(scheme, _)| scheme);
            target.starts_with('/')
                || scheme.is_some_and(|scheme| {
                    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
                })
        }
    };
    has_form && !target.contains('#') && target.parse::<Uri>().is_ok()
}

/// Digits and nothing else, as many as fit 64 bits.
fn length_of(value: &[u8]) -> Option<u64> {
    let is_plain = value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok()?;
    text.parse().ok().filter(|_| is_plain)
}

/// Refuses what is not `chunked` alone: other codings are unknown, and where that one is not once
/// and at the end, nothing says where the body ends.
fn chunked(coding: &[u8]) -> Result<(), Fault> {
    let mut codings = coding.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let last = codings.next_back().unwrap_or_default();
    let mut others = codings.peekable();
    if others.peek().is_none() && is_chunked(last) {
        return Ok(());
    }
    let is_odd = last.is_empty() || others.any(|coding| coding.is_empty() || is_chunked(coding));
    Err(if is_odd {
        Fault::Malformed("chunked is the last transfer coding, and there once")
    } else {
        Fault::UnknownCoding
    })
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of bytes that come in pieces: where heads end, where a body's last byte is, and
    /// what is refused.
    fn verdict<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<usize>, usize, Option<Fault>) {
        let mut framing = Framing::default();
        let (mut held, mut passed, mut heads) = (Vec::new(), 0, Vec::new());
        for piece in pieces {
            held.extend_from_slice(piece);
            loop {
                match framing.step(&held) {
                    Step::Head(length) => {
                        passed += length;
                        heads.push(passed);
                        held.drain(..length);
                    }
                    Step::Body(length) => {
                        assert!(length > 0);
                        passed += length;
                        held.drain(..length);
                    }
                    Step::More => break,
                    Step::Refused(fault) => return (heads, passed, Some(fault)),
                }
            }
        }
        (heads, passed, None)
    }

    /// The same, whole, cut in two at every offset, and byte by byte.
    #[track_caller]
    fn verdict_of(bytes: &[u8]) -> (Vec<usize>, usize, Option<Fault>) {
        let whole = verdict([bytes]);
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(verdict([first, second]), whole, "cut at {cut}");
        }
        assert_eq!(verdict(bytes.chunks(1)), whole, "byte by byte");
        whole
    }

    const NEXT: &str = "GET /next HTTP/1.1\r\nhost: x\r\n\r\n";

    #[test]
    fn what_is_in_due_form_ends_where_it_says() {
        let post = "POST / HTTP/1.1\r\nhost: x\r\n";
        for request in [
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nhost:x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: \t x \t\r\nx:\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET HTTP://x/a?b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a|b\"{c}^[d]\\ü?e|f[g]`h HTTP/1.1\r\nhost: x\r\n\r\n",
            &*format!("{post}content-length: 0\r\n\r\n"),
            &*format!("{post}CONTENT-LENGTH:\t5 \r\n\r\nGET /"),
            &*format!("{post}content-length: 00005\r\n\r\n\r\n\r\n\n"),
            &*format!("{post}transfer-encoding: Chunked\r\n\r\n0\r\n\r\n"),
            &*format!("{post}transfer-encoding: chunked \r\n\r\n5\r\nGET /\r\n00\r\n\r\n"),
            &*format!(
                "{post}transfer-encoding: chunked\r\n\r\n5;a=\"b c\";d\r\n\r\n\n\r\n\r\n0;x\r\n\r\n"
            ),
            &*format!(
                "{post}transfer-encoding: chunked\r\n\r\naA\r\n{}\r\n0\r\na: b\r\nc:\r\n\r\n",
                "7".repeat(170)
            ),
        ] {
            let bytes = format!("{request}{NEXT}");
            let (heads, passed, fault) = verdict_of(bytes.as_bytes());
            assert_eq!((passed, fault), (bytes.len(), None), "{request:?}");
            assert_eq!(heads.len(), 2, "{request:?}");
            assert_eq!(heads[1], bytes.len(), "{request:?}");
        }
    }

    #[test]
    fn a_head_that_leaves_doubt_is_refused_with_all_behind_it() {
        let post = "POST / HTTP/1.1\r\nhost: x\r\n";
        for head in [
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 0\r\n",
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5\r\nContent-Length: 6\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length: -5\r\n",
            "content-length: 0x5\r\n",
            "content-length: 5 5\r\n",
            "content-length:\r\n",
            "content-length: 18446744073709551616\r\n",
            "content-length : 5\r\n",
            "content-length\t: 5\r\n",
            " content-length: 5\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: chunked, identity\r\n",
            "transfer-encoding: chunked,\r\n",
            "transfer-encoding: ,chunked\r\n",
            "transfer-encoding:\r\n",
            "transfer-encoding: \x0bchunked\r\n",
            "transfer-encoding : chunked\r\n",
            "transfer-encoding:\r\n chunked\r\n",
            "x: a\r\n folded\r\n",
            "x: a\r\n\tfolded\r\n",
            "x: a\ntransfer-encoding: chunked\r\n",
            "x: a\rtransfer-encoding: chunked\r\n",
            "x: a\r\r\n",
            "x: a\r\n\n",
            "x: a\0b\r\n",
            "no colon\r\n",
            ": no name\r\n",
            "a b: c\r\n",
        ] {
            let request = format!("{post}{head}\r\n0\r\n\r\n{NEXT}");
            let (heads, passed, fault) = verdict_of(request.as_bytes());
            assert!(
                matches!(fault, Some(Fault::Malformed(_))),
                "{head:?} {fault:?}"
            );
            assert_eq!((heads.len(), passed), (0, 0), "{head:?}");
        }
        for head in [
            "GET / HTTP/1.1\nhost: x\n\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET  / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.1 \r\nhost: x\r\n\r\n",
            "GET /\r\nhost: x\r\n\r\n",
            "GET / HTTP/2.0\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            "\0GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a#b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a?b#c HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET # HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET ?a HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET a HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET * HTTP/1.1\r\nhost: x\r\n\r\n",
            "OPTIONS *a HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a<b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a>b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a`b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /a?b<c HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET http://x/a#b HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET http:///a HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET ftp://x/a HTTP/1.1\r\nhost: x\r\n\r\n",
            "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
            "CONNECT * HTTP/1.1\r\nhost: x\r\n\r\n",
            "CONNECT / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            let (heads, passed, fault) = verdict_of(format!("{head}{NEXT}").as_bytes());
            assert!(
                matches!(fault, Some(Fault::Malformed(_))),
                "{head:?} {fault:?}"
            );
            assert_eq!((heads.len(), passed), (0, 0), "{head:?}");
        }
    }

    #[test]
    fn a_coding_that_nobody_knows_is_said_to_be_unknown() {
        for coding in [
            "gzip",
            "gzip, chunked",
            "identity",
            "xchunked",
            "chunked;q=1",
        ] {
            let head = format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: {coding}\r\n\r\n");
            let (_, passed, fault) = verdict_of(head.as_bytes());
            assert_eq!((passed, fault), (0, Some(Fault::UnknownCoding)), "{coding}");
        }
    }

    #[test]
    fn a_body_whose_chunks_leave_doubt_is_refused_with_all_behind_it() {
        let head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let extension = "e".repeat(257);
        let trailers = "t: 7\r\n".repeat(17);
        for body in [
            "5\nGET /\r\n0\r\n\r\n",
            "5\r\nGET /\n0\r\n\r\n",
            "5\r\nGET /\r\n0\n\r\n",
            "5\r\nGET /\r\n0\r\n\n",
            "5\r\nGET /\r\r\n0\r\n\r\n",
            "5\r\nGET / \r\n0\r\n\r\n",
            "5\r\nGET\r\n0\r\n\r\n",
            "+5\r\nGET /\r\n0\r\n\r\n",
            "-5\r\nGET /\r\n0\r\n\r\n",
            "0x5\r\nGET /\r\n0\r\n\r\n",
            " 5\r\nGET /\r\n0\r\n\r\n",
            "5 \r\nGET /\r\n0\r\n\r\n",
            "5 ;a\r\nGET /\r\n0\r\n\r\n",
            "5;a\nb\r\nGET /\r\n0\r\n\r\n",
            "5;a\0\r\nGET /\r\n0\r\n\r\n",
            ";a\r\n0\r\n\r\n",
            "\r\n0\r\n\r\n",
            "00000000000000005\r\nGET /\r\n0\r\n\r\n",
            "fffffffffffffffff\r\nGET /\r\n0\r\n\r\n",
            "0\r\nno colon\r\n\r\n",
            "0\r\na : b\r\n\r\n",
            "0\r\na: b\n\r\n",
            &*format!("5;{extension}\r\nGET /\r\n0\r\n\r\n"),
            &*format!("0\r\n{trailers}\r\n"),
        ] {
            let request = format!("{head}{body}{NEXT}");
            let (heads, passed, fault) = verdict_of(request.as_bytes());
            assert!(
                matches!(fault, Some(Fault::Malformed(_))),
                "{body:?} {fault:?}"
            );
            assert_eq!(heads, [head.len()], "{body:?}");
            assert!(passed < request.len() - NEXT.len(), "{body:?}");
        }
    }

    #[test]
    fn heads_and_what_follows_bodies_are_bounded() {
        let long = format!("GET / HTTP/1.1\r\nx: {}", "7".repeat(HEAD_MAX_BYTES));
        assert_eq!(verdict([long.as_bytes()]).2, Some(Fault::TooLarge));
        assert_eq!(
            verdict(long.as_bytes().chunks(100)).2,
            Some(Fault::TooLarge)
        );
        let fits = HEAD_MAX_BYTES - "GET / HTTP/1.1\r\nx: \r\n\r\n".len();
        for (length, fault) in [(fits, None), (fits + 1, Some(Fault::TooLarge))] {
            let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "7".repeat(length));
            assert_eq!(verdict([head.as_bytes()]).2, fault);
        }
        let many = "x: 7\r\n".repeat(HEADERS_MAX + 1);
        let head = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(verdict([head.as_bytes()]).2, Some(Fault::TooLarge));
        let head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let trailers = format!("{head}0\r\nx: {}", "7".repeat(TRAILERS_MAX_BYTES));
        assert_eq!(verdict([trailers.as_bytes()]).2, Some(Fault::TooLarge));
    }
}
