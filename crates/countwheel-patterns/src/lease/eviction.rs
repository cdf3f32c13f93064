//! The way of an expired lease: a second look, a quota, and then the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::quota::Quota;
use super::{LeaseConfig, Term};
use crate::activity::{ActivityShard, After, Cell, Live, Policy};
use countwheel::building::returns;
use countwheel::building::run_soon;
use countwheel::building::{Bell, Rung};
use countwheel::{Instant, Timer};
use countwheel_time::Random;
use countwheel_time::locks;
use countwheel_time::nanos;

type Handler<K> = Box<dyn Fn(&K) + Send + Sync>;

/// After which time a run is made up for that the executor has dropped.
const PAUSE: Duration = Duration::from_millis(100);

/// What all leases of a table have in common.
pub(super) struct Evictions<K: Send + Sync + 'static> {
    handler: Handler<K>,
    config: LeaseConfig,
    resume_at: Instant,
    bell: Bell,
    pool: Mutex<Pool<K>>,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) evicted: AtomicU64,
    pub(super) suspects: AtomicU64,
    pub(super) spared: AtomicU64,
    pub(super) held_back: AtomicU64,
    pub(super) preserved: AtomicU64,
}

/// A lease that has run out.
struct Suspect<K: Send + Sync + 'static> {
    /// The second look.
    look_at: Live,
    shard: Arc<ActivityShard<Evictions<K>>>,
    cell: Arc<Cell<Term<K>>>,
}

/// All of them.
struct Pool<K: Send + Sync + 'static> {
    suspects: Vec<Suspect<K>>,
    /// Of these, how many have ended since.
    released: usize,
    quota: Quota,
    random: Random,
    is_running: bool,
}

impl<K: Send + Sync + 'static> Evictions<K> {
    pub(super) fn new(timer: &Timer, config: LeaseConfig, handler: Handler<K>) -> Arc<Self> {
        let random = config.seed.map_or_else(Random::unseeded, Random::new);
        Arc::new_cyclic(|this| Self {
            handler,
            config,
            resume_at: timer.now() + config.resume_after,
            bell: Bell::new(timer.clone(), Weak::clone(this)),
            pool: Mutex::new(Pool {
                suspects: Vec::new(),
                released: 0,
                quota: Quota::new(config),
                random,
                is_running: false,
            }),
            counts: Counts::default(),
        })
    }

    pub(super) fn duration(&self) -> Duration {
        self.config.duration
    }

    fn lock(&self) -> MutexGuard<'_, Pool<K>> {
        locks::lock(&self.pool)
    }

    /// A lease that was in the pool has ended.
    pub(super) fn released(&self) {
        let mut pool = self.lock();
        pool.released += 1;
        // Freed soon, and at a price that does not grow with the pool.
        if pool.is_running || pool.released * 2 <= pool.suspects.len() {
            return;
        }
        let suspects = std::mem::take(&mut pool.suspects);
        let (ended, rest) = suspects
            .into_iter()
            .partition(|suspect| suspect.cell.is_ended());
        pool.suspects = rest;
        pool.released = 0;
        self.count(&pool);
        drop(pool);
        let ended: Vec<_> = ended;
        let_go(ended);
    }

    pub(super) fn clear(&self) {
        let mut pool = self.lock();
        let suspects = std::mem::take(&mut pool.suspects);
        self.count(&pool);
        drop(pool);
        let_go(suspects);
    }

    fn count(&self, pool: &Pool<K>) {
        let suspects = pool.suspects.len() as u64;
        self.counts.suspects.store(suspects, Ordering::Relaxed);
    }

    /// Deals with the pool. On the executor, once at a time.
    fn run(self: &Arc<Self>) {
        let mut pool = self.lock();
        if pool.is_running {
            return; // who runs looks again before it ends
        }
        pool.is_running = true;
        let suspects = std::mem::take(&mut pool.suspects);
        pool.released = 0;
        drop(pool);

        let now = self.bell.now();
        let live = suspects.first().map_or(Live(0), |suspect| {
            // Before anybody is judged: a stall is nobody's last chance.
            let stalls = &suspect.shard.hub().stalls;
            stalls.look(now);
            stalls.live(now)
        });
        let is_ripe = |suspect: &Suspect<K>| suspect.look_at <= live;
        let (ripe, mut rest): (Vec<_>, Vec<_>) = suspects.into_iter().partition(is_ripe);
        let mut again = self.next_run(&rest);
        if let Some(suspect) = ripe.first() {
            let shard = Arc::clone(&suspect.shard);
            let (left, until) = self.judge(&shard, ripe, now);
            rest.extend(left);
            again = again.min(until);
        }

        let mut pool = self.lock();
        pool.is_running = false;
        again = again.min(self.next_run(&pool.suspects));
        pool.suspects.extend(rest);
        self.count(&pool);
        drop(pool);
        if again < Instant::MAX {
            let _ = self.bell.ring_by(again);
        }
    }

    /// When the first of these is looked at again, and has waited for others.
    fn next_run(&self, suspects: &[Suspect<K>]) -> Instant {
        let first = suspects.iter().min_by_key(|suspect| suspect.look_at);
        first.map_or(Instant::MAX, |first| {
            first.shard.hub().stalls.real(first.look_at) + self.config.gather
        })
    }

    /// Evicts whom it may. Gives back who has to wait, and until when.
    fn judge(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        suspects: Vec<Suspect<K>>,
        now: Instant,
    ) -> (Vec<Suspect<K>>, Instant) {
        if shard.hub().is_stopped() {
            let_go(suspects);
            return (Vec::new(), Instant::MAX);
        }
        let stalls = &shard.hub().stalls;
        let (spared, mut silent): (Vec<_>, Vec<_>) = suspects
            .into_iter()
            .partition(|suspect| self.is_spared(suspect));
        let_go(spared);
        if silent.is_empty() {
            return (silent, Instant::MAX);
        }
        if now < self.resume_at {
            return (silent, self.resume_at);
        }
        let (all, count) = (stalls.members(), silent.len() as u64);
        let percent = self.config.self_preservation;
        if percent.is_some_and(|percent| count * 100 > all.saturating_mul(percent.into())) {
            self.counts.preserved.fetch_add(1, Ordering::Relaxed);
            return (silent, now + self.config.period.max(PAUSE));
        }
        let rest = self.draw(&mut silent, now, all);
        for suspect in silent {
            if !self.is_spared(&suspect) {
                self.evict(&suspect);
            }
            let_go([suspect]);
        }
        if rest.is_empty() {
            return (rest, Instant::MAX);
        }
        self.counts.held_back.fetch_add(1, Ordering::Relaxed);
        let renewed_at = self.lock().quota.renewed_at();
        (rest, renewed_at.max(now))
    }

    /// Leaves as many of the silent as may be evicted of `all`, at random, and gives back the
    /// rest.
    fn draw(&self, silent: &mut Vec<Suspect<K>>, now: Instant, all: u64) -> Vec<Suspect<K>> {
        let mut pool = self.lock();
        let quota = pool.quota.left(now, all).min(silent.len() as u64);
        pool.quota.take(now, quota);
        let quota = usize::try_from(quota).unwrap_or(silent.len());
        // Fisher and Yates, as far as needed.
        for place in 0..quota {
            let others = (silent.len() - place - 1) as u64;
            let other = usize::try_from(pool.random.up_to(others)).unwrap_or(0);
            silent.swap(place, place + other);
        }
        silent.split_off(quota)
    }

    /// Whether the lease was renewed or has ended: then it is no suspect any more.
    fn is_spared(self: &Arc<Self>, suspect: &Suspect<K>) -> bool {
        let Suspect { shard, cell, .. } = suspect;
        if cell.is_ended() {
            return true;
        }
        let now = shard.live();
        if self.next(cell, now) <= now {
            return false;
        }
        self.counts.spared.fetch_add(1, Ordering::Relaxed);
        cell.data.is_suspect.store(false, Ordering::Release);
        shard.file(self, Arc::clone(cell), Instant::ZERO);
        true
    }

    fn evict(&self, suspect: &Suspect<K>) {
        let Suspect { shard, cell, .. } = suspect;
        if !shard.end(cell) {
            return;
        }
        self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        if !returns(|| (self.handler)(&cell.data.key)) {
            let panicked = &shard.hub().counts.panicked;
            panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Each may be the last that holds a key, whose destructor is foreign and may panic.
fn let_go<K: Send + Sync + 'static>(suspects: impl IntoIterator<Item = Suspect<K>>) {
    for suspect in suspects {
        returns(|| drop(suspect));
    }
}

impl<K: Send + Sync + 'static> Policy for Evictions<K> {
    type Data = Term<K>;

    fn next(&self, cell: &Cell<Term<K>>, _now: Live) -> Live {
        cell.last_read().plus(cell.data.duration())
    }

    fn act(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        cell: &Arc<Cell<Term<K>>>,
        _now: Live,
    ) -> After {
        cell.data.is_suspect.store(true, Ordering::Release);
        let look_at = shard.live().plus(nanos(self.config.second_look));
        let suspect = Suspect {
            look_at,
            shard: Arc::clone(shard),
            cell: Arc::clone(cell),
        };
        let mut pool = self.lock();
        pool.suspects.push(suspect);
        let look_at = shard.hub().stalls.real(look_at) + self.config.gather;
        let look_at = look_at.max(pool.quota.renewed_at());
        self.count(&pool);
        drop(pool);
        // Refused only if the timer is closed, and then nobody is evicted.
        let _ = self.bell.ring_by(look_at);
        After::Keep
    }
}

impl<K: Send + Sync + 'static> Rung for Evictions<K> {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, _now: Instant) -> Option<Instant> {
        if self.bell.is_stopped() {
            self.clear();
            return None;
        }
        let run = Run(Some(Arc::downgrade(self)));
        let _ = run_soon(self.bell.timer(), move || run.run());
        None
    }
}

/// A run on its way to the executor.
struct Run<K: Send + Sync + 'static>(Option<Weak<Evictions<K>>>);

impl<K: Send + Sync + 'static> Run<K> {
    fn run(mut self) {
        if let Some(evictions) = self.0.take().and_then(|weak| weak.upgrade()) {
            evictions.run();
        }
    }
}

impl<K: Send + Sync + 'static> Drop for Run<K> {
    fn drop(&mut self) {
        if let Some(evictions) = self.0.take().and_then(|weak| weak.upgrade()) {
            let later = evictions.bell.now() + PAUSE;
            let _ = evictions.bell.ring_by(later);
        }
    }
}

impl<K> Term<K> {
    pub(super) fn new(key: K, duration: Duration) -> Self {
        Self {
            key,
            duration: AtomicU64::new(nanos(duration)),
            is_suspect: AtomicBool::new(false),
        }
    }

    pub(super) fn duration(&self) -> u64 {
        self.duration.load(Ordering::Relaxed)
    }
}
