//! W6t: resident bytes for each pending timer, with its work, without and with its handle.

use super::{delays, milliseconds, settle, tally};
use crate::system::resident;
use crate::threaded::peer::Peer;
use crate::workload::{Figures, figures, room};

/// Delays in milliseconds: the least, and how much may come on top. None fires meanwhile.
const DELAYS: (u64, u64) = (60_000, 60_000);

/// After so many schedules, whoever puts work off has time to do it: queues that grew
/// long would stay in the resident memory.
const PORTION: u64 = 10_000;

pub(super) fn measure<P: Peer>(mut peer: P, timers: u64) -> anyhow::Result<Figures> {
    let _entered = peer.enter();
    let delays = delays(0, timers, DELAYS.0, DELAYS.1);
    let mut handles = room(timers);
    settle(&mut peer)?;

    let before = resident()?;
    for (id, (&delay, handle)) in (0..).zip(delays.iter().zip(&mut handles)) {
        *handle = Some(peer.schedule(milliseconds(delay), move || tally(id)));
        if id % PORTION == PORTION - 1 {
            settle(&mut peer)?;
        }
    }
    settle(&mut peer)?;
    let each = (resident()? - before) / timers as f64;
    // Left to the end of the process, like the peer.
    std::mem::forget((peer, handles));
    Ok(figures([
        ("bytes", each),
        ("with-handle", each + size_of::<P::Handle>() as f64),
    ]))
}
