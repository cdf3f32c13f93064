//! A record for the tests of stores.

use countwheel_durable::{
    DueClock, Missed, Record, RetryPolicy, Revision, State, TimerId, TimerName,
};
use countwheel_time::Timestamp;

/// A timer that waits for its first attempt, set in store 7 under this revision. What is set later
/// is due later.
pub(crate) fn pending(name: TimerName, revision: u64, payload: Vec<u8>) -> Record {
    let due = Timestamp::from_micros(1_000_000 + revision);
    Record {
        name,
        id: TimerId {
            store: 7,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: Timestamp::from_micros(5),
        due,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload,
    }
}
