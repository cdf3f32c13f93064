//! A table and `FOR UPDATE SKIP LOCKED`, as many programs have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use countwheel_time::{Clock as _, SystemClock};
use tokio_postgres::Statement;

use crate::load::Timeline;
use crate::ours::PAYLOAD_BYTES;
use crate::sql::Connection;

const CONNECTIONS: usize = 4;
/// Rows of one insert.
const ADDED: usize = 1_000;
/// Rows that are added and taken at a time, in whole lives.
const TAKEN: usize = 100;

pub(super) fn make(url: &str) -> anyhow::Result<()> {
    Connection::open(url)?.run(
        "CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
           run_at timestamptz NOT NULL, payload text NOT NULL); \
         CREATE INDEX job_run_at ON job (run_at)",
    )
}

pub(super) fn payload() -> String {
    "x".repeat(PAYLOAD_BYTES)
}

pub(super) fn adds(clock: SystemClock, url: &str, span: Duration) -> anyhow::Result<Timeline> {
    run(clock, url, span, |at| at.add(86_400.0, ADDED))
}

pub(super) fn lives(clock: SystemClock, url: &str, span: Duration) -> anyhow::Result<Timeline> {
    run(clock, url, span, |at| {
        at.add(0.0, TAKEN)?;
        // What is done: nothing. The row is gone with the statement that takes it.
        at.connection.execute(&at.take, &[])
    })
}

/// A connection and its statements.
struct At {
    connection: Connection,
    add: Statement,
    take: Statement,
}

impl At {
    fn open(url: &str) -> anyhow::Result<Self> {
        let connection = Connection::open(url)?;
        let add = connection.prepare(
            "INSERT INTO job (run_at, payload) \
             SELECT now() + $1 * interval '1 second', p FROM unnest($2::text[]) AS p",
        )?;
        let take = connection.prepare(&format!(
            "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE run_at <= now() \
             ORDER BY run_at LIMIT {TAKEN} FOR UPDATE SKIP LOCKED) RETURNING id, payload"
        ))?;
        Ok(Self {
            connection,
            add,
            take,
        })
    }

    fn add(&self, seconds: f64, count: usize) -> anyhow::Result<u64> {
        let payloads = vec![payload(); count];
        self.connection.execute(&self.add, &[&seconds, &payloads])
    }
}

fn run(
    clock: SystemClock,
    url: &str,
    span: Duration,
    act: fn(&At) -> anyhow::Result<u64>,
) -> anyhow::Result<Timeline> {
    let count = Arc::new(AtomicU64::new(0));
    let until = clock.now() + span;
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (count, url) = (Arc::clone(&count), url.to_owned());
            thread::spawn(move || -> anyhow::Result<()> {
                let at = At::open(&url)?;
                while clock.now() < until {
                    count.fetch_add(act(&at)?, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    let timeline = Timeline::watch(clock, span.as_secs(), || count.load(Ordering::Relaxed));
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow!("a connection panicked"))??;
    }
    Ok(timeline)
}
