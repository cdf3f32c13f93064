//! Who keeps a log short, and who waits for it.

use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::flush::Step;
use super::{Fill, LogStore};
use crate::sorted::share;
use crate::{
    Change, Commit, DuePage, DueScan, Filter, Gaps, Lease, OnDisk, OnFailure, OpenFiles, Ownership,
    Page, QueueCounts, Scrubbed, Shard, Sorted, Store, StoreError, Summary,
};
use crate::{QueueName, Record, Settings, SettingsVersion, TimerName, Trouble};

/// After the disk was full, it is looked at again after so long, then after twice as long, and
/// so on.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How far the log has been kept short, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct FlushWatch {
    progress: Mutex<Progress>,
    wake: Condvar,
    on_failure: Mutex<Listeners>,
}

/// Who wants to be told of a failure.
#[derive(Default)]
struct Listeners(Vec<OnFailure>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listeners").field(&self.0.len()).finish()
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// Somebody else does it.
    has_thread: bool,
    is_stopped: bool,
    /// The sorted store, or the next segment, has no room.
    is_stuck: bool,
    /// How many segments were flushed.
    flushes: u64,
    /// Of the segment that is flushed, how much was done, as a share of 1.
    share: f64,
    /// How much was when it began: the sorted store had to catch up first.
    began: f64,
    /// How many names were in the memtable then.
    names: usize,
    /// How often the sorted store got something to compact, or a low-water mark something to pass.
    tasks: u64,
    /// How often something was changed that somebody may wait for.
    changes: u64,
    /// Why nothing is flushed any more.
    failure: Option<String>,
}

impl FlushWatch {
    /// A flush has begun, with so many names in the memtable.
    pub(super) fn begins(&self, names: usize) {
        let mut progress = self.progress.lock();
        // What the sorted store caught up with counts for this flush, which has the rest of the share.
        progress.began = progress.share;
        progress.names = names;
    }

    /// So much of the flush is done, as a share of 1.
    pub(super) fn tell(&self, share: f64) {
        let mut progress = self.progress.lock();
        let share = progress.began + (1.0 - progress.began) * share;
        // The compaction may have raised it meanwhile: what let a commit on is not taken back.
        progress.share = progress.share.max(share);
        self.wake.notify_all();
    }

    /// The sorted store is behind, and has done such a share of what is missing: so much of what
    /// is left until the next segment has been flushed.
    pub(super) fn catches_up(&self, share: f64) {
        let mut progress = self.progress.lock();
        // A part of the rest, so that the sum of all steps stays below 1: a whole flush is still to
        // come, and somebody may wait for all of it.
        progress.share += (1.0 - progress.share) * share.clamp(0.0, 1.0);
        self.wake.notify_all();
    }
}

impl<B: Sorted> LogStore<B> {
    /// Why the log takes no more commits, if it was not a commit that failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.progress().failure.clone()
    }

    /// Nobody wants anything any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.progress().is_stopped
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.progress().is_stuck
    }

    /// Whether more is in the memtable, or in the log, than the options allow.
    pub(super) fn is_over(&self) -> bool {
        self.is_too_much(self.fill())
    }

    /// Whether so many names and segments are more than the options allow.
    fn is_too_much(&self, fill: Fill) -> bool {
        fill.segments > fill.segments_max || fill.names >= self.options.memtable_names_max.max(1)
    }

    /// Whether there are so many names that something has to be flushed, full or not.
    pub(super) fn has_many_names(&self) -> bool {
        let memtable_names_max = self.options.memtable_names_max;
        // A segment ends with a third of the names at the latest. So at two thirds one is sealed and
        // can be flushed, and the third that is left is as much as one more segment brings.
        self.names_and_segments().0 >= (memtable_names_max - memtable_names_max / 3).max(1)
    }

    /// Whether a thread should flush something, so that no commit has to wait. What is kept back for
    /// speed goes as well when there is no room: a segment that has been flushed is a spare. If the
    /// sorted store is behind, commits fill the log, and then they do have to wait.
    fn wants_flush(&self) -> bool {
        // One less than the log may have: it begins before a commit has to wait. And one at least,
        // the active segment, which cannot be flushed.
        let kept = self.options.segments_max.max(2) - 1;
        let kept = self.options.segments_kept.clamp(1, kept);
        let fill = self.fill();
        // The options say nothing of the copies of the counts: a flush writes them itself, and would
        // call for the next one.
        let segments = fill.segments.saturating_sub(fill.copies);
        let is_long = segments > kept || self.has_many_names();
        let is_short_of_room = fill.files > 1 && !self.writer_whatever().supply.has_room();
        // A sorted store that is behind gets no more than it can take, unless there is no room: the
        // compaction may have none either, and only a flush gives some back.
        is_long && !self.base.is_behind() || is_short_of_room
    }

    /// Whether commits have to wait until the oldest segment has been flushed, or soon will have to.
    pub(super) fn needs_way(&self) -> bool {
        let fill = self.fill();
        fill.segments >= fill.segments_max || self.has_many_names()
    }

    /// A segment was flushed.
    pub(super) fn flushed(&self) {
        // Before the lock of the progress, which is taken last.
        let names = self.names_and_segments().0;
        let mut progress = self.progress();
        // All under one lock: whoever sees the old number sees the share of that flush.
        progress.flushes += 1;
        progress.names = names;
        (progress.share, progress.began) = (0.0, 0.0);
        progress.tasks += 1;
        progress.changes += 1;
        // The segment is a spare, or its bytes are the disk's again: there is room in any case.
        progress.is_stuck = false;
        self.watch.wake.notify_all();
    }

    /// There may be something for a low-water mark to pass.
    pub(super) fn may_advance_low_water(&self) {
        self.progress().tasks += 1;
        self.watch.wake.notify_all();
    }

    /// There may be something to do.
    pub(super) fn has_changed(&self) {
        self.progress().changes += 1;
        self.watch.wake.notify_all();
    }

    /// The write throttle: how much of the flush that is under way has to be done before a commit
    /// may be made, as a share of 1; more than that if all of it. So commits slow down to the speed
    /// of the flusher as the room for them runs out, instead of stopping until a whole segment has
    /// been flushed. `names_then` is how many names were in the memtable when it began.
    fn throttle(&self, names_then: usize) -> f64 {
        let fill = self.fill();
        let names = fill.names;
        if self.is_too_much(fill) {
            // No share is enough, not even 1: the flush has to have ended and given room back.
            return f64::INFINITY;
        }
        // Three quarters of the names are free. The flush begins at two thirds, so one is
        // under way before any commit is slowed down. Above three quarters, what was there when the
        // flush began is free as well: a new flush stops nobody who went on before it.
        //
        // A whole flush lets in half of the room that there was when it began. However few names
        // it takes out of the memtable, the other half is left for the next flush, and half of that
        // for the one after it: commits get slower and slower, and do not stop.
        let memtable_names_max = self.options.memtable_names_max;
        let free_of_charge = names_then.max(memtable_names_max - memtable_names_max / 4);
        let room = memtable_names_max.saturating_sub(free_of_charge).max(1);
        let more = names.saturating_sub(free_of_charge);
        let by_names = 2.0 * share(more as u64, room as u64);
        if fill.segments < fill.segments_max {
            return by_names;
        }
        // In the last segment that the log may have, a commit may be as far into it as the flush
        // is with the oldest one: both are done at the same time, and the next segment has room.
        let writer = self.writer_whatever();
        by_names.max(writer.full())
    }

    /// Waits until the memtable and the log have no more than the options allow, or sees to it.
    /// True if there is no room to flush anything: then the log goes on in the segments that it has,
    /// and no further.
    pub(super) fn make_way(&self) -> Result<bool, StoreError> {
        if self.progress().has_thread {
            return self.wait_for_way();
        }
        while self.is_over() {
            match self.flush_one() {
                Ok(Step::More) => {}
                Ok(Step::Nothing | Step::Later) => return Ok(false),
                Err(error) if error.is_full() => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn wait_for_way(&self) -> Result<bool, StoreError> {
        loop {
            let progress = self.progress();
            let (seen, names) = (progress.flushes, progress.names);
            drop(progress);
            // Without the lock of the progress, which is taken last: this takes those of the state
            // and of the writer.
            let needed = self.throttle(names);
            if needed <= 0.0 {
                return Ok(false);
            }
            let mut progress = self.progress();
            // Another flush has begun: its share says nothing of what the last one had to do.
            if progress.flushes != seen {
                continue;
            }
            // A flush without room may never end. The commit takes what room the log has; true says
            // that this is more than the options allow.
            if progress.is_stuck || progress.share >= needed {
                return Ok(needed.is_infinite());
            }
            if progress.failure.is_some() {
                return Err(StoreError::Poisoned);
            }
            // The flusher may sleep until something changes, or pause because the system gave nothing
            // of the segment back. That somebody waits is a change: it ends both.
            progress.changes += 1;
            self.watch.wake.notify_all();
            let waits = |progress: &mut Progress| {
                let Progress {
                    flushes,
                    share,
                    is_stuck,
                    failure,
                    ..
                } = progress;
                *flushes == seen && *share < needed && !*is_stuck && failure.is_none()
            };
            self.watch.wake.wait_while(&mut progress, waits);
        }
    }

    /// Flushes the oldest segment, or one that it makes if there are too many names.
    fn flush_one(&self) -> Result<Step, StoreError> {
        let flushed = self.try_flush().and_then(|flushed| {
            // All the names may be in the active segment, which has to end before it is flushed.
            if flushed == Step::Nothing && self.has_many_names() {
                return self.seal().map(Step::of);
            }
            Ok(flushed)
        });
        let is_full = flushed.as_ref().is_err_and(StoreError::is_full);
        self.full_disk.flushed(is_full);
        if is_full {
            let mut progress = self.progress();
            // Whoever waits for this flush goes on without it.
            progress.is_stuck = true;
            self.watch.wake.notify_all();
        }
        flushed
    }

    /// Flushes a segment, if there is need.
    fn keep_short(&self) -> Result<Step, StoreError> {
        if self.wants_flush() {
            return self.flush_one();
        }
        // Nothing has to be flushed, so no flush lacks room any more.
        self.full_disk.flushed(false);
        Ok(Step::Nothing)
    }

    /// Works until it is stopped: when there is nothing to do, `waits` returns once there may be,
    /// given how many tasks there had been when there was nothing.
    fn run(&self, works: impl Fn() -> Result<Step, StoreError>, waits: impl Fn(u64)) {
        let mut pause = PAUSE_MIN;
        loop {
            let progress = self.progress();
            // Before the work: what comes while it is under way counts as new, and is not slept over.
            let (tasks, changes) = (progress.tasks, progress.changes);
            if progress.is_stopped || progress.failure.is_some() {
                return;
            }
            drop(progress);
            match works() {
                Ok(Step::More) => pause = PAUSE_MIN,
                Ok(Step::Nothing) => {
                    pause = PAUSE_MIN;
                    waits(tasks);
                }
                // Sooner if something has changed: a commit may wait for it by now.
                Ok(Step::Later) => {
                    let waits = |progress: &mut Progress| {
                        progress.changes == changes && !progress.is_stopped
                    };
                    let progress = &mut self.progress();
                    self.watch.wake.wait_while_for(progress, waits, pause);
                    pause = PAUSE_MAX.min(2 * pause);
                }
                Err(error) if error.is_full() => {
                    tracing::warn!(?pause, "the disk is full");
                    // No change makes it sooner: each commit is one, and a full disk would be asked
                    // as often as somebody commits.
                    let waits = |progress: &mut Progress| !progress.is_stopped;
                    let progress = &mut self.progress();
                    self.watch.wake.wait_while_for(progress, waits, pause);
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
        self.watch.wake.wait_while(&mut self.progress(), waits);
    }

    /// Waits until something can be done, or nothing any more.
    fn wait_for(&self, work: impl Fn() -> bool) {
        loop {
            let seen = self.progress().changes;
            // What comes after this look changes the number.
            if work() {
                return;
            }
            let waits = |progress: &mut Progress| progress.changes == seen && !progress.is_stopped;
            let mut progress = self.progress();
            self.watch.wake.wait_while(&mut progress, waits);
            if progress.is_stopped || progress.failure.is_some() {
                return;
            }
        }
    }

    /// Whether a thread makes a spare: none is made while what there is has to do.
    fn lacks_spares(&self) -> bool {
        let supply = &self.writer_whatever().supply;
        self.full_disk.wants_look() || supply.missing(true).is_some() && !supply.capped
    }

    /// Takes no more commits, for a reason that is not the log's own.
    pub(crate) fn end(&self, reason: &str) {
        self.fail(reason.to_owned());
    }

    fn fail(&self, reason: String) {
        tracing::error!(reason, "the log can be kept short no more");
        // First this, so that no commit begins once anybody knows the reason.
        self.writer_whatever().poisoned = true;
        let mut progress = self.progress();
        // The first reason stays: those that follow come from it.
        let reason = progress.failure.get_or_insert(reason).clone();
        self.watch.wake.notify_all();
        drop(progress);
        // Not under the lock: one of them may want to be told of it once more.
        let listeners = std::mem::take(&mut self.watch.on_failure.lock().0);
        for listener in listeners {
            listener(&reason);
        }
    }

    /// Calls `f` with the reason once nothing is kept short any more, or at once if so.
    pub(super) fn listen(&self, f: OnFailure) {
        let mut listeners = self.watch.on_failure.lock();
        // A failure is noted before its listeners are taken, and they are locked here: so `f` is in
        // the list that is taken, or the reason is there already.
        match self.failure() {
            Some(reason) => {
                drop(listeners);
                f(&reason);
            }
            None => listeners.0.push(f),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.watch.progress.lock()
    }
}

/// A [`LogStore`] with three threads: one flushes full segments, one makes spare ones ahead, and one
/// compacts the sorted store ([`Sorted::compact`]), which may take longer. They end with it, after what
/// they are at.
///
/// If a thread fails, the store is poisoned; [`LogStore::failure`] says why. If the disk is
/// full, it tries again after pauses that grow.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{LogOptions, LogStore, MemorySorted, FlushingLog, SystemFiles};
/// use countwheel_durable::store::{OnDisk, OnFailure, Shard, Store};
///
/// let directory = tempfile::tempdir()?;
/// let mut options = LogOptions::default();
/// options.segment_bytes = 1 << 16;
/// let files = Arc::new(SystemFiles::new(directory.path()));
/// let log = LogStore::open(MemorySorted::default(), files, 7, options)?;
/// let store = FlushingLog::start(log)?;
/// let told: OnFailure = Box::new(|reason| eprintln!("takes no more commits: {reason}"));
/// store.on_failure(told);
/// store.acquire(Shard::ONLY)?;
/// assert!(store.has_room() && store.log().failure().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FlushingLog<B> {
    log: Arc<LogStore<B>>,
    stop: fn(&LogStore<B>),
    threads: Vec<JoinHandle<()>>,
}

impl<B: Sorted + 'static> FlushingLog<B> {
    /// Starts the threads.
    ///
    /// # Errors
    /// What the system says if it has no thread.
    pub fn start(log: LogStore<B>) -> io::Result<Self> {
        log.progress().has_thread = true;
        log.writer_whatever().supply.has_maker = true;
        let mut flushing = Self {
            log: Arc::new(log),
            stop: |log| {
                log.progress().is_stopped = true;
                log.watch.wake.notify_all();
            },
            threads: Vec::new(),
        };
        flushing.spawn("countwheel-log", |log| {
            log.run(|| log.keep_short(), |_| log.wait_for(|| log.wants_flush()));
        })?;
        // A commit that finds none makes one itself, for as long as the disk takes.
        flushing.spawn("countwheel-spare", |log| {
            log.run(
                || log.prepare().map(Step::of),
                |_| log.wait_for(|| log.lacks_spares()),
            );
        })?;
        flushing.spawn("countwheel-compact", |log| {
            log.run(
                || log.compact().map(Step::of),
                |tasks| log.wait_for_tasks(tasks),
            );
        })?;
        Ok(flushing)
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

impl<B> Drop for FlushingLog<B> {
    fn drop(&mut self) {
        (self.stop)(&self.log);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_default();
        }
    }
}

impl<B: Sorted + 'static> Store for FlushingLog<B> {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.log.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.log.commit(lease, changes)
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        self.log.commit_all(commits)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.log.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.log.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.log.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.log.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts(shard)
    }

    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts_after(shard, after, limit)
    }

    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        self.log.summary(shard, first, limit)
    }

    fn gaps(&self) -> Gaps {
        self.log.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.log.troubles()
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        Some(self)
    }
}

impl<B: Sorted + 'static> OnDisk for FlushingLog<B> {
    fn has_room(&self) -> bool {
        self.log.has_room()
    }

    fn on_failure(&self, f: OnFailure) {
        self.log.on_failure(f);
    }

    fn scrub_step(&self, budget: u64) -> Scrubbed {
        self.log.scrub_step(budget)
    }

    fn open_files(&self) -> OpenFiles {
        self.log.open_files()
    }
}

impl<B> fmt::Debug for FlushingLog<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushingLog")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Before, LogOptions, MemorySorted, SystemFiles};
    use crate::{Key, QueueName, Revision};

    fn log(directory: &tempfile::TempDir, options: LogOptions) -> (LogStore<MemorySorted>, Lease) {
        let files = Arc::new(SystemFiles::new(directory.path()));
        let log = LogStore::open(MemorySorted::default(), files, 7, options).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        (log, lease)
    }

    fn name(number: usize) -> TimerName {
        TimerName {
            queue: QueueName::new("q").unwrap(),
            key: Key::new(number.to_string()).unwrap(),
        }
    }

    /// Whether a commit goes on when a thread flushes and has come so far. If it waited, it would see
    /// that the thread is gone.
    fn goes_on(log: &LogStore<MemorySorted>, share: f64) -> bool {
        log.watch.tell(share);
        let mut progress = log.progress();
        (progress.has_thread, progress.failure) = (true, Some("gone".to_owned()));
        drop(progress);
        let goes_on = log.make_way();
        let mut progress = log.progress();
        (progress.has_thread, progress.failure) = (false, None);
        progress.share = 0.0;
        drop(progress);
        match goes_on {
            Ok(is_stuck) => !is_stuck,
            Err(StoreError::Poisoned) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn in_the_last_segment_commits_are_as_fast_as_the_flusher() {
        let mut options = LogOptions::default();
        (options.segment_bytes, options.segments_max) = (1 << 14, 3);
        let directory = tempfile::tempdir().unwrap();
        let (log, lease) = log(&directory, options);
        let given = |revision| log.commit(lease, &[Change::Given(Revision(revision))]);
        let mut throttled = 0;
        for revision in 0.. {
            let full = log.writer_whatever().full();
            if log.names_and_segments().1 < 3 {
                assert!(goes_on(&log, 0.0));
            } else if full > 0.9 {
                break;
            } else {
                assert!(goes_on(&log, full + 0.01) && !goes_on(&log, full - 0.01));
                throttled += 1;
            }
            given(revision).unwrap();
        }
        assert!(throttled > 100, "{throttled}");
        // And one segment more has to wait for all of it.
        log.seal().unwrap();
        assert!(!goes_on(&log, 1.0));
        assert!(log.flush_oldest().unwrap() && log.flush_oldest().unwrap());
        assert!(goes_on(&log, 0.0));
    }

    #[test]
    fn who_waits_for_a_sorted_store_that_is_behind_goes_on_as_it_catches_up() {
        let watch = FlushWatch::default();
        let share = |watch: &FlushWatch| watch.progress.lock().share;
        let mut last = 0.0;
        for _ in 0..8 {
            watch.catches_up(0.125);
            let now = share(&watch);
            assert!(now > last && now < 1.0, "{now}");
            last = now;
        }
        assert!(last > 0.5, "{last}");
        // What is left is the flush's.
        watch.begins(0);
        watch.tell(0.1);
        assert!(share(&watch) > last);
        watch.tell(1.0);
        assert!(share(&watch) >= 1.0);
    }

    #[test]
    fn with_many_names_commits_are_as_fast_as_they_leave() {
        let options = LogOptions {
            memtable_names_max: 400,
            ..LogOptions::default()
        };
        let directory = tempfile::tempdir().unwrap();
        let (log, lease) = log(&directory, options);
        let commit = |number: u32| {
            let removed = Change::Remove {
                name: name(number as usize),
                // So that it has to be remembered.
                before: Before::Present(crate::StateKind::Pending),
            };
            log.commit(lease, &[removed]).unwrap();
        };
        for number in 0..350 {
            // Three quarters are for nothing, and half of the other for a whole flush.
            let needed = f64::from(number.max(300) - 300) / 50.0;
            assert!(goes_on(&log, needed), "{number}");
            assert!(needed == 0.0 || !goes_on(&log, needed - 0.01), "{number}");
            commit(number);
        }
        assert!(!goes_on(&log, 0.99));
        // However few have left: the next flush begins with some room again.
        log.watch.begins(log.names_and_segments().0);
        assert!(goes_on(&log, 0.0));
        commit(350);
        assert!(goes_on(&log, 0.04) && !goes_on(&log, 0.03));
        for number in 351..400 {
            commit(number);
        }
        assert!(!goes_on(&log, 1.0));
        // A segment ended with every third of what is allowed.
        assert_eq!(log.names_and_segments(), (400, 4));
    }
}
