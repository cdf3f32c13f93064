//! Trace context, after W3C Trace Context: what a set brings, and what its deliveries carry on.
//!
//! Not to be mixed up with a trace that is replayed.

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

/// The header with the ids.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The header with what the systems on the way note down.
pub(crate) const TRACESTATE: &str = "tracestate";
/// The longest `tracestate` that is kept, in bytes.
pub(crate) const STATE_MAX_BYTES: usize = 512;
/// How many members a `tracestate` may have.
const MEMBERS_MAX: usize = 32;
/// The flags that there are: sampled, and a trace id that is random.
const FLAGS: u8 = 0b11;
/// The length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;

/// The trace that a set belongs to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TraceContext {
    id: [u8; 16],
    flags: u8,
    state: Option<String>,
}

impl TraceContext {
    /// That of a request. `None` if it brings none, or one that breaks the rules of its format.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let (Some(parent), None) = (parents.next(), parents.next()) else {
            return None;
        };
        let (id, flags) = read_parent(parent.to_str().ok()?)?;
        let states = headers.get_all(TRACESTATE).iter();
        let states: Result<Vec<_>, _> = states.map(|value| value.to_str()).collect();
        let state = states.ok().and_then(|states| read_state(&states.join(",")));
        Some(Self { id, flags, state })
    }

    /// The id of the trace in hex.
    pub(crate) fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The `traceparent` of an attempt that is span `span` of the trace.
    pub(crate) fn parent(&self, span: u64) -> String {
        format!("00-{}-{span:016x}-{:02x}", self.id(), self.flags)
    }

    /// The `tracestate`, if there is one.
    pub(crate) fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// The id of a span: never all zero.
pub(crate) fn span() -> u64 {
    getrandom::u64().unwrap_or_default().max(1)
}

/// The trace id and the flags of a `traceparent`. Later versions begin as version 00 does.
fn read_parent(text: &str) -> Option<([u8; 16], u8)> {
    let bytes = text.as_bytes();
    let dashes = [2, 35, 52];
    let is_form = bytes.len() >= PARENT_BYTES && dashes.iter().all(|&at| bytes[at] == b'-');
    if !is_form {
        return None;
    }
    let [version] = hex(&bytes[..2])?;
    let is_length = match version {
        0 => bytes.len() == PARENT_BYTES,
        0xff => false,
        _ => bytes.len() == PARENT_BYTES || bytes[PARENT_BYTES] == b'-',
    };
    let id: [u8; 16] = hex(&bytes[3..35])?;
    let parent: [u8; 8] = hex(&bytes[36..52])?;
    let [flags] = hex(&bytes[53..55])?;
    let is_valid = is_length && id != [0; 16] && parent != [0; 8];
    is_valid.then_some((id, flags & FLAGS))
}

/// The bytes of hex digits in lower case.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The members of a `tracestate`, as many from the first on as there is room for. `None` if there is none, or one
/// of them breaks the rules.
fn read_state(text: &str) -> Option<String> {
    let members = text
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
    let mut keys: Vec<&str> = Vec::with_capacity(members.len().min(MEMBERS_MAX));
    if members.len() > MEMBERS_MAX {
        return None;
    }
    let mut state = String::new();
    let mut has_room = true;
    for member in members {
        let (key, value) = member.split_once('=')?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
        let comma = if state.is_empty() { "" } else { "," };
        has_room &= state.len() + comma.len() + member.len() <= STATE_MAX_BYTES;
        if has_room {
            state.push_str(comma);
            state.push_str(member);
        }
    }
    (!state.is_empty()).then_some(state)
}

fn is_key(key: &str) -> bool {
    let begins = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let goes_on = |byte: u8| begins(byte) || b"_-*/@".contains(&byte);
    let bytes = key.as_bytes();
    bytes.first().is_some_and(|&byte| begins(byte))
        && bytes.len() <= 256
        && bytes.iter().all(|&byte| goes_on(byte))
}

fn is_value(value: &str) -> bool {
    let is_character = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_character)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(parents: &[&str], states: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        let parents = parents.iter().map(|value| (TRACEPARENT, *value));
        for (name, value) in parents.chain(states.iter().map(|value| (TRACESTATE, *value))) {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::of(&headers)
    }

    #[test]
    fn a_parent_goes_on_with_its_trace_and_its_flags_under_another_span() {
        let trace = of(&[PARENT], &[]).unwrap();
        assert_eq!(trace.id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(trace.state(), None);
        assert_eq!(
            trace.parent(0x1f),
            "00-0af7651916cd43dd8448eb211c80319c-000000000000001f-01"
        );
        for (flags, kept) in [("00", "00"), ("02", "02"), ("ff", "03")] {
            let parent = format!("{}{flags}", &PARENT[..53]);
            let again = of(&[&parent], &[]).unwrap().parent(1);
            assert_eq!(&again[53..], kept);
        }
        // A later version begins as the first one does.
        for later in [
            format!("01{}", &PARENT[2..]),
            format!("cc{}-what-comes-then", &PARENT[2..]),
        ] {
            assert_eq!(of(&[&later], &[]).unwrap().parent(1)[..35], PARENT[..35]);
        }
    }

    #[test]
    fn a_parent_that_breaks_a_rule_is_none() {
        let zero = |from: usize, to: usize| {
            let zeros = "0".repeat(to - from);
            format!("{}{zeros}{}", &PARENT[..from], &PARENT[to..])
        };
        for bad in [
            String::new(),
            "00".to_owned(),
            PARENT[..54].to_owned(),
            format!("{PARENT}-"),
            format!("{PARENT}0"),
            format!("ff{}", &PARENT[2..]),
            format!("01{}x", &PARENT[2..]),
            format!("0x{}", &PARENT[2..]),
            PARENT.to_uppercase(),
            PARENT.replacen('-', "_", 1),
            PARENT.replace("-01", "-0g"),
            zero(3, 35),
            zero(36, 52),
        ] {
            assert_eq!(of(&[&bad], &["a=1"]), None, "{bad}");
        }
        assert_eq!(of(&[PARENT, PARENT], &[]), None);
        assert_eq!(of(&[], &["a=1"]), None);
    }

    #[test]
    fn a_state_is_kept_whole_cut_between_members_or_not_at_all() {
        let state = |states: &[&str]| of(&[PARENT], states).unwrap().state;
        let kept = |states: &[&str]| state(states).unwrap_or_default();
        assert_eq!(kept(&["rojo=00f067aa0ba902b7"]), "rojo=00f067aa0ba902b7");
        assert_eq!(
            kept(&["a=1,\t b@c=x y ,", "2*/-_=~"]),
            "a=1,b@c=x y,2*/-_=~"
        );
        let long = "x".repeat(256);
        let pair = format!("a={long},b={}", &long[..251]);
        assert_eq!(pair.len(), STATE_MAX_BYTES);
        assert_eq!(kept(&[&pair]), pair);
        let more = format!("{pair}x");
        assert_eq!(kept(&[&more]), pair[..258]);
        assert_eq!(kept(&[&format!("{more},c=1")]), pair[..258]);
        let many = |count: u32| {
            let members = (0..count).map(|at| format!("k{at}=1"));
            members.collect::<Vec<_>>().join(",")
        };
        assert_eq!(kept(&[&many(32)]), many(32));
        let key = format!("{}=1", "k".repeat(257));
        let value = format!("k={long}x");
        for bad in [
            "",
            " , ",
            "a",
            "a=",
            "=1",
            "A=1",
            "-a=1",
            "a=1=2",
            "a=é",
            "a=1,a=2",
            "a=1,b",
            &key,
            &value,
            &many(33),
        ] {
            assert_eq!(state(&[bad]), None, "{bad}");
        }
    }
}
