//! The proxy through which deliveries leave, where one is named.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;

use crate::deliver::check_url;

/// How long the URL of a proxy may be, in bytes.
const MAX_BYTES: usize = 2_048;

/// A proxy that makes tunnels, by its URL: `http://proxy.example:3128`. Each connection to a target begins with a
/// `CONNECT` there.
///
/// ```
/// use countwheel_server::egress::{BadProxy, EgressProxy};
///
/// let proxy: EgressProxy = "http://proxy.example:3128/".parse()?;
/// assert_eq!(proxy.to_string(), "http://proxy.example:3128");
/// assert_eq!("http://me:secret@proxy.example".parse::<EgressProxy>(), Err(BadProxy::Credentials));
/// # Ok::<(), BadProxy>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressProxy(Uri);

/// Why a text names no proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadProxy {
    /// It is something else than a scheme, a host and a port.
    #[error(
        "a proxy is http://, a host, and a port unless that is 80, such as http://proxy.example:3128"
    )]
    Syntax,
    /// It has a user or a password.
    #[error(
        "a proxy that asks for a user and a password is not supported: let it go by the address of the service"
    )]
    Credentials,
    /// It is too long.
    #[error("the URL of a proxy has at most {MAX_BYTES} bytes")]
    TooLong,
}

impl EgressProxy {
    /// Its URL, with the path `/`.
    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }
}

impl FromStr for EgressProxy {
    type Err = BadProxy;

    fn from_str(text: &str) -> Result<Self, BadProxy> {
        if text.len() > MAX_BYTES {
            return Err(BadProxy::TooLong);
        }
        let parsed: Uri = text.parse().map_err(|_| BadProxy::Syntax)?;
        let authority = parsed.authority().ok_or(BadProxy::Syntax)?;
        if authority.as_str().contains('@') {
            return Err(BadProxy::Credentials);
        }
        let uri = check_url(text).map_err(|_| BadProxy::Syntax)?;
        let is_bare = uri.path_and_query().is_none_or(|rest| rest.as_str() == "/");
        // What is behind a # is no part of what was parsed.
        if uri.scheme_str() != Some("http") || !is_bare || text.contains(['#', '?']) {
            return Err(BadProxy::Syntax);
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0.authority().map_or("", |it| it.as_str());
        write!(f, "http://{authority}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_host_with_a_port_and_nothing_else() {
        for (text, shown) in [
            ("http://p", "http://p"),
            ("HTTP://p:3128/", "http://p:3128"),
            ("http://[::1]:3128", "http://[::1]:3128"),
        ] {
            let proxy: EgressProxy = text.parse().unwrap();
            assert_eq!(proxy.to_string(), shown);
            assert_eq!(shown.parse(), Ok(proxy));
        }
        for text in [
            "",
            "p:3128",
            "https://p:3128",
            "socks5://p:1080",
            "http://p:0",
            "http://p/a",
            "http://p/?",
            "http://p/?a",
            "http://p/#a",
            "http://p#a",
            "http://p q",
            "http://",
        ] {
            assert_eq!(text.parse::<EgressProxy>(), Err(BadProxy::Syntax), "{text}");
        }
        for text in [
            "http://u:p@p:3128",
            "http://u@p",
            "http://@p",
            "https://u:p@p",
        ] {
            assert_eq!(
                text.parse::<EgressProxy>(),
                Err(BadProxy::Credentials),
                "{text}"
            );
        }
        let long = format!("http://{}", "x".repeat(MAX_BYTES - 7));
        assert!(long.parse::<EgressProxy>().is_ok());
        assert_eq!(
            format!("{long}x").parse::<EgressProxy>(),
            Err(BadProxy::TooLong)
        );
    }
}
