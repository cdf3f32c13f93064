//! URLs of targets, paths behind them, queries, and where deliveries may go.
//!
//! - A second reader, which splits a URL as browsers do, sees the same scheme, host and port, and no user.
//! - A host that a browser takes for an IPv4 address is judged as that address. No public service delivers to an
//!   address that is not public, or to a refused port.
//! - An endpoint narrowed to nothing delivers nowhere, and one narrowed to the URL's own host still delivers there.
//!   Behind a proxy nothing is allowed that is not allowed without.
//! - A path that follows the URL of an endpoint changes neither host nor port, and leads nowhere above.
//! - A query that is read and written again is read as the same.

use std::net::{IpAddr, Ipv4Addr};

use axum::http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{Seen, seed};
use crate::api::request::Query;
use crate::deliver::{check_encoding, check_url};
use crate::guard::{AllowedTarget, Targets, is_public, literal_address, port_of_url};
use crate::resources::route::{check_path, join};

const OF_URL: u8 = 0;
const OF_PATH: u8 = 1;
const OF_QUERY: u8 = 2;
const KNOWN: [&str; 5] = ["limit", "after", "state", "prefix", "tag"];
const NARROWED: &str = "what may go anywhere may go where it is narrowed to";

pub(super) fn run(input: &[u8]) -> Seen {
    let Some((&kind, text)) = input.split_first() else {
        return Seen::Refused;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return Seen::Refused;
    };
    match kind % 3 {
        OF_URL => url(text),
        OF_PATH => path(text),
        _ => query(text),
    }
}

/// What a browser makes of a URL.
#[derive(PartialEq, Eq, Debug)]
struct Parts<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: String,
    port: u16,
    /// From the first slash, with the query and without the fragment.
    rest: &'a str,
}

fn parts(url: &str) -> Option<Parts<'_>> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    let behind = place.rfind(']').unwrap_or(0);
    let (host, port) = match place[behind..].find(':') {
        Some(colon) => (&place[..behind + colon], &place[behind + colon + 1..]),
        None => (place, ""),
    };
    let scheme = scheme.to_ascii_lowercase();
    let usual = if scheme == "https" { 443 } else { 80 };
    let port = if port.is_empty() {
        usual
    } else {
        port.parse().ok()?
    };
    Some(Parts {
        scheme,
        user,
        host: host.to_ascii_lowercase(),
        port,
        rest: rest.split('#').next().unwrap_or_default(),
    })
}

/// The IPv4 address that a browser takes a host for.
fn browsed(host: &str) -> Option<Ipv4Addr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let numbers: Option<Vec<u64>> = host.split('.').map(number).collect();
    let numbers = numbers.filter(|numbers| numbers.len() <= 4)?;
    let (last, first) = numbers.split_last()?;
    let mut address = *last;
    for (place, number) in first.iter().enumerate() {
        if *number > 255 {
            return None;
        }
        address = address.checked_add(number << (24 - 8 * place))?;
    }
    let room = 256_u64.pow(u32::try_from(4 - first.len()).ok()?);
    let address = (*last < room).then_some(address)?;
    u32::try_from(address).ok().map(Ipv4Addr::from)
}

fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (lower.as_str(), 10),
    };
    // Resolvers read `0x` alone as a name, and as an address it would be nobody's.
    if lower == "0x" || text.is_empty() || !digits.chars().all(|it| it.is_digit(base)) {
        return None;
    }
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(digits, base).ok()
}

/// A URL that is read the same way by others, with all that follows from it.
fn checked(text: &str) -> Option<Uri> {
    let uri = check_url(text).ok()?;
    check_encoding(text).ok()?;
    let parts = parts(text).expect("a browser reads it as well");
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    assert_eq!(parts.user, None, "a user");
    assert_eq!(parts.host, host, "the host");
    assert_eq!(parts.port, port_of_url(&uri), "the port");
    assert_eq!(Some(&*parts.scheme), uri.scheme_str(), "the scheme");
    Some(uri)
}

fn url(text: &str) -> Seen {
    let Some(uri) = checked(text) else {
        return Seen::Refused;
    };
    let again: Uri = uri.to_string().parse().expect("what is written is a URL");
    assert_eq!(again, uri, "what is read again");
    let (host, port) = (uri.host().unwrap_or_default(), port_of_url(&uri));
    let address = literal_address(&uri);
    if let Some(browsed) = browsed(host) {
        assert_eq!(address, Some(IpAddr::V4(browsed)), "{host}");
    }
    let bare = host.trim_matches(['[', ']']);
    if let Ok(IpAddr::V6(own)) = bare.parse() {
        assert_eq!(address, Some(IpAddr::V6(own)), "{host}");
    }
    let public = Targets::public();
    let is_allowed = public.check(&uri).is_ok();
    let nowhere = public.clone().within([]);
    assert!(nowhere.check(&uri).is_err(), "outside of nothing");
    if public.check_proxied(&uri).is_ok() {
        assert!(is_allowed, "a proxy opens it");
        // A name with two dots at its end is none that anybody resolves.
        let lower = host.to_ascii_lowercase();
        let lower = lower.strip_suffix('.').unwrap_or(&lower);
        let is_here = lower.rsplit('.').next() == Some("localhost");
        assert!(!is_here, "{host} by a proxy");
    }
    if !is_allowed {
        return Seen::Refused;
    }
    if let Some(address) = address {
        assert!(is_public(address), "{address} is not public");
    }
    for refused in [22, 25, 465, 587, 3306, 5432, 6379, 9200, 11_211, 27_017] {
        assert_ne!(port, refused, "a port that nobody has opened");
    }
    let own = address.map_or_else(|| host.to_owned(), |own| own.to_string());
    let own = match address {
        Some(IpAddr::V6(_)) => format!("[{own}]:{port}"),
        _ => format!("{}:{port}", own.strip_suffix('.').unwrap_or(&own)),
    };
    if let Ok(own) = own.parse::<AllowedTarget>() {
        let narrowed = public.within([own]);
        assert!(narrowed.check(&uri).is_ok(), "{NARROWED}");
    }
    Seen::Right
}

/// The URL of an endpoint, a line feed, and the path of a timer.
fn path(text: &str) -> Seen {
    let (base, path) = text.split_once('\n').unwrap_or((text, ""));
    let Some(uri) = checked(base) else {
        return Seen::Refused;
    };
    if check_path(path).is_err() {
        return Seen::Refused;
    }
    let joined = join(base, path);
    let after = checked(&joined).expect("a path is no end of a URL");
    assert_eq!(after.scheme(), uri.scheme());
    assert_eq!(after.authority(), uri.authority(), "{joined}");
    let rest = |url| parts(url).map(|it| it.rest.to_owned()).unwrap_or_default();
    let (before, after) = (rest(base), rest(&joined));
    let expected = [segments(&before), segments(path)].concat();
    assert_eq!(segments(&after), expected, "{joined} leads elsewhere");
    let (_, asked) = path.split_once('?').unwrap_or_default();
    assert!(after.ends_with(asked), "{joined} is without {asked}");
    Seen::Right
}

/// The parts of a path, with those taken away that another one leads out of, as a browser does.
fn segments(rest: &str) -> Vec<String> {
    let path = rest.split('?').next().unwrap_or_default();
    let mut all = Vec::new();
    for part in path.split(['/', '\\']).filter(|part| !part.is_empty()) {
        let decoded = percent_decode_str(part).decode_utf8_lossy();
        match &*decoded {
            "." => {}
            ".." => drop(all.pop()),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

fn query(text: &str) -> Seen {
    let Ok(query) = Query::of_form(text, &KNOWN) else {
        return Seen::Refused;
    };
    let written = KNOWN.iter().filter_map(|name| {
        let value = utf8_percent_encode(query.get(name)?, NON_ALPHANUMERIC);
        Some(format!("{name}={value}"))
    });
    let written = written.collect::<Vec<_>>();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let count = pairs.clone().count();
    assert_eq!(written.len(), count, "each is there once");
    for pair in pairs {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = String::from_utf8(decoded(name)).unwrap_or_default();
        let found = query.get(&name).map(str::as_bytes);
        assert_eq!(found, Some(&*decoded(value)), "{name}");
    }
    let text = written.join("&");
    let again = Query::of_form(&text, &KNOWN).expect("what is written is a query");
    for name in KNOWN {
        assert_eq!(again.get(name), query.get(name), "{name}");
    }
    Seen::Right
}

/// The bytes that a part of a query stands for.
fn decoded(text: &str) -> Vec<u8> {
    let (mut all, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let code = behind
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|code| *first == b'%' && !code.contains('+'));
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        let plain = if *first == b'+' { b' ' } else { *first };
        all.push(code.unwrap_or(plain));
        rest = if code.is_some() { &behind[2..] } else { behind };
    }
    all
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let of =
        |kind, texts: &[&str]| -> Vec<_> { texts.iter().map(|text| seed(kind, text)).collect() };
    let urls = [
        "https://shop.example/hook?order=42#part",
        "HTTP://Shop.Example:8080/a/b/",
        "http://93.184.215.14:80",
        "https://[2606:4700::1111]:8443/a",
        "http://0x5d.0270.55054/",
        "http://shop.example./%2e%2e/a",
        "http://a-b_c.example/?q=http://user@other/",
    ];
    let paths = [
        "https://shop.example/hooks\n/orders/42?b=c",
        "https://shop.example/hooks/?key=7\n/%2f/a..b/...",
        "http://shop.example:8080\n?only=query",
        "http://shop.example/a/../b#f\n//evil.example/a",
    ];
    let queries = [
        "limit=10&state=pending",
        "prefix=a%2Fb+c&&after=1f-2-3",
        "tag=%E2%82%AC&limit",
    ];
    let all = [
        of(OF_URL, &urls),
        of(OF_PATH, &paths),
        of(OF_QUERY, &queries),
    ];
    all.concat()
}
