//! TLS to the server.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::PostgresError;

/// Checks the server's certificate against those in the file, or against the authorities of the public
/// web.
pub(crate) fn connector(ca: Option<&Path>) -> Result<MakeRustlsConnect, PostgresError> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let refused = |problem: String| PostgresError::Authorities {
                path: path.to_owned(),
                problem,
            };
            let certificates = CertificateDer::pem_file_iter(path);
            for certificate in certificates.map_err(|error| refused(error.to_string()))? {
                let certificate = certificate.map_err(|error| refused(error.to_string()))?;
                let added = roots.add(certificate);
                added.map_err(|error| refused(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refused("there is no certificate in it".to_owned()));
            }
        }
    }
    // The provider is named: another one in the process changes nothing here.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresError::System {
            reason: error.to_string(),
        })?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
