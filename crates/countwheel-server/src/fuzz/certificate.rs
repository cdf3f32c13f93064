//! The names in a caller's certificate.
//!
//! - The names are those of hosts and the URIs among the alternative names, in their order; the common names only where
//!   there are neither; and none where the alternative names are there twice or cannot be read.
//! - Every name stands in the certificate, byte for byte.
//!
//! An input is a certificate in DER, or a recipe for one: the parts of its names. Of a recipe it is known which names
//! are to be found.

use rustls::pki_types::CertificateDer;

use super::{Seen, seed};
use crate::callers::CertificateName;
use crate::tls::names_of;

/// Of alternative names, in their context; and of texts in a subject.
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;

pub(super) fn run(input: &[u8]) -> Seen {
    let Some((&form, rest)) = input.split_first() else {
        return Seen::Refused;
    };
    let recipe = (form & 1 == 1).then(|| Recipe::read(form, rest));
    let made = recipe.as_ref().map(Recipe::certificate);
    let der = made.as_deref().unwrap_or(rest);
    let names = names_of(&CertificateDer::from(der));
    for name in &names {
        let text = text_of(name).as_bytes();
        let is_there = text.is_empty() || der.windows(text.len()).any(|it| it == text);
        assert!(is_there, "{name} is not in the certificate");
    }
    let is_common = |name: &CertificateName| matches!(name, CertificateName::Common(_));
    let common = names.iter().filter(|name| is_common(name)).count();
    assert!(common == 0 || common == names.len(), "{names:?}");
    if let Some(recipe) = recipe {
        assert_eq!(names, recipe.names(), "{recipe:?}");
    }
    Seen::of(!names.is_empty())
}

fn text_of(name: &CertificateName) -> &str {
    match name {
        CertificateName::Dns(text) | CertificateName::Uri(text) | CertificateName::Common(text) => {
            text
        }
    }
}

/// What a certificate says of names.
#[derive(Debug)]
struct Recipe<'a> {
    /// Tags and bytes of alternative names.
    alternative: Vec<(u8, &'a [u8])>,
    /// Of the parts of the subject: whether it is the common name, its tag and its bytes.
    subject: Vec<(bool, u8, &'a [u8])>,
    /// How often the alternative names are there.
    times: usize,
}

impl<'a> Recipe<'a> {
    /// Reads parts: a kind, a length, so many bytes.
    fn read(form: u8, mut rest: &'a [u8]) -> Self {
        let mut recipe = Self {
            alternative: Vec::new(),
            subject: Vec::new(),
            times: usize::from(form >> 1 & 3).min(2),
        };
        while let [kind, length, behind @ ..] = rest {
            let (bytes, behind) = behind.split_at(behind.len().min((*length).into()));
            rest = behind;
            match kind % 8 {
                0 => recipe.alternative.push((DNS, bytes)),
                1 => recipe.alternative.push((URI, bytes)),
                2 => recipe.alternative.push((EMAIL, bytes)),
                3 => recipe.alternative.push((ADDRESS, bytes)),
                4 => recipe.subject.push((true, UTF8, bytes)),
                5 => recipe.subject.push((true, PRINTABLE, bytes)),
                6 => recipe.subject.push((true, IA5, bytes)),
                _ => recipe.subject.push((false, UTF8, bytes)),
            }
        }
        recipe
    }

    /// Which names are to be found.
    fn names(&self) -> Vec<CertificateName> {
        let is_read = |(tag, bytes): &(u8, &[u8])| *tag == ADDRESS || bytes.is_ascii();
        let is_there = self.times > 0;
        if self.times > 1 || (is_there && !self.alternative.iter().all(is_read)) {
            return Vec::new();
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut names = Vec::new();
        for (tag, bytes) in self.alternative.iter().filter(|_| is_there) {
            match *tag {
                DNS => names.push(CertificateName::Dns(text(bytes))),
                URI => names.push(CertificateName::Uri(text(bytes))),
                _ => {}
            }
        }
        if names.is_empty() {
            let is_printable =
                |byte: &u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(byte);
            let subject = self.subject.iter();
            let common = subject.filter(|(is_common, tag, bytes)| {
                let is_read = match *tag {
                    UTF8 => std::str::from_utf8(bytes).is_ok(),
                    PRINTABLE => bytes.iter().all(is_printable),
                    _ => false,
                };
                *is_common && is_read
            });
            names.extend(common.map(|(_, _, bytes)| CertificateName::Common(text(bytes))));
        }
        names
    }

    /// A certificate with these names, which nobody has signed.
    fn certificate(&self) -> Vec<u8> {
        const SEQUENCE: u8 = 0x30;
        const SET: u8 = 0x31;
        const BITS: u8 = 0x03;
        const OCTETS: u8 = 0x04;
        const OID: u8 = 0x06;
        let oid = |bytes: &[u8]| part(OID, bytes);
        let algorithm = part(
            SEQUENCE,
            &oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]),
        );
        let key_algorithm = [
            oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01]),
            oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]),
        ];
        let key = [
            part(SEQUENCE, &key_algorithm.concat()),
            part(BITS, &[0, 4, 1, 2]),
        ];
        let subject = self.subject.iter().map(|(is_common, tag, bytes)| {
            let kind = if *is_common { 0x03 } else { 0x0a };
            let parts = [oid(&[0x55, 0x04, kind]), part(*tag, bytes)];
            part(SET, &part(SEQUENCE, &parts.concat()))
        });
        let subject: Vec<u8> = subject.flatten().collect();
        let alternative = self.alternative.iter();
        let alternative: Vec<u8> = alternative
            .flat_map(|(tag, bytes)| part(*tag, bytes))
            .collect();
        let alternative = [
            oid(&[0x55, 0x1d, 0x11]),
            part(OCTETS, &part(SEQUENCE, &alternative)),
        ];
        let extensions = part(SEQUENCE, &alternative.concat()).repeat(self.times);
        let extensions = match self.times {
            0 => Vec::new(),
            _ => part(0xa3, &part(SEQUENCE, &extensions)),
        };
        let day = |text: &str| part(0x17, text.as_bytes());
        let body = [
            part(0xa0, &part(0x02, &[2])),
            part(0x02, &[7]),
            algorithm.clone(),
            part(SEQUENCE, &[]),
            part(
                SEQUENCE,
                &[day("200101000000Z"), day("490101000000Z")].concat(),
            ),
            part(SEQUENCE, &subject),
            part(SEQUENCE, &key.concat()),
            extensions,
        ];
        let whole = [
            part(SEQUENCE, &body.concat()),
            algorithm,
            part(BITS, &[0, 0]),
        ];
        part(SEQUENCE, &whole.concat())
    }
}

/// A part of DER: its tag, its length and its bytes.
fn part(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let length = &length[zeros.min(length.len() - 1)..];
    let long = 0x80 | u8::try_from(length.len()).unwrap_or(u8::MAX);
    let long = (bytes.len() >= 0x80).then_some(long);
    let mut all = vec![tag];
    all.extend(long);
    all.extend_from_slice(length);
    all.extend_from_slice(bytes);
    all
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let parts = |parts: &[(u8, &str)]| {
        let part = |&(kind, text): &(u8, &str)| {
            let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
            [&[kind, length], text.as_bytes()].concat()
        };
        parts.iter().flat_map(part).collect::<Vec<u8>>()
    };
    let both = parts(&[
        (0, "a.example"),
        (3, "\u{0}\u{1}\u{2}\u{3}"),
        (1, "spiffe://example.org/worker"),
        (4, "not this"),
    ]);
    let common = parts(&[
        (7, "organisation"),
        (4, "wörker 7"),
        (5, "worker 8"),
        (6, "no"),
    ]);
    let mail = parts(&[(2, "a@example"), (4, "uri:worker")]);
    let recipes = [(3, &both), (1, &common), (3, &common), (3, &mail)];
    let mut seeds: Vec<_> = recipes
        .iter()
        .map(|(form, rest)| seed(*form, rest))
        .collect();
    // The certificates themselves.
    for (form, rest) in recipes {
        seeds.push(seed(0, Recipe::read(form, rest).certificate()));
    }
    seeds
}
