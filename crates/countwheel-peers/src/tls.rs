//! Both sides show a certificate of the cluster's own authority.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::Timestamp;
use parking_lot::{Mutex, RwLock};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::PeersError;
use crate::planted::planted;

/// The certificate of this node, and the authority that the certificates of all nodes come from. They are read again
/// when their files change: see [`look`](Self::look). Clones are the same.
///
/// ```
/// use std::path::Path;
/// use countwheel_peers::{PeerTls, PeersError};
///
/// let none = Path::new("/nowhere.pem");
/// let refused = PeerTls::from_files(none, none, none);
/// assert!(matches!(refused, Err(PeersError::File { path, .. }) if path == none));
///
/// /// What a start asks of it: see [`demand_good_for`](PeerTls::demand_good_for).
/// fn start(tls: &PeerTls) -> Result<(), PeersError> {
///     tls.demand_good_for("a.example", countwheel_time::Timestamp::from_micros(1_800_000_000_000_000))
/// }
/// ```
#[derive(Clone)]
pub struct PeerTls(Arc<Shared>);

struct Shared {
    files: Files,
    /// What connections begin with.
    current: RwLock<Arc<Certificates>>,
    /// The files as they were when they were read last, and what was wrong with them.
    seen: Mutex<Seen>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

struct Seen {
    stamps: [FileStamp; 3],
    problem: Option<String>,
}

/// What tells that a file is another one: when it was changed, how long it is, and its number. A file that cannot be
/// looked at has a stamp of its own.
///
/// ```
/// use countwheel_peers::FileStamp;
///
/// let file = std::env::temp_dir().join(format!("stamp-{}", std::process::id()));
/// let none = FileStamp::of(&file);
/// std::fs::write(&file, "key")?;
/// assert_ne!(FileStamp::of(&file), none);
/// assert_eq!(FileStamp::of(&file), FileStamp::of(&file));
/// # std::fs::remove_file(&file)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStamp(Option<(i64, i64, u64, u64)>);

impl FileStamp {
    /// That of the file at `path` now; of a link, that of the file it leads to.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let found = path.metadata().ok();
        Self(found.map(|found| (found.mtime(), found.mtime_nsec(), found.len(), found.ino())))
    }

    /// Whether there is something else than a regular file at `path`, such as a named pipe: whoever opens that waits until
    /// somebody writes to it.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use countwheel_peers::FileStamp;
    ///
    /// assert!(FileStamp::is_irregular(Path::new("/dev/null")));
    /// assert!(!FileStamp::is_irregular(Path::new("/there/is/nothing")));
    /// ```
    #[must_use]
    pub fn is_irregular(path: &Path) -> bool {
        path.metadata().is_ok_and(|found| !found.is_file())
    }
}

/// What was read.
struct Certificates {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    chain: Vec<CertificateDer<'static>>,
    /// Judges the certificates of others, and that of this node as they will.
    judge: Arc<WebPkiServerVerifier>,
}

impl PeerTls {
    /// Reads the certificate of this node (with those between it and the authority, if there are any), its
    /// key and the authority's certificate, all PEM. The certificate is shown to callers and to those who
    /// are called: it names the host or the address under which others call this node.
    ///
    /// # Errors
    /// [`PeersError::File`]; [`PeersError::Certificate`] if they do not go together.
    pub fn from_files(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, PeersError> {
        let files = Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            ca: ca.to_owned(),
        };
        // Before they are read: a change meanwhile is seen the next time.
        let stamps = files.stamps();
        let read = Certificates::read(&files)?;
        Ok(Self(Arc::new(Shared {
            files,
            current: RwLock::new(Arc::new(read)),
            seen: Mutex::new(Seen {
                stamps,
                problem: None,
            }),
        })))
    }

    /// Reads the files again if one of them has changed. What is read is shown on connections that begin from
    /// then on, if others that call `host` will take it at that time of the wall clock. Otherwise all stays as it
    /// was, and the [problem](Self::problem) is said until the files are good.
    ///
    /// Says whether there is something new. It reads three files.
    pub fn look(&self, host: &str, now: Timestamp) -> bool {
        let shared = &*self.0;
        let stamps = shared.files.stamps();
        {
            let mut seen = shared.seen.lock();
            // What is bad may become good without another change: a certificate begins, a key is late.
            if seen.stamps == stamps && seen.problem.is_none() {
                return false;
            }
            seen.stamps = stamps;
        }
        // Nobody waits for a disk that does not answer.
        let read = shared.files.check();
        let read = read.and_then(|()| Certificates::read(&shared.files));
        let good = read.and_then(|read| read.good_for(host, now).map(|()| read));
        let mut seen = shared.seen.lock();
        match good {
            Ok(read) => {
                seen.problem = None;
                *shared.current.write() = Arc::new(read);
                tracing::info!(host, "nodes are shown another certificate from now on");
                true
            }
            Err(error) => {
                let problem = Some(error.to_string());
                if seen.problem != problem {
                    tracing::error!(problem, "the certificate for nodes stays as it was");
                }
                seen.problem = problem;
                false
            }
        }
    }

    /// Why the files are not what is shown, if they were changed and cannot be used.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.0.seen.lock().problem.clone()
    }

    /// Whether others that call `host` will take the certificate of this node for that of the host, at that time
    /// of the wall clock. A node that nobody can reach takes shards all the same.
    ///
    /// # Errors
    /// [`PeersError::Certificate`] if it is not of the authority, names another host, or is not valid then.
    pub fn demand_good_for(&self, host: &str, now: Timestamp) -> Result<(), PeersError> {
        self.current().good_for(host, now)
    }

    /// For how long from `now` on others that call `host` will take the certificate, to the second: until it or one
    /// between it and the authority ends. At most a hundred years; nothing if they do not take it now.
    #[must_use]
    pub fn good_for_another(&self, host: &str, now: Timestamp) -> Duration {
        const MOST: u64 = 100 * 365 * 86_400;
        let current = self.current();
        let is_good = |seconds| {
            let then = now + Duration::from_secs(seconds);
            current.good_for(host, then).is_ok()
        };
        if !is_good(0) {
            return Duration::ZERO;
        }
        let (mut good, mut bad) = (0, MOST);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match is_good(middle) {
                true => good = middle,
                false => bad = middle,
            }
        }
        Duration::from_secs(good)
    }

    fn current(&self) -> Arc<Certificates> {
        Arc::clone(&self.0.current.read())
    }

    /// For a connection that comes.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().server)
    }

    /// For a connection that is made.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current().client)
    }
}

impl Files {
    fn stamps(&self) -> [FileStamp; 3] {
        [&self.certificate, &self.key, &self.ca].map(|path| FileStamp::of(path))
    }

    fn check(&self) -> Result<(), PeersError> {
        let mut files = [&self.certificate, &self.key, &self.ca].into_iter();
        match files.find(|path| FileStamp::is_irregular(path)) {
            None => Ok(()),
            Some(path) => Err(file(path, &"it is no regular file")),
        }
    }
}

impl Certificates {
    fn read(files: &Files) -> Result<Self, PeersError> {
        let Files {
            certificate,
            key,
            ca,
        } = files;
        let chain = certificates(certificate)?;
        let key_of = PrivateKeyDer::from_pem_file(key).map_err(|error| file(key, &error))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(ca)? {
            roots.add(authority).map_err(|error| file(ca, &error))?;
        }
        let roots = Arc::new(roots);
        let refused = |error: &dyn fmt::Display| PeersError::Certificate {
            problem: error.to_string(),
        };
        // The provider is named: another one in the process changes nothing here.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let callers =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let callers = callers.build().map_err(|error| refused(&error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| refused(&error))?;
        let server = match planted!(PeersNoCertificateNeeded) {
            true => server.with_no_client_auth(),
            false => server.with_client_cert_verifier(callers),
        };
        let server = server.with_single_cert(chain.clone(), key_of.clone_key());
        let judge =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let judge = judge.build().map_err(|error| refused(&error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| refused(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key_of);
        Ok(Self {
            chain,
            judge,
            server: Arc::new(server.map_err(|error| refused(&error))?),
            client: Arc::new(client.map_err(|error| refused(&error))?),
        })
    }

    fn good_for(&self, host: &str, now: Timestamp) -> Result<(), PeersError> {
        let refused = |problem: String| PeersError::Certificate { problem };
        let name = server_name(host).map_err(|error| refused(format!("{host}: {error}")))?;
        let now = UnixTime::since_unix_epoch(Duration::from_micros(now.as_micros()));
        let judged =
            self.judge
                .verify_server_cert(&self.chain[0], &self.chain[1..], &name, &[], now);
        judged
            .map(drop)
            .map_err(|error| refused(format!("for {host}, as others call it: {error}")))
    }
}

/// The name of a host as a URL has it.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls")
    }
}

fn file(path: &Path, problem: &dyn fmt::Display) -> PeersError {
    PeersError::File {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PeersError> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| file(path, &error))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.map_err(|error| file(path, &error))?;
    match found.is_empty() {
        true => Err(file(path, &"there is no certificate in it")),
        false => Ok(found),
    }
}
