//! Why the ways between nodes do not open.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a [`Forwarder`](crate::Forwarder) or a [`PeerServer`](crate::PeerServer) does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    /// A file with a certificate or a key cannot be used.
    #[error("{} cannot be used: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The certificate, the key and the authority do not go together.
    #[error("the certificate of this node cannot be used: {problem}")]
    Certificate {
        /// What is wrong.
        problem: String,
    },
    /// Without TLS only loopback is listened on.
    #[error(
        "{address} is reached from other machines: give --peer-cert, --peer-key and --peer-ca, or listen on loopback"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no thread.
    #[error("no thread could be started: {source}")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
}
