use std::num::NonZeroU32;
use std::time::Duration;

use countwheel_time::Timestamp;

use super::position::{Ended, Overdue};
use super::{
    CronExpression, Missed, Overlap, Recurrence, RecurrenceError, Recurring, Schedule, Zone,
};
use crate::{Revision, TimerId};
use countwheel_time::Random;

const ID: TimerId = TimerId {
    store: 7,
    set: Revision(3),
};

/// Seconds after a day in 2026 began in UTC.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_772_323_200_000_000) + Duration::from_secs(seconds)
}

fn every(seconds: u64) -> Recurrence {
    Recurrence::new(Schedule::FixedRate {
        every: Duration::from_secs(seconds),
        anchor: Some(at(0)),
    })
}

fn cron(expression: &str, zone: &str) -> Schedule {
    Schedule::Cron {
        expression: CronExpression::new(expression).expect("an expression"),
        zone: Zone::new(zone).expect("a zone"),
    }
}

/// A timer whose run of `nominal` has started at `started`.
fn running(recurrence: Recurrence, nominal: u64, started: u64) -> Recurring {
    let mut timer = Recurring::begin(recurrence, at(nominal)).expect("it has runs");
    assert_eq!(timer.nominal, at(nominal));
    timer.start(at(started), false);
    timer
}

#[test]
fn the_points_of_a_schedule_are_found_from_anywhere() {
    let mut random = Random::new(9);
    let schedules = [
        every(7).schedule,
        Schedule::FixedRate {
            every: Duration::from_nanos(100_000_001),
            anchor: None,
        },
        cron("*/7 1-3 * * *", "Europe/Berlin"),
        cron("0 0 29 2 *", "Asia/Kathmandu"),
        cron("@daily", "Pacific/Apia"),
    ];
    for schedule in schedules {
        let first = schedule.first(at(0)).expect("it has no end");
        let origin = schedule.origin(first);
        let points: Vec<_> =
            std::iter::successors(Some(first), |&point| schedule.next(origin, point))
                .take(300)
                .collect();
        assert!(points.is_sorted_by(|a, b| a < b));
        let span = points[299].saturating_since(first);
        for _ in 0..100 {
            let time = first + random.micros_up_to(span);
            let index = points.partition_point(|&point| point <= time);
            if let Some(&next) = points.get(index) {
                assert_eq!(schedule.next(origin, time), Some(next));
            }
            assert_eq!(schedule.last(origin, first, time), points[index - 1]);
            let between = points[1..].partition_point(|&point| point < time);
            let between = u64::try_from(between).expect("a count");
            assert_eq!(schedule.count(origin, first, time), between);
        }
        assert_eq!(schedule.last(origin, points[5], points[2]), points[5]);
        assert_eq!(schedule.count(origin, points[5], points[2]), 0);
    }
    let seconds = cron("* * * * * *", "UTC");
    assert_eq!(seconds.count(at(0), at(0), at(86_400)), 10_000);
}

#[test]
fn times_at_the_ends_of_time_are_no_panic() {
    let schedules = [
        every(1).schedule,
        Schedule::FixedDelay {
            every: Recurrence::EVERY_MAX,
        },
        Schedule::FixedRate {
            every: Recurrence::EVERY_MAX,
            anchor: Some(Timestamp::MAX),
        },
        cron("0 0 1 1 *", "Europe/Berlin"),
    ];
    for schedule in schedules {
        for time in [Timestamp::EPOCH, at(5), Timestamp::MAX] {
            for origin in [Timestamp::EPOCH, at(5), Timestamp::MAX] {
                let next = schedule.next(origin, time);
                assert!(next.is_none_or(|next| next > time));
                schedule.first(time);
                schedule.last(origin, time, Timestamp::MAX);
            }
        }
    }
}

#[test]
fn a_draw_of_the_jitter_is_the_same_again_and_fills_its_window() {
    let window = Duration::from_secs(5);
    let recurrence = Recurrence {
        jitter: window,
        ..every(10)
    };
    let timer = |nominal| Recurring::begin(recurrence.clone(), nominal).expect("it has runs");
    let offset = |id, step: u64| {
        let timer = timer(at(10 * step));
        let due = timer.due(id);
        assert_eq!(due, timer.clone().due(id));
        due.saturating_since(timer.nominal)
    };
    let offsets: Vec<_> = (0..2_000).map(|step| offset(ID, step)).collect();
    assert!(offsets.iter().all(|&offset| offset <= window));
    let below = |part: u32| offsets.iter().filter(|&&one| one < window / part).count();
    assert!((900..1_100).contains(&below(2)), "{} of 2000", below(2));
    assert!((140..260).contains(&below(10)), "{} of 2000", below(10));
    let mut other = ID;
    other.set.0 += 1;
    assert!((0..50).any(|step| offset(ID, step) != offset(other, step)));
}

#[test]
fn a_run_on_time_is_followed_by_the_next_point_of_the_grid() {
    let mut timer = running(every(10), 10, 10);
    let ended = timer.end(ID, at(13), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(20)));
    assert_eq!((timer.run, timer.nominal), (2, at(20)));
    assert!(timer.upcoming().take(3).eq([at(30), at(40), at(50)]));
    assert_eq!((timer.missed, timer.overlapped), (0, 0));
}

#[test]
fn a_fixed_delay_counts_from_the_end() {
    let every = Duration::from_secs(10);
    let mut timer = running(Recurrence::new(Schedule::FixedDelay { every }), 10, 10);
    let ended = timer.end(ID, at(97), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(107)));
    assert_eq!((timer.missed, timer.overlapped), (0, 0));
}

#[test]
fn runs_that_came_due_while_one_was_under_way_are_skipped_or_the_latest_waits() {
    let mut skipping = running(every(10), 10, 10);
    let ended = skipping.end(ID, at(45), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(50)));
    assert_eq!((skipping.run, skipping.overlapped), (2, 3));

    let queueing = Recurrence {
        overlap: Overlap::Queue,
        ..every(10)
    };
    let mut queueing = running(queueing, 10, 10);
    let ended = queueing.end(ID, at(45), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(40)));
    assert_eq!((queueing.run, queueing.overlapped), (2, 2));
    // It starts at once, and what follows is on time again.
    queueing.start(at(45), false);
    let ended = queueing.end(ID, at(48), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(50)));
    assert_eq!((queueing.missed, queueing.overlapped), (0, 2));
    // The end of a run and a nominal time at the same instant: it came due under way.
    let mut exact = running(every(10), 10, 10);
    let ended = exact.end(ID, at(20), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(30)));
}

#[test]
fn missed_runs_are_all_made_in_order_and_what_overlaps_with_them_is_not() {
    // Due at 10, started at 35: those of 20 and 30 were missed, that of 40 overlaps.
    let mut timer = running(every(10), 10, 35);
    assert_eq!(
        timer.end(ID, at(42), (Missed::Fire, None)),
        Ended::Next(at(20))
    );
    timer.start(at(42), false);
    assert_eq!(
        timer.end(ID, at(43), (Missed::Fire, None)),
        Ended::Next(at(30))
    );
    timer.start(at(43), false);
    assert_eq!(
        timer.end(ID, at(44), (Missed::Fire, None)),
        Ended::Next(at(50))
    );
    assert_eq!((timer.run, timer.missed, timer.overlapped), (4, 0, 1));
}

#[test]
fn what_is_too_old_is_passed_over() {
    let fresh = Missed::SkipIfOlderThan(Duration::from_secs(15));
    let mut timer = Recurring::begin(every(10), at(10)).expect("it has runs");
    assert_eq!(timer.judge(ID, at(25), fresh), Overdue::Start);
    assert_eq!(timer.judge(ID, at(47), fresh), Overdue::Pass(at(40)));
    assert_eq!((timer.run, timer.missed), (1, 3));
    // A fixed delay begins anew.
    let every_ten = Schedule::FixedDelay {
        every: Duration::from_secs(10),
    };
    let mut delayed = Recurring::begin(Recurrence::new(every_ten), at(10)).expect("it has runs");
    assert_eq!(delayed.judge(ID, at(47), fresh), Overdue::Pass(at(57)));
    assert_eq!(delayed.missed, 1);
    // Where no run is left, it is over.
    let short = Recurrence {
        until: Some(at(30)),
        ..every(10)
    };
    let mut short = Recurring::begin(short, at(10)).expect("it has runs");
    assert_eq!(short.judge(ID, at(47), fresh), Overdue::Over);
    assert_eq!(short.missed, 3);
}

#[test]
fn how_old_a_run_is_counts_from_the_end_of_its_window() {
    let fresh = Missed::SkipIfOlderThan(Duration::from_secs(1));
    let recurrence = Recurrence {
        jitter: Duration::from_secs(8),
        ..every(10)
    };
    let mut timer = Recurring::begin(recurrence, at(10)).expect("it has runs");
    assert_eq!(timer.judge(ID, at(19), fresh), Overdue::Start);
    assert!(matches!(timer.judge(ID, at(20), fresh), Overdue::Pass(_)));
    assert_eq!(timer.nominal, at(20));
    // One that was moved has no window.
    let mut moved = timer.clone();
    moved.move_to(at(100));
    assert_eq!(moved.judge(ID, at(101), fresh), Overdue::Start);
    assert_eq!(
        moved.judge(ID, at(102), fresh),
        Overdue::Pass(moved.due(ID))
    );
    assert_eq!(moved.nominal, at(110));
}

#[test]
fn missed_runs_collapse_into_the_latest() {
    let mut timer = Recurring::begin(every(10), at(10)).expect("it has runs");
    let judged = timer.judge(ID, at(47), Missed::Collapse);
    assert_eq!(judged, Overdue::Pass(at(40)));
    assert_eq!((timer.run, timer.missed), (1, 3));
    let judged = timer.judge(ID, at(47), Missed::Collapse);
    assert_eq!(judged, Overdue::Start);
    timer.start(at(47), false);
    let ended = timer.end(ID, at(48), (Missed::Collapse, None));
    assert_eq!(ended, Ended::Next(at(50)));
    let mut bounded = Recurring::begin(
        Recurrence {
            until: Some(at(29)),
            ..every(10)
        },
        at(10),
    )
    .expect("it has runs");
    let judged = bounded.judge(ID, at(47), Missed::Collapse);
    assert_eq!(judged, Overdue::Pass(at(20)));
}

#[test]
fn repeats_count_runs_and_until_bounds_nominal_times() {
    let twice = Recurrence {
        repeats: NonZeroU32::new(2),
        ..every(10)
    };
    let mut timer = running(twice, 10, 10);
    assert_eq!(timer.upcoming().count(), 1);
    let ended = timer.end(ID, at(45), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(50)));
    assert_eq!(timer.upcoming().count(), 0);
    timer.start(at(50), false);
    let ended = timer.end(ID, at(51), (Missed::Fire, None));
    assert_eq!(ended, Ended::Over);
    assert_eq!(timer.run, 2);

    let until = |seconds| Recurrence {
        until: Some(at(seconds)),
        ..every(10)
    };
    let mut timer = running(until(20), 10, 10);
    let ended = timer.end(ID, at(12), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(20)));
    let mut timer = running(until(19), 10, 10);
    let ended = timer.end(ID, at(12), (Missed::Fire, None));
    assert_eq!(ended, Ended::Over);
    assert_eq!(
        Recurring::begin(until(19), at(11)),
        Err(RecurrenceError::NoRunInTime)
    );
    let mut timer = running(until(35), 10, 10);
    let ended = timer.end(ID, at(99), (Missed::Fire, None));
    assert_eq!(ended, Ended::Over);
    assert_eq!(timer.overlapped, 2);
}

#[test]
fn a_move_or_a_fire_leaves_the_grid_alone() {
    // Moved from 10 to 35: the runs of 20 and 30 are not made.
    let mut moved = Recurring::begin(every(10), at(10)).expect("it has runs");
    moved.move_to(at(35));
    moved.start(at(35), false);
    let ended = moved.end(ID, at(36), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(40)));
    assert_eq!((moved.missed, moved.overlapped), (0, 0));
    // Moved from 20 to 12.
    let mut sooner = Recurring::begin(every(10), at(20)).expect("it has runs");
    sooner.move_to(at(12));
    sooner.start(at(12), false);
    let ended = sooner.end(ID, at(13), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(30)));
    // Fired at 12, before that of 20, which stays.
    let mut fired = Recurring::begin(every(10), at(20)).expect("it has runs");
    fired.fire(at(20), at(12));
    fired.start(at(12), false);
    let ended = fired.end(ID, at(13), (Missed::Fire, None));
    assert_eq!(ended, Ended::Next(at(20)));
    assert_eq!(fired.run, 2);
    // Fired when it was overdue already.
    let mut overdue = Recurring::begin(every(10), at(20)).expect("it has runs");
    overdue.fire(at(20), at(22));
    assert_eq!(overdue.nominal, at(20));
}

/// Against a look at every second.
#[test]
fn the_nominal_times_of_a_range_are_those_of_the_schedule() {
    let mut random = Random::new(7);
    for round in 0..300 {
        let step = 1 + random.draw() % 9;
        let origin = random.draw() % 40;
        let until = random.draw().is_multiple_of(2).then(|| random.draw() % 300);
        let repeats = random
            .draw()
            .is_multiple_of(2)
            .then(|| 2 + random.draw() % 20);
        let recurrence = Recurrence {
            until: until.map(at),
            repeats: repeats.and_then(|repeats| u32::try_from(repeats).ok()?.try_into().ok()),
            ..Recurrence::new(Schedule::FixedRate {
                every: Duration::from_secs(step),
                anchor: Some(at(origin)),
            })
        };
        let Ok(timer) = Recurring::begin(recurrence, at(origin)) else {
            assert!(until.is_some_and(|until| until < origin));
            continue;
        };
        let is_nominal = |second: &u64| {
            *second >= origin
                && (second - origin).is_multiple_of(step)
                && until.is_none_or(|until| *second <= until)
        };
        let from = random.draw() % 100;
        let expected = (from..400).filter(is_nominal).map(at);
        let found = timer.nominal_times(at(from));
        let found = found.take_while(|&nominal| nominal < at(400));
        assert!(found.eq(expected), "round {round}");
        let left = repeats.map_or(u64::MAX, |repeats| repeats - 1);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let after = random.draw() % 200;
        let coming = (origin + 1..600).filter(is_nominal).take(left);
        let expected = coming.filter(|&second| second > after).map(at);
        let found = timer.upcoming_after(at(after));
        let found = found.take_while(|&nominal| nominal < at(600));
        assert!(found.eq(expected), "round {round}");
    }
    let delay = Recurrence::new(Schedule::FixedDelay {
        every: Duration::from_secs(10),
    });
    let timer = Recurring::begin(delay, at(10)).expect("it has runs");
    assert_eq!(timer.nominal_times(at(0)).next(), None);
    let soon = timer.upcoming_after(at(25)).take(2);
    assert!(soon.eq([at(30), at(40)]));
    let nine = Recurrence::new(cron("0 9 * * *", "UTC"));
    let timer = Recurring::begin(nine, at(86_400)).expect("it has runs");
    let nine = |day: u64| at(day * 86_400 + 9 * 3_600);
    // A calendar has times before the timer was set.
    let found = timer.nominal_times(nine(0)).take(2);
    assert!(found.eq([nine(0), nine(1)]));
    let far = timer.upcoming_after(nine(1_000)).next();
    assert_eq!(far, Some(nine(1_001)));
    // The first midnight there is has no time before it.
    let midnights = Recurrence::new(cron("@daily", "UTC"));
    let timer = Recurring::begin(midnights, at(86_400)).expect("it has runs");
    let found = timer.nominal_times(Timestamp::EPOCH).take(2);
    assert!(found.eq([0, 86_400_000_000].map(Timestamp::from_micros)));
}

#[test]
fn no_decision_leaves_the_grid_or_goes_back() {
    let mut random = Random::new(11);
    for round in 0..2_000 {
        let window = random.micros_up_to(Duration::from_secs(10)).as_secs();
        let recurrence = Recurrence {
            jitter: Duration::from_secs(window),
            overlap: Overlap::ALL[usize::from(random.draw().is_multiple_of(2))],
            until: random.draw().is_multiple_of(3).then(|| at(2_000)),
            ..every(10)
        };
        let missed = match random.draw() % 3 {
            0 => Missed::Fire,
            1 => Missed::SkipIfOlderThan(random.micros_up_to(Duration::from_secs(60))),
            _ => Missed::Collapse,
        };
        let mut timer = Recurring::begin(recurrence, at(10)).expect("it has runs");
        let mut due = timer.due(ID);
        let (mut made, mut now) = (0, due);
        for _ in 0..30 {
            now = now.max(due);
            if random.draw().is_multiple_of(4) {
                now = now + random.micros_up_to(Duration::from_secs(200)); // nothing runs
            }
            let before = timer.nominal;
            match timer.judge(ID, now, missed) {
                Overdue::Start => {}
                Overdue::Pass(later) => {
                    assert!(timer.nominal > before, "round {round}");
                    due = later;
                    continue;
                }
                Overdue::Over => break,
            }
            made += 1;
            timer.start(now, false);
            now = now + random.micros_up_to(Duration::from_secs(25)); // it runs
            let before = timer.nominal;
            let Ended::Next(next) = timer.end(ID, now, (missed, None)) else {
                break;
            };
            assert!(timer.nominal > before, "round {round}");
            due = next;
            assert!(due >= timer.nominal);
            // Every point up to this one was made, missed or overlapped.
            let points = timer.nominal.saturating_since(at(0)).as_secs() / 10;
            assert_eq!(
                points,
                made + timer.missed + timer.overlapped + 1,
                "round {round}: {timer:?}"
            );
        }
    }
}

#[test]
fn every_bound_is_checked() {
    let rate = |every| {
        Recurrence::new(Schedule::FixedRate {
            every,
            anchor: None,
        })
    };
    let short = Duration::from_millis(99);
    assert_eq!(
        rate(short).validate(),
        Err(RecurrenceError::Every { found: short })
    );
    assert!(rate(Recurrence::EVERY_MIN).validate().is_ok());
    assert!(rate(Recurrence::EVERY_MAX).validate().is_ok());
    let long = Recurrence::EVERY_MAX + Duration::from_micros(1);
    let delay = Recurrence::new(Schedule::FixedDelay { every: long });
    assert_eq!(
        delay.validate(),
        Err(RecurrenceError::Every { found: long })
    );
    let found = Duration::from_secs(11);
    let jitter = |jitter, recurrence| Recurrence {
        jitter,
        ..recurrence
    };
    assert_eq!(
        jitter(found, every(10)).validate(),
        Err(RecurrenceError::Jitter { found })
    );
    let daily = Recurrence::new(cron("@daily", "UTC"));
    let day = Recurrence::JITTER_MAX;
    assert!(jitter(day, daily.clone()).validate().is_ok());
    assert!(jitter(day + short, daily).validate().is_err());
    assert!(Missed::SkipIfOlderThan(long).validate().is_err());
    assert!(Missed::SkipIfOlderThan(day).validate().is_ok());
}
