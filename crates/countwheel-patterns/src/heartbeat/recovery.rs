//! One attempt at a time to bring a dead peer back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::{Beats, Dead, Patient, Peer, Recovery};
use crate::activity::{ActivityShard, Cell};
use crate::spawned::spawn;
use countwheel_time::locks::lock;

/// How many were begun, and how they ended.
#[derive(Default)]
pub(super) struct Recoveries {
    pub(super) begun: AtomicU64,
    pub(super) restored: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) given_up: AtomicU64,
    /// Of those given up, the peers that were open until then.
    pub(super) closed: AtomicU64,
}

impl<P: Peer> Beats<P> {
    pub(super) fn recover(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        cell: &Arc<Cell<Patient<P>>>,
        dead: Dead,
    ) {
        self.recoveries.begun.fetch_add(1, Ordering::Relaxed);
        cell.data.is_recovering.store(true, Ordering::Release);
        let mut attempt = Attempt {
            beats: Arc::clone(self),
            shard: Arc::downgrade(shard),
            cell: Arc::clone(cell),
            recovery: Recovery::Failed,
        };
        let run = async move { attempt.run(dead).await };
        // Refused only if the timer has stopped: the attempt was dropped, and so has failed.
        let Ok(spawned) = spawn(&shard.timer().downgrade(), run) else {
            return;
        };
        let old = lock(&cell.data.attempt).replace(spawned);
        drop(old);
        if cell.is_ended() {
            abandon(cell);
        }
    }

    fn conclude(&self, shard: &ActivityShard<Self>, cell: &Cell<Patient<P>>, recovery: Recovery) {
        let (patient, now) = (&cell.data, shard.live());
        let count = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        match recovery {
            Recovery::Restored => {
                cell.set_read(now);
                cell.set_wrote(now);
                patient.no_attempt_before.store(0, Ordering::Relaxed);
                count(&self.recoveries.restored);
            }
            Recovery::Failed => {
                let pause = self.pause.load(Ordering::Relaxed);
                let pause = pause.saturating_add(self.jitter(patient, pause));
                let next = now.plus(pause.max(SHORTEST));
                patient.no_attempt_before.store(next.0, Ordering::Relaxed);
                count(&self.recoveries.failed);
            }
            Recovery::Closed => {
                count(&self.recoveries.given_up);
                if shard.end(cell) {
                    count(&self.recoveries.closed);
                }
            }
        }
        patient.is_down.store(false, Ordering::Relaxed);
        patient.is_recovering.store(false, Ordering::Release);
        shard.call(cell);
    }
}

/// The shortest pause, in nanoseconds: never without one.
const SHORTEST: u64 = 1_000_000;

/// Drops the attempt that runs, if one does: nobody wants the peer back.
pub(super) fn abandon<P>(cell: &Cell<Patient<P>>) {
    let spawned = lock(&cell.data.attempt).take();
    if let Some(spawned) = spawned {
        spawned.end();
    }
}

/// Says how an attempt has ended, whatever becomes of it.
struct Attempt<P: Peer> {
    beats: Arc<Beats<P>>,
    shard: Weak<ActivityShard<Beats<P>>>,
    cell: Arc<Cell<Patient<P>>>,
    recovery: Recovery,
}

impl<P: Peer> Attempt<P> {
    async fn run(&mut self, dead: Dead) {
        let peer = &self.cell.data.peer;
        let recovery = peer.recover(dead).await;
        // Or else it would be dead again at once, and recovered again without a pause.
        if recovery != Recovery::Restored || peer.is_connected() {
            self.recovery = recovery;
        }
    }
}

impl<P: Peer> Drop for Attempt<P> {
    fn drop(&mut self) {
        if let Some(shard) = self.shard.upgrade() {
            self.beats.conclude(&shard, &self.cell, self.recovery);
        }
    }
}
