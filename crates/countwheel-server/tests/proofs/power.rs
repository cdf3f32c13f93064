//! The power of the server is cut under load: what it had not synced is gone, in any order, and
//! nothing that it acknowledged is lost.
//!
//! `COUNTWHEEL_CUTS` says how often, and `COUNTWHEEL_CUTS_JOURNALED` how often below a real
//! ext4; `COUNTWHEEL_SEED` repeats what is asked and what survives.

use std::time::Duration;

use countwheel_lossy::{Cut, Lossy};
use serde_json::json;

use crate::harness::checker::{Fault, judge};
use crate::harness::load::{Load, span};
use crate::harness::mounts::{Mounted, lossy};
use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{
    Directory, PATIENCE, Random, figures, now_us, pause, seed, setting, turn, wait,
};

const CONTROLS: u64 = 10;
/// A disk can be slow, too.
const SLOW_SYNC: Duration = Duration::from_millis(50);
/// Of an ext4 that the server has for itself.
const IMAGE_BYTES: u64 = 64 << 20;

/// What the cuts of a run came to.
#[derive(Default)]
struct Cuts {
    cuts: u64,
    sum: Cut,
    /// Servers that found out by themselves and ended with the code for a failed store.
    ended: u64,
    in_recovery: u64,
}

impl Cuts {
    fn add(&mut self, cut: Cut) {
        self.cuts += 1;
        self.sum.sectors_kept += cut.sectors_kept;
        self.sum.sectors_dropped += cut.sectors_dropped;
        self.sum.names_kept += cut.names_kept;
        self.sum.names_dropped += cut.names_dropped;
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let sum = &self.sum;
        vec![
            (
                "cuts",
                format!("{}, {} of them in a recovery", self.cuts, self.in_recovery),
            ),
            (
                "sectors",
                format!("{} kept, {} dropped", sum.sectors_kept, sum.sectors_dropped),
            ),
            (
                "names",
                format!("{} kept, {} dropped", sum.names_kept, sum.names_dropped),
            ),
            (
                "ended by itself",
                format!("{}, each with code 3", self.ended),
            ),
        ]
    }

    /// Cuts the power of a server under load. Half of the time it is left to find out.
    fn cut(&mut self, disk: &Lossy, server: &mut Server, random: &mut Random) {
        self.add(disk.cut(random.between(0, u64::MAX)));
        if random.between(0, 2) == 0 {
            let end = server.end_within(PATIENCE);
            let end = end.unwrap_or_else(|| panic!("it went on without a disk"));
            assert_eq!(end.code(), Some(3), "{}", server.said());
            self.ended += 1;
        }
    }
}

fn under_load(random: &mut Random) -> Duration {
    span(
        random,
        Duration::from_millis(20),
        Duration::from_millis(250),
    )
}

#[test]
#[ignore = "a minute long, needs FUSE: cargo xtask check power"]
fn cuts_of_power_lose_nothing() {
    let _turn = turn();
    let times = setting("COUNTWHEEL_CUTS", || 40);
    let mut random = Random::new(seed());
    let directory = Directory::new("power");
    let disk = lossy(&directory.join("disk"));
    let receiver = Receiver::start();
    let start = now_us();
    let mut server = Server::start(&directory.join("disk/data"));
    let mut load = Load::new(&receiver.url, &mut random);
    let mut cuts = Cuts::default();
    // Starts that were refused where reads fail, and those that were not.
    let mut unread = (0, 0);
    while cuts.cuts < times {
        load.until(&mut server, |server| {
            wait(under_load(&mut random));
            cuts.cut(&disk, server, &mut random);
        });
        disk.heal();
        if cuts.cuts % 10 == 4 {
            // What it cannot read it has to refuse; nothing is lost by that.
            server.respawn_after(|| disk.set_reads_per_error(3));
            server.only_reads_fail = true;
            match server.wait_until_ready() {
                Ok(()) => unread.1 += 1,
                Err(_) => unread.0 += 1,
            }
            server.only_reads_fail = false;
            server.kill();
            disk.set_reads_per_error(0);
        }
        let slow = cuts.cuts % 10 == 9;
        disk.set_sync_time(if slow { SLOW_SYNC } else { Duration::ZERO });
        // And again, while it comes up.
        if random.between(0, 4) == 0 {
            server.respawn();
            let soon = Duration::from_millis(60);
            wait(span(&mut random, Duration::ZERO, soon));
            cuts.add(disk.cut(random.between(0, u64::MAX)));
            cuts.in_recovery += 1;
            server.kill();
            disk.heal();
        }
        server.restart();
    }
    let took_us = now_us() - start;

    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    let mut rows = cuts.rows();
    rows.extend(settled.rows(&verdict, &server));
    let health = &settled.health_after_failure;
    rows.push(("health, failed", format!("{health:?}")));
    let (refused, opened) = unread;
    rows.push((
        "starts, reads fail",
        format!("{refused} refused, {opened} not"),
    ));
    rows.push(("syncs", disk.syncs().to_string()));
    rows.push(("took", format!("{} ms", took_us / 1_000)));
    figures::print(&format!("{times} cuts of power under load"), &rows);
    settled.demand_red_health();
    verdict.demand_innocence();
    assert!(verdict.sets > 0 && verdict.moves > 0 && verdict.removes > 0);
    assert!(cuts.sum.sectors_dropped > 0, "nothing was at stake");
}

#[test]
#[ignore = "part of the minute of power, needs FUSE: cargo xtask check power"]
fn a_store_that_was_being_made_opens_after_a_cut() {
    let _turn = turn();
    let times = setting("COUNTWHEEL_CUTS", || 40) / 4;
    let mut random = Random::new(seed());
    let directory = Directory::new("power-new");
    let disk = lossy(&directory.join("disk"));
    let mut cuts = Cuts::default();
    let mut refused = Vec::new();
    let mut lost = 0;
    for number in 0..times {
        let data = directory.join(&format!("disk/data-{number}"));
        let mut server = Server::launch(&data, Launch::default());
        // Somewhere between two of the syncs that this takes.
        let (before, after) = (disk.syncs(), random.between(0, 12));
        let end = now_us() + 1_000_000;
        while disk.syncs() < before + after && now_us() < end {
            pause();
        }
        cuts.add(disk.cut(random.between(0, u64::MAX)));
        server.kill();
        disk.heal();
        if let Err(why) = server.try_restart() {
            refused.push(why);
            continue;
        }
        assert_eq!(server.caller().all().len(), 0);
        // All that it is made of has to be durable before the first success.
        let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}});
        let path = "/v1/queues/default/timers/first";
        let reply = server.caller().ask("PUT", path, Some(&body));
        assert_eq!(reply.expect("an answer").status, 201);
        cuts.add(disk.cut(random.between(0, u64::MAX)));
        server.kill();
        disk.heal();
        match server.try_restart() {
            Ok(()) => lost += usize::from(server.caller().all().len() != 1),
            Err(why) => refused.push(why),
        }
    }
    figures::print("Cuts while the store is made", &cuts.rows());
    assert_eq!(lost, 0, "first timers, acknowledged");
    assert!(
        refused.is_empty(),
        "{} of {times}: {refused:#?}",
        refused.len()
    );
}

/// The sync of the parent of the data directory failed, and nobody looked: an entry that no later
/// sync makes durable, and with it all that was acknowledged.
#[test]
#[ignore = "part of the minute of power, needs FUSE: cargo xtask check power"]
fn no_sync_of_a_directory_that_fails_while_the_store_is_made_loses_anything() {
    const TIMERS: usize = 5;
    const SYNCS_MAX: u64 = 64;
    let _turn = turn();
    let mut random = Random::new(seed());
    let directory = Directory::new("power-directories");
    let disk = lossy(&directory.join("disk"));
    let (mut went_on, mut refused, mut lost) = (0, Vec::new(), Vec::new());
    let mut reached = 0;
    for number in 0..SYNCS_MAX {
        // Two directories are made, or the one in which all else is.
        let above = directory.join(&format!("disk/above-{number}"));
        let data = above.join("data");
        if number % 2 == 1 {
            std::fs::create_dir(&above).unwrap();
            let root = std::fs::File::open(directory.join("disk")).unwrap();
            root.sync_all().unwrap();
            std::fs::create_dir(&data).unwrap();
        }
        disk.fail_directory_sync(Some(number / 2));
        let mut server = Server::launch(&data, Launch::default());
        let first = server.wait_until_ready();
        let is_reached = !disk.will_fail_directory_sync();
        disk.fail_directory_sync(None);
        if !is_reached && number % 2 == 1 {
            server.kill();
            break;
        }
        reached += u64::from(is_reached);
        went_on += u64::from(first.is_ok());
        server.kill();
        if let Err(why) = server.try_restart() {
            refused.push(why);
            continue;
        }
        let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}});
        for timer in 0..TIMERS {
            let path = format!("/v1/queues/default/timers/{timer}");
            let reply = server.caller().ask("PUT", &path, Some(&body));
            assert_eq!(reply.expect("an answer").status, 201);
        }
        disk.cut(random.between(0, u64::MAX));
        server.kill();
        disk.heal();
        match server.try_restart() {
            Ok(()) => {
                let there = server.caller().all().len();
                if there != TIMERS {
                    lost.push(format!(
                        "sync {}: {there} of {TIMERS} are there",
                        number / 2
                    ));
                }
            }
            Err(why) => lost.push(format!("sync {}: {why}", number / 2)),
        }
        server.kill();
    }
    figures::print(
        "Syncs of directories that fail while the store is made",
        &[
            ("failed", reached.to_string()),
            ("the start went on", went_on.to_string()),
            ("refused afterwards", refused.len().to_string()),
            ("lost", lost.len().to_string()),
        ],
    );
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(reached > 8, "{reached}");
}

#[test]
#[ignore = "part of the minute of power, needs FUSE: cargo xtask check power"]
fn a_disk_whose_syncs_lie_is_found_each_time() {
    let _turn = turn();
    let mut random = Random::new(seed());
    let (mut refused, mut lost, mut missed) = (0, 0, 0);
    for number in 0..CONTROLS {
        let directory = Directory::new(&format!("power-control-{number}"));
        let disk = lossy(&directory.join("disk"));
        let receiver = Receiver::start();
        let mut server = Server::start(&directory.join("disk/data"));
        let mut load = Load::new(&receiver.url, &mut random);
        disk.set_lies(true);
        load.until(&mut server, |_| {
            wait(Duration::from_millis(150));
            disk.cut(random.between(0, u64::MAX));
        });
        disk.heal();
        match server.try_restart() {
            Err(_) => refused += 1,
            Ok(()) => {
                let settled = load.settle(&server, &receiver);
                match judge(&settled.evidence).count(Fault::Lost) {
                    0 => missed += 1,
                    _ => lost += 1,
                }
            }
        }
    }
    figures::print(
        "Cuts of power where syncs do nothing",
        &[
            ("refused as damaged", refused.to_string()),
            ("opened, timers lost", lost.to_string()),
            ("nothing lost", missed.to_string()),
        ],
    );
    assert_eq!(refused + lost, CONTROLS, "the proof cannot see a loss");
}

#[test]
#[ignore = "needs FUSE and loop devices: cargo xtask check power"]
fn cuts_below_a_journal_lose_nothing() {
    let _turn = turn();
    let times = setting("COUNTWHEEL_CUTS_JOURNALED", || 3);
    let mut random = Random::new(seed());
    let directory = Directory::new("power-journal");
    let disk = lossy(&directory.join("disk"));
    let (image, mount) = (directory.join("disk/image"), directory.join("mount"));
    Mounted::format(&image, IMAGE_BYTES);
    let receiver = Receiver::start();
    let start = now_us();
    let mut mounted = Mounted::ext4(&image, &mount, "");
    let mut server = Server::start(&mount.join("data"));
    let mut load = Load::new(&receiver.url, &mut random);
    let mut cuts = Cuts::default();
    while cuts.cuts < times {
        load.until(&mut server, |server| {
            wait(under_load(&mut random));
            cuts.cut(&disk, server, &mut random);
        });
        drop(mounted);
        disk.heal();
        // The kernel recovers its journal here.
        mounted = Mounted::ext4(&image, &mount, "");
        server.restart();
    }
    let took_us = now_us() - start;

    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    let mut rows = cuts.rows();
    rows.extend(settled.rows(&verdict, &server));
    rows.push(("took", format!("{} ms", took_us / 1_000)));
    figures::print(&format!("{times} cuts of power below an ext4"), &rows);
    verdict.demand_innocence();
    drop(server);
    drop(mounted);
}
