//! Where callers are listened for: addresses and sockets of the file system, each with TLS or without.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustix::fs::{FlockOperation, flock};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio_util::either::Either;

use crate::callers::Source;
use crate::tls::ServerTls;

/// How many connections the system may keep that were not accepted yet.
const BACKLOG: u32 = 4_096;
/// What is written before the path of a socket.
const UNIX: &str = "unix:";

/// Where callers are listened for.
///
/// ```
/// use countwheel_server::listen::At;
///
/// let here: At = "localhost:7070".parse()?;
/// assert_eq!(here.to_string(), "127.0.0.1:7070");
/// assert!(here.is_local());
/// assert!("unix:/run/countwheel.sock".parse::<At>()?.is_local());
/// assert!(!"0.0.0.0:7743".parse::<At>()?.is_local());
/// assert!("unix:here.sock".parse::<At>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// An address and a port; port 0 takes any free one.
    Tcp(SocketAddr),
    /// A socket of the file system, by its absolute path.
    Unix(PathBuf),
}

impl At {
    /// Whether nobody but this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.address().is_none_or(|at| at.ip().is_loopback())
    }

    /// The address, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            let is_whole = path.starts_with('/') && !path.ends_with('/');
            let path = is_whole.then(|| PathBuf::from(path));
            let wrong = || "a socket is such as unix:/run/countwheel.sock".to_owned();
            return path.map(Self::Unix).ok_or_else(wrong);
        }
        let wrong = |_| "an address is such as 127.0.0.1:7070, [::1]:7070 or unix:/path".to_owned();
        crate::config::address(text).map(Self::Tcp).map_err(wrong)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// One place to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listen {
    pub(crate) at: At,
    pub(crate) is_tls: bool,
}

impl Listen {
    pub(crate) const fn plain(at: At) -> Self {
        Self { at, is_tls: false }
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            At::Tcp(address) => write!(f, "{}://{address}", self.scheme()),
            At::Unix(_) if self.is_tls => write!(f, "{}+{}", self.scheme(), self.at),
            At::Unix(_) => self.at.fmt(f),
        }
    }
}

/// What has come.
pub(crate) type Stream = Either<TcpStream, UnixStream>;

/// A socket that listens.
pub(crate) struct Listener {
    socket: Socket,
    tls: Option<Arc<ServerTls>>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens at `at`. A socket of the file system gets this `mode`. What another process has left there is replaced
    /// if nobody listens on it.
    pub(crate) fn bind(at: &At, mode: u32, tls: Option<Arc<ServerTls>>) -> io::Result<Self> {
        let socket = match at {
            At::Tcp(address) => Socket::Tcp(of_address(*address)?),
            At::Unix(path) => of_path(path, mode)?,
        };
        Ok(Self { socket, tls })
    }

    pub(crate) fn of(listener: TcpListener) -> Self {
        Self {
            socket: Socket::Tcp(listener),
            tls: None,
        }
    }

    /// Where it listens, with the port that it has got.
    pub(crate) fn listens(&self) -> io::Result<Listen> {
        let at = match &self.socket {
            Socket::Tcp(listener) => At::Tcp(listener.local_addr()?),
            Socket::Unix(_, file) => At::Unix(file.0.path.clone()),
        };
        let is_tls = self.tls.is_some();
        Ok(Listen { at, is_tls })
    }

    /// The file of its socket, if it has one.
    pub(crate) fn file(&self) -> Option<SocketFile> {
        match &self.socket {
            Socket::Tcp(_) => None,
            Socket::Unix(_, file) => Some(file.clone()),
        }
    }

    /// What callers are shown here.
    pub(crate) const fn tls(&self) -> Option<&Arc<ServerTls>> {
        self.tls.as_ref()
    }

    /// The next connection, and who it comes from as far as the system knows.
    pub(crate) fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Stream, Source)>> {
        Poll::Ready(Ok(match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(context))?;
                // An answer is one packet or a few: send it at once. If that fails, it is only slower.
                stream.set_nodelay(true).unwrap_or_default();
                (Either::Left(stream), Source::Address(peer.ip()))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                let user = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                (Either::Right(stream), Source::User(user))
            }
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, file) = &self.socket {
            file.remove();
        }
    }
}

fn of_address(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn of_path(path: &Path, mode: u32) -> io::Result<Socket> {
    // Who starts at the same moment waits until this socket listens, and then finds it.
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    remove_stale(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile::of(path)?;
    // Before it listens: nobody connects by the mode that the umask has given it.
    let listener = fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| socket.listen(BACKLOG))
        .inspect_err(|_| file.remove())?;
    Ok(Socket::Unix(listener, file))
}

/// Removes the socket of a process that has ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let problem = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    match Probe::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// The file of a socket that this process has made. Clones are the same.
#[derive(Clone)]
pub(crate) struct SocketFile(Arc<Made>);

struct Made {
    path: PathBuf,
    /// Its device and number.
    id: (u64, u64),
    is_removed: AtomicBool,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self(Arc::new(Made {
            path: path.to_owned(),
            id: (found.dev(), found.ino()),
            is_removed: AtomicBool::new(false),
        })))
    }

    /// Removes it, once, unless another one is there by now.
    pub(crate) fn remove(&self) {
        let Made {
            path,
            id,
            is_removed,
        } = &*self.0;
        if is_removed.swap(true, Ordering::Relaxed) {
            return;
        }
        let found = path.symlink_metadata();
        if !found.is_ok_and(|found| (found.dev(), found.ino()) == *id) {
            return;
        }
        if let Err(error) = fs::remove_file(path) {
            tracing::warn!(%error, path = %path.display(), "the socket was not removed");
        }
    }
}
