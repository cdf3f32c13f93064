//! The primary of three nodes under load crashes again and again, and its synchronous standby takes its place: nothing
//! that was acknowledged is lost.
//!
//! `COUNTWHEEL_CRASHES` says how often, `COUNTWHEEL_SEED` repeats what is asked.

use std::time::Duration;

use countwheel_postgres::testing;

use crate::harness::figures::{self, Spans};
use crate::harness::load::{Load, span};
use crate::harness::receiver::Receiver;
use crate::harness::way::Way;
use crate::harness::{Directory, Random, micros, now_us, seed, setting, turn, wait, wait_until};
use crate::nodes::{Nodes, asked as ask};

/// So many crashes come until the node that is asked is killed as well, and all is looked at.
const AT_ONCE: u64 = 5;

/// A standby that the primary waits for.
fn standby(primary: &testing::Server) -> testing::Server {
    let standby = primary.standby(&[]).expect("a copy of a running server");
    primary
        .execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        .and_then(|_| primary.execute("SELECT pg_reload_conf()"))
        .expect("we may");
    let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_until("the primary waits for its standby", || {
        let count = primary.execute(synchronous);
        count.is_ok_and(|count| count.trim() == "1")
    });
    standby
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask nodes-long"]
fn crashes_of_the_primary_lose_nothing_where_its_standby_is_synchronous() {
    let _turn = turn();
    let crashes = setting("COUNTWHEEL_CRASHES", || 3);
    let mut random = Random::new(seed());
    let receiver = Receiver::start();
    let primary = testing::Server::start(&["max_wal_senders=4"]).expect("it is installed");
    let way = Way::to(primary.port());
    let mut next = standby(&primary);
    let url = primary.url_at(way.address.port());
    let start = now_us();
    let (mut nodes, mut asked) = Nodes::of(Directory::new("nodes"), primary, url, 3);
    let mut load = Load::of_a_node(&receiver.url, &mut random);
    let mut pauses = Vec::new();
    let mut crashed = 0;
    while crashed < crashes {
        let now = AT_ONCE.min(crashes - crashed);
        load.until(&mut asked, |asked| {
            for _ in 0..now {
                wait(span(
                    &mut random,
                    Duration::from_millis(100),
                    Duration::from_millis(800),
                ));
                let began = now_us();
                nodes.database.crash();
                next.promote().expect("it is a standby");
                // It waits for no standby of its own yet.
                next.execute("ALTER SYSTEM RESET synchronous_standby_names")
                    .and_then(|_| next.execute("SELECT pg_reload_conf()"))
                    .expect("we may");
                way.lead_to(next.port());
                wait_until("the node is ready again", || {
                    ask(asked, "GET", "/readyz", None).status == 200
                });
                pauses.push(now_us() - began);
                asked.outages.push((began, now_us()));
                let after = standby(&next);
                nodes.database = std::mem::replace(&mut next, after);
            }
            wait(Duration::from_millis(300));
        });
        asked.restart();
        crashed += now;
        println!("{crashed} crashes");
    }
    let took_us = now_us() - start;
    let lost = format!("SELECT count(*) FROM \"{}\".loss", nodes.schema());
    let lost = nodes.database.execute(&lost).expect("it answers");
    let mut settled = load.settle(&asked, &receiver);
    // What a node had begun to commit is done, or not, once there is a primary again.
    settled.evidence.under_way_us = micros(Duration::from_secs(60));
    let rows = [
        ("losses that nodes noticed", lost.trim().to_owned()),
        (
            "until the node is ready again",
            Spans::new(pauses).typical(),
        ),
    ];
    figures::print("crashes of a primary with a synchronous standby", &rows);
    let title = format!("{crashes} crashes of the primary of three nodes under load");
    settled.demand_innocence(&title, &asked, took_us);
    assert_eq!(lost.trim(), "0");
}
