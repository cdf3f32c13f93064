//! The requests of clients.

use std::num::NonZeroU32;
use std::time::Duration;

use countwheel_durable::store::{Shard, Store};
use countwheel_durable::{
    CronExpression, DrainMode, Due, Jitter, Key, Missed, Overlap, Precondition, Record, Recurrence,
    Request, RetryPolicy, Revision, Schedule, SetOptions, Shift, Ticket, TimerName, Zone,
};
use countwheel_time::{Clock, Timestamp};

use super::{FEW_QUEUES, Happening, World, queue_name};
use crate::random::Random;

/// Calendars: every few minutes, at set hours, in the hours that the clocks of
/// their zones leave out or show twice, and hardly ever.
const CALENDARS: [(&str, &str); 7] = [
    ("30 */7 * * * *", "UTC"),
    ("*/5 * * * *", "Asia/Kathmandu"),
    ("30 * * * *", "Australia/Lord_Howe"),
    ("0 9,17 * * MON-FRI", "Europe/Berlin"),
    ("30 2 * * *", "America/New_York"),
    ("15 1 * * *", "Europe/London"),
    ("0 0 29 2 *", "UTC"),
];

/// The most runs a timer is drawn to have, if it has an end.
const RUNS_MAX: u64 = 12;

impl World {
    /// What the store has of a timer, for the model as well.
    pub(super) fn look(&mut self, name: &TimerName) -> Result<Option<Record>, String> {
        let found = self.store.get(Shard::ONLY, name);
        let record = found.map_err(|e| e.to_string())?;
        self.model.seen(name, self.latest, record.as_ref());
        Ok(record)
    }

    pub(super) fn draw_request(&mut self) -> Result<Request, String> {
        let number = self.clients.below(self.plan.keys);
        let queue_number = number % self.plan.queues;
        // Queues of one name have the same keys.
        let number = number - self.plan.twin_of(queue_number);
        let key = Key::new(format!("key-{number}")).map_err(|e| e.to_string())?;
        let queue = self.plan.queue(queue_number)?;
        let name = TimerName { queue, key };
        // A client may look before it asks.
        let record = self.look(&name)?;
        let precondition = match (self.clients.below(6), &record) {
            (0, _) => Precondition::Absent,
            (1, Some(record)) => Precondition::Revision(record.revision),
            (2, Some(record)) => Precondition::Revision(Revision(record.revision.0 + 1_000_000)),
            _ => Precondition::None,
        };
        let what = match self.clients.below(100) {
            50..95 if self.plan.removing => 70,
            what => what,
        };
        Ok(match what {
            0..50 => Request::Set {
                name,
                due: self.draw_due_in(queue_number),
                policy: self.draw_policy(),
                payload: self.draw_payload(),
                precondition,
                options: self.draw_options(),
            },
            50..70 => Request::Move {
                name,
                shift: match self.clients.below(3) {
                    0 => Shift::Later(self.draw_span()),
                    1 => Shift::Sooner(self.draw_span()),
                    _ => Shift::To(self.draw_due_in(queue_number)),
                },
                precondition: match precondition {
                    Precondition::Absent => Precondition::None,
                    other => other,
                },
            },
            70..85 => Request::Remove {
                name,
                precondition: match precondition {
                    Precondition::Absent => Precondition::None,
                    other => other,
                },
                only_pending: self.clients.one_in(4),
            },
            85..92 => Request::Fire { name },
            _ => Request::Revive {
                name,
                due: self.draw_due_in(queue_number),
            },
        })
    }

    /// A drain or pause of a queue or of all, or the end of one.
    pub(super) fn draw_drain(&mut self, ticket: Ticket) -> Result<Happening, String> {
        let queue = if self.drains.one_in(6) {
            None
        } else {
            Some(self.plan.queue(self.drains.below(self.plan.queues))?)
        };
        let span = Duration::from_micros(self.drains.below(2 * self.plan.horizon));
        let until = Some(self.clock.timestamp() + span);
        let mode = match self.drains.below(10) {
            0 => Some(DrainMode::Fire { until: None }),
            1 => Some(DrainMode::Fire { until }),
            2 => Some(DrainMode::Hold),
            3 => Some(DrainMode::Remove),
            4 => Some(DrainMode::Pause { until: None }),
            5 | 6 => Some(DrainMode::Pause { until }),
            _ => None,
        };
        Ok(Happening::Drain(ticket, queue, mode))
    }

    pub(super) fn draw_set(&mut self) -> Result<Request, String> {
        Ok(Request::Set {
            name: TimerName::new(queue_name(0, false), "late").map_err(|e| e.to_string())?,
            due: Due::In(self.draw_span()),
            policy: RetryPolicy::default(),
            payload: self.draw_payload(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        })
    }

    /// Names the set: no other has the same. Now and then it is long.
    fn draw_payload(&mut self) -> Vec<u8> {
        self.next_tag += 1;
        let mut payload = self.next_tag.to_le_bytes().to_vec();
        if self.clients.one_in(self.plan.long) {
            payload.resize(self.plan.payload, 7);
        }
        if self.killers.len() < self.plan.killers && self.clients.one_in(10) {
            self.killers.insert(payload.clone());
        }
        payload
    }

    fn draw_span(&mut self) -> Duration {
        let longest = self.plan.horizon;
        let scale = self.clients.below(4);
        Duration::from_micros(self.clients.below(longest >> (scale * 3)).max(1))
    }

    /// In a world of many queues, those of a queue are mostly due together.
    fn draw_due_in(&mut self, queue: u64) -> Due {
        if self.plan.queues <= FEW_QUEUES || self.clients.one_in(4) {
            return self.draw_due();
        }
        let round = self
            .clock
            .timestamp()
            .as_micros()
            .next_multiple_of(self.plan.horizon);
        let place = self.plan.horizon / self.plan.queues * queue;
        Due::At(Timestamp::from_micros(
            round + place + self.clients.below(1_000),
        ))
    }

    fn draw_due(&mut self) -> Due {
        let now = self.clock.timestamp();
        let span = self.draw_span();
        match self.clients.below(10) {
            0 => Due::At(now.saturating_sub(span)),
            1 => Due::In(Duration::ZERO),
            // Whole seconds, so that deadlines meet.
            2..5 => Due::At(Timestamp::from_micros(
                (now + span).as_micros().next_multiple_of(1_000_000),
            )),
            5 => Due::In(Due::MAX_AHEAD + span), // refused
            _ => Due::In(span),
        }
    }

    fn draw_policy(&mut self) -> RetryPolicy {
        let delay = |random: &mut Random| Duration::from_micros(random.between(1_000, 60_000_000));
        let clients = &mut self.clients;
        let policy = match clients.below(3) {
            0 => RetryPolicy::fixed(delay(clients)),
            1 => RetryPolicy::list((0..clients.between(1, 4)).map(|_| delay(clients)))
                .expect("there is a delay"),
            _ => {
                let first = delay(clients);
                RetryPolicy::exponential(first, 2.0)
                    .expect("2 is a factor")
                    .cap(first * 20)
            }
        };
        let jitter = *clients.pick(&[Jitter::None, Jitter::None, Jitter::Full, Jitter::Equal]);
        let limited = clients.one_in(2);
        let mut policy = policy.jitter(jitter);
        if limited {
            let retries = (self.next_ticket % 6) as u32;
            policy = policy.repeat_last().max_retries(retries);
        }
        if jitter == Jitter::None && clients.one_in(4) {
            policy = policy.max_age(delay(clients) * 3);
        }
        policy
    }

    /// Several requests that are done all together or not at all.
    pub(super) fn draw_batch(&mut self) -> Result<Vec<Request>, String> {
        // Long ones are mostly refused: one request that is refused is enough.
        let most = *self.clients.pick(&[3, 3, 10]);
        let count = self.clients.below(most);
        (0..count).map(|_| self.draw_request()).collect()
    }

    /// Whether a timer comes again, and what becomes of it if it is missed.
    fn draw_options(&mut self) -> SetOptions {
        if self.plan.recurring == 0 {
            return SetOptions::default();
        }
        let missed = match self.clients.below(6) {
            0..2 => Missed::Fire,
            2..4 => Missed::Collapse,
            _ => Missed::SkipIfOlderThan(self.draw_span()),
        };
        let comes_again = self.clients.one_in(self.plan.recurring);
        let recurrence = comes_again.then(|| Box::new(self.draw_recurrence()));
        SetOptions {
            missed,
            recurrence,
            ..SetOptions::default()
        }
    }

    fn draw_recurrence(&mut self) -> Recurrence {
        let every = self.draw_span().max(Recurrence::EVERY_MIN);
        let now = self.clock.timestamp();
        let schedule = match self.clients.below(8) {
            0..2 => Schedule::FixedRate {
                every,
                anchor: None,
            },
            2 => Schedule::FixedRate {
                every,
                anchor: Some(now + self.draw_span()),
            },
            3 => Schedule::FixedRate {
                every,
                anchor: Some(now.saturating_sub(self.draw_span())),
            },
            4..6 => Schedule::FixedDelay { every },
            _ => self.draw_calendar(),
        };
        let mut recurrence = Recurrence::new(schedule);
        recurrence.overlap = *self.clients.pick(&Overlap::ALL);
        // Half of them have none, so that equal times meet; one in sixty has too much.
        recurrence.jitter = match self.clients.below(60) {
            0 => Recurrence::JITTER_MAX + every,
            1..15 => every.min(Recurrence::JITTER_MAX),
            15..30 => every.min(Recurrence::JITTER_MAX) / 7,
            _ => Duration::ZERO,
        };
        let runs = self.clients.between(1, RUNS_MAX);
        if self.clients.one_in(2) {
            recurrence.repeats = u32::try_from(runs).ok().and_then(NonZeroU32::new);
        }
        if self.clients.one_in(3) {
            // A point of the schedule itself, or just before it; now and then before the first.
            let skip = usize::try_from(self.clients.below(RUNS_MAX)).unwrap_or(0);
            let last = recurrence.nominal_times(now).nth(skip);
            let early = Duration::from_micros(self.clients.below(2));
            recurrence.until = last.map(|last| last.saturating_sub(early));
        }
        recurrence
    }

    fn draw_calendar(&mut self) -> Schedule {
        let (expression, zone) = *self.clients.pick(&CALENDARS);
        match (CronExpression::new(expression), Zone::new(zone)) {
            (Ok(expression), Ok(zone)) => Schedule::Cron { expression, zone },
            _ => unreachable!("{expression} in {zone} is a calendar"),
        }
    }
}
