//! The identity of a caller, for the limits.
//!
//! A limit per address is a limit per machine only if the address is the caller's own. One machine
//! has a whole /64 of IPv6, so the addresses of a /64 count as one. Behind a proxy every connection
//! has the address of the proxy. The service believes a proxy about its callers if the operator
//! trusts it, and no other peer.
//! A caller at a socket of the file system has no address, and counts by its user.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;
use parking_lot::Mutex;
use proxy_header::{ParseConfig, ProxyHeader};

use crate::quotas::Connected;

/// The header in which each proxy notes who it was called by, the last one at the end.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// The longest header of the PROXY protocol in version 2 that is read. Addresses take 52 bytes; the
/// rest are notes, such as the name that TLS was asked for.
const PREFACE_MAX_BYTES: usize = 4 << 10;
/// The longest that there is in version 1.
const FIRST_MAX_BYTES: usize = 107;
/// Where one in version 2 says how much follows.
const SECOND_LENGTH: std::ops::Range<usize> = 14..16;
/// How the two versions of it begin.
const PREFACES: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    /// From this address.
    Address(IpAddr),
    /// From a process of this machine that runs as this user.
    User(u32),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(user) => write!(f, "user {user}"),
        }
    }
}

/// A name of the certificate that a caller has shown, and that an authority of the operator has signed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum CertificateName {
    /// A host, of the alternative names.
    Dns(String),
    /// A URI, of the alternative names, such as `spiffe://example.org/worker`.
    Uri(String),
    /// The common name of the subject, where there is neither of them.
    Common(String),
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Self::Dns(name) => ("dns", name),
            Self::Uri(name) => ("uri", name),
            Self::Common(name) => ("cn", name),
        };
        write!(f, "{kind}:{name}")
    }
}

/// Who is at the other end of a connection, as far as the connection tells. Each request has it as an extension. It says
/// nothing of who a proxy calls for.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Where it comes from; where a header of the PROXY protocol says it, what that says.
    pub(crate) source: Source,
    /// The names of the certificate that it has shown and that was verified; `None` without one.
    pub(crate) certificate: Option<Arc<[CertificateName]>>,
    /// Whether it speaks TLS.
    pub(crate) is_tls: bool,
    /// The namespace that the connection counts for.
    pub(crate) counted: Arc<Mutex<Option<Connected>>>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)?;
        let names = self.certificate.as_deref().unwrap_or_default();
        names.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

/// Who counts as one: an IPv4 address, a /64 of IPv6, or a user of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Caller(Source);

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Source> for Caller {
    fn from(source: Source) -> Self {
        match source {
            Source::Address(address) => address.into(),
            Source::User(_) => Self(source),
        }
    }
}

impl From<IpAddr> for Caller {
    fn from(address: IpAddr) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
        };
        Self(Source::Address(address))
    }
}

/// The proxies whose word about callers is taken.
#[derive(Clone, Default, Debug)]
pub struct Proxies(Vec<IpNet>);

impl Proxies {
    /// Those with an address in one of `networks`.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether the peer at `source` is one of them.
    pub(crate) fn trusts(&self, source: impl Into<Source>) -> bool {
        let Source::Address(address) = source.into() else {
            return false;
        };
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Who sent a request that came from `peer`, if that is a proxy by its headers: the last address
    /// that is not one of the proxies themselves. What stands before it may be made up. Where
    /// something else than an address stands, it is the proxy that noted it.
    pub(crate) fn caller_of(&self, headers: &HeaderMap, peer: Source) -> Caller {
        let mut nearest = peer;
        if !self.trusts(peer) {
            return peer.into();
        }
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let notes = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
        for note in notes {
            let Some(address) = address(note) else { break };
            nearest = address.into();
            if !self.trusts(address) {
                break;
            }
        }
        nearest.into()
    }
}

/// An address with or without a port.
fn address(note: &[u8]) -> Option<IpAddr> {
    let note = std::str::from_utf8(note).ok()?.trim();
    let bare = note
        .strip_prefix('[')
        .and_then(|note| note.strip_suffix(']'));
    let address = bare.unwrap_or(note).parse::<IpAddr>().ok();
    address.or_else(|| Some(note.parse::<SocketAddr>().ok()?.ip()))
}

/// What the first bytes of a proxy's connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Preface {
    /// No header of the PROXY protocol.
    None,
    /// One, of so many bytes. Without an address the proxy speaks for itself.
    Whole(usize, Option<IpAddr>),
    /// More is needed to tell.
    Partial,
    /// One that breaks the rules, or is too long.
    Broken,
}

impl Preface {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let begins = |preface: &&[u8]| {
            let length = preface.len().min(bytes.len());
            preface[..length] == bytes[..length]
        };
        let Some(preface) = PREFACES.into_iter().find(begins) else {
            return Self::None;
        };
        // How long it is, or cannot be, is judged before all of it is there, however it is cut.
        let (length, most) = if preface == PREFACES[0] {
            let end = bytes.windows(2).position(|pair| pair == b"\r\n");
            (end.map(|end| end + 2), FIRST_MAX_BYTES)
        } else {
            let length = bytes.get(SECOND_LENGTH).map(|length| {
                let length = length
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                SECOND_LENGTH.end + length
            });
            (length, PREFACE_MAX_BYTES)
        };
        if length.unwrap_or(bytes.len() + 1) > most {
            return Self::Broken;
        }
        let Some(length) = length.filter(|&length| length <= bytes.len()) else {
            return Self::Partial;
        };
        let config = ParseConfig {
            include_tlvs: false,
            ..ParseConfig::default()
        };
        match ProxyHeader::parse(bytes, config) {
            // It ends where it says, and nowhere before.
            Ok((header, read)) if read == length => {
                let source = header.proxied_address().map(|address| address.source.ip());
                Self::Whole(length, source)
            }
            Ok(_) | Err(_) => Self::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_of_64_bits_is_one_caller() {
        let caller = |text| Caller::from(ip(text));
        assert_eq!(caller("2001:db8:1:2::1"), caller("2001:db8:1:2:ffff::9"));
        assert_ne!(caller("2001:db8:1:2::1"), caller("2001:db8:1:3::1"));
        assert_ne!(caller("192.0.2.1"), caller("192.0.2.2"));
        assert_eq!(caller("::ffff:192.0.2.1"), caller("192.0.2.1"));
    }

    #[test]
    fn users_of_this_machine_are_callers_of_their_own_and_no_proxies() {
        let caller = |user| Caller::from(Source::User(user));
        assert_eq!(caller(7), caller(7));
        assert_ne!(caller(7), caller(8));
        assert_ne!(caller(0), Caller::from(ip("0.0.0.0")));
        let all = ["0.0.0.0/0", "::/0"].map(|text| text.parse().unwrap());
        let proxies = Proxies::new(all.to_vec());
        assert!(proxies.trusts(ip("192.0.2.1")) && !proxies.trusts(Source::User(0)));
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_caller() {
        let networks = ["10.0.0.0/8", "2001:db8::/32"];
        let proxies = Proxies::new(networks.map(|text| text.parse().unwrap()).to_vec());
        for (lines, caller) in [
            (&[][..], "10.0.0.1"),
            (&["192.0.2.1"], "192.0.2.1"),
            (&["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
            (&["6.6.6.6", "192.0.2.1 , 10.1.1.1"], "192.0.2.1"),
            (&["6.6.6.6, 192.0.2.1", "10.1.1.1,2001:db8::7"], "192.0.2.1"),
            (&["10.2.2.2,10.1.1.1"], "10.2.2.2"),
            (&["192.0.2.1:4711"], "192.0.2.1"),
            (&["[2001:db9::1]:4711"], "2001:db9::1"),
            (&["[2001:db9::1]"], "2001:db9::1"),
            (
                &["::ffff:10.1.1.1, 192.0.2.1, ::ffff:10.1.1.1"],
                "192.0.2.1",
            ),
            // What is no address was noted by the last proxy.
            (&["6.6.6.6, unknown"], "10.0.0.1"),
            (&["6.6.6.6, unknown, 10.1.1.1"], "10.1.1.1"),
            (&["6.6.6.6,"], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, line.parse().unwrap());
            }
            let found = proxies.caller_of(&headers, ip("10.0.0.1").into());
            assert_eq!(found, Caller::from(ip(caller)), "{lines:?}");
            // Whoever is no proxy may write what he likes.
            let found = proxies.caller_of(&headers, ip("192.0.2.9").into());
            assert_eq!(found, Caller::from(ip("192.0.2.9")), "{lines:?}");
        }
    }

    #[test]
    fn a_header_of_the_proxy_protocol_is_the_same_however_it_is_cut() {
        let first: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\n";
        let second: &[u8] =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x0a\0\0\x01\x12\x67\0\x50";
        let local: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        let unknown: &[u8] = b"PROXY UNKNOWN\r\n";
        for (header, source) in [
            (first, Some(ip("192.0.2.1"))),
            (second, Some(ip("192.0.2.1"))),
            (local, None),
            (unknown, None),
        ] {
            let whole = Preface::Whole(header.len(), source);
            for length in 1..header.len() {
                assert_eq!(Preface::of(&header[..length]), Preface::Partial, "{length}");
            }
            assert_eq!(Preface::of(header), whole);
            assert_eq!(Preface::of(&[header, b"GET / HTTP/1.1"].concat()), whole);
        }
        let long =
            |length: usize| [b"PROXY UNKNOWN ", &*b"x".repeat(length - 16), b"\r\n"].concat();
        let notes = |length: u16| {
            let head = b"\r\n\r\n\0\r\nQUIT\n\x20\0";
            [head, &length.to_be_bytes()[..], &vec![0; length.into()]].concat()
        };
        for (header, is_whole) in [
            (long(107), true),
            (long(108), false),
            (long(4_000), false),
            (notes(4_080), true),
            (notes(4_081), false),
            (notes(u16::MAX), false),
        ] {
            let verdict = |length| {
                let first =
                    (1..=length).find(|&cut| Preface::of(&header[..cut]) != Preface::Partial);
                first.map(|cut| Preface::of(&header[..cut]))
            };
            let expected = if is_whole {
                Preface::Whole(header.len(), None)
            } else {
                Preface::Broken
            };
            // By as many bytes as tell, and by all at once.
            assert_eq!(verdict(header.len()), Some(expected), "{}", header.len());
            assert_eq!(Preface::of(&header), expected, "{}", header.len());
        }
        for none in [&b"GET / HTTP/1.1"[..], b"PUT /", b"\r\nGET /"] {
            assert_eq!(Preface::of(none), Preface::None);
        }
        for broken in [
            &b"PROXY TCP4 a b c d\r\n"[..],
            b"PROXY UNKNOWN a\rb\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x99\x11\0\x0c\xc0\0\x02\x01\x0a\0\0\x01\x12\x67\0\x50",
        ] {
            assert_eq!(Preface::of(broken), Preface::Broken);
        }
        assert_eq!(Preface::of(&[b'P'; 1]), Preface::Partial);
    }
}
