//! The figures of this node and of all nodes: each is a count that its schedulers keep. Figures of nodes are added up.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use countwheel_durable::{DueBucket, DueCounts, Health, OverdueCount, Stats, Timers};
use countwheel_peers::{Forwarder, TellWord, Word};
use countwheel_time::{Clock, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::cluster::joined::Map;
use crate::word::About;

/// How long another node may take to say its figures.
const ANSWERS: Duration = Duration::from_secs(1);

/// How often it is looked at what was done, and how many looks are kept.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKS: usize = 61;

/// Which counts by due time are asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Everything before is one count, in microseconds since the epoch.
    pub(crate) past: u64,
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// How long the buckets are to be at least, in microseconds.
    pub(crate) step: u64,
}

impl Asked {
    /// All counts, of which those before `past`, in microseconds since the epoch, are one.
    pub(crate) fn all_from(past: u64) -> Self {
        Self {
            past,
            from: past,
            until: u64::MAX,
            step: 1,
        }
    }

    pub(crate) fn past(&self) -> Timestamp {
        Timestamp::from_micros(self.past)
    }

    /// The counts in these steps, the past first.
    fn of(&self, counts: DueCounts) -> DueCounts {
        let counts = counts.with_past(self.past());
        let past = counts.buckets.first().copied();
        let end = past.map_or(self.past(), |past| past.until);
        let from = Timestamp::from_micros(self.from).max(end);
        let until = Timestamp::from_micros(self.until);
        let rest = counts.in_steps(from, until, Duration::from_micros(self.step));
        let rest = rest.into_iter().filter(|bucket| bucket.from >= end);
        DueCounts {
            buckets: past.into_iter().chain(rest).collect(),
            ..counts
        }
    }
}

/// What was done since the start of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DoneSoFar {
    pub(crate) set: u64,
    pub(crate) moved: u64,
    pub(crate) removed: u64,
    pub(crate) attempts: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
}

impl DoneSoFar {
    fn of(stats: &Stats) -> Self {
        Self {
            set: stats.set,
            moved: stats.moved,
            removed: stats.removed,
            attempts: stats.attempts,
            done: stats.done,
            failed: stats.failed,
            dead: stats.dead,
        }
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            set: of(self.set, other.set),
            moved: of(self.moved, other.moved),
            removed: of(self.removed, other.removed),
            attempts: of(self.attempts, other.attempts),
            done: of(self.done, other.done),
            failed: of(self.failed, other.failed),
            dead: of(self.dead, other.dead),
        }
    }
}

/// What was done between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recent {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) did: DoneSoFar,
}

impl Recent {
    fn with(self, other: Self) -> Self {
        Self {
            from: self.from.min(other.from),
            until: self.until.max(other.until),
            did: self.did.each(other.did, u64::saturating_add),
        }
    }
}

/// The figures of one node, or the sum of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tallied {
    /// The shards that are in the figures. One that two nodes have said is there twice.
    shards: Vec<u16>,
    pub(crate) overdue: Option<OverdueCount>,
    pub(crate) in_flight: u64,
    pub(crate) leased: u64,
    pub(crate) parked: u64,
    pub(crate) since_start: DoneSoFar,
    pub(crate) recent: Option<Recent>,
    pub(crate) due: Option<DueCounts>,
    /// How many nodes have said theirs.
    pub(crate) nodes: usize,
    /// Whether every shard is in the figures once, and each figure of it is exact.
    pub(crate) exact: bool,
}

impl Tallied {
    fn with(mut self, other: Self) -> Self {
        self.shards.extend(other.shards);
        let both = |one: OverdueCount, other: OverdueCount| OverdueCount {
            count: one.count + other.count,
            as_of: one.as_of.min(other.as_of),
            is_exact: one.is_exact && other.is_exact,
            oldest: one.oldest.into_iter().chain(other.oldest).min(),
        };
        Self {
            shards: self.shards,
            overdue: either(self.overdue, other.overdue, both),
            in_flight: self.in_flight + other.in_flight,
            leased: self.leased + other.leased,
            parked: self.parked + other.parked,
            since_start: self
                .since_start
                .each(other.since_start, u64::saturating_add),
            recent: either(self.recent, other.recent, Recent::with),
            due: either(self.due, other.due, DueCounts::with),
            nodes: self.nodes + other.nodes,
            exact: self.exact && other.exact,
        }
    }

    /// Whether each of so many shards is in the figures, once.
    fn has_each_once(&self, shards: u16) -> bool {
        let mut times = BTreeMap::<u16, usize>::new();
        for shard in &self.shards {
            *times.entry(*shard).or_default() += 1;
        }
        (0..shards).all(|shard| times.get(&shard) == Some(&1)) && times.len() == usize::from(shards)
    }
}

fn either<T>(one: Option<T>, other: Option<T>, both: impl Fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(both(one, other)),
        (one, other) => one.or(other),
    }
}

/// The figures of one node as they are said to another.
#[derive(Serialize, Deserialize)]
struct Said {
    shards: Vec<u16>,
    overdue: Option<(u64, u64, bool, Option<u64>)>,
    in_flight: u64,
    leased: u64,
    parked: u64,
    since_start: DoneSoFar,
    recent: Option<(u64, u64, DoneSoFar)>,
    buckets: Vec<(u64, u64, u64)>,
    drift_micros: (i64, i64),
    exact: bool,
}

impl Said {
    fn of(tallied: &Tallied) -> Self {
        let micros = |at: Timestamp| at.as_micros();
        let due = tallied.due.clone().unwrap_or_default();
        let buckets = due.buckets.iter();
        let buckets = buckets.map(|it| (micros(it.from), micros(it.until), it.count));
        let overdue = tallied.overdue.map(|it| {
            let oldest = it.oldest.map(micros);
            (it.count, micros(it.as_of), it.is_exact, oldest)
        });
        let recent = tallied.recent;
        let recent = recent.map(|it| (micros(it.from), micros(it.until), it.did));
        Self {
            shards: tallied.shards.clone(),
            overdue,
            in_flight: tallied.in_flight,
            leased: tallied.leased,
            parked: tallied.parked,
            since_start: tallied.since_start,
            recent,
            buckets: buckets.collect(),
            drift_micros: due.drift_micros,
            exact: tallied.exact,
        }
    }

    fn tallied(self) -> Tallied {
        let at = Timestamp::from_micros;
        let buckets = self.buckets.into_iter();
        let buckets = buckets.map(|(from, until, count)| DueBucket {
            from: at(from),
            until: at(until),
            count,
        });
        let overdue = self.overdue;
        let overdue = overdue.map(|(count, as_of, is_exact, oldest)| OverdueCount {
            count,
            as_of: at(as_of),
            is_exact,
            oldest: oldest.map(at),
        });
        let recent = self.recent.map(|(from, until, did)| Recent {
            from: at(from),
            until: at(until),
            did,
        });
        Tallied {
            shards: self.shards,
            overdue,
            in_flight: self.in_flight,
            leased: self.leased,
            parked: self.parked,
            since_start: self.since_start,
            recent,
            due: Some(DueCounts {
                buckets: buckets.collect(),
                exact: self.exact,
                drift_micros: self.drift_micros,
            }),
            nodes: 1,
            exact: self.exact,
        }
    }
}

/// Takes the figures of this node, and asks the others for theirs.
pub(crate) struct Tally {
    timers: Timers,
    clock: Arc<dyn Clock>,
    others: OnceLock<(Weak<Forwarder>, Arc<Map>)>,
    /// What had been done by when, the last look last.
    looks: Mutex<VecDeque<(Timestamp, DoneSoFar)>>,
}

impl Tally {
    pub(crate) fn new(timers: Timers, clock: Arc<dyn Clock>) -> Self {
        Self {
            timers,
            clock,
            others: OnceLock::new(),
            looks: Mutex::default(),
        }
    }

    /// These nodes have figures as well.
    pub(crate) fn among(&self, forwarder: &Arc<Forwarder>, map: Arc<Map>) {
        // It is set once.
        let _ = self.others.set((Arc::downgrade(forwarder), map));
    }

    /// Looks at what was done, for as long as the process lives.
    pub(crate) async fn keep_looking(self: Arc<Self>) {
        loop {
            self.look(DoneSoFar::of(&self.timers.stats()));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self, so_far: DoneSoFar) {
        let now = self.clock.timestamp();
        let mut looks = self.looks.lock();
        // The wall clock was set back.
        looks.retain(|(at, _)| *at < now);
        looks.push_back((now, so_far));
        while looks.len() > LOOKS {
            looks.pop_front();
        }
    }

    fn recent(&self) -> Option<Recent> {
        let looks = self.looks.lock();
        let ((from, before), (until, after)) = (*looks.front()?, *looks.back()?);
        let did = after.each(before, u64::saturating_sub);
        (from < until).then_some(Recent { from, until, did })
    }

    /// The figures of this node.
    pub(crate) fn here(&self, asked: &Asked) -> Tallied {
        let stats = self.timers.stats();
        let owned = self.timers.owned().into_iter();
        let running = owned.filter(|(_, health)| *health == Health::Running);
        let counts =
            running.filter_map(|(shard, _)| Some((shard.0, self.timers.due_counts_of(shard)?)));
        let (shards, counts): (Vec<_>, Vec<_>) = counts.unzip();
        let due = DueCounts::sum_of(counts).map(|counts| asked.of(counts));
        let exact = due.as_ref().is_none_or(|due| due.exact);
        let as_u64 = |count: usize| count as u64;
        Tallied {
            overdue: (!shards.is_empty()).then_some(stats.overdue),
            shards,
            in_flight: as_u64(stats.in_flight),
            leased: as_u64(stats.leased),
            parked: as_u64(stats.parked),
            since_start: DoneSoFar::of(&stats),
            recent: self.recent(),
            due,
            nodes: 1,
            exact,
        }
    }

    /// The figures of this node and of all others, as far as they say so in time.
    pub(crate) async fn all(&self, here: Tallied, asked: &Asked) -> Tallied {
        let mut sum = here;
        let mut words = Vec::new();
        if let Some((forwarder, map)) = self.others.get()
            && let Some(forwarder) = forwarder.upgrade()
            && let Some(word) = About::Figures.word(asked)
        {
            let others = map.others().into_iter();
            words.extend(others.map(|(node, at)| forwarder.say(node, &at, word.clone())));
        }
        let until = tokio::time::Instant::now() + ANSWERS;
        for word in words {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if let Ok(Ok(Word::Answered(bytes))) = timeout(left, word).await
                && let Ok(told) = postcard::from_bytes::<Said>(&bytes)
            {
                sum = sum.with(told.tallied());
            }
        }
        sum.exact &= sum.has_each_once(self.timers.shards().count());
        if let Some(due) = sum.due.take() {
            sum.due = Some(asked.of(due));
        }
        sum
    }

    /// Answers what another node says, if it is about figures; returns `tell` if it is about something else.
    pub(crate) fn word(self: &Arc<Self>, word: &[u8], tell: TellWord) -> Option<TellWord> {
        let Some(word) = About::Figures.said(word) else {
            return Some(tell);
        };
        let Ok(asked) = postcard::from_bytes::<Asked>(word) else {
            tell(None);
            return None;
        };
        let tally = Arc::clone(self);
        let answer = move || tell(postcard::to_allocvec(&Said::of(&tally.here(&asked))).ok());
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(answer)),
            Err(_) => answer(),
        }
        None
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn bucket(from: u64, until: u64, count: u64) -> DueBucket {
        DueBucket {
            from: at(from),
            until: at(until),
            count,
        }
    }

    fn node(shards: &[u16], buckets: &[DueBucket]) -> Tallied {
        Tallied {
            shards: shards.to_vec(),
            overdue: Some(OverdueCount {
                count: 2,
                as_of: at(100),
                is_exact: true,
                oldest: Some(at(7)),
            }),
            due: Some(DueCounts {
                buckets: buckets.to_vec(),
                exact: true,
                drift_micros: (0, 3),
            }),
            nodes: 1,
            exact: true,
            ..Tallied::default()
        }
    }

    const MINUTES: Asked = Asked {
        past: 100_000_000,
        from: 100_000_000,
        until: u64::MAX,
        step: 60_000_000,
    };

    #[test]
    fn figures_of_nodes_add_up_and_a_bucket_of_one_is_a_bucket_of_all() {
        let one = node(&[0, 2], &[bucket(0, 100, 3), bucket(180, 240, 1)]);
        let other = node(&[1], &[bucket(0, 110, 4), bucket(180, 3_600, 1)]);
        let sum = one.with(other);
        let due = MINUTES.of(sum.due.clone().unwrap());
        assert_eq!(due.buckets, [bucket(0, 110, 7), bucket(180, 3_600, 2)]);
        assert_eq!(sum.overdue.map(|it| it.count), Some(4));
        assert!(sum.has_each_once(3));
        assert!(!sum.has_each_once(4)); // nobody has said the last
        let twice = sum.with(node(&[1], &[]));
        assert!(!twice.has_each_once(3)); // it changes hands
    }

    #[test]
    fn what_is_said_to_another_node_is_what_it_hears() {
        let mut one = node(&[0, 2], &[bucket(0, 100, 3), bucket(180, 240, 1)]);
        one.recent = Some(Recent {
            from: at(40),
            until: at(100),
            did: DoneSoFar {
                set: 4,
                ..DoneSoFar::default()
            },
        });
        let said = postcard::to_allocvec(&Said::of(&one)).unwrap();
        let heard: Said = postcard::from_bytes(&said).unwrap();
        assert_eq!(heard.tallied(), one);
    }

    #[test]
    fn steps_begin_where_the_past_ends() {
        let counts = DueCounts {
            buckets: vec![bucket(99, 100, 1), bucket(101, 102, 2), bucket(130, 131, 3)],
            exact: true,
            drift_micros: (0, 0),
        };
        let due = MINUTES.of(counts);
        let expected = [bucket(0, 100, 1), bucket(100, 120, 2), bucket(120, 180, 3)];
        assert_eq!(due.buckets, expected);
    }
}
