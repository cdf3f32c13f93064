//! Where requests begin and end.
//!
//! - The verdict is the same however the bytes are cut, and whether or not plain bytes of a body pass unseen.
//! - Readers that are lenient in different ways see every request that has passed begin and end where this one does.
//! - No more bytes wait than the longest head.

use super::{Seen, seed};
use crate::framing::{Framing, HEAD_MAX_BYTES, Step};

/// Where a request began, where its head ended, and where the whole of it did if it has come.
type Place = (usize, usize, Option<usize>);

/// The requests, how many bytes have passed, and what was refused.
type Verdict = (Vec<Place>, usize, Option<String>);

/// The first byte says where the rest is cut as well.
pub(super) fn run(input: &[u8]) -> Seen {
    let Some((&cut, bytes)) = input.split_first() else {
        return Seen::Refused;
    };
    let whole = verdict([bytes], false);
    let size = usize::from(cut) + 1;
    for passes_plain in [false, true] {
        for size in [1, 2, size] {
            let cut = verdict(bytes.chunks(size), passes_plain);
            assert_eq!(cut, whole, "cut into pieces of {size}");
        }
    }
    let (requests, _, fault) = whole;
    for number in 0..24 {
        let reader = Lenient {
            ends: [Ends::Pair, Ends::Feed, Ends::Either][number / 8],
            length_wins: number & 1 != 0,
            takes_last: number & 2 != 0,
            reads_sign: number & 4 != 0,
        };
        let mut at = 0;
        for &(begins, head_ends, ends) in &requests {
            at = reader.behind_empty_lines(bytes, at);
            let begins = reader.behind_empty_lines(bytes, begins);
            assert_eq!(at, begins, "{reader:?}: where a request begins");
            let (behind, body) = reader.head(bytes, at);
            assert_eq!(behind, head_ends, "{reader:?}: where a head ends");
            at = reader.body(bytes, head_ends, body);
            if let Some(ends) = ends {
                assert_eq!(at, ends, "{reader:?}: where a request ends");
            }
        }
    }
    Seen::of(fault.is_none() && !requests.is_empty())
}

fn verdict<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, passes_plain: bool) -> Verdict {
    let mut framing = Framing::default();
    let (mut held, mut passed) = (Vec::new(), 0);
    let mut requests: Vec<Place> = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        loop {
            let plain = usize::try_from(framing.plain()).unwrap_or(usize::MAX);
            let plain = plain.min(held.len());
            let length = if passes_plain && plain > 0 {
                framing.passed(plain as u64);
                plain
            } else {
                match framing.step(&held) {
                    Step::Head(length) => {
                        requests.push((passed, passed + length, None));
                        length
                    }
                    Step::Body(length) => length,
                    Step::More => break,
                    Step::Refused(fault) => return (requests, passed, Some(format!("{fault:?}"))),
                }
            };
            assert!((1..=held.len()).contains(&length), "a step of {length}");
            passed += length;
            held.drain(..length);
            if let Some((_, _, ends @ None)) = requests.last_mut() {
                *ends = (!framing.is_in_body()).then_some(passed);
            }
        }
        assert!(held.len() <= HEAD_MAX_BYTES, "{} bytes wait", held.len());
    }
    (requests, passed, None)
}

/// A reader of requests that takes what is wrong for something.
#[derive(Clone, Copy, Debug)]
struct Lenient {
    ends: Ends,
    /// Whether a length counts beside a transfer coding.
    length_wins: bool,
    /// Whether the last of several lengths counts, and the first otherwise.
    takes_last: bool,
    /// Whether a length may have a sign.
    reads_sign: bool,
}

/// What ends a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// A carriage return and a line feed.
    Pair,
    /// A line feed, with a carriage return before it or without.
    Feed,
    /// A carriage return, a line feed, or both.
    Either,
}

#[derive(Clone, Copy)]
enum Body {
    Length(usize),
    Chunks,
}

impl Lenient {
    /// The line that begins at `at`, and where the next one begins; `None` if it has no end.
    fn line(self, bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
        let rest = bytes.get(at..)?;
        let mut places = 0..rest.len();
        let end = places.find(|&place| match (self.ends, rest[place]) {
            (Ends::Pair, byte) => byte == b'\n' && place > 0 && rest[place - 1] == b'\r',
            (Ends::Feed, byte) => byte == b'\n',
            (Ends::Either, byte) => byte == b'\n' || byte == b'\r',
        })?;
        let is_pair = rest[end] == b'\r' && rest.get(end + 1) == Some(&b'\n');
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        Some((line, at + end + if is_pair { 2 } else { 1 }))
    }

    fn behind_empty_lines(self, bytes: &[u8], mut at: usize) -> usize {
        while let Some((b"", next)) = self.line(bytes, at) {
            at = next;
        }
        at
    }

    /// Where the head ends that begins at `at`, and what it says of a body.
    fn head(self, bytes: &[u8], mut at: usize) -> (usize, Body) {
        let (mut lengths, mut has_chunks) = (Vec::new(), false);
        while let Some((line, next)) = self.line(bytes, at) {
            at = next;
            if line.is_empty() {
                break;
            }
            let text = String::from_utf8_lossy(line).to_ascii_lowercase();
            let (name, value) = text.split_once(':').unwrap_or((&text, ""));
            match name.trim() {
                "content-length" => {
                    let value = value.trim();
                    let unsigned = value.trim_start_matches('+');
                    let value = if self.reads_sign { unsigned } else { value };
                    let end = value.find(|it: char| !it.is_ascii_digit());
                    let digits = &value[..end.unwrap_or(value.len())];
                    lengths.push(digits.parse().unwrap_or(usize::MAX));
                }
                "transfer-encoding" => has_chunks |= value.contains("chunked"),
                _ => {}
            }
        }
        let length = if self.takes_last {
            lengths.last()
        } else {
            lengths.first()
        };
        let body = match length {
            Some(&length) if self.length_wins || !has_chunks => Body::Length(length),
            _ if has_chunks => Body::Chunks,
            _ => Body::Length(0),
        };
        (at, body)
    }

    /// Where the body ends that begins at `at`: at the end of the bytes if they have no more of it.
    fn body(self, bytes: &[u8], at: usize, body: Body) -> usize {
        match body {
            Body::Length(length) => at.saturating_add(length).min(bytes.len()),
            Body::Chunks => self.chunks(bytes, at).unwrap_or(bytes.len()),
        }
    }

    fn chunks(self, bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            let (line, next) = self.line(bytes, at)?;
            let text = String::from_utf8_lossy(line);
            let text = text.trim();
            let end = text.find(|it: char| !it.is_ascii_hexdigit());
            let digits = &text[..end.unwrap_or(text.len())];
            let length = usize::from_str_radix(digits, 16).ok()?;
            at = next.checked_add(length)?;
            if length == 0 {
                break;
            }
            let (_, behind) = self.line(bytes, at)?;
            at = behind;
        }
        loop {
            let (line, next) = self.line(bytes, at)?;
            at = next;
            if line.is_empty() {
                return Some(at);
            }
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let post = "POST /v1/batch HTTP/1.1\r\nhost: x\r\n";
    let next = "GET /next?a=b HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n";
    let requests = [
        format!("{next}{next}"),
        format!("\r\nGET / HTTP/1.0\r\n\r\n{next}"),
        format!("OPTIONS * HTTP/1.1\r\nhost:\t x \r\n\r\n{next}"),
        format!("GET http://x/a HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\n\r\n{next}"),
        format!("{post}content-length: 0\r\n\r\n{next}"),
        format!("{post}Content-Length: 5\r\nexpect: 100-continue\r\n\r\nGET /{next}"),
        format!("{post}transfer-encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n{next}"),
        format!(
            "{post}transfer-encoding: Chunked \r\n\r\n0A;a=\"b\";c\r\n0123456789\r\n1\r\n\n\r\n00\r\nt: 7\r\n\r\n{next}"
        ),
    ];
    let cuts = [0, 3, 17, 255].into_iter().cycle();
    let requests = requests.iter().zip(cuts);
    requests.map(|(it, cut)| seed(cut, it)).collect()
}
