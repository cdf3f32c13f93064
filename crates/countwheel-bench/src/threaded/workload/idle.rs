//! W7: the wake-ups and the processor time of an idle peer.

use std::time::Duration;

use super::{delays, milliseconds, settle, tally};
use crate::stopwatch::pause;
use crate::system::{processor_nanoseconds, switches_of_others};
use crate::threaded::peer::Peer;
use crate::workload::{Figures, figures};

/// Delays in milliseconds, 1 to 2 h: the least, and how much may come on top.
const DELAYS: (u64, u64) = (3_600_000, 3_600_000);

/// Between the last call and the beginning of the measurement.
const CALM: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 3 });

pub(super) fn measure<P: Peer>(
    mut peer: P,
    timers: u64,
    idle: Duration,
) -> anyhow::Result<Figures> {
    let _entered = peer.enter();
    let first = peer.schedule(milliseconds(3_600_000), || tally(0));
    peer.cancel(first);
    let mut handles = Vec::new();
    for (id, delay) in (0..).zip(delays(0, timers, DELAYS.0, DELAYS.1)) {
        handles.push(peer.schedule(milliseconds(delay), move || tally(id)));
    }
    settle(&mut peer)?;
    pause(CALM);

    let switched = switches_of_others()?;
    let processor = processor_nanoseconds();
    pause(idle);
    let processor = processor_nanoseconds() - processor;
    let switches = switches_of_others()?.into_iter().map(|(thread, count)| {
        let before = switched.get(&thread);
        count - before.copied().unwrap_or(0.0)
    });
    let switches = switches.sum();
    // Left to the end of the process, like the peer.
    std::mem::forget((peer, handles));
    Ok(figures([("cpu", processor / 1e6), ("switches", switches)]))
}
