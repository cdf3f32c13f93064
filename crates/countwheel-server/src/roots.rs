//! The authorities that deliveries trust: those of the public Internet that come with the program, those of the
//! system, and those that the operator names.

use std::path::PathBuf;

use countwheel_client::roots::of_program_and_system;
pub(crate) use countwheel_client::roots::{add, certificates, of_program, trusting};
use rustls::RootCertStore;

/// Why the authorities of a file cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[error("--ca-file {}: {problem}", file.display())]
pub struct BadAuthorities {
    file: PathBuf,
    problem: String,
}

/// Those, the system's, and all in these files.
pub(crate) fn of_system_and(files: &[PathBuf]) -> Result<RootCertStore, BadAuthorities> {
    let mut roots = of_program_and_system();
    for file in files {
        add(&mut roots, file).map_err(|problem| BadAuthorities {
            file: file.clone(),
            problem,
        })?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_authority_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |name: &str, text: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            let error = of_system_and(std::slice::from_ref(&file))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("--ca-file {}: ", file.display())),
                "{error}"
            );
            error
        };
        assert!(refused("empty", "").ends_with("it has no certificate in PEM"));
        assert!(refused("text", "not a certificate\n").ends_with("it has no certificate in PEM"));
        let begun = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        refused("cut", begun);
        refused("other", &format!("{begun}-----END CERTIFICATE-----\n"));
        let error = of_system_and(&[directory.path().join("missing")]).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
        assert!(of_system_and(&[]).is_ok());
    }
}
