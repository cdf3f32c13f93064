//! How many buffers of the server the first pages of what is due cost a new owner, while a snapshot is pinned
//! and one attempt of each shard does not end: with the low marks of the last turn, and from the start.
//!
//! ```text
//! cargo run --release --features testing -p countwheel-postgres --example front_pages -- SECONDS [DIRECTORY]
//! ```
//!
//! Without arguments there is load for half a second.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use countwheel_durable::store::{DueScan, Store};
use countwheel_durable::{
    Attempt, Completion, Config, Due, DueClock, Handler, Outcome, Precondition, Request,
    RetryPolicy, SetOptions, Shards, TimerName, Timers,
};
use countwheel_postgres::testing::{NoServer, Server};
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::{Clock, SystemClock};
use parking_lot::Mutex;

const SHARDS: u16 = 16;
/// So many entries a page has.
const PAGE: usize = 256;
/// Callers, and how many answers each leaves open.
const CALLERS: usize = 4;
const AHEAD: usize = 1_000;
/// The queue whose attempts do not end.
const STUCK: &str = "stuck";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |text| text.parse())?;
    let place = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let settings = [
        "shared_buffers=1GB",
        "max_wal_size=8GB",
        "shared_preload_libraries=pg_stat_statements",
    ];
    let server = match Server::start_in(&place, &settings) {
        Ok(server) => Arc::new(server),
        Err(error) => {
            println!("not run: {error}");
            return Ok(());
        }
    };
    server.execute("CREATE EXTENSION pg_stat_statements")?;
    let options = server.fresh();
    let shards = Shards::new(SHARDS).ok_or("from 1 to 1024")?;
    PostgresStore::make(&options, shards)?;
    let pinned = pin(&server, &options);
    let lives = load(&options, shards, Duration::from_secs_f64(seconds))?;
    println!("{lives} lives on {SHARDS} shards");
    let rows = format!(
        "SELECT round(avg(pg_column_size(lows)), 1), max(pg_column_size(lows)), \
         round(avg(pg_column_size(t.*)), 1) FROM {}.turn t WHERE token IS NOT NULL",
        options.schema
    );
    let rows = server.execute(&rows)?;
    println!(
        "bytes of low marks of a turn, the most, of the turn: {}",
        rows.trim()
    );
    let store = PostgresStore::open(&options)?;
    report("from the start", &pages(&server, &store, shards)?);
    for shard in shards.all() {
        store.acquire(shard)?;
    }
    report("from the low marks", &pages(&server, &store, shards)?);
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()")?;
    let _it_was_ended = pinned.join();
    Ok(())
}

/// A snapshot that sees the tables as they are now.
fn pin(
    server: &Arc<Server>,
    options: &PostgresOptions,
) -> thread::JoinHandle<Result<String, NoServer>> {
    let (server, schema) = (Arc::clone(server), options.schema.clone());
    thread::spawn(move || {
        let text = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.timer; SELECT pg_sleep(3600)"
        );
        server.execute(&text)
    })
}

/// Completes each attempt at once but those that are stuck.
struct Mostly {
    done: Arc<AtomicU64>,
    stuck: Mutex<Vec<Completion>>,
}

impl Handler for Mostly {
    fn start(&self, attempt: Attempt, done: Completion) {
        if attempt.name.queue.as_str() == STUCK {
            self.stuck.lock().push(done);
        } else {
            self.done.fetch_add(1, Ordering::Relaxed);
            done.complete(Outcome::done());
        }
    }
}

/// Lives of timers that are due at once, as many as can be.
fn load(options: &PostgresOptions, shards: Shards, span: Duration) -> Result<u64, Box<dyn Error>> {
    let done = Arc::new(AtomicU64::new(0));
    let handler = Mostly {
        done: Arc::clone(&done),
        stuck: Mutex::new(Vec::new()),
    };
    let (store, clock) = (PostgresStore::open(options)?, SystemClock::new());
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
    // One of each shard.
    for shard in shards.all() {
        let mut names = (0..).filter_map(|number| TimerName::new(STUCK, format!("{number}")).ok());
        let name = names.find(|name| shards.of(name) == shard);
        timers.set(name.ok_or("no name")?, Duration::ZERO, "")?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (timers, stop) = (timers.clone(), Arc::clone(&stop));
            thread::spawn(move || call(caller, &timers, &stop))
        })
        .collect();
    let until = clock.now() + span;
    while clock.now() < until {
        thread::park_timeout(until.saturating_since(clock.now()));
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().map_err(|_| "a caller panicked")?;
    }
    timers.stop(Duration::from_secs(1));
    Ok(done.load(Ordering::Relaxed))
}

fn call(caller: usize, timers: &Timers, stop: &AtomicBool) {
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
            due: Due::In(Duration::ZERO),
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
        while waiting >= AHEAD && receive.recv().is_ok() {
            waiting -= 1;
        }
    }
}

/// The buffers of the first page of each shard, by each clock.
fn pages(
    server: &Server,
    store: &PostgresStore,
    shards: Shards,
) -> Result<[Vec<u64>; 2], Box<dyn Error>> {
    let mut all = [Vec::new(), Vec::new()];
    for shard in shards.all() {
        for clock in DueClock::ALL {
            server.execute("SELECT pg_stat_statements_reset()")?;
            let scan = DueScan {
                limit: PAGE,
                ..DueScan::all(clock)
            };
            store.due(shard, &scan)?;
            let buffers = server.execute(
                "SELECT sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements \
                 WHERE query LIKE '%SELECT wake, revision, state, queue, key%'",
            )?;
            all[clock as usize].push(buffers.trim().parse()?);
        }
    }
    all.iter_mut().for_each(|buffers| buffers.sort_unstable());
    Ok(all)
}

fn report(what: &str, pages: &[Vec<u64>; 2]) {
    // What was set for a span wakes by the boot clock; what is done is kept by the wall clock.
    for (of, buffers) in ["done", "attempts"].iter().zip(pages) {
        let middle = buffers[buffers.len() / 2];
        let (least, most) = (buffers[0], buffers[buffers.len() - 1]);
        println!("first pages of {of} {what}: {middle} buffers ({least}..{most})");
    }
}
