//! Jobs: an action on many timers, in steps that go on after a crash, on each of them at most once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Store};
use countwheel_durable::{
    Attempt, Completion, Config, Due, Handler, Job, JobAction, JobCounts, JobError, JobOrder,
    Outcome, PurgeFilter, QueueName, Record, SettingName, Shards, Shift, StateKind, Timers, inline,
};
use countwheel_time::{ManualClock, SystemClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const HOUR: Duration = Duration::from_secs(3_600);

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn open(store: impl Store + 'static, clock: &ManualClock) -> Timers {
    let clock = Arc::new(clock.clone());
    Timers::open(store, inline(|_| ()), clock, Config::default()).unwrap()
}

fn four_shards(store: MemoryStore, clock: &ManualClock) -> Timers {
    let shards = Shards::new(4).unwrap();
    let clock = Arc::new(clock.clone());
    let config = Config::default();
    Timers::open_divided(store, shards, shards.all(), inline(|_| ()), clock, config).unwrap()
}

/// A tag is a word of the payload.
fn has_tags(record: &Record, tags: &[String]) -> bool {
    let words = String::from_utf8_lossy(&record.payload).into_owned();
    tags.iter()
        .all(|tag| words.split(' ').any(|word| word == tag))
}

/// Steps until nothing is left to do.
fn work(timers: &Timers, limit: usize) {
    for _ in 0..10_000 {
        if !timers.job_step(limit, &has_tags).unwrap().goes_on {
            return;
        }
    }
    panic!("the job does not end");
}

fn set(timers: &Timers, key: &str, hours: u32, tags: &str) {
    let due = Due::At(NOON + HOUR * hours);
    timers.set(("orders", key), due, tags).unwrap();
}

fn due(timers: &Timers, key: &str) -> Timestamp {
    timers.get(("orders", key)).unwrap().unwrap().due
}

fn later(by: Duration) -> JobOrder {
    JobOrder::new(orders(), JobAction::Move(Shift::Later(by)))
}

fn counts(done: u64) -> JobCounts {
    JobCounts {
        matched: done,
        done,
        skipped: 0,
    }
}

/// A move takes each timer behind those that the job has not come to yet.
#[test]
fn a_job_moves_each_timer_once_however_short_its_steps() {
    for limit in [1, 2, 3, 100] {
        let clock = ManualClock::at(NOON);
        let timers = open(MemoryStore::new(7), &clock);
        for number in 0..20 {
            set(&timers, &format!("order-{number}"), number + 1, "");
        }
        let asked = timers.begin_job(&later(HOUR * 5)).unwrap();
        set(&timers, "later", 3, "");
        work(&timers, limit);
        let job = timers.job(asked.id).unwrap().unwrap();
        assert_eq!((job.counts, job.ended), (counts(20), Some(NOON)));
        for number in 0..20 {
            let expected = NOON + HOUR * (number + 6);
            assert_eq!(due(&timers, &format!("order-{number}")), expected);
        }
        assert_eq!(due(&timers, "later"), NOON + HOUR * 3);
        // Its progress is no setting any more.
        assert_eq!(timers.settings().iter().count(), 1);
    }
}

/// Ends attempts as their payloads say, or lets them run on.
#[derive(Default)]
struct Ending(std::sync::Mutex<Vec<Completion>>);

impl Handler for Ending {
    fn start(&self, attempt: Attempt, done: Completion) {
        match &*attempt.payload {
            b"done" => done.complete(Outcome::done()),
            b"dead" => done.complete(Outcome::stopped()),
            _ => self.0.lock().unwrap().push(done),
        }
    }
}

#[test]
fn each_action_acts_on_its_states_and_its_tags_alone() {
    for (action, changed) in [
        (JobAction::Remove, &["pending", "done", "dead"][..]),
        (JobAction::Move(Shift::Later(HOUR)), &["pending"]),
        (JobAction::Fire, &["pending"]),
        (JobAction::Revive, &["dead"]),
    ] {
        let clock = Arc::new(SystemClock::new());
        let (store, config) = (MemoryStore::new(7), Config::default());
        let timers = Timers::open(store, Ending::default(), clock, config).unwrap();
        let mut before = Vec::new();
        for state in StateKind::ALL {
            let delay = match state {
                StateKind::Pending => HOUR,
                _ => Duration::ZERO,
            };
            let key = ("orders", state.as_str());
            timers.set(key, delay, state.as_str()).unwrap();
            before.push(loop {
                let record = timers.get(key).unwrap().unwrap();
                if record.state.kind() == state {
                    break record;
                }
                std::thread::yield_now();
            });
        }
        let mut order = JobOrder::new(orders(), action);
        order.filter.tags = vec!["none".to_owned()];
        timers.begin_job(&order).unwrap();
        work(&timers, 2);
        order.filter.tags.clear();
        timers.begin_job(&order).unwrap();
        work(&timers, 2);
        let jobs = timers.jobs();
        assert_eq!(jobs[0].counts, counts(0), "{action:?}");
        assert_eq!(jobs[1].counts, counts(changed.len() as u64), "{action:?}");
        for record in before {
            let key = record.name.key.as_str();
            let now = timers.get(("orders", key)).unwrap();
            let same = now.is_some_and(|now| now.revision == record.revision);
            assert_eq!(same, !changed.contains(&key), "{action:?} of {key}");
        }
    }
}

#[test]
fn what_is_too_far_ahead_is_skipped_and_the_rest_is_moved() {
    let clock = ManualClock::at(NOON);
    let timers = open(MemoryStore::new(7), &clock);
    set(&timers, "near", 1, "");
    let far = Due::At(NOON + Due::MAX_AHEAD);
    timers.set(("orders", "far"), far, "").unwrap();
    timers.begin_job(&later(HOUR)).unwrap();
    work(&timers, 100);
    let skipped = JobCounts {
        matched: 2,
        done: 1,
        skipped: 1,
    };
    assert_eq!(timers.jobs()[0].counts, skipped);
    assert_eq!(due(&timers, "near"), NOON + HOUR * 2);
    assert_eq!(due(&timers, "far"), NOON + Due::MAX_AHEAD);
}

#[test]
fn a_job_that_is_cancelled_ends_once_each_shard_has_seen_it() {
    let clock = ManualClock::at(NOON);
    let timers = four_shards(MemoryStore::new(7), &clock);
    for number in 0..40 {
        set(&timers, &format!("order-{number}"), 1, "");
    }
    let id = timers.begin_job(&later(HOUR)).unwrap().id;
    assert_eq!(timers.job_step(3, &has_tags).unwrap().acted, 3);
    let cancelled = timers.cancel_job(id).unwrap().unwrap();
    assert!(cancelled.cancelled && cancelled.ended.is_none());
    assert_eq!((cancelled.counts, cancelled.shards_left), (counts(3), 4));
    work(&timers, 100);
    let ended = timers.job(id).unwrap().unwrap();
    assert_eq!((ended.counts, ended.shards_left), (counts(3), 0));
    assert_eq!((ended.cancelled, ended.ended), (true, Some(NOON)));
    // Again it says the same, and no other has the id.
    assert_eq!(timers.cancel_job(id).unwrap(), Some(ended));
    let none = countwheel_durable::SettingsVersion(999_999);
    assert_eq!(timers.cancel_job(none).unwrap(), None);
}

#[test]
fn a_rate_lets_a_step_go_when_its_time_has_come() {
    let clock = ManualClock::at(NOON);
    let timers = four_shards(MemoryStore::new(7), &clock);
    for number in 0..100 {
        set(&timers, &format!("order-{number}"), 1, "");
    }
    let order = JobOrder {
        rate: NonZeroU32::new(50),
        ..later(HOUR)
    };
    timers.begin_job(&order).unwrap();
    // A tenth of a second at a time.
    let mut seconds = 0;
    loop {
        let step = timers.job_step(100, &has_tags).unwrap();
        assert!(step.acted <= 5, "{step:?}");
        let job = &timers.jobs()[0];
        assert!(job.counts.done <= 5 + seconds * 50 / 100, "{job:?}");
        if job.ended.is_some() {
            break;
        }
        if let Some(wait) = step.wait {
            assert!(wait <= Duration::from_millis(100), "{wait:?}");
            clock.advance(Duration::from_millis(10));
            seconds += 1;
        }
    }
    // In hundredths: a hundred timers take two seconds but for the first step.
    assert!((180..=200).contains(&seconds), "{seconds}");
}

#[test]
fn a_further_job_takes_the_place_of_the_one_that_ended_first() {
    let clock = ManualClock::at(NOON);
    let timers = open(MemoryStore::new(7), &clock);
    let order = later(HOUR);
    let ids: Vec<_> = (0..Job::PLACES)
        .map(|_| timers.begin_job(&order).unwrap().id)
        .collect();
    assert!(matches!(timers.begin_job(&order), Err(JobError::TooMany)));
    timers.cancel_job(ids[5]).unwrap();
    // That one has not ended yet.
    assert!(matches!(timers.begin_job(&order), Err(JobError::TooMany)));
    work(&timers, 1);
    clock.advance(Duration::from_secs(1));
    let next = timers.begin_job(&order).unwrap().id;
    assert!(ids.iter().all(|id| *id < next));
    assert_eq!(timers.jobs().len(), usize::from(Job::PLACES));
    work(&timers, 1);
    clock.advance(Job::SHOWN_FOR - Duration::from_micros(1));
    assert!(timers.job(next).unwrap().is_some());
    clock.advance(Duration::from_micros(1));
    assert_eq!(timers.job(next).unwrap(), None);
    work(&timers, 1);
    assert_eq!(timers.settings().iter().count(), 0);
}

#[test]
fn a_namespace_has_a_part_of_the_places() {
    let clock = ManualClock::at(NOON);
    let timers = open(MemoryStore::new(7), &clock);
    let of = |queue: &str| JobOrder {
        queue: QueueName::from_text(queue).unwrap(),
        ..later(HOUR)
    };
    let shown = || timers.jobs().into_iter().map(|job| job.id);
    let begin_four = || {
        let four = 0..Job::PLACES_OF_NAMESPACE;
        let ids: Vec<_> = four
            .map(|_| timers.begin_job(&of("tenant-7/orders")).unwrap().id)
            .collect();
        let another = timers.begin_job(&of("tenant-7/carts"));
        assert!(matches!(another, Err(JobError::TooManyOfNamespace)));
        ids
    };
    let theirs = timers.begin_job(&of("tenant-8/orders")).unwrap().id;
    work(&timers, 1);
    clock.advance(Duration::from_secs(1));
    let first = begin_four();
    work(&timers, 1);
    // Its own that have ended give way, though another's ended earlier, and places are free.
    let second = begin_four();
    assert!(shown().all(|id| id == theirs || second.contains(&id)));
    assert!(first.iter().all(|id| !second.contains(id)));
    // Those of default have all of the rest.
    for _ in 0..Job::PLACES - Job::PLACES_OF_NAMESPACE {
        timers.begin_job(&later(HOUR)).unwrap();
    }
    assert!(!shown().any(|id| id == theirs));
    let another = timers.begin_job(&later(HOUR));
    assert!(matches!(another, Err(JobError::TooMany)));
}

#[test]
fn a_job_ends_in_a_store_of_another_number_of_shards() {
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(7);
    let divided = four_shards(store.clone(), &clock);
    for number in 0..20 {
        set(&divided, &format!("order-{number}"), 1, "");
    }
    divided.begin_job(&later(HOUR)).unwrap();
    let acted = divided.job_step(2, &has_tags).unwrap().acted as u64;
    divided.stop(Duration::ZERO);
    // As after a move of all timers, of which the first shard stands for all here.
    let timers = open(store, &clock);
    work(&timers, 100);
    let job = timers.jobs().pop().unwrap();
    assert_eq!((job.counts, job.ended), (counts(acted), Some(NOON)));
    assert!(job.cancelled);
    work(&timers, 100);
    assert_eq!(timers.settings().iter().count(), 1);
}

/// An earlier version reads a purge, and this one reads that of an earlier one.
#[test]
fn a_purge_is_stored_as_it_was_before_there_were_jobs() {
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(7);
    let timers = open(store.clone(), &clock);
    set(&timers, "order-1", 1, "");
    timers.purge(&orders(), PurgeFilter::default()).unwrap();
    let setting = |timers: &Timers, name: &str| {
        let name = SettingName::new(name).unwrap();
        timers.settings().get(&name).map(|it| it.value.clone())
    };
    let mut noon = Vec::new();
    let mut rest = NOON.as_micros();
    while rest >= 0x80 {
        noon.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    noon.push(u8::try_from(rest).unwrap());
    // The states, neither prefix nor due times, since when, one shard, its mark; it has not ended.
    let head = [1, 3, 0, 2, 3, 0, 0, 0];
    let asked = [&head[..], &noon, &[1, 1, 0, 1, 0]].concat();
    assert_eq!(setting(&timers, "purge/orders"), Some(asked));
    timers.purge_step(100).unwrap();
    // Of purge 1, with mark 1, at the start of another pass: one timer is removed.
    let progress = setting(&timers, "purged/0/orders").unwrap();
    assert_eq!(progress, [1, 1, 1, 0, 0, 1, 0]);
    while timers.purge_step(100).unwrap().goes_on {}
    let ended = [&head[..], &noon, &[1, 1, 0, 1, 1], &noon, &[1, 1]].concat();
    assert_eq!(setting(&timers, "purge/orders"), Some(ended));
    drop(timers);
    let timers = open(store, &clock);
    let through = timers.purges().pop().unwrap();
    assert_eq!((through.removed, through.ended), (1, Some(NOON)));
}
