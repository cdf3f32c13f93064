//! The thread of the crate `hierarchical_hash_wheel_timer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{
    ClosureTimer as _, OneShotClosureState, PeriodicClosureState, Timer as _,
};

use super::Peer;

/// How many ids a clone has to itself.
const IDS: u64 = 1 << 40;

/// Timers are known by ids that their user has to find, so each clone has a range of them.
pub(crate) struct Threaded {
    timer: Reference,
    next_id: u64,
    ranges: Arc<AtomicU64>,
}

type Reference = TimerRef<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>;

impl Threaded {
    fn with(timer: Reference, ranges: Arc<AtomicU64>) -> Self {
        Self {
            timer,
            next_id: ranges.fetch_add(IDS, Ordering::Relaxed),
            ranges,
        }
    }
}

impl Clone for Threaded {
    fn clone(&self) -> Self {
        Self::with(self.timer.clone(), Arc::clone(&self.ranges))
    }
}

impl Peer for Threaded {
    type Handle = u64;
    type Entered = ();

    const CANCEL_TELLS: bool = false;

    fn start() -> anyhow::Result<Self> {
        let core = TimerWithThread::new().context("its thread could not be started")?;
        let timer = core.timer_ref();
        // Its thread panics once nobody can send to it any more.
        std::mem::forget(core);
        Ok(Self::with(timer, Arc::new(AtomicU64::new(0))))
    }

    fn enter(&self) {}

    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.timer.schedule_action_once(id, delay, |_id| work());
        id
    }

    fn cancel(&mut self, handle: u64) -> bool {
        self.timer.cancel(&handle);
        true
    }
}
