//! How a client connects: to an address, with TLS or without, or to a socket of the file system.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use rustls::ClientConfig;
use tower_service::Service;

use super::ClientError;

/// How long a connection to an address may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What is written before the path of a socket. The server writes its places to listen so, too.
const UNIX: &str = "unix:";

/// Why the path of a `unix:/path` URL cannot be the path of a server's socket. See [`ClientError::Socket`].
///
/// ```
/// use countwheel_client::{Client, ClientError, SocketFault};
///
/// let error = Client::new("unix:api.sock", None).unwrap_err();
/// assert!(matches!(error, ClientError::Socket { fault: SocketFault::Relative, .. }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketFault {
    /// The path does not begin with `/`.
    #[error("the path does not begin with /, as in unix:/run/countwheel.sock")]
    Relative,
    /// The path ends with `/`, so it names a directory.
    #[error("the path ends with /, and a socket is a file")]
    Directory,
    /// The path has a NUL byte, which the system takes in no path.
    #[error("the path has a NUL byte")]
    Nul,
    /// The address of a socket has no room for the path.
    #[error("the path has {bytes} bytes, and the system takes at most 107 on Linux, 103 elsewhere")]
    TooLong {
        /// The length of the path in bytes.
        bytes: usize,
    },
}

/// The path of the socket, if the text is a `unix:/path` URL.
pub(super) fn socket_of(text: &str) -> Result<Option<PathBuf>, ClientError> {
    let Some(path) = text.strip_prefix(UNIX) else {
        return Ok(None);
    };
    let fault = if !path.starts_with('/') {
        Some(SocketFault::Relative)
    } else if path.ends_with('/') {
        Some(SocketFault::Directory)
    } else if path.contains('\0') {
        Some(SocketFault::Nul)
    } else if !fits(Path::new(path)) {
        Some(SocketFault::TooLong { bytes: path.len() })
    } else {
        None
    };
    match fault {
        None => Ok(Some(PathBuf::from(path))),
        Some(fault) => Err(ClientError::Socket {
            text: text.to_owned(),
            fault,
        }),
    }
}

/// Whether the address of a socket has room for the path.
#[cfg(unix)]
fn fits(path: &Path) -> bool {
    std::os::unix::net::SocketAddr::from_pathname(path).is_ok()
}

#[cfg(not(unix))]
fn fits(_path: &Path) -> bool {
    true
}

/// A connection, of whichever kind.
pub(super) type Link = Box<dyn Io>;

/// What HTTP is spoken over.
pub(super) trait Io: Read + Write + Connection + Send + Unpin {}

impl<T: Read + Write + Connection + Send + Unpin> Io for T {}

impl Connection for Link {
    fn connected(&self) -> Connected {
        (**self).connected()
    }
}

/// Connects to whatever address a URL has, or to one socket whatever the URL.
#[derive(Clone, Debug)]
pub(super) enum Connector {
    Web(HttpsConnector<HttpConnector>),
    Socket(Arc<Path>),
}

impl Connector {
    /// Connects to the addresses of URLs. Those of `https` get TLS.
    pub(super) fn web(tls: ClientConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self::Web(
            HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_or_http()
                .enable_http1()
                .wrap_connector(connector),
        )
    }
}

impl Service<Uri> for Connector {
    type Response = Link;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self {
            Self::Web(web) => web.poll_ready(context),
            Self::Socket(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        match self {
            Self::Web(web) => {
                let connecting = web.call(url);
                Box::pin(async move { Ok(Box::new(connecting.await?) as Link) })
            }
            Self::Socket(path) => {
                let path = Arc::clone(path);
                Box::pin(async move { Ok(at_socket(&path).await?) })
            }
        }
    }
}

#[cfg(unix)]
async fn at_socket(path: &Path) -> io::Result<Link> {
    let stream = tokio::net::UnixStream::connect(path).await?;
    Ok(Box::new(hyper_util::rt::TokioIo::new(stream)))
}

#[cfg(not(unix))]
async fn at_socket(_path: &Path) -> io::Result<Link> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn fault(text: &str) -> SocketFault {
        match socket_of(text) {
            Err(ClientError::Socket { text: told, fault }) if told == text => fault,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_socket_has_an_absolute_path_of_a_file() {
        for relative in [
            "unix:",
            "unix:api.sock",
            "unix:./api.sock",
            "unix:~/api.sock",
        ] {
            assert_eq!(fault(relative), SocketFault::Relative, "{relative}");
        }
        assert_eq!(fault("unix:/run/"), SocketFault::Directory);
        assert_eq!(fault("unix:/run/\0.sock"), SocketFault::Nul);
        for (text, path) in [
            ("unix:/run/countwheel.sock", "/run/countwheel.sock"),
            ("unix:/with blank?and#more%20", "/with blank?and#more%20"),
        ] {
            let found = socket_of(text).unwrap();
            assert_eq!(found.as_deref(), Some(Path::new(path)));
        }
        for other in [
            "http://x",
            "UNIX:/run/x",
            "https+unix:/run/x",
            "/run/x.sock",
        ] {
            assert_eq!(socket_of(other).unwrap(), None, "{other}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_has_a_path_of_at_most_107_bytes() {
        let long = |bytes: usize| format!("unix:/{}", "p".repeat(bytes - 1));
        assert!(socket_of(&long(107)).unwrap().is_some());
        for bytes in [108, 109, 5_000] {
            assert_eq!(fault(&long(bytes)), SocketFault::TooLong { bytes });
        }
    }
}
