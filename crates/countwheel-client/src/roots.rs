//! The authorities that a client trusts: those of the public Internet that come with the program, those of the system,
//! and those in files; and the certificate that it shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::ClientError;

/// Trusts the authorities that come with the program, the system's and all in these files, and shows a certificate, of
/// which the first file has the chain and the second the key. All files are PEM. See
/// [`Client::with_tls`](crate::Client::with_tls).
///
/// ```
/// use std::path::PathBuf;
/// use countwheel_client::{ClientError, roots};
///
/// assert!(roots::from_files(&[], None).is_ok());
/// let none = [PathBuf::from("/nowhere.pem")];
/// let error = roots::from_files(&none, None).unwrap_err();
/// assert!(matches!(error, ClientError::File { file, .. } if file == none[0]));
/// ```
///
/// # Errors
/// [`ClientError::File`] if one of them cannot be read or used.
pub fn from_files(
    authorities: &[PathBuf],
    shows: Option<(&Path, &Path)>,
) -> Result<ClientConfig, ClientError> {
    let bad = |file: &Path, problem: String| ClientError::File {
        file: file.to_owned(),
        problem,
    };
    let mut roots = of_program_and_system();
    for file in authorities {
        add(&mut roots, file).map_err(|problem| bad(file, problem))?;
    }
    let Some((certificate, key)) = shows else {
        return Ok(trusting(roots));
    };
    let chain = certificates(certificate).map_err(|problem| bad(certificate, problem))?;
    let read = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = config.with_client_auth_cert(chain, read);
    config.map_err(|error| bad(key, error.to_string()))
}

/// Adds all authorities of a file in PEM.
///
/// # Errors
/// What is wrong with the file.
pub fn add(roots: &mut RootCertStore, file: &Path) -> Result<(), String> {
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The certificates of a file in PEM, one at least.
///
/// # Errors
/// What is wrong with the file.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = std::fs::read(file).map_err(|error| error.to_string())?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read).collect();
    match found {
        Err(error) => Err(error.to_string()),
        Ok(found) if found.is_empty() => Err("it has no certificate in PEM".to_owned()),
        Ok(found) => Ok(found),
    }
}

/// Trusts the authorities that come with the program.
pub fn public() -> ClientConfig {
    trusting(of_program())
}

/// The authorities that come with the program.
pub fn of_program() -> RootCertStore {
    let roots = webpki_roots::TLS_SERVER_ROOTS.to_vec();
    RootCertStore { roots }
}

/// Trusts these authorities.
pub fn trusting(roots: impl Into<Arc<RootCertStore>>) -> ClientConfig {
    let config = ClientConfig::builder().with_root_certificates(roots);
    config.with_no_client_auth()
}

/// Trusts those and the system's.
pub fn with_system() -> ClientConfig {
    trusting(of_program_and_system())
}

/// The authorities that come with the program, and the system's.
pub fn of_program_and_system() -> RootCertStore {
    let mut roots = of_program();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some authorities of the system are not trusted");
    }
    // A system has some that nobody can read; other programs leave them out too.
    let (of_system, left_out) = roots.add_parsable_certificates(found.certs);
    tracing::debug!(of_system, left_out, "authorities of the system");
    roots
}
