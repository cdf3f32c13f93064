//! Records in no order of name, with payloads of which half is noise.

use std::error::Error;

use countwheel_durable::{
    DueClock, Missed, Record, RetryPolicy, Revision, State, TimerId, TimerName,
};
use countwheel_time::{Random, Timestamp};

/// A timer that waits, with a key of 32 hexadecimal digits, and with 100 bytes of noise before `text`
/// as its payload.
pub(crate) fn record(
    queue: &str,
    number: u64,
    created: Timestamp,
    due: Timestamp,
    text: &[u8],
) -> Result<Record, Box<dyn Error>> {
    let mut random = Random::new(number);
    let key = format!("{:016x}{:016x}", random.draw(), random.draw());
    let mut payload: Vec<u8> = (0..13).flat_map(|_| random.draw().to_le_bytes()).collect();
    payload.truncate(100);
    payload.extend_from_slice(text);
    Ok(Record {
        name: TimerName::new(queue, key)?,
        id: TimerId {
            store: 7,
            set: Revision(number),
        },
        revision: Revision(number),
        state: State::Pending,
        created,
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
    })
}
