//! The same of the commands, each of which is a process of its own.

use countwheel_postgres::testing;

use crate::nodes::nodes;
use crate::sentences::{SENTENCES, commands_of, hear};

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask nodes-long"]
fn every_sentence_holds_of_the_commands_of_one_node_and_of_three() {
    let database = testing::Server::start(&[]).unwrap();
    for count in [1, 3] {
        let mut speaker = commands_of(nodes(&database, count));
        assert_eq!(hear(&mut *speaker), SENTENCES.len(), "{count} nodes");
    }
}
