//! Both sides show a certificate of the cluster's own authority.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::PeersError;
use crate::planted::planted;

/// The certificate of this node, and the authority that the certificates of all nodes come from.
///
/// ```
/// use std::path::Path;
/// use countwheel_peers::{PeerTls, PeersError};
///
/// let none = Path::new("/nowhere.pem");
/// let refused = PeerTls::from_files(none, none, none);
/// assert!(matches!(refused, Err(PeersError::File { path, .. }) if path == none));
/// ```
#[derive(Clone)]
pub struct PeerTls {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl PeerTls {
    /// Reads the certificate of this node (with those between it and the authority, if there are any), its
    /// key and the authority's certificate, all PEM. The certificate is shown to callers and to those who
    /// are called: it names the host or the address under which others call this node.
    ///
    /// # Errors
    /// [`PeersError::File`]; [`PeersError::Certificate`] if they do not go together.
    pub fn from_files(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, PeersError> {
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
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| refused(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key_of);
        Ok(Self {
            server: Arc::new(server.map_err(|error| refused(&error))?),
            client: Arc::new(client.map_err(|error| refused(&error))?),
        })
    }
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
