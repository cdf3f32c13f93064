//! The clock of the cluster.

use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{ClusterClock, Offset};
use countwheel_time::{Clock, ManualClock, Random, Timestamp};

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn clocks() -> (ManualClock, ClusterClock) {
    let machine = ManualClock::at(at(1_000));
    let clock = ClusterClock::new(Arc::new(machine.clone()));
    (machine, clock)
}

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn before_the_first_sample_it_is_the_machines() {
    let (machine, clock) = clocks();
    assert_eq!(clock.timestamp(), machine.timestamp());
    assert_eq!(clock.offset(), Offset::Ahead(Duration::ZERO));
}

/// The registry may have read its clock at the very end of the exchange.
pub(crate) fn it_is_never_ahead() {
    let (machine, clock) = clocks();
    let sent = machine.boot();
    machine.advance(SECOND);
    clock.sample(sent, machine.boot(), at(2_000));
    assert_eq!(clock.timestamp(), at(2_000));
    assert_eq!(clock.offset(), Offset::Behind(Duration::from_secs(999)));
}

/// Drawn worlds: the machine's clock drifts, answers take a while, the registry's clock goes on.
pub(crate) fn it_is_never_ahead_though_clocks_drift() {
    let mut random = Random::new(7);
    for rate in [-500_i64, -499, 0, 499, 500] {
        let (machine, clock) = clocks();
        let mut true_nanos: u64 = 5_000_000_000_000;
        let mut pass = |micros: u64| {
            true_nanos += micros * 1_000;
            let rated = 1_000_000_u64.saturating_add_signed(rate);
            machine.advance(Duration::from_nanos(micros * rated / 1_000));
            Timestamp::from_micros(true_nanos / 1_000)
        };
        for _ in 0..2_000 {
            pass(random.below(700_000));
            let sent = machine.boot();
            let shown = pass(random.below(20_000));
            let now = pass(random.below(20_000));
            clock.sample(sent, machine.boot(), shown);
            let read = clock.timestamp();
            assert!(
                read <= now,
                "ahead by {:?} at {rate}",
                read.saturating_since(now)
            );
            // As far behind as the answer was under way, and no step was seen where there is none.
            assert!(
                read + Duration::from_micros(20_800) >= now,
                "{:?}",
                now.saturating_since(read)
            );
        }
    }
}

pub(crate) fn it_goes_back_only_with_the_registrys() {
    let (machine, clock) = clocks();
    let sample = |shown| {
        let sent = machine.boot();
        machine.advance(Duration::from_millis(3));
        clock.sample(sent, machine.boot(), shown);
    };
    sample(at(2_000));
    let before = clock.timestamp();
    sample(at(2_000));
    assert!(clock.timestamp() >= before, "an answer that was slower");
    sample(at(1_900));
    assert_eq!(clock.timestamp(), at(1_900), "it was set back");
    sample(at(3_000));
    assert_eq!(clock.timestamp(), at(3_000), "it was set forward");
}

/// A better sample is used for as long as it is among the last eight.
pub(crate) fn the_best_of_the_last_samples_counts() {
    let (machine, clock) = clocks();
    let mut now = at(2_000);
    let mut sample = |ahead: Duration| {
        machine.advance(SECOND);
        now = now + SECOND;
        let sent = machine.boot();
        machine.advance(ahead);
        clock.sample(sent, machine.boot(), now);
        now = now + ahead;
        now.saturating_since(clock.timestamp())
    };
    assert_eq!(sample(Duration::ZERO), Duration::ZERO);
    let slow = Duration::from_millis(100);
    for later in 1_u32..8 {
        let behind = sample(slow);
        let drift = (SECOND + slow) * later / 2_000;
        assert!(behind <= drift + Duration::from_micros(1), "{behind:?}");
    }
    // The first is forgotten; the best of those that are left was as slow as all.
    assert!(sample(slow) > Duration::from_millis(90));
}

pub(crate) mod sentences {
    crate::sentences! {
        before_the_first_sample_it_is_the_machines,
        it_is_never_ahead,
        it_is_never_ahead_though_clocks_drift,
        it_goes_back_only_with_the_registrys,
        the_best_of_the_last_samples_counts,
    }
}
