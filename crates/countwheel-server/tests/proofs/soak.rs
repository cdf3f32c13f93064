//! Half of what the server can take, for a while: it ends as it began.
//!
//! `COUNTWHEEL_SOAK_SECONDS` says for how long, `COUNTWHEEL_SEED` repeats what is asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::json;

use crate::harness::caller::{Caller, number, text};
use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{
    Directory, Random, figures, micros, now_us, pause, seed, setting, turn, wait, wait_until,
};

const CALLERS: u64 = 6;
/// For how long the server keeps a connection that is not used.
const IDLE: Duration = Duration::from_secs(30);
/// For how long everything is asked that can be, to know what half of it is.
const PEAK: Duration = Duration::from_secs(4);
/// How long a soak has to be to say something about memory: the store's cache fills first.
const MEMORY_SECONDS: u64 = 180;

/// What was asked and granted.
#[derive(Default)]
struct Sums {
    sets: AtomicU64,
    removed: AtomicU64,
    requests: AtomicU64,
    keys: AtomicU64,
}

/// What the system has of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    resident: u64,
    /// Connections left out.
    files: u64,
    sockets: u64,
    threads: u64,
}

fn usage(process: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let number = line.split_whitespace().nth(1).unwrap();
        number.parse::<u64>().unwrap()
    };
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    // One may be closed between the two looks.
    let files = files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap_or_default());
    let (sockets, others): (Vec<_>, Vec<_>) =
        files.partition(|file| file.to_string_lossy().starts_with("socket:"));
    Usage {
        resident: number("VmRSS:") << 10,
        files: others.len() as u64,
        sockets: sockets.len() as u64,
        threads: number("Threads:"),
    }
}

/// The median: whether it grows. One second's highest is what a merge holds at the moment, or what
/// waits for one.
fn middle(seen: &[Usage], what: fn(&Usage) -> u64) -> u64 {
    let mut values: Vec<_> = seen.iter().map(what).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Sets timers due within two seconds, and removes four of ten. At most `per_second`.
fn ask(
    caller: &mut Caller,
    sums: &Sums,
    target: &str,
    random: &mut Random,
    end_us: u64,
    per_second: Option<u64>,
) {
    let start_us = now_us();
    let mut asked = 0;
    while now_us() < end_us {
        if let Some(per_second) = per_second
            && start_us + asked * 1_000_000 / per_second > now_us()
        {
            pause();
            continue;
        }
        let path = format!(
            "/v1/queues/default/timers/soak-{}",
            sums.keys.fetch_add(1, Relaxed)
        );
        let body = json!({
            "in": random.between(300, 2_000),
            "body": "timers ".repeat(usize::try_from(random.between(1, 40)).unwrap()),
            "content_type": "text/plain",
            "target": {"url": target},
        });
        let reply = caller.ask("PUT", &path, Some(&body)).expect("an answer");
        assert_eq!(reply.status, 201, "{}", reply.body);
        sums.sets.fetch_add(1, Relaxed);
        asked += 1;
        if random.between(0, 10) < 4 {
            let reply = caller.ask("DELETE", &path, None).expect("an answer");
            asked += 1;
            // If it was due meanwhile, it arrives or has arrived.
            let removed = reply.status == 200 && text(&reply.body, "was") == "pending";
            sums.removed.fetch_add(u64::from(removed), Relaxed);
        }
    }
    sums.requests.fetch_add(asked, Relaxed);
}

/// Asks on all connections, and looks at the server each second meanwhile.
fn load(
    server: &Server,
    sums: &Sums,
    target: &str,
    random: &mut Random,
    span: Duration,
    per_second: Option<u64>,
) -> Vec<Usage> {
    let end_us = now_us() + micros(span);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            let mut caller = server.caller();
            let mut random = Random::new(random.between(0, u64::MAX));
            let per_second = per_second.map(|all| (all / CALLERS).max(1));
            scope.spawn(move || {
                ask(&mut caller, sums, target, &mut random, end_us, per_second);
            });
        }
        let mut next_us = now_us();
        while now_us() < end_us {
            if now_us() >= next_us {
                seen.push(usage(server.pid()));
                next_us += 1_000_000;
            }
            pause();
        }
    });
    seen
}

#[test]
#[ignore = "a minute long: cargo xtask check soak"]
fn a_soak_ends_as_it_began() {
    let _turn = turn();
    let seconds = setting("COUNTWHEEL_SOAK_SECONDS", || 20);
    let mut random = Random::new(seed());
    let directory = Directory::new("soak");
    let receiver = Receiver::counting();
    // What is done is forgotten soon, so that nothing is left in the end.
    let launch = Launch {
        options: vec!["--keep-done", "1s"],
        ..Launch::default()
    };
    let server = Server::start_as(&directory.join("data"), launch);
    let sums = Sums::default();
    assert_eq!(count(&server), 0);
    let at_start = usage(server.pid());

    load(&server, &sums, &receiver.url, &mut random, PEAK, None);
    let peak = sums.requests.swap(0, Relaxed) / PEAK.as_secs();
    let half = (peak / 2).max(1);
    let warm_up = Duration::from_secs((seconds / 4).min(3_600));
    let rest = Duration::from_secs(seconds) - warm_up;
    let target = &receiver.url;
    load(&server, &sums, target, &mut random, warm_up, Some(half));
    let seen = load(&server, &sums, target, &mut random, rest, Some(half));

    let expected = sums.sets.load(Relaxed) - sums.removed.load(Relaxed);
    wait_until("all is delivered and forgotten", || {
        receiver.count() >= expected && count(&server) == 0
    });
    let (early, late) = seen.split_at(seen.len() / 2);
    let most = |of: &[Usage], what: fn(&Usage) -> u64| of.iter().map(what).max().unwrap_or(0);
    let both = |what: fn(&Usage) -> u64| (most(early, what), most(late, what));
    let middles = |what: fn(&Usage) -> u64| (middle(early, what), middle(late, what));
    let (resident, files) = (middles(|one| one.resident), middles(|one| one.files));
    let (highest, most_files) = (both(|one| one.resident), both(|one| one.files));
    let sockets = both(|one| one.sockets);
    let threads = both(|one| one.threads);
    #[expect(clippy::cast_precision_loss, reason = "memory is below 2^52")]
    let grown = |(before, after): (u64, u64)| after as f64 / before as f64 - 1.0;
    let kib = |both: (u64, u64)| {
        let percent = grown(both) * 100.0;
        format!("{} and {} KiB, {percent:+.2} %", both.0 >> 10, both.1 >> 10)
    };
    figures::print(
        &format!("{seconds} s at half of peak"),
        &[
            ("peak", format!("{peak} requests/s for {PEAK:?}")),
            ("asked", format!("{half} requests/s")),
            ("sets", sums.sets.load(Relaxed).to_string()),
            ("removes", sums.removed.load(Relaxed).to_string()),
            ("deliveries", format!("{} of {expected}", receiver.count())),
            ("left", count(&server).to_string()),
            ("resident, median of each half", kib(resident)),
            ("and highest second", kib(highest)),
            ("files, median of each half", format!("{files:?}")),
            ("and most in a second", format!("{most_files:?}")),
            ("connections", format!("{sockets:?}")),
            ("threads", format!("{threads:?}")),
            ("at the start", format!("{at_start:?}")),
            ("at the end", format!("{:?}", usage(server.pid()))),
        ],
    );
    // Idle connections of deliveries are closed a while after their last use.
    let is_long = seconds >= MEMORY_SECONDS;
    if is_long {
        wait(IDLE);
        wait_until("the connections are closed", || {
            usage(server.pid()).sockets <= at_start.sockets + SOCKETS_KEPT
        });
    }
    assert_eq!(receiver.count(), expected, "delivered and owed");
    assert!(files.1 <= files.0 + FILES_SWAY, "files: {files:?}");
    assert!(most_files.1 <= FILES_MAX, "files: {most_files:?}");
    let sockets = sockets.0.max(sockets.1);
    assert!(sockets <= at_start.sockets + SOCKETS_MAX, "{sockets}");
    assert!(threads.1 <= threads.0, "threads: {threads:?}");
    if is_long {
        assert!(grown(resident) <= 0.01, "memory grows: {resident:?}");
        assert!(grown(highest) <= 0.1, "memory peaks: {highest:?}");
    }
}

/// Tables come and go as they are merged.
const FILES_SWAY: u64 = 8;
/// With merging behind, as when something else holds the machine.
const FILES_MAX: u64 = 256;
/// The callers' connections, and those of deliveries: at most so many run at a time.
const SOCKETS_MAX: u64 = 256 + CALLERS + SOCKETS_KEPT;
/// What the last look at it has open.
const SOCKETS_KEPT: u64 = 2;

/// How many timers there are, in whatever state.
fn count(server: &Server) -> u64 {
    let reply = server.caller().ask("GET", "/v1/queues", None);
    let body = reply.expect("an answer").body;
    let queues = body["queues"].as_array().expect("queues").iter();
    let states = |queue| ["pending", "delivering", "done", "dead"].map(|one| number(queue, one));
    queues.flat_map(states).sum()
}
