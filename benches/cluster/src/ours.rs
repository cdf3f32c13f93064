//! Clusters of our own, and commits to them without an engine.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use countwheel_durable::store::{Before, Change, Commit, Ownership, Shard, Store};
use countwheel_durable::{
    AttemptEnd, AttemptRecord, AttemptResult, DueClock, Missed, Record, RetryPolicy, Revision,
    Shards, State, StateKind, TimerId, TimerName,
};
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::{Clock as _, SystemClock, Timestamp};

use crate::rate;

/// Into how many shards a cluster is divided.
pub(crate) const SHARDS: u16 = 64;
pub(crate) const PAYLOAD_BYTES: usize = 100;

/// Far from now in any case.
const FAR: Timestamp = Timestamp::from_micros(4_000_000_000_000_000);

/// Makes a cluster in the schema of `options`.
pub(crate) fn make(options: &PostgresOptions, shards: u16) -> anyhow::Result<Shards> {
    let shards = Shards::new(shards).context("from 1 to 1024 shards")?;
    PostgresStore::make(options, shards)?;
    Ok(shards)
}

/// What is written of a timer, one commit each.
#[derive(Clone, Copy)]
pub(crate) enum Write {
    Set,
    Claim,
    Outcome,
}

/// The three writes of a whole life that is kept as done.
pub(crate) const LIFE: [Write; 3] = [Write::Set, Write::Claim, Write::Outcome];

/// Commits without an engine, each thread on a lane of its own.
#[derive(Clone, Copy)]
pub(crate) struct Commits {
    pub(crate) lanes: u16,
    pub(crate) shards_a_commit: u16,
    pub(crate) timers_a_shard: u64,
    pub(crate) writes: &'static [Write],
    /// Whether the shards of a lane are one statement, or one each.
    pub(crate) is_merged: bool,
}

impl Commits {
    /// 256 changes in each statement, on all lanes.
    pub(crate) const fn full(writes: &'static [Write]) -> Self {
        Self {
            lanes: 4,
            shards_a_commit: 16,
            timers_a_shard: 16,
            writes,
            is_merged: true,
        }
    }

    /// How many timers a second get all the writes.
    pub(crate) fn rate(self, store: PostgresStore, span: Duration) -> anyhow::Result<f64> {
        let store = Arc::new(store);
        let clock = SystemClock::new();
        let threads: Vec<_> = (0..self.lanes)
            .map(|lane| {
                let store = Arc::clone(&store);
                thread::spawn(move || self.on_lane(&store, lane, clock, span))
            })
            .collect();
        let mut count = 0;
        for thread in threads {
            count += thread
                .join()
                .map_err(|_| anyhow!("a thread that commits panicked"))??;
        }
        Ok(rate(count, span))
    }

    fn on_lane(
        self,
        store: &PostgresStore,
        lane: u16,
        clock: SystemClock,
        span: Duration,
    ) -> anyhow::Result<u64> {
        let lanes = u16::try_from(store.lanes())?;
        let shards = (0..self.shards_a_commit).map(|nth| Shard(lane + lanes * nth));
        let owned: Vec<_> = shards
            .map(|shard| store.acquire(shard))
            .collect::<Result<_, _>>()?;
        let until = clock.now() + span;
        let mut number = 0;
        while clock.now() < until {
            for &write in self.writes {
                self.commit(store, &owned, (lane, number), write)?;
            }
            number += self.timers_a_shard * u64::from(self.shards_a_commit);
        }
        Ok(number)
    }

    fn commit(
        self,
        store: &PostgresStore,
        owned: &[Ownership],
        (lane, first): (u16, u64),
        write: Write,
    ) -> anyhow::Result<()> {
        let changes: Vec<Vec<_>> = (0..self.shards_a_commit)
            .map(|nth| {
                let first = first + u64::from(nth) * self.timers_a_shard;
                let numbers = first..first + self.timers_a_shard;
                numbers.map(|number| change(lane, number, write)).collect()
            })
            .collect();
        let commits: Vec<_> = owned
            .iter()
            .zip(&changes)
            .map(|(owned, changes)| Commit {
                lease: owned.lease,
                changes,
            })
            .collect();
        if self.is_merged {
            for result in store.commit_all(&commits) {
                result?;
            }
        } else {
            for commit in commits {
                store.commit(commit.lease, commit.changes)?;
            }
        }
        Ok(())
    }
}

fn change(lane: u16, number: u64, write: Write) -> Change {
    Change::Put {
        record: Box::new(record(lane, number, write)),
        before: match write {
            Write::Set => Before::Absent,
            Write::Claim => Before::SamePayload(StateKind::Pending),
            Write::Outcome => Before::SamePayload(StateKind::Delivering),
        },
    }
}

fn record(lane: u16, number: u64, write: Write) -> Record {
    let at = FAR + Duration::from_micros(number);
    let ended = matches!(write, Write::Outcome).then(|| AttemptEnd {
        at,
        result: AttemptResult::Done,
        detail: String::new(),
        answer: None,
    });
    let attempt = AttemptRecord {
        number: 1,
        due: at,
        started: at,
        held: Duration::ZERO,
        ended,
    };
    let is_claimed = !matches!(write, Write::Set);
    Record {
        name: TimerName::new("bench", format!("order-{lane}-{number:012}"))
            .unwrap_or_else(|error| unreachable!("{error}")),
        id: TimerId {
            store: 7,
            set: Revision(number),
        },
        revision: Revision(number),
        state: match write {
            Write::Set => State::Pending,
            Write::Claim => State::Delivering,
            Write::Outcome => State::Done {
                at,
                keep_until: at + Duration::from_secs(86_400),
            },
        },
        created: at,
        due: at,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: at,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: u32::from(is_claimed),
        attempts: if is_claimed {
            vec![attempt]
        } else {
            Vec::new()
        },
        payload: vec![7; PAYLOAD_BYTES],
    }
}

/// How long a commit of one timer takes in the median, with nobody beside it.
pub(crate) fn commit_takes(store: &PostgresStore, count: u64) -> anyhow::Result<Duration> {
    let owned = store.acquire(Shard(0))?;
    let clock = SystemClock::new();
    let mut spans = Vec::new();
    for number in 0..count {
        let changes = [change(0, number, Write::Set)];
        let began = clock.now();
        store.commit(owned.lease, &changes)?;
        spans.push(clock.now().saturating_since(began));
    }
    spans.sort_unstable();
    let median = spans.get(spans.len() / 2);
    median.copied().context("no commit was made")
}
