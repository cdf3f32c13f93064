//! The sentences of the verbs, of a service of one node and of one of three whose every node is asked.

use std::time::Duration;

use countwheel_postgres::{PostgresOptions, testing};
use countwheel_time::Patience;
use serde_json::Value;

use crate::sentences::{SENTENCES, client_of, hear};
use crate::support::{PATIENCE, Server, program};

fn node(options: &PostgresOptions) -> Server {
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--lease-ttl", "2s"])
        .args(["--log-level", "error", "--allow-private-targets"])
        .args(["--store", &options.url])
        .args(["--schema", &options.schema]);
    Server::spawn(command)
}

/// The nodes of a cluster, each of which has its share of the shards.
#[expect(clippy::disallowed_methods, reason = "polls another process")]
pub(crate) fn nodes(database: &testing::Server, count: usize) -> Vec<Server> {
    let options = database.fresh();
    let made = program()
        .args(["cluster", "init", "--store", &options.url])
        .args(["--schema", &options.schema])
        .status();
    assert!(made.unwrap().success());
    let nodes: Vec<_> = (0..count).map(|_| node(&options)).collect();
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = nodes[0].client().get("/v1/cluster/nodes");
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        let shards = answer["nodes"].as_array().unwrap().iter();
        let shards: Vec<_> = shards
            .map(|node| node["shards"].as_u64().unwrap())
            .collect();
        if shards.iter().sum::<u64>() == 64
            && shards.iter().all(|of_one| *of_one >= 64 / count as u64)
        {
            return nodes;
        }
        assert!(!patience.left().is_zero(), "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn every_sentence_holds_of_the_client_of_one_node_and_of_three() {
    let database = testing::Server::start(&[]).unwrap();
    for count in [1, 3] {
        let mut speaker = client_of(nodes(&database, count));
        assert_eq!(hear(&mut *speaker), SENTENCES.len(), "{count} nodes");
    }
}
