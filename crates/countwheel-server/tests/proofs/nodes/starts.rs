//! Starts that a cluster refuses: each with one line, status 1, and nothing of the cluster changed.

use std::path::Path;
use std::process::Command;

use countwheel_postgres::testing;

use super::{make_cluster, name, owners};
use crate::harness::process::{Launch, Server, free_address, program};
use crate::harness::{Directory, turn, wait_until};

/// How a node with certificates of the script in `deploy` listens to others.
fn with_tls(certificates: &Path) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", certificates.join(name).display());
    vec![
        format!("--peer-listen=127.0.0.1:{}", free_address().port()),
        file("peer-cert", "127.0.0.1.crt"),
        file("peer-key", "127.0.0.1.key"),
        file("peer-ca", "ca.crt"),
    ]
}

fn make_certificates(directory: &Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/certificates.sh");
    let made = Command::new("sh")
        .arg(script)
        .arg(directory)
        .arg("127.0.0.1")
        .output();
    let made = made.expect("there is a shell");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(
        made.status.success(),
        "openssl comes with the database: {said}"
    );
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn starts_that_do_not_fit_the_cluster_are_refused() {
    let _turn = turn();
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let (url, schema) = (database.url(), database.fresh().schema);
    let directory = Directory::new("nodes-starts");
    let certificates = directory.join("certificates");
    make_certificates(&certificates);
    make_cluster(&url, &schema);
    let launch = |schema: &str, more: Vec<String>| Launch {
        database: Some((url.clone(), schema.to_owned())),
        options: vec!["--lease-ttl", "2s"],
        more,
        ..Launch::default()
    };
    // Two nodes that reach each other by TLS.
    let data = directory.join("data");
    let first = Server::start_as(&data, launch(&schema, with_tls(&certificates)));
    let second = Server::start_as(&data, launch(&schema, with_tls(&certificates)));
    wait_until("each has its share, and both know", || {
        let all = owners(&first);
        all.values().all(|shards| shards.len() == 32) && owners(&second) == all
    });
    let before = owners(&second);

    let refused = |schema: &str, more: Vec<String>, why: &[&str]| {
        let mut started = Server::launch(&data, launch(schema, more));
        let said = started.wait_until_ready().expect_err("it does not fit");
        assert!(said.contains("ended with exit status: 1"), "{said}");
        for word in why {
            assert!(said.contains(word), "{word}: {said}");
        }
    };
    let with_more = |flag: String| {
        let mut more = with_tls(&certificates);
        more.push(flag);
        more
    };
    refused(
        &schema,
        Vec::new(),
        &["with TLS", "this one without TLS", "--peer-cert"],
    );
    let taken = name(&first);
    refused(
        &schema,
        with_more(format!("--node-name={taken}")),
        &[&taken, "lives"],
    );
    refused(
        "nobody_made_it",
        with_tls(&certificates),
        &["nobody_made_it", "cluster init"],
    );
    let again = program()
        .args([
            "cluster", "init", "--shards", "256", "--store", &url, "--schema", &schema,
        ])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{said}");
    assert!(said.contains("64") && said.lines().count() == 1, "{said}");

    assert_eq!(owners(&second), before);
}
