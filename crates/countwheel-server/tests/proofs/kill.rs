//! The server is killed under load, again and again; nothing that it acknowledged is lost.
//!
//! `COUNTWHEEL_KILLS` says how often, `COUNTWHEEL_SEED` repeats what is asked.

use std::time::Duration;

use crate::harness::load::{Load, span};
use crate::harness::process::Server;
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, now_us, seed, setting, turn};

#[test]
#[ignore = "a minute long: cargo xtask check kill"]
fn kills_under_load_lose_nothing() {
    let _turn = turn();
    let kills = setting("COUNTWHEEL_KILLS", || 200);
    let mut random = Random::new(seed());
    let directory = Directory::new("kill");
    let receiver = Receiver::start();
    let start = now_us();
    let mut server = Server::start(&directory.join("data"));
    let mut load = Load::new(&receiver.url, &mut random);
    for _ in 0..kills {
        let under_load = span(
            &mut random,
            Duration::from_millis(20),
            Duration::from_millis(150),
        );
        load.kill_after(&mut server, under_load);
    }
    let took_us = now_us() - start;

    let settled = load.settle(&server, &receiver);
    settled.demand_innocence(&format!("{kills} kills under load"), &server, took_us);
    assert_eq!(
        settled.unread, 0,
        "reads that failed on a disk that does not"
    );
}
