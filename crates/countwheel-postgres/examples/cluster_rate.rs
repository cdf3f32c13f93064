//! How many sets and whole lives a second the engine does on a PostgreSQL, beside its own merged statement
//! without an engine, and beside that statement without its fence.
//!
//! ```text
//! cargo run --release --features testing -p countwheel-postgres --example cluster_rate -- SECONDS ROUNDS [DIRECTORY [HISTORY]]
//! ```
//!
//! The server is started below DIRECTORY, by default in the system's directory for what is temporary:
//! its disk is what is measured. With HISTORY, each of the nine tables of done records has so many rows before
//! the engine begins. Rounds are interleaved. Without arguments it runs for half a second.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use countwheel_durable::store::{Before, Change, Commit, Shard, Store};
use countwheel_durable::{
    Attempt, AttemptRecord, Config, Due, DueClock, Inline, Missed, Outcome, Precondition, Record,
    Request, RetryPolicy, Revision, SetOptions, Shards, State, TimerId, TimerName, Timers,
};
use countwheel_postgres::conformance::Mistake;
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// Callers, and how many answers each leaves open.
const CALLERS: usize = 4;
const AHEAD: usize = 1_000;
/// Threads that commit without an engine, one on each lane, and the changes of each of its shards.
const LANES: u16 = 4;
const SHARDS_A_COMMIT: u16 = 16;
const CHANGES_A_SHARD: u64 = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let place = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let history: u64 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let server = match Server::start_in(&place, &["shared_buffers=1GB", "max_wal_size=8GB"]) {
        Ok(server) => server,
        Err(error) => {
            println!("not run: {error}");
            return Ok(());
        }
    };
    let span = Duration::from_secs_f64(seconds);
    let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
    for round in 0..rounds {
        let (sets, _) = engine(&server, span, false, history)?;
        let (lives, bytes) = engine(&server, span, true, history)?;
        let rows: [(&str, f64); 5] = [
            (
                "statement without fence, sets/s",
                bare(&server, span, Some(Mistake::NoFence))?,
            ),
            ("merged statement, sets/s", bare(&server, span, None)?),
            ("engine, sets/s", sets),
            ("engine, lives/s", lives),
            ("WAL of a life, bytes", bytes),
        ];
        for (row, rate) in rows {
            println!("round {round}: {row}: {rate:.0}");
            match all.iter_mut().find(|(name, _)| *name == row) {
                Some((_, rates)) => rates.push(rate),
                None => all.push((row, vec![rate])),
            }
        }
    }
    for (row, mut rates) in all {
        rates.sort_by(f64::total_cmp);
        let (lowest, highest) = (rates[0], rates[rates.len() - 1]);
        println!(
            "{row}: {:.0} ({lowest:.0}..{highest:.0})",
            rates[rates.len() / 2]
        );
    }
    Ok(())
}

fn made(server: &Server) -> Result<(PostgresOptions, Shards), Box<dyn Error>> {
    let options = server.fresh();
    let shards = Shards::new(64).ok_or("from 1 to 1024")?;
    PostgresStore::make(&options, shards)?;
    Ok((options, shards))
}

/// The rate of commits of many shards, by the store alone.
fn bare(server: &Server, span: Duration, mistake: Option<Mistake>) -> Result<f64, Box<dyn Error>> {
    let (options, _) = made(server)?;
    let store = match mistake {
        Some(mistake) => PostgresStore::open_with(&options, mistake)?,
        None => PostgresStore::open(&options)?,
    };
    let (store, clock) = (Arc::new(store), SystemClock::new());
    let until = clock.now() + span;
    let mut threads = Vec::new();
    for lane in 0..LANES {
        let (store, clock) = (Arc::clone(&store), clock);
        threads.push(thread::spawn(move || -> Result<u64, String> {
            let shards = (0..SHARDS_A_COMMIT).map(|i| Shard(lane + LANES * i));
            let leases: Result<Vec<_>, _> = shards.map(|shard| store.acquire(shard)).collect();
            let leases = leases.map_err(|error| error.to_string())?;
            let mut number = 0;
            while clock.now() < until {
                let changes: Vec<Vec<Change>> = leases
                    .iter()
                    .map(|_| {
                        let each = (0..CHANGES_A_SHARD).map(|_| {
                            number += 1;
                            Change::Put {
                                record: Box::new(record(lane, number)),
                                before: Before::Absent,
                            }
                        });
                        each.collect()
                    })
                    .collect();
                let commits: Vec<_> = leases
                    .iter()
                    .zip(&changes)
                    .map(|(it, changes)| Commit {
                        lease: it.lease,
                        changes,
                    })
                    .collect();
                for result in store.commit_all(&commits) {
                    result.map_err(|error| error.to_string())?;
                }
            }
            Ok(number)
        }));
    }
    let mut count = 0;
    for thread in threads {
        count += thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(rate(count, span))
}

fn record(lane: u16, number: u64) -> Record {
    let at = Timestamp::from_micros(4_000_000_000_000_000 + number);
    Record {
        name: TimerName::new("bench", format!("order-{lane}-{number:012}"))
            .unwrap_or_else(|error| unreachable!("{error}")),
        id: TimerId {
            store: 7,
            set: Revision(number),
        },
        revision: Revision(number),
        state: State::Pending,
        created: at,
        due: at,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: at,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::<AttemptRecord>::new(),
        payload: vec![7; 100],
    }
}

/// Puts rows into each table of done records.
fn fill(server: &Server, schema: &str, history: u64) -> Result<(), Box<dyn Error>> {
    if history == 0 {
        return Ok(());
    }
    server.execute(&format!(
        "INSERT INTO {schema}.done SELECT n, n, (s.slot + 9000000) * m.done_slice \
           - 9223372036854775807 - 1, n % 64, s.slot, gen_random_uuid(), 'bench', 'old-' || n, \
           decode(repeat('07', 120), 'hex'), decode(repeat('07', 100), 'hex') \
         FROM {schema}.meta m, generate_series(0, 8) AS s(slot), generate_series(1, {history}) AS n"
    ))?;
    server.execute(&format!("VACUUM ANALYZE {schema}.done"))?;
    server.execute("CHECKPOINT")?;
    Ok(())
}

/// How many bytes the server has written to its log.
fn written(server: &Server) -> Result<f64, Box<dyn Error>> {
    let lsn = server.execute("SELECT pg_current_wal_lsn() - '0/0'")?;
    Ok(lsn.trim().parse()?)
}

/// The rate of sets of far timers, or of timers that are due at once and become done, and how many bytes
/// the log of the server has of each.
fn engine(
    server: &Server,
    span: Duration,
    lives: bool,
    history: u64,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (options, shards) = made(server)?;
    fill(server, &options.schema, history)?;
    let store = PostgresStore::open(&options)?;
    let fired = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&fired);
    let handler = Inline(move |_: &Attempt| {
        counted.fetch_add(1, Ordering::Relaxed);
        Outcome::done()
    });
    let clock = SystemClock::new();
    let config = Config {
        max_in_flight: 10_000,
        ..Config::default()
    };
    let timers = Timers::open_divided(
        store,
        shards,
        shards.all(),
        handler,
        Arc::new(clock),
        config,
    )?;
    let written_before = written(server)?;
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::new(AtomicU64::new(0));
    let due = if lives {
        Duration::ZERO
    } else {
        Duration::from_secs(3_600)
    };
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (timers, stop, set) = (timers.clone(), Arc::clone(&stop), Arc::clone(&set));
            thread::spawn(move || call(caller, due, &timers, &stop, &set))
        })
        .collect();
    let wait = |span: Duration| {
        let until = clock.now() + span;
        while clock.now() < until {
            thread::park_timeout(until.saturating_since(clock.now()));
        }
    };
    wait(span / 5);
    let counter = if lives { &fired } else { &set };
    let before = counter.load(Ordering::Relaxed);
    wait(span);
    let count = counter.load(Ordering::Relaxed) - before;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().map_err(|_| "a caller panicked")?;
    }
    timers.stop(Duration::from_secs(1));
    let bytes = written(server)? - written_before;
    let all = counter.load(Ordering::Relaxed).max(1);
    server.execute(&format!("DROP SCHEMA {} CASCADE", options.schema))?;
    Ok((rate(count, span), rate_of(bytes, all)))
}

fn call(caller: usize, due: Duration, timers: &Timers, stop: &AtomicBool, done: &AtomicU64) {
    let (send, receive) = mpsc::channel();
    let mut waiting = 0;
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Ok(name) = TimerName::new("bench", format!("order-{caller}-{number:012}")) else {
            break;
        };
        let request = Request::Set {
            name,
            due: Due::In(due),
            policy: RetryPolicy::default(),
            payload: vec![7; 100],
            options: SetOptions::default(),
            precondition: Precondition::None,
        };
        let send = send.clone();
        timers.submit(request, move |answer| {
            send.send(answer.is_ok()).unwrap_or_default();
        });
        waiting += 1;
        if waiting >= AHEAD {
            for _ in 0..waiting / 2 {
                let answered = receive.recv().is_ok_and(|ok| ok);
                done.fetch_add(u64::from(answered), Ordering::Relaxed);
                waiting -= 1;
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
fn rate(count: u64, span: Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a mean needs no more")]
fn rate_of(sum: f64, count: u64) -> f64 {
    sum / count as f64
}
