//! An outbox against a list that predicts the answer to each question.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, Request, Response, TimerError, TimerName, Was};
use countwheel_time::{Instant, Random};
use parking_lot::Mutex;

use crate::frame::{self, Encoded};
use crate::outbox::{Job, Limits, Outbox, Room, Waiter};

/// What somebody who waits was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Done(u32),
    NotDone,
    Unknown,
}

/// Who was told what.
type All = Arc<Mutex<BTreeMap<u32, Told>>>;

fn job(number: u32, deadline: Instant, all: &All) -> Job {
    let request = Request::Fire {
        name: TimerName::new("orders", number.to_string()).unwrap(),
    };
    let what = Encoded::of(std::slice::from_ref(&request), false).unwrap();
    let all = Arc::clone(all);
    let asked = Asked::one(request, move |answer| {
        let told = match answer {
            // Its number comes back as that of an attempt.
            Ok(Response::Removed(Was::Delivering { attempt })) => Told::Done(attempt),
            Err(TimerError::ShardUnavailable { .. }) => Told::NotDone,
            Err(TimerError::Unknown(_)) => Told::Unknown,
            other => panic!("{other:?}"),
        };
        assert_eq!(all.lock().insert(number, told), None, "{number} told twice");
    });
    Job {
        shard: Shard(u16::try_from(number % 4).unwrap()),
        what,
        deadline,
        hops: 0,
        waiter: Waiter::Here(Box::new(asked)),
    }
}

/// The numbers of the questions of a frame, and of the jobs that asked them.
fn asked(frame: Vec<u8>) -> Vec<(u64, u32, u32)> {
    let asks = frame::read_asks(frame).unwrap().into_iter();
    let numbers = asks.map(|ask| {
        let request = ask.what.wire().unwrap().remove(0).request().unwrap();
        let key = request.name().unwrap().key.to_string();
        (ask.head.id, key.parse().unwrap(), ask.head.left_ms)
    });
    numbers.collect()
}

/// A place in a list, or the one behind it.
fn place(random: &mut Random, items: usize) -> usize {
    usize::try_from(random.below(1 + items as u64)).unwrap()
}

#[test]
fn each_question_is_answered_once_and_for_what_it_was() {
    for seed in 0..300 {
        what_became_of_each_question(seed);
    }
}

pub(super) fn what_became_of_each_question(seed: u64) {
    let random = &mut Random::new(seed);
    let limits = Limits {
        requests: 8,
        bytes: 10_000,
    };
    let all = All::default();
    let mut outbox = Outbox::new(limits);
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut waits: BTreeMap<u32, Instant> = BTreeMap::new();
    let mut sent: BTreeMap<u64, (u32, Instant)> = BTreeMap::new();
    let (mut asked_ever, mut next) = (Vec::new(), 0);
    let expect = |number: u32, told: Told| {
        assert_eq!(all.lock().get(&number), Some(&told), "question {number}");
    };
    for _ in 0..200 {
        match random.below(7) {
            0 | 1 => {
                let deadline = now + Duration::from_millis(1 + random.below(400));
                let is_room = waits.len() + sent.len() < limits.requests;
                match outbox.push(job(next, deadline, &all)) {
                    Ok(()) => {
                        assert!(is_room, "more wait than may");
                        waits.insert(next, deadline);
                    }
                    Err(refused) => {
                        assert!(!is_room, "there is room");
                        refused.not_done();
                        expect(next, Told::NotDone);
                    }
                }
                next += 1;
            }
            2 => {
                let gathered = outbox.gather(now, 1);
                for (id, number, left_ms) in
                    gathered.map_or_else(Vec::new, |(frame, _)| asked(frame))
                {
                    let deadline = waits
                        .remove(&number)
                        .expect("it waits, and was not sent before");
                    assert!(deadline > now, "nobody waits for it any more");
                    let left = deadline.saturating_since(now).as_millis();
                    assert_eq!(u128::from(left_ms), left);
                    assert!(!asked_ever.contains(&id), "a number twice");
                    asked_ever.push(id);
                    sent.insert(id, (number, deadline));
                }
            }
            3 => {
                // An answer to any question that was ever asked.
                let Some(&id) = asked_ever.get(place(random, asked_ever.len())) else {
                    continue;
                };
                let found = outbox.answered(id);
                assert_eq!(found.is_some(), sent.contains_key(&id));
                let Some(job) = found else { continue };
                let (number, _) = sent.remove(&id).unwrap();
                let was = Was::Delivering { attempt: number };
                job.answer(Ok(vec![Response::Removed(was)]));
                expect(number, Told::Done(number));
            }
            4 => {
                now = now + Duration::from_millis(random.below(200));
                let overdue = outbox.overdue(now);
                overdue.waited.into_iter().for_each(Job::not_done);
                overdue.sent.into_iter().for_each(|job| job.unknown("late"));
                let over = |deadline: Instant| deadline <= now;
                for (&number, _) in waits.iter().filter(|(_, at)| over(**at)) {
                    expect(number, Told::NotDone);
                }
                for (number, _) in sent.values().filter(|(_, at)| over(*at)) {
                    expect(*number, Told::Unknown);
                }
                waits.retain(|_, at| !over(*at));
                sent.retain(|_, (_, at)| !over(*at));
            }
            5 if random.below(3) == 0 => {
                outbox
                    .broken()
                    .into_iter()
                    .for_each(|job| job.unknown("broken"));
                for (number, _) in std::mem::take(&mut sent).into_values() {
                    expect(number, Told::Unknown);
                }
            }
            _ => {
                let theirs = Shard(u16::try_from(random.below(4)).unwrap());
                for job in outbox.take_back(|shard| shard != theirs) {
                    assert_eq!(job.shard, theirs);
                    let number = job_number(&job);
                    assert!(waits.remove(&number).is_some(), "it left");
                    job.not_done();
                }
                assert!(!waits.keys().any(|number| number % 4 == u32::from(theirs.0)));
            }
        }
        assert_eq!(outbox.room().requests, waits.len() + sent.len());
        assert_eq!(outbox.has_waiting(), !waits.is_empty());
        let told = all.lock().len();
        assert_eq!(told + waits.len() + sent.len(), next as usize);
    }
    outbox
        .broken()
        .into_iter()
        .for_each(|job| job.unknown("end"));
    outbox
        .take_back(|_| false)
        .into_iter()
        .for_each(Job::not_done);
    assert_eq!((outbox.room(), outbox.is_empty()), (Room::default(), true));
}

fn job_number(job: &Job) -> u32 {
    let request = job.what.wire().unwrap().remove(0).request().unwrap();
    request.name().unwrap().key.as_str().parse().unwrap()
}

#[test]
fn a_frame_takes_what_has_gathered_but_no_more_than_a_mebibyte() {
    let all = All::default();
    let limits = Limits {
        requests: 100_000,
        bytes: 64 << 20,
    };
    let mut outbox = Outbox::new(limits);
    let now = Instant::from_nanos(0);
    for number in 0..5_000 {
        let job = job(number, now + Duration::from_secs(1), &all);
        outbox.push(job).unwrap();
    }
    // Bounded by the number of requests, and the rest comes next.
    assert_eq!(outbox.gather(now, 1).unwrap().1, 4_096);
    assert_eq!(outbox.gather(now, 1).unwrap().1, 904);
    assert!(outbox.gather(now, 1).is_none());
}
