//! The service on a PostgreSQL is killed under load, and so is the database: nothing that was
//! acknowledged is lost.
//!
//! `COUNTWHEEL_KILLS` says how often, `COUNTWHEEL_SEED` repeats what is asked.

use std::time::Duration;

use countwheel_postgres::testing;

use crate::harness::checker::judge;
use crate::harness::load::{Load, span};
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, figures, now_us, seed, setting, turn, wait};

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service,
    Database,
}

fn kill(victim: Victim, what: &str, kills: u64) {
    let _turn = turn();
    let kills = setting("COUNTWHEEL_KILLS", || kills);
    let mut random = Random::new(seed());
    let directory = Directory::new("postgres");
    let mut database = testing::Server::start(&[]).expect("the stage has installed it");
    let options = database.fresh();
    let made = program()
        .args(["cluster", "init", "--store", &options.url])
        .args(["--schema", &options.schema])
        .status();
    assert!(made.expect("the program starts").success());
    let receiver = Receiver::start();
    let start = now_us();
    let launch = Launch {
        database: Some((options.url, options.schema)),
        ..Launch::default()
    };
    let mut server = Server::start_as(&directory.join("data"), launch);
    let mut load = Load::new(&receiver.url, &mut random);
    for _ in 0..kills {
        let under_load = span(
            &mut random,
            Duration::from_millis(20),
            Duration::from_millis(250),
        );
        match victim {
            Victim::Service => load.kill_after(&mut server, under_load),
            Victim::Database => {
                load.until(&mut server, |server| {
                    wait(under_load);
                    database.crash();
                    assert_eq!(says(server, "/readyz"), Some(503), "it is away");
                    assert_eq!(
                        says(server, "/healthz"),
                        Some(200),
                        "a new process is no help"
                    );
                    wait(under_load);
                    database.go_on().expect("it comes up again");
                    wait(under_load);
                    assert_eq!(says(server, "/readyz"), Some(200), "it is back");
                    let ended = server.end_within(Duration::ZERO);
                    assert!(ended.is_none(), "it ended by itself: {}", server.said());
                });
                server.restart();
            }
        }
    }
    let took_us = now_us() - start;

    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    let mut rows = settled.rows(&verdict, &server);
    rows.insert(0, ("cycles", server.outages.len().to_string()));
    rows.push(("took", format!("{} ms", took_us / 1_000)));
    figures::print(&format!("{kills} kills of {what} under load"), &rows);
    verdict.demand_innocence();
    assert!(verdict.sets > 0 && verdict.moves > 0 && verdict.removes > 0);
}

fn says(server: &Server, path: &str) -> Option<u16> {
    let reply = server.caller().ask("GET", path, None);
    reply.map(|reply| reply.status)
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn kills_of_the_service_lose_nothing() {
    kill(Victim::Service, "the service on a PostgreSQL", 12);
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn crashes_of_the_database_lose_nothing() {
    kill(Victim::Database, "the database and the service", 6);
}
