//! The addresses and ports that a delivery may go to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use axum::http::Uri;
use ipnet::IpNet;

/// The ports of services that carry out what a stranger's request to them says, or that count it
/// against its sender: remote shells, mail, and stores without a password.
const REFUSED_PORTS: [u16; 15] = [
    22,     // SSH
    25,     // SMTP
    110,    // POP3
    143,    // IMAP
    465,    // SMTP over TLS
    587,    // submission of mail
    993,    // IMAP over TLS
    995,    // POP3 over TLS
    2_379,  // etcd
    3_306,  // MySQL
    5_432,  // PostgreSQL
    6_379,  // Redis
    9_200,  // Elasticsearch
    11_211, // memcached
    27_017, // MongoDB
];

/// The addresses at which clouds tell a machine its credentials.
const METADATA_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(169, 254, 169, 254), // most of them
    Ipv4Addr::new(169, 254, 170, 2),   // Amazon, containers
    Ipv4Addr::new(169, 254, 170, 23),  // Amazon, pods
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(168, 63, 129, 16),   // Azure, in a range that is public
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
];
const METADATA_V6: [Ipv6Addr; 6] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // Amazon
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // Amazon, pods
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), // Akamai
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // OpenStack
];

/// The names by which clouds have their machines ask for it.
const METADATA_HOSTS: [&str; 6] = [
    "metadata.google.internal",
    "metadata.goog",
    "instance-data.ec2.internal",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.oraclecloud.com",
];

/// Where deliveries may go: to which addresses, and to which ports.
///
/// ```
/// use countwheel_server::guard::{RefusedTarget, Targets};
///
/// let here = "127.0.0.1".parse()?;
/// let check = |targets: &Targets, port| targets.check_address("hooks.example", port, here);
/// assert_eq!(check(&Targets::public(), 80), Err(RefusedTarget::Private(here)));
/// assert_eq!(check(&Targets::any(), 80), Ok(()));
/// // No option opens the metadata of a cloud.
/// let metadata = "169.254.169.254".parse()?;
/// let refused = Targets::any().check_address("hooks.example", 80, metadata);
/// assert_eq!(refused, Err(RefusedTarget::Metadata(metadata)));
///
/// assert_eq!(check(&Targets::any(), 22), Err(RefusedTarget::Port(22)));
/// assert_eq!(check(&Targets::any().with_ports(vec![22]), 22), Ok(()));
///
/// let some = Targets::public().with_allowed(vec!["127.0.0.0/8".parse()?, "*.lan:6379".parse()?]);
/// assert_eq!(check(&some, 80), Ok(()));
/// assert_eq!(some.check_address("cache.lan", 6379, "10.0.0.1".parse()?), Ok(()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Targets {
    private: bool,
    /// Of the refused ports, those that the operator allows.
    ports: Vec<u16>,
    allowed: Vec<AllowedTarget>,
    /// The only places, of those that all of the above allows.
    within: Option<Arc<[AllowedTarget]>>,
}

/// A place that the operator allows although its address is not public, or its port is refused: a range of
/// addresses, one address, a host, or all hosts below a domain; at any port that is not refused, or at one port.
///
/// ```
/// use countwheel_server::guard::AllowedTarget;
///
/// for text in ["10.1.0.0/16", "10.1.2.3:22", "[fd00::/8]:443", "fd00::1", "hooks.lan", "*.lan:8080"] {
///     assert_eq!(text.parse::<AllowedTarget>()?.to_string(), text);
/// }
/// assert!("http://hooks.lan/".parse::<AllowedTarget>().is_err());
/// # Ok::<(), countwheel_server::guard::BadTarget>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedTarget {
    place: Place,
    /// The only port; `None` for all that are not refused.
    port: Option<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Range(IpNet),
    Host(String),
    /// All hosts whose names end with this, which begins with a dot.
    Below(String),
}

/// Why a text names no place that could be allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadTarget {
    /// It is none of what is allowed.
    #[error(
        "{0:?} is no range of addresses (10.1.0.0/16), address, host (hooks.lan) or domain (*.lan), each with \
         a port (10.1.2.3:8080, [fd00::/8]:443) or without"
    )]
    Syntax(String),
    /// The range has an address with bits behind the length of its prefix.
    #[error("{given} is no range of addresses: did you mean {range}?")]
    HostBits {
        /// What was given.
        given: String,
        /// The range that it is in.
        range: String,
    },
}

impl FromStr for AllowedTarget {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget::Syntax(text.to_owned());
        if let Some(rest) = text.strip_prefix('[') {
            let (range, rest) = rest.split_once(']').ok_or_else(bad)?;
            let place = range_of(range)?.filter(|range| range.addr().is_ipv6());
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').and_then(port_of).ok_or_else(bad)?),
            };
            let place = Place::Range(place.ok_or_else(bad)?);
            return Ok(Self { place, port });
        }
        // An address of version 6 has colons of its own.
        if let Some(range) = range_of(text)? {
            let place = Place::Range(range);
            return Ok(Self { place, port: None });
        }
        let (place, port) = match text.rsplit_once(':') {
            Some((place, port)) => (place, Some(port_of(port).ok_or_else(bad)?)),
            None => (text, None),
        };
        let place = match range_of(place)? {
            Some(range) => Place::Range(range),
            None => host_of(place).ok_or_else(bad)?,
        };
        Ok(Self { place, port })
    }
}

impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Range(range) => {
                let text = if range.prefix_len() == range.max_prefix_len() {
                    range.addr().to_string()
                } else {
                    range.to_string()
                };
                match self.port {
                    Some(_) if range.addr().is_ipv6() => write!(f, "[{text}]")?,
                    _ => f.write_str(&text)?,
                }
            }
            Place::Host(host) => f.write_str(host)?,
            Place::Below(domain) => write!(f, "*{domain}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

fn port_of(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    (port > 0 && port.to_string() == text).then_some(port)
}

/// The range that a text names, if it names one: one address is a range too.
fn range_of(text: &str) -> Result<Option<IpNet>, BadTarget> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Some(address.into()));
    }
    match text.parse::<IpNet>() {
        Ok(range) if range.trunc() != range => Err(BadTarget::HostBits {
            given: text.to_owned(),
            range: range.trunc().to_string(),
        }),
        range => Ok(range.ok()),
    }
}

/// The host or domain that a text names. Numbers alone are an address in one of the notations of old.
fn host_of(text: &str) -> Option<Place> {
    let (name, is_domain) = match text.strip_prefix("*.") {
        Some(domain) => (domain, true),
        None => (text, false),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if name.len() > 253 || !name.split('.').all(is_label) || old_notation(name).is_some() {
        return None;
    }
    let name = name.to_ascii_lowercase();
    Some(if is_domain {
        Place::Below(format!(".{name}"))
    } else {
        Place::Host(name)
    })
}

impl AllowedTarget {
    /// Whether a host with this address is meant at this port.
    fn has(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.has_port(port) && self.place.has(host, address)
    }

    /// Whether a host may be meant at this port, as far as its name tells: a range may have an address to which the
    /// name leads.
    fn may_have(&self, host: &str, port: u16) -> bool {
        let is_range = matches!(self.place, Place::Range(_));
        self.has_port(port) && (is_range || self.place.has_host(host))
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|it| it == port)
    }
}

impl Place {
    /// Whether a host with this address is meant.
    fn has(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Self::Range(range) => {
                range.contains(&address) || range.contains(&address.to_canonical())
            }
            named => named.has_host(host),
        }
    }

    /// Whether a host is meant by its name.
    fn has_host(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        match self {
            Self::Range(_) => false,
            Self::Host(name) => *name == host,
            Self::Below(domain) => host.len() > domain.len() && host.ends_with(domain.as_str()),
        }
    }
}

/// Why a target is refused. The text is for the operator: it tells where a name leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedTarget {
    /// The address is not one of the public Internet.
    #[error("deliveries do not go to {0}: the address is not public")]
    Private(IpAddr),
    /// The address serves the metadata of a cloud, credentials among them.
    #[error("deliveries do not go to {0}: the address serves the metadata of a cloud")]
    Metadata(IpAddr),
    /// The name is one under which a cloud serves its metadata.
    #[error("deliveries do not go there: the name is one for the metadata of a cloud")]
    MetadataHost,
    /// The port is one of a service that is no receiver of HTTP.
    #[error("deliveries do not go to port {0} unless the operator allows the port")]
    Port(u16),
    /// The place is none of those to which the deliveries of an endpoint are narrowed.
    #[error("the target is outside of what its endpoint allows")]
    Outside,
}

/// What is allowed, for the operator.
impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.private { "any" } else { "public" })?;
        for port in &self.ports {
            write!(f, " port:{port}")?;
        }
        for target in &self.allowed {
            write!(f, " {target}")?;
        }
        Ok(())
    }
}

impl Targets {
    /// The addresses of the public Internet.
    #[must_use]
    pub const fn public() -> Self {
        Self {
            private: false,
            ports: Vec::new(),
            allowed: Vec::new(),
            within: None,
        }
    }

    /// All addresses but those of cloud metadata; this machine and its network are included.
    #[must_use]
    pub const fn any() -> Self {
        Self {
            private: true,
            ports: Vec::new(),
            allowed: Vec::new(),
            within: None,
        }
    }

    /// The same addresses, with these ports though they are refused otherwise.
    #[must_use]
    pub fn with_ports(self, ports: Vec<u16>) -> Self {
        Self { ports, ..self }
    }

    /// The same, with these places though they are refused otherwise.
    #[must_use]
    pub fn with_allowed(self, allowed: Vec<AllowedTarget>) -> Self {
        Self { allowed, ..self }
    }

    /// The same as far as they are among these places: both have to allow a target.
    ///
    /// ```
    /// use countwheel_server::guard::{RefusedTarget, Targets};
    ///
    /// let some = Targets::public().within(vec!["hooks.example".parse()?]);
    /// let address = "93.184.215.14".parse()?;
    /// assert_eq!(some.check_address("hooks.example", 443, address), Ok(()));
    /// let other = some.check_address("other.example", 443, address);
    /// assert_eq!(other, Err(RefusedTarget::Outside));
    /// // Nothing is opened by it.
    /// let private = "10.0.0.1".parse()?;
    /// assert!(some.check_address("hooks.example", 443, private).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn within(self, places: impl Into<Arc<[AllowedTarget]>>) -> Self {
        let within = Some(places.into());
        Self { within, ..self }
    }

    /// Whether deliveries may go to `address` at `port`, to which a URL led with this host: a name, or the
    /// address itself.
    ///
    /// # Errors
    /// [`RefusedTarget`] says why not.
    pub fn check_address(
        &self,
        host: &str,
        port: u16,
        address: IpAddr,
    ) -> Result<(), RefusedTarget> {
        if is_metadata(address) {
            return Err(RefusedTarget::Metadata(address));
        }
        let meant = self.allowed.iter().filter(|it| it.place.has(host, address));
        let meant: Vec<_> = meant.map(|it| it.port).collect();
        if !self.opens_port(port) && !meant.contains(&Some(port)) {
            return Err(RefusedTarget::Port(port));
        }
        let is_meant = meant.iter().any(|it| it.is_none_or(|it| it == port));
        if !self.private && !is_public(address) && !is_meant {
            return Err(RefusedTarget::Private(address));
        }
        self.check_within(|it| it.has(host, port, address))
    }

    /// Whether one of the only places is meant, if there are any.
    fn check_within(&self, is_meant: impl Fn(&AllowedTarget) -> bool) -> Result<(), RefusedTarget> {
        match &self.within {
            Some(places) if !places.iter().any(is_meant) => Err(RefusedTarget::Outside),
            _ => Ok(()),
        }
    }

    /// Whether a port is open everywhere.
    fn opens_port(&self, port: u16) -> bool {
        !REFUSED_PORTS.contains(&port) || self.ports.contains(&port)
    }

    /// Whether deliveries may go where `uri` leads by itself: its port, and the address if its
    /// host is one. Where a name leads is seen when it is resolved.
    pub(crate) fn check(&self, uri: &Uri) -> Result<(), RefusedTarget> {
        let (host, port) = (uri.host().unwrap_or_default(), port_of_url(uri));
        if let Some(address) = literal_address(uri) {
            return self.check_address(host, port, address);
        }
        if is_metadata_host(host) {
            return Err(RefusedTarget::MetadataHost);
        }
        let opens = |it: &AllowedTarget| it.port == Some(port) && it.may_have(host, port);
        if !self.opens_port(port) && !self.allowed.iter().any(opens) {
            return Err(RefusedTarget::Port(port));
        }
        self.check_within(|it| it.may_have(host, port))
    }

    /// The same where a proxy resolves the name, and nobody here sees to which address: no range counts for a name.
    pub(crate) fn check_proxied(&self, uri: &Uri) -> Result<(), RefusedTarget> {
        self.check(uri)?;
        let (host, port) = (uri.host().unwrap_or_default(), port_of_url(uri));
        if literal_address(uri).is_some() {
            return Ok(());
        }
        if is_loopback_name(host) {
            return self.check_address(host, port, Ipv4Addr::LOCALHOST.into());
        }
        let is_named = |it: &AllowedTarget| it.has_port(port) && it.place.has_host(host);
        let opens = |it: &AllowedTarget| it.port == Some(port) && it.place.has_host(host);
        if !self.opens_port(port) && !self.allowed.iter().any(opens) {
            return Err(RefusedTarget::Port(port));
        }
        self.check_within(is_named)
    }
}

fn is_metadata_host(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    METADATA_HOSTS
        .iter()
        .any(|it| it.eq_ignore_ascii_case(host))
}

/// Whether a name is always that of the machine itself (RFC 6761).
fn is_loopback_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

/// The port that a URL names, or that of its scheme.
pub(crate) fn port_of_url(uri: &Uri) -> u16 {
    let is_https = uri.scheme_str() == Some("https");
    let usual = if is_https { 443 } else { 80 };
    uri.port_u16().unwrap_or(usual)
}

/// The address that a URL names outright, in the notations of old as well, such as `0x7f.1`:
/// many resolvers read these.
pub(crate) fn literal_address(uri: &Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if let Some(bare) = bare {
        return bare.parse().ok();
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = host.parse().ok();
    address.or_else(|| old_notation(host)).map(IpAddr::V4)
}

/// An IPv4 address as `inet_aton` reads it: one to four numbers, the last of which fills what the
/// others leave.
fn old_notation(host: &str) -> Option<Ipv4Addr> {
    let parts: Option<Vec<u32>> = host.split('.').map(old_number).collect();
    let parts = parts?;
    let (&last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|&part| part > 255) {
        return None;
    }
    let left = 32 - 8 * first.len();
    if u64::from(last) >> left != 0 {
        return None;
    }
    let high = first
        .iter()
        .fold(0_u64, |address, &part| (address << 8) | u64::from(part));
    let address = (high << left) | u64::from(last);
    u32::try_from(address).ok().map(Ipv4Addr::from)
}

/// A number that is hexadecimal after `0x`, octal after `0`, else decimal.
fn old_number(text: &str) -> Option<u32> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    if let Some(digits) = hexadecimal {
        return u32::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// Whether a cloud serves the metadata of its machines at `address`. An IPv6 address that carries
/// an IPv4 one is judged by that too.
fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            METADATA_V6.contains(&address)
                || carried_v4(address).is_some_and(|v4| METADATA_V4.contains(&v4))
        }
    }
}

/// The IPv4 address that an IPv6 address leads to.
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        // Compatible, mapped, translated.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        // NAT64, with the prefix of everybody and those of a network.
        | [0x64, 0xff9b, 0 | 1, _, _, _, high, low]
        // 6to4.
        | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// Whether `address` belongs to the public Internet: not this machine, not a private or
/// local network, not a range that is reserved or leads back into one of these.
///
/// After the special-purpose registries of IANA (RFC 6890 and its successors). An IPv6
/// address that carries an IPv4 one is judged by that too.
///
/// ```
/// use countwheel_server::guard::is_public;
///
/// assert!(is_public("93.184.215.14".parse()?));
/// assert!(!is_public("169.254.169.254".parse()?));
/// assert!(!is_public("::ffff:10.0.0.1".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127, _, _)            // this network, private, loopback
            | (100, 64..=127, _)        // shared by carriers
            | (169, 254, _)             // link-local
            | (172, 16..=31, _)         // private
            | (192, 0, 0)               // protocol assignments
            | (192, 0, 2)               // documentation
            | (192, 31, 196)            // AS112
            | (192, 52, 193)            // automatic multicast tunneling
            | (192, 88, 99)             // 6to4 relays, withdrawn
            | (192, 168, _)             // private
            | (192, 175, 48)            // AS112
            | (198, 18..=19, _)         // benchmarking
            | (198, 51, 100)            // documentation
            | (203, 0, 113)             // documentation
            | (224..=255, _, _) // multicast, reserved, broadcast
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    match segments {
        // IPv4-mapped, NAT64 and 6to4 are as public as what they carry.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => is_public_v4(v4(high, low)),
        [0x2001, 0..=0x01ff, ..]            // protocol assignments: Teredo, benchmarking, ORCHID
        | [0x2001, 0x0db8, ..]              // documentation
        | [0x3fff, 0..=0x0fff, ..]          // documentation
        | [0x2620, 0x004f, 0x8000, ..]      // AS112
            => false,
        // Global unicast is 2000::/3. What lies outside is unspecified, loopback,
        // IPv4-compatible, local NAT64, discard-only, unique-local, link-local, site-local,
        // multicast or not assigned.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(url: &str) -> Uri {
        crate::deliver::check_url(url).expect(url)
    }

    #[test]
    fn literal_addresses_are_seen_in_every_notation() {
        for (host, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("[::1]", "::1"),
            ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("10.1.2", "10.1.0.2"),
            ("0x7f.1", "127.0.0.1"),
            ("0X7F000001", "127.0.0.1"),
            ("0177.0.0.1", "127.0.0.1"),
            ("0xa9.254.0251.254", "169.254.169.254"),
            ("0", "0.0.0.0"),
        ] {
            let found = literal_address(&uri(&format!("http://{host}:8080/")));
            assert_eq!(found, address.parse().ok(), "{host}");
        }
        for host in [
            "example.com",
            "1.2.3.4.5",
            "256.1",
            "1.2.65536",
            "4294967296",
            "08.1",
            "0x",
            "a.1",
        ] {
            assert_eq!(literal_address(&uri(&format!("http://{host}/"))), None);
        }
    }

    #[test]
    fn metadata_of_clouds_is_refused_whatever_is_allowed() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "168.63.129.16",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "::ffff:168.63.129.16",
        ] {
            let address = address.parse().unwrap();
            let all = ["0.0.0.0/0", "::/0", "x", "*.x"].map(|text| text.parse().unwrap());
            let allowed = Targets::public().with_allowed(all.to_vec());
            for targets in [Targets::any(), Targets::public(), allowed] {
                let refused = targets.check_address("x", 80, address);
                assert_eq!(refused, Err(RefusedTarget::Metadata(address)));
            }
        }
        for address in ["127.0.0.1", "169.254.1.1", "10.0.0.1", "::1", "fd00::1"] {
            let address = address.parse().unwrap();
            assert_eq!(Targets::any().check_address("x", 80, address), Ok(()));
            let refused = Targets::public().check_address("x", 80, address);
            assert_eq!(refused, Err(RefusedTarget::Private(address)));
        }
    }

    #[test]
    fn a_port_is_that_of_the_url_or_of_its_scheme() {
        let targets = Targets::any().with_ports(vec![6_379]);
        for url in [
            "http://x/",
            "https://x/",
            "http://x:443/",
            "http://x:6379/",
            "http://x:8080/",
        ] {
            assert_eq!(targets.check(&uri(url)), Ok(()), "{url}");
        }
        for (url, port) in [("http://x:22/", 22), ("https://x:11211/", 11_211)] {
            let refused = targets.check(&uri(url));
            assert_eq!(refused, Err(RefusedTarget::Port(port)), "{url}");
        }
    }

    #[test]
    fn what_the_operator_allows_is_open_and_nothing_beside_it() {
        let allowed = |text: &str| Targets::public().with_allowed(vec![text.parse().expect(text)]);
        let table = [
            ("10.1.0.0/16", "x", "10.1.255.255", 80, true),
            ("10.1.0.0/16", "x", "10.2.0.0", 80, false),
            ("10.1.0.0/16", "x", "::ffff:10.1.0.1", 80, true),
            ("10.1.0.0/16", "x", "10.1.0.1", 22, false),
            ("10.1.2.3:22", "x", "10.1.2.3", 22, true),
            ("10.1.2.3:22", "x", "10.1.2.3", 80, false),
            ("10.1.2.3:22", "x", "1.1.1.1", 22, false),
            ("1.1.1.1:22", "x", "1.1.1.1", 22, true),
            ("fd00::/8", "x", "fd12::1", 443, true),
            ("fd00::/8", "x", "fe80::1", 443, false),
            ("[fd00::/8]:443", "x", "fd12::1", 443, true),
            ("[fd00::/8]:443", "x", "fd12::1", 80, false),
            ("hooks.lan", "hooks.lan", "10.0.0.1", 80, true),
            ("Hooks.LAN", "hooks.lan.", "10.0.0.1", 80, true),
            ("hooks.lan", "a.hooks.lan", "10.0.0.1", 80, false),
            ("hooks.lan", "xhooks.lan", "10.0.0.1", 80, false),
            ("*.lan", "a.b.lan", "10.0.0.1", 80, true),
            ("*.lan", "lan", "10.0.0.1", 80, false),
            ("*.lan", "a.wlan", "10.0.0.1", 80, false),
            ("*.lan:8080", "a.lan", "10.0.0.1", 8_080, true),
            ("*.lan:8080", "a.lan", "10.0.0.1", 80, false),
            ("*.lan:6379", "a.lan", "10.0.0.1", 6_379, true),
        ];
        for (text, host, address, port, is_open) in table {
            let address = address.parse().unwrap();
            let checked = allowed(text).check_address(host, port, address);
            assert_eq!(checked.is_ok(), is_open, "{text}: {host} {address} {port}");
            // What a name leads to is not known before.
            let url = uri(&format!("http://{host}:{port}/"));
            assert!(
                allowed(text).check(&url).is_ok() || !is_open,
                "{text}: {url}"
            );
        }
        for text in [
            "",
            "*",
            "*.",
            ".lan",
            "a..lan",
            "10.1.0.0/33",
            "10.1",
            "0x7f.1",
            "10.1.2.3:0",
            "10.1.2.3:080",
            "lan:",
            "lan:65536",
            "[10.0.0.0/8]:80",
            "[fd00::1",
            "[fd00::1]80",
            "http://lan",
            "a/b",
            "a@b",
            "a b",
            "*.a.*",
        ] {
            assert!(text.parse::<AllowedTarget>().is_err(), "{text}");
        }
        let said = "10.1.2.3/16"
            .parse::<AllowedTarget>()
            .unwrap_err()
            .to_string();
        assert!(said.contains("did you mean 10.1.0.0/16?"), "{said}");
    }

    #[test]
    fn only_the_public_internet_is_public() {
        let table = [
            ("1.1.1.1", true),
            ("8.8.8.8", true),
            ("93.184.215.14", true),
            ("9.255.255.255", true),
            ("11.0.0.0", true),
            ("100.63.255.255", true),
            ("100.128.0.0", true),
            ("126.255.255.255", true),
            ("128.0.0.0", true),
            ("169.253.255.255", true),
            ("169.255.0.0", true),
            ("172.15.255.255", true),
            ("172.32.0.0", true),
            ("192.0.1.0", true),
            ("192.167.255.255", true),
            ("192.169.0.0", true),
            ("198.17.255.255", true),
            ("198.20.0.0", true),
            ("223.255.255.255", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("10.0.0.1", false),
            ("100.64.0.1", false),
            ("100.127.255.255", false),
            ("127.0.0.1", false),
            ("127.255.255.255", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("192.0.0.8", false),
            ("192.0.2.1", false),
            ("192.88.99.1", false),
            ("192.168.1.1", false),
            ("198.18.0.1", false),
            ("198.19.255.255", false),
            ("198.51.100.1", false),
            ("203.0.113.1", false),
            ("224.0.0.1", false),
            ("239.255.255.255", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700:4700::1111", true),
            ("2a00:1450:4001::1", true),
            ("2001:200::1", true),
            ("::ffff:8.8.8.8", true),
            ("64:ff9b::8.8.8.8", true),
            ("2002:808:808::1", true),
            ("::", false),
            ("::1", false),
            ("::7f00:1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.1.2.3", false),
            ("::ffff:0:127.0.0.1", false),
            ("64:ff9b::127.0.0.1", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("64:ff9b:1::1", false),
            ("100::1", false),
            ("2001::1", false),
            ("2001:2::1", false),
            ("2001:10::1", false),
            ("2001:20::1", false),
            ("2001:db8::1", false),
            ("2002:7f00:1::1", false),
            ("2002:a00:1::1", false),
            ("3fff::1", false),
            ("4000::1", false),
            ("5f00::1", false),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("febf::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
        ];
        for (address, public) in table {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }

    #[test]
    fn what_a_proxy_resolves_is_judged_by_its_name() {
        let allowed = |texts: &[&str]| -> Vec<AllowedTarget> {
            texts.iter().map(|text| text.parse().expect(text)).collect()
        };
        let public = Targets::public();
        let operator =
            public
                .clone()
                .with_allowed(allowed(&["localhost", "queue.lan:6379", "10.0.0.0/8:22"]));
        let narrowed = Targets::any().within(allowed(&["10.0.0.0/8", "*.example:443"]));
        for (targets, url, is_open) in [
            (&public, "http://hooks.example/", true),
            (&public, "http://localhost/", false),
            (&public, "http://a.LOCALHOST./", false),
            (&public, "http://10.0.0.1/", false),
            (&public, "http://0x7f.1/", false),
            (&public, "http://[::1]/", false),
            (&public, "http://hooks.example:22/", false),
            (&public, "http://Metadata.Google.Internal./", false),
            (&Targets::any(), "http://metadata.google.internal/", false),
            (&Targets::any(), "http://169.254.169.254/", false),
            (&Targets::any(), "http://localhost/", true),
            (&operator, "http://localhost/", true),
            (&operator, "http://queue.lan:6379/", true),
            // The range could have the address of the name, and nobody looks.
            (&operator, "http://queue.lan:22/", false),
            (&operator, "http://10.0.0.1:22/", true),
            (&narrowed, "http://10.0.0.1/", true),
            (&narrowed, "http://10.0.0.example/", false),
            (&narrowed, "https://hooks.example/", true),
            (&narrowed, "http://hooks.example/", false),
        ] {
            assert_eq!(targets.check_proxied(&uri(url)).is_ok(), is_open, "{url}");
        }
        // Where the name is resolved here, the range may count.
        assert_eq!(narrowed.check(&uri("http://hooks.example/")), Ok(()));
        assert_eq!(public.check(&uri("http://localhost/")), Ok(()));
    }
}
