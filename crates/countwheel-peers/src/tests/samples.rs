//! Requests, responses and errors of every form, drawn at random.

use std::num::NonZeroU32;
use std::time::Duration;

use countwheel_durable::store::StoreError;
use countwheel_durable::{
    BatchError, Configured, CronExpression, DrainMode, Due, Jitter, Missed, Moved, Overlap,
    PolicyError, Precondition, Preset, QueueName, Recurrence, RecurrenceError, Request, Response,
    RetryPolicy, Revision, Schedule, Set, SetOptions, SettingError, SettingName,
    SettingPrecondition, SettingsVersion, Shift, StateKind, TimerError, TimerId, TimerName,
    Timestamp, UnknownZone, Was, Zone,
};
use countwheel_time::Random;

pub(super) fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    let place = random.below(of.len() as u64);
    of[usize::try_from(place).unwrap()].clone()
}

pub(super) fn byte(random: &mut Random) -> u8 {
    random.draw().to_be_bytes()[0]
}

fn name(random: &mut Random) -> TimerName {
    let queue = pick(random, &["orders", "tenant-7/orders", "q"]);
    let long = "ключ".repeat(30);
    let key = pick(random, &["a", "order-42", &long, "{tag}x", "with/slash"]);
    TimerName::from_text(queue, key).unwrap()
}

fn time(random: &mut Random) -> Timestamp {
    Timestamp::from_micros(random.draw() >> random.below(64))
}

fn span(random: &mut Random) -> Duration {
    Duration::from_nanos(random.draw() >> random.below(64))
}

fn due(random: &mut Random) -> Due {
    match random.below(2) {
        0 => Due::At(time(random)),
        _ => Due::In(span(random)),
    }
}

fn precondition(random: &mut Random) -> Precondition {
    let revision = Precondition::Revision(Revision(random.draw()));
    pick(
        random,
        &[Precondition::None, Precondition::Absent, revision],
    )
}

fn policy(random: &mut Random) -> RetryPolicy {
    let millis = |random: &mut Random| Duration::from_millis(1 + random.below(1_000_000));
    let policy = match random.below(6) {
        0 => {
            let delays: Vec<_> = (0..=random.below(9)).map(|_| millis(random)).collect();
            RetryPolicy::list(delays).unwrap()
        }
        1 => return pick(random, &Preset::ALL).policy(),
        2 => RetryPolicy::fixed(millis(random)),
        3 => RetryPolicy::exponential(millis(random), 1.5).unwrap(),
        4 => RetryPolicy::exponential(millis(random), 2.0)
            .unwrap()
            .cap(3 * millis(random)),
        _ => RetryPolicy::linear(millis(random), millis(random)).cap(Duration::from_secs(9_999)),
    };
    let policy = policy.jitter(pick(random, &[Jitter::None, Jitter::Full, Jitter::Equal]));
    let policy = match random.below(2) {
        0 => policy,
        _ => policy.max_age(millis(random)),
    };
    match random.below(2) {
        0 => policy,
        _ => {
            let attempts = 1 + u32::try_from(random.below(10_000)).unwrap();
            policy.repeat_last().max_attempts(attempts).unwrap()
        }
    }
}

fn recurrence(random: &mut Random) -> Recurrence {
    let schedule = match random.below(4) {
        0 => Schedule::FixedRate {
            every: span(random),
            anchor: None,
        },
        1 => Schedule::FixedRate {
            every: span(random),
            anchor: Some(time(random)),
        },
        2 => Schedule::FixedDelay {
            every: span(random),
        },
        _ => Schedule::Cron {
            expression: CronExpression::new("0 9 * * MON-FRI").unwrap(),
            zone: Zone::new("Asia/Kathmandu").unwrap(),
        },
    };
    Recurrence {
        schedule,
        repeats: NonZeroU32::new(u32::try_from(random.below(3)).unwrap()),
        until: (random.below(2) == 0).then(|| time(random)),
        jitter: span(random),
        overlap: pick(random, &Overlap::ALL),
    }
}

pub(super) fn request(random: &mut Random) -> Request {
    match random.below(6) {
        0 => {
            let missed = Missed::SkipIfOlderThan(span(random));
            let missed = pick(random, &[Missed::Fire, Missed::Collapse, missed]);
            let recurs = random.below(2) == 0;
            let recurrence = recurs.then(|| Box::new(recurrence(random)));
            Request::Set {
                name: name(random),
                due: due(random),
                policy: policy(random),
                payload: (0..random.below(300)).map(|_| byte(random)).collect(),
                precondition: precondition(random),
                options: SetOptions {
                    missed,
                    recurrence,
                    receipt: None,
                },
            }
        }
        1 => {
            let shifts = [
                Shift::To(due(random)),
                Shift::Later(span(random)),
                Shift::Sooner(span(random)),
            ];
            Request::Move {
                name: name(random),
                shift: pick(random, &shifts),
                precondition: precondition(random),
            }
        }
        2 => Request::Remove {
            name: name(random),
            precondition: precondition(random),
            only_pending: random.below(2) == 0,
        },
        3 => Request::Fire { name: name(random) },
        4 => Request::Revive {
            name: name(random),
            due: due(random),
        },
        _ => {
            let version = SettingPrecondition::Version(SettingsVersion(random.draw()));
            let all = [
                SettingPrecondition::None,
                SettingPrecondition::Absent,
                version,
            ];
            Request::Configure {
                name: SettingName::new("drain/orders").unwrap(),
                value: pick(random, &[None, Some(Vec::new()), Some(b"hold".to_vec())]),
                precondition: pick(random, &all),
            }
        }
    }
}

pub(super) fn response(random: &mut Random) -> Response {
    let state = [None, Some(StateKind::Pending), Some(StateKind::Dead)];
    match random.below(4) {
        0 => Response::Set(Set {
            id: TimerId {
                store: random.draw(),
                set: Revision(random.draw()),
            },
            revision: Revision(random.draw()),
            due: time(random),
            replaced: pick(random, &state),
            replayed: false,
        }),
        1 => Response::Moved(Moved {
            revision: Revision(random.draw()),
            old_due: time(random),
            due: time(random),
        }),
        2 => {
            let was = [
                Was::Pending { due: time(random) },
                Was::Delivering { attempt: 7 },
                Was::Dead,
                Was::Unreadable,
            ];
            Response::Removed(pick(random, &was))
        }
        _ => Response::Configured(Configured {
            name: SettingName::new("drain").unwrap(),
            version: SettingsVersion(random.draw()),
        }),
    }
}

/// One of each error that an owner may answer with, and that comes over as it is.
pub(super) fn errors() -> Vec<TimerError> {
    let second = Duration::from_secs(1);
    let state = StateKind::Delivering;
    let at = Timestamp::from_micros(1_700_000_000_000_000);
    let queue = || QueueName::from_text("tenant-7/orders").unwrap();
    let draining = |mode| TimerError::Draining {
        queue: queue(),
        mode,
    };
    vec![
        TimerError::NotFound,
        TimerError::Gone { at },
        TimerError::Conflict { state },
        TimerError::Changed {
            current: Revision(9),
        },
        TimerError::Exists { state },
        draining(DrainMode::Fire { until: Some(at) }),
        draining(DrainMode::Fire { until: None }),
        draining(DrainMode::Hold),
        draining(DrainMode::Remove),
        TimerError::TooFar,
        TimerError::PayloadTooLarge { bytes: 9, limit: 8 },
        TimerError::BatchTooLarge {
            requests: 9,
            limit: 8,
        },
        TimerError::BatchTooLong { limit: 8 },
        TimerError::Full,
        TimerError::StorageFull,
        TimerError::Unavailable {
            reason: "the database is away".to_owned(),
        },
        TimerError::Unknown("the store failed".to_owned()),
        TimerError::Unreadable {
            name: TimerName::new("orders", "a").unwrap(),
            source: StoreError::Unreadable {
                problem: "a block".to_owned(),
            },
        },
        TimerError::Setting(SettingError::ValueTooLong { bytes: 9 }),
        TimerError::Setting(SettingError::Exists {
            version: SettingsVersion(9),
        }),
        TimerError::Setting(SettingError::Changed {
            current: SettingsVersion(9),
        }),
        TimerError::Setting(SettingError::NotFound),
        TimerError::Setting(SettingError::TooMany { bytes: 9 }),
        TimerError::Policy(PolicyError::ListLength { found: 0 }),
        TimerError::Policy(PolicyError::Delay { found: second }),
        TimerError::Policy(PolicyError::Factor),
        TimerError::Policy(PolicyError::Cap),
        TimerError::Policy(PolicyError::Attempts { found: 0 }),
        TimerError::Policy(PolicyError::Age { found: second }),
        TimerError::Recurrence(RecurrenceError::Every { found: second }),
        TimerError::Recurrence(RecurrenceError::Jitter { found: second }),
        TimerError::Recurrence(RecurrenceError::NoRun),
        TimerError::Recurrence(RecurrenceError::NoRunInTime),
        TimerError::Recurrence(RecurrenceError::Missed { found: second }),
        TimerError::Zone(UnknownZone {
            name: "Europe/Atlantis".to_owned(),
        }),
    ]
}

/// An answer of one of these.
pub(super) fn answer(random: &mut Random) -> Result<Vec<Response>, BatchError> {
    let mut errors = errors();
    let place = usize::try_from(random.below(2 * errors.len() as u64)).unwrap();
    match place < errors.len() {
        true => Err(BatchError {
            index: (random.below(2) == 0).then_some(place),
            error: errors.swap_remove(place),
        }),
        false => Ok((0..random.below(9)).map(|_| response(random)).collect()),
    }
}
