//! Ours, at the level of the engine: requests of many callers, grouped by the scheduler.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context as _, bail};
use countwheel_durable::{
    Attempt, Config, Due, Inline, Outcome, Precondition, Request, RetryPolicy, SetOptions, Timers,
};
use countwheel_time::Timestamp;

use super::store::name_of;
use super::{Found, Inserted, Peer, Visit};
use crate::item::{Item, Op};
use crate::ours::{self, Kind};
use crate::stopwatch::Stopwatch;

/// More callers than this never wait at a time.
const CALLERS_MAX: usize = 4_096;

pub(crate) struct Engine {
    timers: Timers,
    answered: Sender<Result<u64, String>>,
    answers: Receiver<Result<u64, String>>,
}

pub(crate) fn open(directory: &Path, kind: Kind) -> anyhow::Result<Engine> {
    let config = Config {
        max_batch: CALLERS_MAX,
        max_waiting: 2 * CALLERS_MAX,
        ..Config::default()
    };
    let done = Inline(|_: &Attempt| Outcome::done());
    let timers = ours::open(kind, directory)?.timers(done, config)?;
    let (answered, answers) = channel();
    Ok(Engine {
        timers,
        answered,
        answers,
    })
}

impl Engine {
    fn submit(&self, item: Item) -> anyhow::Result<()> {
        let set = Request::Set {
            name: name_of(item)?,
            due: Due::At(Timestamp::from_micros(item.due_ms * 1_000)),
            policy: RetryPolicy::default(),
            payload: item.payload().to_vec(),
            options: SetOptions::default(),
            precondition: Precondition::None,
        };
        let answered = self.answered.clone();
        let watch = Stopwatch::start();
        self.timers.submit(set, move |answer| {
            let took = answer
                .map(|_| watch.nanoseconds())
                .map_err(|error| error.to_string());
            // Nobody listens any more if another request failed.
            answered.send(took).unwrap_or_default();
        });
        Ok(())
    }
}

impl Peer for Engine {
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()> {
        for op in ops {
            self.submit(op.item())?;
        }
        for _ in ops {
            self.answers.recv()?.map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }

    fn get(&mut self, _: Item) -> anyhow::Result<Option<Found>> {
        bail!("the store is asked")
    }

    fn scan(&mut self, _: u64, _: Visit<'_>) -> anyhow::Result<()> {
        bail!("the store is asked")
    }

    /// `batch` callers, each with one request under way.
    fn insert_all(
        &mut self,
        batch: usize,
        next: &mut dyn FnMut(f64) -> Option<Op>,
    ) -> anyhow::Result<Inserted> {
        let mut inserted = Inserted::default();
        let watch = Stopwatch::start();
        let mut under_way = 0;
        let mut more = true;
        loop {
            while more && under_way < batch {
                match next(watch.seconds()) {
                    Some(op) => {
                        self.submit(op.item())?;
                        under_way += 1;
                    }
                    None => more = false,
                }
            }
            if under_way == 0 {
                break;
            }
            let took = self.answers.recv().context("the engine is gone")?;
            inserted.durations.record(took.map_err(anyhow::Error::msg)?);
            under_way -= 1;
            inserted.records += 1;
        }
        inserted.seconds = watch.seconds();
        Ok(inserted)
    }
}
