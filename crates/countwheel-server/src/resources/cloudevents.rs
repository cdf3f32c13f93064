//! Deliveries as CloudEvents 1.0, in the binary mode of the binding to HTTP.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The longest source, in bytes.
const SOURCE_MAX_BYTES: usize = 2_048;
/// The longest type, in bytes.
const TYPE_MAX_BYTES: usize = 256;

/// What the deliveries of a queue say of themselves as events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CloudEvents {
    pub(crate) source: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

impl CloudEvents {
    /// The headers of one delivery.
    pub(crate) fn headers(
        &self,
        id: &str,
        subject: &str,
        time: &str,
    ) -> [(&'static str, String); 6] {
        [
            ("ce-specversion", "1.0".to_owned()),
            ("ce-id", encoded(id)),
            ("ce-source", encoded(&self.source)),
            ("ce-type", encoded(&self.kind)),
            ("ce-subject", encoded(subject)),
            ("ce-time", time.to_owned()),
        ]
    }
}

/// A text as the binding writes it in a header: blanks, quotes, percent signs and all that is no printable ASCII
/// are percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => {}
            b'!'..=b'~' => {
                encoded.push(char::from(byte));
                continue;
            }
            _ => {}
        }
        // A text takes all that is written to it.
        write!(encoded, "%{byte:02X}").unwrap_or_default();
    }
    encoded
}

/// Checks the type of events.
pub(crate) fn check_type(kind: &str) -> Result<(), String> {
    if kind.is_empty() || kind.len() > TYPE_MAX_BYTES {
        return Err(format!("a type has 1 to {TYPE_MAX_BYTES} bytes"));
    }
    if kind.chars().any(char::is_control) {
        return Err("a type has no control characters".to_owned());
    }
    Ok(())
}

/// Checks the source of events: a URI reference that is not empty (RFC 3986).
pub(crate) fn check_source(source: &str) -> Result<(), String> {
    if source.is_empty() || source.len() > SOURCE_MAX_BYTES {
        return Err(format!("a source has 1 to {SOURCE_MAX_BYTES} bytes"));
    }
    if is_reference(source) {
        Ok(())
    } else {
        Err("a source is a URI reference, such as /orders or https://example.com/orders".to_owned())
    }
}

fn is_reference(text: &str) -> bool {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let tail = |part: &str| is_made_of(part, b"/?:@");
    let (first, _) = text.split_once('/').unwrap_or((text, ""));
    // A colon in front of all slashes is behind a scheme.
    let rest = match first.split_once(':') {
        Some((scheme, _)) if !is_scheme(scheme) => return false,
        Some((scheme, _)) => &text[scheme.len() + 1..],
        None => text,
    };
    let (authority, path) = match rest.strip_prefix("//") {
        None => ("", rest),
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
    };
    is_authority(authority) && is_made_of(path, b"/:@") && tail(query) && tail(fragment)
}

fn is_scheme(text: &str) -> bool {
    let goes_on = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(goes_on)
}

/// Who, where, and at which port.
fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let (host, port) = match host.strip_prefix('[') {
        Some(literal) => {
            let Some((address, port)) = literal.split_once(']') else {
                return false;
            };
            if !is_made_of(address, b":") || address.is_empty() {
                return false;
            }
            ("", port)
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    is_port && is_made_of(user, b":") && is_made_of(host, b"")
}

/// Whether a part has only what any part may have, and these characters.
fn is_made_of(part: &str, more: &[u8]) -> bool {
    let bytes = part.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    bytes.iter().enumerate().all(|(at, &byte)| match byte {
        b'%' => is_hex(at + 1) && is_hex(at + 2),
        _ => {
            byte.is_ascii_alphanumeric()
                || b"-._~!$&'()*+,;=".contains(&byte)
                || more.contains(&byte)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_as_the_binding_says() {
        for (text, header) in [
            // The example of the specification.
            ("Euro \u{20ac} \u{1f600}", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("order-42", "order-42"),
            ("a/b?c#d&e=f~!", "a/b?c#d&e=f~!"),
            ("\"100%\"", "%22100%25%22"),
            ("%20", "%2520"),
            ("\u{7f}\t", "%7F%09"),
        ] {
            assert_eq!(encoded(text), header);
        }
    }

    #[test]
    fn a_source_is_a_reference_to_a_uri() {
        for good in [
            // The examples of the specification.
            "https://github.com/cloudevents",
            "mailto:cncf-wg-serverless@lists.cncf.io",
            "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
            "cloudevents/spec/pull/123",
            "/sensors/tn-1234567/alerts",
            "1-555-123-4567",
            "//example.com:80/a?b#c",
            "https://me:x@[::1]:80/",
            "/a%20b:c",
            "?q=1?",
            "#",
            "a/b:c",
        ] {
            assert_eq!(check_source(good), Ok(()), "{good}");
        }
        let long = format!("/{}", "x".repeat(SOURCE_MAX_BYTES));
        for bad in [
            "", " ", "/a b", "/ü", "/a%2", "/a%zz", "a#b#c", "1:b", ":b", "/[a]", "//[::1",
            "//[]/", "//a:b/", "//[a]b/", "/a\\b", "/<a>", "/a\"", &long,
        ] {
            assert!(check_source(bad).is_err(), "{bad}");
        }
        assert_eq!(check_source(&long[..SOURCE_MAX_BYTES]), Ok(()));
    }

    #[test]
    fn a_type_is_a_text_without_control_characters() {
        let long = "x".repeat(TYPE_MAX_BYTES + 1);
        for bad in ["", "a\nb", "a\u{80}", &long] {
            assert!(check_type(bad).is_err(), "{bad:?}");
        }
        for good in ["com.example.order.due", "é x", &long[1..]] {
            assert_eq!(check_type(good), Ok(()), "{good}");
        }
    }
}
