//! A connection has TLS where its owner says so, and then only to a server whose certificate fits.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use countwheel_durable::Shards;
use countwheel_postgres::testing::{NoServer, Server};
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};

/// A certificate for loopback that nobody but itself has signed.
fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let [key, certificate] = ["key", "pem"].map(|end| directory.join(format!("{name}.{end}")));
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl comes with the server");
    assert!(made.status.success(), "{made:?}");
    (key, certificate)
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn only_a_server_whose_certificate_fits_is_spoken_to() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let (key, fits) = certificate(directory.path(), "server");
    let (_, other) = certificate(directory.path(), "other");
    // The server takes no key that others may read, and runs as somebody else.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    if let Some((user, group)) = Server::user().expect("there is one") {
        chown(&key, Some(user), Some(group)).expect("we are root");
    }
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_key_file={}", key.display()),
        format!("ssl_cert_file={}", fits.display()),
    ];
    let settings = settings.each_ref().map(String::as_str);
    let server = match Server::start(&settings) {
        // Of another version than Debian's, whose package has no TLS.
        Err(NoServer::Failed { said, .. })
            if said.contains("SSL is not supported") && Server::has_other_programs() =>
        {
            println!("not run: the programs of this server have no TLS");
            return;
        }
        started => started.expect("the stage has installed it"),
    };
    let options = server.fresh();
    let with = |ca: Option<&Path>, url: &str| {
        let mut options: PostgresOptions = options.clone();
        options.ca = ca.map(Path::to_owned);
        options.url = format!("{}{url}", options.url);
        options
    };
    let shards = Shards::new(4).expect("from 1 to 1024");
    PostgresStore::make(&with(Some(&fits), ""), shards).expect("its certificate fits");
    let encrypted = "SELECT count(*) FROM pg_stat_ssl WHERE ssl AND pid <> pg_backend_pid()";
    let count = || {
        server
            .execute(encrypted)
            .expect("it is there")
            .trim()
            .to_owned()
    };
    let open = PostgresStore::open(&with(Some(&fits), "")).expect("its certificate fits");
    assert_ne!(count(), "0");
    drop(open);
    let plain = PostgresStore::open(&with(None, "")).expect("it takes both");
    let plain_sessions = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                          WHERE NOT ssl AND application_name = 'countwheel'";
    let found = server.execute(plain_sessions).expect("it is there");
    assert_ne!(found.trim(), "0");
    drop(plain);
    for refused in [with(Some(&other), ""), with(None, "?sslmode=require")] {
        let refused = PostgresStore::open(&refused).expect_err("nobody vouches for it");
        let is_right = matches!(&refused, PostgresError::Unreachable { reason }
            if reason.contains("certificate"));
        assert!(is_right, "{refused}");
    }
    let none = directory.path().join("none.pem");
    fs::write(&none, "no certificate").expect("it is ours");
    for wrong in [&none, &directory.path().join("absent.pem")] {
        let refused = PostgresStore::open(&with(Some(wrong), "")).expect_err("no certificate");
        assert!(
            matches!(refused, PostgresError::Authorities { .. }),
            "{refused}"
        );
    }
}
