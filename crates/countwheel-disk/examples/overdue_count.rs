//! What the count of overdue timers costs: very many come due together and no receiver answers; then
//! the process starts again. Says how long until the count is exact, and how long the turns take.
//! `cargo run --release -p countwheel-disk --example overdue_count [DIRECTORY [TIMERS]]`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{DueScan, Shard, Store};
use countwheel_durable::{
    Config, Due, DueClock, Effect, Engine, Event, Precondition, Request, RetryPolicy, SetOptions,
    State, Ticket, TimerName,
};
use countwheel_time::{Clock, ManualClock, SystemClock, Timestamp};

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const BATCH: u64 = 1_024;

fn set(number: u64) -> Result<Request, Box<dyn Error>> {
    Ok(Request::Set {
        name: TimerName::new(format!("queue-{}", number % 100), number.to_string())?,
        due: Due::At(START + Duration::from_secs(3_600)),
        policy: RetryPolicy::default(),
        payload: vec![7; 100],
        precondition: Precondition::None,
        options: SetOptions::default(),
    })
}

/// Takes turns until the count is exact.
fn count(engine: &mut Engine, real: &SystemClock) -> Result<(), Box<dyn Error>> {
    let begun = real.now();
    let (mut turns, mut slowest) = (0, Duration::ZERO);
    loop {
        let turn = real.now();
        engine.turn(vec![], &mut |_| {})?;
        slowest = slowest.max(real.now().saturating_since(turn));
        turns += 1;
        let told = engine.stats().overdue;
        if told.is_exact && told.count > 0 {
            let took = real.now().saturating_since(begun);
            println!(
                "{} overdue, exact after {took:.2?} and {turns} turns, the slowest {slowest:.2?}",
                told.count
            );
            return Ok(());
        }
    }
}

/// Looks through the store.
fn found(store: &DiskStore, until: Timestamp) -> Result<u64, Box<dyn Error>> {
    let mut found = 0;
    for clock in DueClock::ALL {
        let mut scan = DueScan {
            until,
            limit: 65_536,
            ..DueScan::all(clock)
        };
        loop {
            let page = store.due(Shard::ONLY, &scan)?;
            for entry in page.entries {
                let record = store.get(Shard::ONLY, &entry.name)?;
                found += u64::from(record.is_some_and(|it| it.state == State::Pending));
            }
            match page.next {
                Some(next) => scan.after = Some(next),
                None => break,
            }
        }
    }
    Ok(found)
}

fn run(directory: &Path, timers: u64) -> Result<(), Box<dyn Error>> {
    let (real, clock) = (SystemClock::new(), ManualClock::at(START));
    let config = Config {
        max_in_flight: 16,
        ..Config::default()
    };
    let open = |store: &Arc<DiskStore>| {
        Engine::open(
            store.clone(),
            Shard::ONLY,
            Arc::new(clock.clone()),
            config.clone(),
        )
    };
    let store = Arc::new(DiskStore::open(directory, 7, DiskOptions::default())?);
    let mut engine = open(&store)?;
    let mut at = 0;
    while at < timers {
        let numbers = at..(at + BATCH).min(timers);
        let events = numbers.map(|number| Ok(Event::Request(Ticket(number), set(number)?)));
        let events = events.collect::<Result<_, Box<dyn Error>>>()?;
        engine.turn(events, &mut |effect| {
            assert!(matches!(effect, Effect::Answer(_, Ok(_))));
        })?;
        at += BATCH;
    }
    clock.advance(Duration::from_secs(3_610));
    count(&mut engine, &real)?;
    drop((engine, store));
    let store = Arc::new(DiskStore::open(directory, 7, DiskOptions::default())?);
    let mut engine = open(&store)?;
    count(&mut engine, &real)?;
    let told = engine.stats().overdue;
    assert_eq!(told.count, found(&store, told.as_of)?);
    println!("a look through the store finds as many");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next();
    let timers = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let own = tempfile::tempdir()?;
    let directory = directory.map_or_else(|| own.path().to_owned(), Into::into);
    run(&directory.join("overdue-count"), timers)
}
