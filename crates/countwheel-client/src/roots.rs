//! The authorities that a client trusts: those of the public Internet that come with the program, and those of the system.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

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
