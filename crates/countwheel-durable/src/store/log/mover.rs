//! Who keeps a log short, and who waits for it.

use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::LogStore;
use crate::store::{
    Change, DueEntry, DueScan, Filter, Lease, Ownership, Page, QueueCounts, Shard, Sorted, Store,
    StoreError,
};
use crate::{Record, TimerName};

/// After the disk was full, it is looked at again after so long, then after twice as long, and
/// so on.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How far the log has been kept short.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Somebody else does it.
    has_thread: bool,
    is_stopped: bool,
    /// The sorted store, or the next segment, has no room.
    is_stuck: bool,
    /// How many segments were moved.
    moves: u64,
    /// How often the sorted store got something to tend, or the log something to pass.
    tasks: u64,
    /// How often something was changed that somebody may wait for.
    changes: u64,
    /// Why nothing moves any more.
    failure: Option<String>,
}

impl<B: Sorted> LogStore<B> {
    /// Why the log takes no more commits, if it was not a commit that failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.progress().failure.clone()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.progress().is_stuck
    }

    /// Whether more is young than the options allow.
    pub(super) fn is_over(&self) -> bool {
        let (names, segments) = self.young();
        segments > self.options.segments_max.max(2) || names >= self.options.young_max.max(1)
    }

    /// Whether there are so many names that something has to move, full or not.
    pub(super) fn has_many_names(&self) -> bool {
        self.young().0 >= (self.options.young_max - self.options.young_max / 4).max(1)
    }

    /// Whether a thread moves something, so that no commit has to wait. What is kept back for
    /// speed goes as well when there is no room: a segment that has moved is a spare. If the
    /// sorted store is behind, commits fill the log, and then they do have to wait.
    fn wants_move(&self) -> bool {
        let kept = self.options.segments_max.max(2) - 1;
        let kept = self.options.segments_kept.clamp(1, kept);
        let is_long = self.young().1 > kept || self.has_many_names();
        is_long && !self.base.is_behind() || !self.writer_whatever().supply.has_room()
    }

    /// A segment was moved.
    pub(super) fn moved(&self) {
        let mut progress = self.progress();
        progress.moves += 1;
        progress.tasks += 1;
        progress.changes += 1;
        progress.is_stuck = false;
        self.wake.notify_all();
    }

    /// There may be something to pass.
    pub(super) fn may_pass(&self) {
        self.progress().tasks += 1;
        self.wake.notify_all();
    }

    /// There may be something to do.
    pub(super) fn has_changed(&self) {
        self.progress().changes += 1;
        self.wake.notify_all();
    }

    /// Waits until no more is young than the options allow, or sees to it. True if there is no
    /// room to move anything: then the log goes on in the segments that it has, and no further.
    pub(super) fn make_way(&self) -> Result<bool, StoreError> {
        while self.is_over() {
            let mut progress = self.progress();
            if progress.failure.is_some() {
                return Err(StoreError::Poisoned);
            }
            if progress.is_stuck && progress.has_thread {
                return Ok(true);
            }
            if progress.has_thread {
                let seen = progress.moves;
                progress.changes += 1;
                self.wake.notify_all();
                let waits = |progress: &mut Progress| {
                    let Progress {
                        moves,
                        is_stuck,
                        failure,
                        ..
                    } = progress;
                    *moves == seen && !*is_stuck && failure.is_none()
                };
                drop(self.wake.wait_while(progress, waits));
                continue;
            }
            drop(progress);
            match self.move_one() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(StoreError::Full { .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Moves the oldest segment, or one that it makes if there are too many names.
    fn move_one(&self) -> Result<bool, StoreError> {
        let moved = self.move_oldest().and_then(|moved| {
            let sealed = !moved && self.has_many_names() && self.seal()?;
            Ok(moved || sealed)
        });
        if let Err(StoreError::Full { .. }) = moved {
            let mut progress = self.progress();
            progress.is_stuck = true;
            self.wake.notify_all();
        }
        moved
    }

    /// Makes a spare and moves a segment, if there is need. True if there may be more.
    fn keep_short(&self) -> Result<bool, StoreError> {
        let mut full = None;
        let mut busy = false;
        let move_one = || Ok(self.wants_move() && self.move_one()?);
        let tasks: [&dyn Fn() -> Result<bool, StoreError>; 2] = [&|| self.prepare(), &move_one];
        for task in tasks {
            match task() {
                Ok(done) => busy |= done,
                Err(error @ StoreError::Full { .. }) => full = Some(error),
                Err(error) => return Err(error),
            }
        }
        match full {
            Some(error) if !busy => Err(error),
            _ => Ok(busy),
        }
    }

    /// Works until it is stopped: when there is nothing to do, `waits` returns once there may be,
    /// given how many tasks there had been when there was nothing.
    fn run(&self, works: impl Fn() -> Result<bool, StoreError>, waits: impl Fn(u64)) {
        let mut pause = PAUSE_MIN;
        loop {
            let progress = self.progress();
            let tasks = progress.tasks;
            if progress.is_stopped || progress.failure.is_some() {
                return;
            }
            drop(progress);
            match works() {
                Ok(true) => pause = PAUSE_MIN,
                Ok(false) => {
                    pause = PAUSE_MIN;
                    waits(tasks);
                }
                Err(StoreError::Full { .. }) => {
                    tracing::warn!(?pause, "the disk is full");
                    let progress = self.progress();
                    let waits = |progress: &mut Progress| !progress.is_stopped;
                    drop(self.wake.wait_timeout_while(progress, pause, waits));
                    pause = PAUSE_MAX.min(2 * pause);
                }
                Err(error) => return self.fail(error.to_string()),
            }
        }
    }

    /// Waits until there is one more task.
    fn wait_for_tasks(&self, seen: u64) {
        let waits = |progress: &mut Progress| {
            progress.tasks == seen && !progress.is_stopped && progress.failure.is_none()
        };
        drop(self.wake.wait_while(self.progress(), waits));
    }

    /// Waits until something can be done.
    fn wait_for_work(&self) {
        loop {
            let seen = self.progress().changes;
            // What comes after this look changes the number.
            if self.has_work() {
                return;
            }
            let waits = |progress: &mut Progress| progress.changes == seen && !progress.is_stopped;
            let waited = self.wake.wait_while(self.progress(), waits);
            let progress = waited.unwrap_or_else(PoisonError::into_inner);
            if progress.is_stopped || progress.failure.is_some() {
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        let writer = self.writer_whatever();
        let lacks_spares = writer.supply.spares.len() < writer.supply.wanted();
        drop(writer);
        lacks_spares || self.wants_move()
    }

    fn fail(&self, reason: String) {
        tracing::error!(reason, "the log can be kept short no more");
        self.writer_whatever().poisoned = true;
        let mut progress = self.progress();
        progress.failure.get_or_insert(reason);
        self.wake.notify_all();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`LogStore`] with two threads: one keeps it short, where full segments move and spare ones
/// are made ahead, and one tends the sorted store ([`Sorted::tend`]), which may take longer. They
/// end with it, after what they are at.
///
/// If a thread fails, the store is poisoned; [`LogStore::failure`] says why. If the disk is
/// full, it tries again after pauses that grow.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_durable::store::{
///     LogOptions, LogStore, MemorySorted, MovingLog, Shard, Store, SystemFiles,
/// };
///
/// let directory = tempfile::tempdir()?;
/// let mut options = LogOptions::default();
/// options.segment_bytes = 1 << 16;
/// let files = Arc::new(SystemFiles::new(directory.path()));
/// let log = LogStore::open(MemorySorted::default(), files, 7, options)?;
/// let store = MovingLog::start(log)?;
/// store.acquire(Shard::ONLY)?;
/// assert!(store.has_room() && store.log().failure().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MovingLog<B> {
    log: Arc<LogStore<B>>,
    stop: fn(&LogStore<B>),
    threads: Vec<JoinHandle<()>>,
}

impl<B: Sorted + 'static> MovingLog<B> {
    /// Starts the threads.
    ///
    /// # Errors
    /// What the system says if it has no thread.
    pub fn start(log: LogStore<B>) -> io::Result<Self> {
        log.progress().has_thread = true;
        log.writer_whatever().supply.has_maker = true;
        let mut moving = Self {
            log: Arc::new(log),
            stop: |log| {
                log.progress().is_stopped = true;
                log.wake.notify_all();
            },
            threads: Vec::new(),
        };
        moving.spawn("countwheel-log", |log| {
            log.run(|| log.keep_short(), |_| log.wait_for_work());
        })?;
        moving.spawn("countwheel-tend", |log| {
            log.run(|| log.tend(), |tasks| log.wait_for_tasks(tasks));
        })?;
        Ok(moving)
    }

    fn spawn(&mut self, name: &str, run: fn(&LogStore<B>)) -> io::Result<()> {
        let log = Arc::clone(&self.log);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Nobody waits for a thread that is gone.
                if panic::catch_unwind(AssertUnwindSafe(|| run(&log))).is_err() {
                    log.fail("a thread that keeps the log short panicked".to_owned());
                }
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &LogStore<B> {
        &self.log
    }
}

impl<B> Drop for MovingLog<B> {
    fn drop(&mut self) {
        (self.stop)(&self.log);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_default();
        }
    }
}

impl<B: Sorted + 'static> Store for MovingLog<B> {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.log.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.log.commit(lease, changes)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.log.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.log.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.log.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts(shard)
    }

    fn has_room(&self) -> bool {
        self.log.has_room()
    }
}

impl<B> fmt::Debug for MovingLog<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovingLog")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
