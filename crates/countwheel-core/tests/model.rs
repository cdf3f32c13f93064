//! Both wheels agree with a sorted map. The long version of this test is a command:
//! `cargo run --profile proof -p countwheel-core --example model -- --ops 1e9`.

mod comparison;

use comparison::{Shape, Wheel, run};
use countwheel_core::Tick;

const OPERATIONS_PER_SEED: u64 = 20_000;

fn agrees_with_a_sorted_map(shape: Shape, seeds: u64) {
    for seed in 0..seeds {
        if let Err(difference) = run(shape, seed, OPERATIONS_PER_SEED) {
            panic!("{difference}");
        }
    }
}

#[test]
fn the_hierarchical_wheel_agrees_with_a_sorted_map() {
    agrees_with_a_sorted_map(Shape::Hierarchical, 50);
}

#[test]
fn the_hashed_wheel_agrees_with_a_sorted_map_whatever_its_size() {
    for shape in &Shape::ALL[1..] {
        agrees_with_a_sorted_map(*shape, 10);
    }
}

/// Rescheduled timers once fired a revolution late in a ring whose hand had passed
/// their old slot: so here is every hand, and every way from one slot to another.
#[test]
fn a_reschedule_leads_from_every_delay_to_every_other_at_every_hand() {
    const DELAYS: u64 = 40; // more than two revolutions
    for shape in [Shape::Hashed { slots: 10 }, Shape::Hierarchical] {
        for hand in (0..16).chain(1_000..1_016) {
            for (from, to) in (0..DELAYS).flat_map(|from| (0..DELAYS).map(move |to| (from, to))) {
                let tick = |delay| Tick::new(hand + delay);
                let mut wheel = shape.build(tick(0));
                wheel.insert(tick(from), 0);
                let moved = wheel.insert(tick(from), 1);
                wheel.insert(tick(from), 2);
                wheel.insert(tick(to), 3);
                assert!(wheel.reschedule(moved, tick(to)));
                assert_eq!(wheel.next_deadline(), Some(tick(from.min(to))));
                wheel.check();

                let at_each = |delay: u64| match (delay == from, delay == to) {
                    (true, true) => vec![0, 2, 3, 1],
                    (true, false) => vec![0, 2],
                    (false, true) => vec![3, 1],
                    (false, false) => vec![],
                };
                for delay in 0..=DELAYS {
                    let due = expired_at(&mut *wheel, tick(delay));
                    assert_eq!(due, at_each(delay), "{shape:?} {hand} {from} {to} {delay}");
                }
                assert!(wheel.is_empty());
            }
        }
    }
}

fn expired_at(wheel: &mut dyn Wheel, now: Tick) -> Vec<usize> {
    std::iter::from_fn(|| wheel.expire(now))
        .map(|expired| expired.value)
        .collect()
}
