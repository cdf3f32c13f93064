//! What a store does by itself, on a connection of its own: it reads the fronts of shards, counts large
//! shards, saves counts, and forgets what is done.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use countwheel_durable::Wake;
use countwheel_durable::store::Shard;
use countwheel_time::{Clock, Instant};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::bits::Bits;
use crate::front::Wanted;
use crate::ring::Ring;
use crate::session::{Counted, SavedCounts, Session};
use crate::store::Owned;

/// So often counts are saved.
const SAVED_EVERY: Duration = Duration::from_secs(10);

/// The shards that a process has.
pub(crate) type OwnedShards = Arc<RwLock<BTreeMap<Shard, Arc<Owned>>>>;

pub(crate) struct Keeper {
    owned: OwnedShards,
    ring: Ring,
    clock: Arc<dyn Clock>,
    work: Mutex<Work>,
    /// Whether something is to be done.
    sign: Mutex<Sign>,
    came: Condvar,
}

struct Work {
    session: Box<dyn Session>,
    /// A page that was read and is not added yet.
    page: Option<(Arc<Owned>, Counted)>,
    /// The same of a front.
    front: Option<FrontPage>,
    /// Under which token and after which turn the counts of a shard were saved last.
    saved: HashMap<Shard, (Bits, i64)>,
    /// When it looks again what is past.
    looks_at: Option<Instant>,
    /// The last slice whose table was seen empty after it.
    emptied: Option<u64>,
}

struct FrontPage {
    owned: Arc<Owned>,
    wanted: Wanted,
    places: Vec<(Wake, Bits)>,
}

#[derive(Default)]
struct Sign {
    has_work: bool,
    is_over: bool,
}

/// The thread of a keeper.
pub(crate) struct KeeperThread {
    keeper: Arc<Keeper>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn new(
        session: Box<dyn Session>,
        owned: OwnedShards,
        ring: Ring,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            owned,
            ring,
            clock,
            work: Mutex::new(Work {
                session,
                page: None,
                front: None,
                saved: HashMap::new(),
                looks_at: None,
                emptied: None,
            }),
            sign: Mutex::default(),
            came: Condvar::new(),
        })
    }

    /// Gives it a thread.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<KeeperThread> {
        let keeper = Arc::clone(self);
        let thread = std::thread::Builder::new().name("countwheel-keeper".to_owned());
        let thread = thread.spawn(move || keeper.run())?;
        Ok(KeeperThread {
            keeper: Arc::clone(self),
            thread: Some(thread),
        })
    }

    /// There may be something to do.
    pub(crate) fn wake(&self) {
        self.sign.lock().has_work = true;
        self.came.notify_one();
    }

    fn run(&self) {
        loop {
            while !self.is_over() && (self.look_ahead() | self.step()) {}
            if self.is_over() {
                return;
            }
            self.save();
            self.forget();
            let mut sign = self.sign.lock();
            if !std::mem::take(&mut sign.has_work) && !sign.is_over {
                let pause = SAVED_EVERY.min(self.ring.pace());
                self.came.wait_for(&mut sign, pause);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.sign.lock().is_over
    }

    /// Does so many steps, and saves now and then: for a store without threads.
    pub(crate) fn go_on(&self, steps: usize) {
        let is_done = (0..steps).any(|_| !self.step());
        if is_done {
            self.save();
        }
        self.forget();
        // Turns come before the next step learns it.
        self.look_ahead();
    }

    /// Reads a page of a shard that is not counted, or adds the one that it has read. Says whether there
    /// is more to do at once.
    pub(crate) fn step(&self) -> bool {
        let mut work = self.work.lock();
        if let Some((owned, page)) = work.page.take() {
            owned.counts.lock().add_page(page);
            return true;
        }
        if let Some(page) = work.front.take() {
            let mut fronts = page.owned.fronts.lock();
            fronts.learn(page.wanted, Some(page.places));
            return true;
        }
        let next = self.first_of(|owned| owned.counts.lock().next_page());
        let Some((shard, page, owned)) = next else {
            return false;
        };
        match work.session.count(shard, page, usize::MAX) {
            Ok(counted) => {
                work.page = Some((owned, counted));
                true
            }
            Err(failure) => {
                let reason = failure.reason();
                tracing::debug!(shard = shard.0, reason, "the shard is not counted yet");
                false
            }
        }
    }

    /// Reads a page of a front of which little is known. Says whether it did.
    fn look_ahead(&self) -> bool {
        let mut work = self.work.lock();
        if work.front.is_some() {
            return false;
        }
        let next = self.first_of(|owned| owned.fronts.lock().want());
        let Some((shard, wanted, owned)) = next else {
            return false;
        };
        let Wanted { clock, from, limit } = wanted;
        match work.session.first(shard, clock, from, limit) {
            Ok(places) => {
                work.front = Some(FrontPage {
                    owned,
                    wanted,
                    places,
                });
                true
            }
            Err(failure) => {
                owned.fronts.lock().learn(wanted, None);
                let reason = failure.reason();
                tracing::debug!(shard = shard.0, reason, "the front is not read yet");
                false
            }
        }
    }

    /// The first shard of which something is `wanted`.
    fn first_of<T>(&self, wanted: impl Fn(&Owned) -> Option<T>) -> Option<(Shard, T, Arc<Owned>)> {
        let owned = self.owned.read();
        let mut all = owned.iter();
        all.find_map(|(shard, owned)| Some((*shard, wanted(owned)?, Arc::clone(owned))))
    }

    /// Saves the counts that have changed.
    pub(crate) fn save(&self) {
        let mut work = self.work.lock();
        let Work { session, saved, .. } = &mut *work;
        let owned = self.owned.read();
        let changed = owned.iter().filter_map(|(shard, owned)| {
            let counts = owned.counts.lock();
            let (token, seq) = (counts.made_by?, counts.seq);
            let is_saved = saved.get(shard) == Some(&(token, seq));
            Some(SavedCounts {
                shard: *shard,
                seq,
                token,
                counts: counts.to_bytes().filter(|_| !is_saved)?,
            })
        });
        let changed: Vec<_> = changed.collect();
        drop(owned);
        if changed.is_empty() {
            return;
        }
        match session.save_counts(&changed) {
            Ok(()) => saved.extend(changed.into_iter().map(|it| (it.shard, (it.token, it.seq)))),
            // They are counted anew if nothing comes after.
            Err(failure) => {
                tracing::debug!(reason = failure.reason(), "the counts are not saved");
            }
        }
    }

    /// Forgets what is done and past, if it is time to look.
    fn forget(&self) {
        let mut work = self.work.lock();
        let (now, wall) = (self.clock.now(), self.clock.timestamp());
        if work.looks_at.is_some_and(|at| now < at) {
            return;
        }
        work.looks_at = Some(now + self.ring.pace());
        let shards: Vec<_> = self.owned.read().keys().copied().collect();
        if !shards.is_empty()
            && let Err(failure) = work.session.forget_outside(&shards)
        {
            tracing::debug!(reason = failure.reason(), "old done timers stay for now");
        }
        let over = self.ring.over(wall);
        let Some(slice) = over.filter(|_| work.emptied != over) else {
            return;
        };
        match work.session.forget(slice) {
            Ok(true) => {
                work.emptied = Some(slice);
                let owned = self.owned.read();
                let all = owned.values();
                all.for_each(|owned| owned.counts.lock().emptied(slice));
            }
            Ok(false) => {}
            Err(failure) => {
                tracing::debug!(reason = failure.reason(), "done timers stay for now");
            }
        }
    }
}

impl KeeperThread {
    /// Ends it.
    pub(crate) fn end(&mut self) {
        self.keeper.sign.lock().is_over = true;
        self.keeper.came.notify_one();
        if let Some(thread) = self.thread.take() {
            let _a_panic_was_said = thread.join();
        }
    }
}
