//! The seam to the store of timers.
//!
//! A store holds records, finds them by name and by the time at which they need attention, and
//! applies batches of changes: whole, durable, and only for the shard's owner. A store decides
//! nothing. Every store must pass [`conformance`].

mod clock_note;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod disk_error;
mod memory;
pub mod page;
pub mod stored_answers;
pub mod stored_policy;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::planted::planted;

pub use clock_note::ClockNote;
pub use disk_error::DiskError;
pub use memory::MemoryStore;

use crate::{
    DueClock, NameError, QueueName, Record, Revision, Setting, Settings, SettingsVersion,
    StateKind, TimerName, Trouble, Wake,
};

/// A part of the timers that one owner schedules at a time. A store of a single process
/// has one, [`Shard::ONLY`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard(pub u16);

impl Shard {
    /// The one shard of a store that is not divided.
    pub const ONLY: Self = Self(0);

    /// Reserved: no owner has it, and no timer is in it. A store may keep its settings there.
    pub const SETTINGS: Self = Self(u16::MAX);

    /// Whether it is [`SETTINGS`](Self::SETTINGS), which no owner has.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self == Self::SETTINGS
    }

    /// The id of this shard of the store with that id: what a timer's [`id`](crate::TimerId) begins
    /// with. Revisions are given by each shard for itself, so two timers of two shards may have the
    /// same; with an id of each shard's own, no two timers of a store have the same id. That of
    /// [`Shard::ONLY`] is the store's.
    ///
    /// ```
    /// use countwheel_durable::store::Shard;
    ///
    /// assert_eq!(Shard::ONLY.id(7), 7);
    /// assert_ne!(Shard(1).id(7), Shard(2).id(7));
    /// ```
    #[must_use]
    pub fn id(self, store_id: u64) -> u64 {
        if planted!(OneIdForAllShards) {
            return store_id;
        }
        // An odd factor: no two numbers of shards come to the same.
        store_id ^ u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Who may write: a number that grows each time a shard changes hands, checked in every
/// commit, so that an owner that was replaced changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fence(pub u64);

/// The right to write to a shard, for as long as no later owner took it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which shard.
    pub shard: Shard,
    /// Under which number.
    pub fence: Fence,
}

/// What an owner learns when it takes a shard.
///
/// ```
/// use countwheel_durable::Revision;
/// use countwheel_durable::store::{Change, Fence, Lease, MemoryStore, Ownership, Shard, Store, StoreError};
///
/// let store = MemoryStore::new(7);
/// let Ownership { lease, store_id, .. } = store.acquire(Shard::ONLY)?;
/// assert_eq!((lease, store_id), (Lease { shard: Shard::ONLY, fence: Fence(1) }, 7));
///
/// let later = store.acquire(Shard::ONLY)?.lease;
/// assert!(later.fence > lease.fence);
/// let refused = store.commit(lease, &[Change::Given(Revision(1))]);
/// assert!(matches!(refused, Err(StoreError::Fenced { .. })));
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// The right to write.
    pub lease: Lease,
    /// [Of the shard](Shard::id), from what was drawn at random when the store was made; part of
    /// every timer's id.
    pub store_id: u64,
    /// The highest revision ever put or given in the shard; zero if there is none.
    pub last_revision: Revision,
    /// Where the clocks stood at the last commit that said so, if one did.
    pub clock: Option<ClockNote>,
    /// Whether the store forgets done records by itself once they have been kept for long enough. Then
    /// [`Store::due`] does not give them, and their owner neither files nor removes them.
    pub forgets_done: bool,
}

/// One change of one record.
///
/// ```
/// use countwheel_durable::TimerName;
/// use countwheel_durable::store::{Before, Change};
///
/// let name = TimerName::new("orders", "order-42")?;
/// let change = Change::remove(name.clone());
/// assert_eq!(change, Change::Remove { name, before: Before::Unknown });
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Write the record in place of whatever had its name.
    Put {
        /// The record.
        record: Box<Record>,
        /// What the change replaces.
        before: Before,
    },
    /// Remove what has this name. Removing nothing is no error.
    Remove {
        /// The name.
        name: TimerName,
        /// What the change removes.
        before: Before,
    },
    /// Remember that revisions up to this one were given, where no record of the batch
    /// shows it: a timer set and removed in one batch leaves none.
    Given(Revision),
    /// Remember where the clocks stand, in place of what the shard remembered before.
    Clock(ClockNote),
    /// Change a setting, which is of no shard: see [`Store::settings`].
    Setting(Setting),
}

impl Change {
    /// A put by somebody who has not looked at what it replaces.
    #[must_use]
    pub fn put(record: Record) -> Self {
        Self::Put {
            record: Box::new(record),
            before: Before::Unknown,
        }
    }

    /// A removal by somebody who has not looked at what it removes.
    #[must_use]
    pub fn remove(name: TimerName) -> Self {
        Self::Remove {
            name,
            before: Before::Unknown,
        }
    }
}

/// One commit of several. See [`Store::commit_all`].
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The right to make it.
    pub lease: Lease,
    /// What it changes, in order.
    pub changes: &'a [Change],
}

/// Makes each commit by itself: what [`Store::commit_all`] does if a store has no better way.
pub fn one_by_one(
    store: &(impl Store + ?Sized),
    commits: &[Commit<'_>],
) -> Vec<Result<(), StoreError>> {
    let each = commits.iter();
    each.map(|commit| store.commit(commit.lease, commit.changes))
        .collect()
}

/// What the store holds under a name just before a change of it. Whoever has looked says what
/// was there, which saves the store a look of its own; it has to be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Before {
    /// Nobody looked.
    #[default]
    Unknown,
    /// Nothing.
    Absent,
    /// A record in this state.
    Present(StateKind),
    /// A record in this state, with the payload that the new one has: a store may leave that where
    /// it is, and write the rest.
    SamePayload(StateKind),
    /// Something that cannot be read: the change is made without reading it. The counts are right
    /// after it if an index still says the state of what was there.
    Unreadable,
}

impl Before {
    /// What a look that found `record` says.
    #[must_use]
    pub fn of(record: Option<&Record>) -> Self {
        record.map_or(Self::Absent, |record| Self::Present(record.state.kind()))
    }

    /// The same of a put of the payload that is there.
    #[must_use]
    pub(crate) fn with_same_payload(self) -> Self {
        match self {
            Self::Present(kind) => Self::SamePayload(kind),
            other => other,
        }
    }
}

/// Keeps timers. The third of the four seams.
///
/// Every method may be called from any thread. Reads see all commits that were
/// acknowledged before they began, and no part of one that was not.
pub trait Store: Send + Sync {
    /// Takes the shard: from now on the owner before is fenced out. Durable on return.
    ///
    /// # Errors
    /// [`StoreError::Reserved`] if it is [`Shard::SETTINGS`], any other if the store failed.
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError>;

    /// Applies `changes` in order, all or none, and returns when they are durable.
    ///
    /// A name may occur more than once; the last change wins. An empty batch checks the
    /// lease and writes nothing.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: nothing was changed and nothing ever will be under this
    /// lease. An error that [is full](StoreError::is_full) and [`StoreError::Unavailable`]: nothing was
    /// changed, and the commit can be tried again. [`StoreError::Lost`]: the lease is over, and whether
    /// the changes survive is known to the next owner. Any other error: whether the changes survive is
    /// unknown until the store is opened again, and no later commit of this opening may succeed.
    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError>;

    /// Makes commits of several shards, each of them all or none, and says of each in their order what
    /// became of it, as [`commit`](Self::commit) does. One that is refused keeps none of the others
    /// out. A store that pays for each commit, with a sync or a round trip, may make one of all of
    /// them.
    ///
    /// ```
    /// # use countwheel_durable::Revision;
    /// # use countwheel_durable::store::{Change, Commit, MemoryStore, Shard, Store, StoreError};
    /// let store = MemoryStore::new(7);
    /// let [one, other] = [store.acquire(Shard(0))?.lease, store.acquire(Shard(1))?.lease];
    /// let taken = store.acquire(Shard(1))?.lease;
    /// let changes = &[Change::Given(Revision(5))];
    /// let commits = [one, other, taken].map(|lease| Commit { lease, changes });
    /// let results = store.commit_all(&commits);
    /// assert!(matches!(results[..], [Ok(()), Err(StoreError::Fenced { .. }), Ok(())]));
    /// # Ok::<(), StoreError>(())
    /// ```
    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        one_by_one(self, commits)
    }

    /// How many calls of [`commit_all`](Self::commit_all) the store works on at a time; at least 1. Turns
    /// that are committed together are of shards whose numbers leave the same rest when divided by it.
    fn lanes(&self) -> usize {
        1
    }

    /// How many changes the store likes to make in one call of [`commit_all`](Self::commit_all): of the
    /// turns that wait, so many are committed together, and the others next. A turn that has more is
    /// committed alone. So nobody waits for the answers of what one statement or one frame cannot hold.
    fn changes_together(&self) -> usize {
        usize::MAX
    }

    /// The record of that name.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError>;

    /// The records of all these names, or of as many as the store likes: what is not in the answer
    /// is asked for with [`get`](Self::get), which gives the same. A scheduler asks once before a
    /// step for what the step is going to look at. For a store that is far away that is one question
    /// in place of many; one that reads fast answers with nothing and looks at none of the names.
    ///
    /// The payloads in the answer are at most `bytes` long together, but for the last of them.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let _they_are_read_one_by_one = (shard, names, bytes);
        Ok(Found::default())
    }

    /// Whether the lease may still be in force, as far as the store knows without asking anybody: no
    /// later than when another owner may have taken the shard it says no, for good. Asked before each
    /// attempt is let out, since its claim may have become durable long ago, and before answers that
    /// rest on no commit, such as that there is no timer of a name.
    fn may_start(&self, lease: Lease) -> bool {
        let _nobody_takes_it_by_time = lease;
        true
    }

    /// A page of the records that need attention, as `scan` asks, first come first. As long as
    /// [`DuePage::next`] is there, the page need not be full: see [`DueScan::scan_limit`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError>;

    /// A page of one queue's records in order of (due, revision). As long as
    /// [`Page::next`] is there, it need not be full: see [`Filter::scan_limit`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError>;

    /// How many records each queue has in each state; queues in order of name, none that
    /// is empty. Kept up to date by every commit, not counted anew.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError>;

    /// Whether [`counts`](Self::counts) has every timer of the shard: a store may take a shard before it has
    /// counted all of them, and count the others while the shard is at work.
    fn counts_are_exact(&self, shard: Shard) -> bool {
        let _commits_keep_them = shard;
        true
    }

    /// The counts of a shard of another owner as they were saved last, where to count them anew would take
    /// long. `None` of a store whose counts are always at hand.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn saved_counts(&self, shard: Shard) -> Result<Option<Vec<QueueCounts>>, StoreError> {
        let _are_at_hand = shard;
        Ok(None)
    }

    /// The same of at most `limit` queues whose names come after `after`, in order of name. There are
    /// more if the page is full. A page holds up no commit for long, however many queues there are.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        let behind = |counts: &QueueCounts| after.is_none_or(|after| counts.queue > *after);
        let counts = self.counts(shard)?.into_iter();
        Ok(counts.filter(behind).take(limit).collect())
    }

    /// The sum of all counts, and the counts of at most `limit` queues: those of `first` that have any,
    /// then those with the most dead timers, then the others in order of name.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        Ok(Summary::of(self.counts(shard)?, first, limit))
    }

    /// All settings, if one was changed after the change `after`; `None` if none was. They belong to
    /// the whole store: the owner of any shard changes them, in a commit with its timers, and sees
    /// what others have changed. A commit under a lease that another owner has replaced changes none.
    ///
    /// A database that has forgotten changes gives what it has to who knows a later version.
    ///
    /// Before the first change their version is zero. They are read whole, so that what is stored
    /// should be bounded: see [`Settings::MAX_BYTES`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed, or if one of them cannot be read.
    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError>;

    /// Whether the store can be reached now: a store that is far away asks something that costs little.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it cannot.
    fn reach(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Why a commit of the shard would wait now, and not for its turn: one before it has waited for more
    /// than a moment for a store that cannot be reached. Its timers refuse requests meanwhile. Answered
    /// at once.
    fn stuck(&self, shard: Shard) -> Option<String> {
        let _commits_wait_for_their_turn = shard;
        None
    }

    /// Whether the right of this process to what it owns is over, while the store can be reached: others may have
    /// taken it. Its timers do nothing of what is asked of them meanwhile, as if they owned nothing. Answered at
    /// once.
    fn is_over(&self) -> bool {
        false
    }

    /// The owners of this process have ended, and commit nothing more: a store may write down what would
    /// have to be found out again otherwise.
    fn stopped(&self) {}

    /// What a loss of the machine that has the store would cost, as far as the store knows; `None` of one
    /// that does not say.
    fn durability(&self) -> Option<Durability> {
        None
    }

    /// How long the transaction lasts that has kept a snapshot of the database for longest: until its end
    /// the database removes no version of a row that is younger. `None` of a store that has none, or does
    /// not know. Answered at once.
    fn oldest_snapshot(&self) -> Option<Duration> {
        None
    }

    /// Which parts of the store's indexes are passed over, because they cannot be read. A store that
    /// has none of its own, or fails instead, says that there are no gaps.
    fn gaps(&self) -> Gaps {
        Gaps::default()
    }

    /// What the store cannot read, as far as it has noticed since it was opened, while it goes on
    /// with everything else: a bounded number of places. Empty for a store that notices nothing.
    fn troubles(&self) -> Vec<Trouble> {
        Vec::new()
    }

    /// What only a store on a disk of this machine has; `None` for one that is elsewhere.
    fn on_disk(&self) -> Option<&dyn OnDisk> {
        None
    }
}

/// What becomes of acknowledged commits if the machine that has the store is lost.
///
/// ```
/// use countwheel_durable::store::{Durability, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new(7).durability(), None);
/// assert_eq!(Durability::OneMachine.as_str(), "one-machine");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Durability {
    /// They may be lost even if it only loses power: the server is set so.
    MayLose,
    /// They are lost with it: nobody else has to have them before they are acknowledged.
    OneMachine,
    /// Another machine has them before they are acknowledged.
    Standby,
    /// Whoever runs the server says that its storage keeps them.
    Managed,
}

impl Durability {
    /// The name in metrics and in the line that says ready.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MayLose => "may-lose",
            Self::OneMachine => "one-machine",
            Self::Standby => "standby",
            Self::Managed => "managed",
        }
    }
}

/// What a store on a disk of this machine has beside a [`Store`]. Every method may be called from any
/// thread.
///
/// ```
/// use countwheel_disk::{DiskOptions, DiskStore};
/// use countwheel_durable::store::{MemoryStore, OnDisk, OpenFiles, Store};
///
/// let mut options = DiskOptions::default();
/// options.log.segment_bytes = 1 << 16; // for a test
/// let directory = tempfile::tempdir()?;
/// let store = DiskStore::open(directory.path(), 7, options)?;
/// let disk: &dyn OnDisk = store.on_disk().expect("it is on one");
/// assert!(disk.has_room());
/// disk.on_failure(Box::new(|reason| eprintln!("{reason}")));
/// let OpenFiles { open, .. } = disk.open_files();
/// assert!(open > 0);
///
/// assert!(MemoryStore::new(7).on_disk().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait OnDisk: Send + Sync {
    /// Whether there is room for what is not urgent. If not, what is left is for removals and
    /// for the outcomes of attempts.
    fn has_room(&self) -> bool {
        true
    }

    /// Calls `f` with the reason if the store fails in what it does by itself, or at once if
    /// it has: it takes no more commits then. What a call of the store's runs into, that call says.
    /// A store that does nothing by itself never calls it.
    fn on_failure(&self, f: OnFailure) {
        drop(f);
    }

    /// Reads on in a round through all checksums of what the store has on the disk, until about
    /// `budget` bytes were read or the round is over. What is damaged is one of the
    /// [`troubles`](Store::troubles) then, as long as its file is needed. A store without checksums
    /// reads nothing.
    fn scrub_step(&self, budget: u64) -> Scrubbed {
        let _nothing_to_read = budget;
        Scrubbed::NOTHING
    }

    /// How many files it has open and may need besides.
    fn open_files(&self) -> OpenFiles {
        OpenFiles::default()
    }

    /// Makes a snapshot of the store in the empty directory `into`, as it is after one commit,
    /// while commits go on. Durable on return.
    ///
    /// # Errors
    /// [`DiskError::NotAStore`] if `into` is not empty, or if this store makes no snapshots; any
    /// other if the store failed.
    fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        Err(no_snapshots(into))
    }
}

/// What a step of a scrub did. See [`OnDisk::scrub_step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Scrubbed {
    /// How many bytes it read.
    pub bytes: u64,
    /// About how many files of the round are left.
    pub files_left: u64,
    /// Whether the round is over: the next step begins another.
    pub ended: bool,
}

impl Scrubbed {
    /// Of one that had nothing to read.
    pub const NOTHING: Self = Self {
        bytes: 0,
        files_left: 0,
        ended: true,
    };
}

/// What a snapshot holds. See [`OnDisk::snapshot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The last commit that is in it.
    pub commit: u64,
    /// How many files it has.
    pub files: u64,
    /// How long they are together, in bytes. Tables that are linked take no room of their own.
    pub bytes: u64,
    /// How many bytes were copied.
    pub copied: u64,
}

/// What a store says that makes no snapshots.
pub(crate) fn no_snapshots(into: &Path) -> StoreError {
    DiskError::NotAStore {
        path: into.to_owned(),
        problem: "this store makes no snapshots".to_owned(),
    }
    .into()
}

/// Whether a store has room for what is not urgent: only a disk can have none.
pub(crate) fn has_room(store: &dyn Store) -> bool {
    store.on_disk().is_none_or(OnDisk::has_room)
}

/// What a read of many names found. See [`Store::get_many`].
///
/// ```
/// use countwheel_durable::TimerName;
/// use countwheel_durable::store::{Found, MemoryStore, Shard, Store};
///
/// let name = TimerName::new("orders", "order-42")?;
/// let store = MemoryStore::new(7);
/// let mut found = store.get_many(Shard::ONLY, &mut [name.clone()].into_iter(), 1 << 20)?;
/// assert_eq!(found.take(&name), Some(None)); // looked for, and not there
/// assert_eq!(found.take(&name), None); // not looked for, as far as this says
/// found.add(name.clone(), None);
/// assert_eq!(found.take(&name), Some(None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Found(HashMap<TimerName, Option<Record>>);

impl Found {
    /// Adds what there is under a name.
    pub fn add(&mut self, name: TimerName, record: Option<Record>) {
        self.0.insert(name, record);
    }

    /// Takes out what there is under a name; `None` if nobody looked.
    pub fn take(&mut self, name: &TimerName) -> Option<Option<Record>> {
        self.0.remove(name)
    }
}

/// Parts of the indexes of a store that it passes over, since they cannot be read.
///
/// ```
/// use countwheel_durable::store::{Gaps, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new(7).gaps(), Gaps { dues: false, lists: false, closed: 0 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gaps {
    /// [`Store::due`] leaves something out.
    pub dues: bool,
    /// [`Store::list`] leaves something out, or takes longer than it should.
    pub lists: bool,
    /// How often a gap of [`Store::due`] was closed since the opening: whoever has read past it
    /// has to read anew.
    pub closed: u64,
}

/// How many files a store needs. See [`OnDisk::open_files`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFiles {
    /// Open now.
    pub open: usize,
    /// So many more it may open soon: until a merge is through, as many tables again.
    pub ahead: usize,
}

/// What is called if a store fails. See [`OnDisk::on_failure`].
pub type OnFailure = Box<dyn FnOnce(&str) + Send>;

/// Which records that need attention to read.
///
/// ```
/// use countwheel_durable::DueClock;
/// use countwheel_durable::store::{DueEntry, DueScan, MemoryStore, Shard, Store};
///
/// let store = MemoryStore::new(7);
/// let nearest = DueScan { limit: 10, ..DueScan::all(DueClock::Wall) };
/// let page = store.due(Shard::ONLY, &nearest)?;
/// for DueEntry { wake, name, .. } in page.entries {
///     println!("{name} at {}", wake.at.as_micros());
/// }
/// assert_eq!(page.next, None);
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueScan<'a> {
    /// Those that wake by this clock.
    pub clock: DueClock,
    /// Only those of this queue.
    pub queue: Option<&'a QueueName>,
    /// Only those after this position.
    pub after: Option<Wake>,
    /// Only those that wake at this time or before.
    pub until: Timestamp,
    /// At most so many.
    pub limit: usize,
    /// At most so many entries of the index are looked at, whether the scan wants them or not; at
    /// least one is. A block that has to be read for an entry counts as several entries. A page
    /// that ends for this has fewer records than the limit, perhaps none, and says where the next
    /// page begins. So a range full of removed records holds up nobody for long.
    pub scan_limit: usize,
}

impl DueScan<'_> {
    /// The [`scan_limit`](Self::scan_limit) of a turn unless another is asked for.
    pub const SCAN_LIMIT: usize = 4_096;

    /// Everything that ever wakes by `clock`, without a limit.
    #[must_use]
    pub fn all(clock: DueClock) -> Self {
        Self {
            clock,
            queue: None,
            after: None,
            until: Timestamp::MAX,
            limit: usize::MAX,
            scan_limit: usize::MAX,
        }
    }
}

/// A page of the records that need attention.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DuePage {
    /// The entries, first come first.
    pub entries: Vec<DueEntry>,
    /// After which position the next page begins; `None` after the last. It is there also when
    /// the next page turns out to be empty.
    pub next: Option<Wake>,
    /// How many entries of the index the store looked at.
    pub scanned: usize,
}

/// A record that needs attention, without its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueEntry {
    /// When, and which: a record that has changed since has another revision or state.
    pub wake: Wake,
    /// Its name.
    pub name: TimerName,
    /// In which state it is; `None` where the store would have to read the record for it.
    pub kind: Option<StateKind>,
}

/// Which records of a queue to list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The queue.
    pub queue: QueueName,
    /// Only those in this state.
    pub state: Option<StateKind>,
    /// Only those whose key begins so.
    pub prefix: Option<String>,
    /// Only those due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Only those due before this time.
    pub due_before: Option<Timestamp>,
    /// Only those after this position: the last of the page before.
    pub after: Option<Position>,
    /// At most so many. A page also ends early when its payloads pass
    /// [`Filter::PAGE_MAX_BYTES`], so that a page has bounded size.
    pub limit: usize,
    /// About how many entries of the queue's index are looked at for the page, whether the filter
    /// wants them or not; at least one is. A page that ends for this has fewer records than it
    /// may have, perhaps none, and says where the next begins. So a filter that wants little of
    /// a long queue holds up nobody for long.
    pub scan_limit: usize,
}

impl From<QueueName> for Filter {
    /// Everything in the queue.
    fn from(queue: QueueName) -> Self {
        Self::queue(queue)
    }
}

impl From<&QueueName> for Filter {
    fn from(queue: &QueueName) -> Self {
        Self::queue(queue.clone())
    }
}

impl From<&Self> for Filter {
    fn from(filter: &Self) -> Self {
        filter.clone()
    }
}

impl TryFrom<&str> for Filter {
    type Error = NameError;

    /// Everything in the queue of [this text](QueueName::from_text).
    fn try_from(queue: &str) -> Result<Self, NameError> {
        QueueName::from_text(queue).map(Self::queue)
    }
}

impl TryFrom<String> for Filter {
    type Error = NameError;

    fn try_from(queue: String) -> Result<Self, NameError> {
        queue.as_str().try_into()
    }
}

impl TryFrom<&String> for Filter {
    type Error = NameError;

    fn try_from(queue: &String) -> Result<Self, NameError> {
        queue.as_str().try_into()
    }
}

impl Filter {
    /// A page ends with the record whose payload brings the sum to this many bytes.
    pub const PAGE_MAX_BYTES: usize = 8 << 20;

    /// The [`scan_limit`](Self::scan_limit) unless another is asked for.
    pub const SCAN_LIMIT: usize = 4_096;

    /// Everything in `queue`, a hundred records a page.
    #[must_use]
    pub fn queue(queue: QueueName) -> Self {
        Self {
            queue,
            state: None,
            prefix: None,
            due_from: None,
            due_before: None,
            after: None,
            limit: 100,
            scan_limit: Self::SCAN_LIMIT,
        }
    }
}

/// A position in a queue's list: by due time, then by revision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Position {
    /// The record's due time.
    pub due: Timestamp,
    /// Its revision.
    pub revision: Revision,
}

/// A position in the list of a queue whose timers are in several shards: by due time, then by
/// revision, then by shard, since two shards may give the same revision.
///
/// ```
/// use countwheel_time::Timestamp;
/// use countwheel_durable::Revision;
/// use countwheel_durable::store::{Cursor, Position, Shard};
///
/// let position = Position { due: Timestamp::from_micros(5), revision: Revision(3) };
/// let cursor = Cursor { position, shard: Shard(2) };
/// // In its own shard and those before it, the list goes on behind the position.
/// assert_eq!(cursor.of(Shard(1)), Some(position));
/// assert_eq!(cursor.of(Shard(2)), Some(position));
/// // In those after it, what stands there is still to come.
/// assert_eq!(cursor.of(Shard(3)), Some(Position { revision: Revision(2), ..position }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cursor {
    /// In its shard.
    pub position: Position,
    /// The shard.
    pub shard: Shard,
}

impl Cursor {
    /// Behind which position the list of `shard` goes on; `None` if at its beginning.
    #[must_use]
    pub fn of(&self, shard: Shard) -> Option<Position> {
        let Position { due, revision } = self.position;
        if shard <= self.shard {
            return Some(self.position);
        }
        match (revision.0, due.as_micros()) {
            (0, 0) => None,
            (0, micros) => Some(Position {
                due: Timestamp::from_micros(micros - 1),
                revision: Revision(u64::MAX),
            }),
            (before, _) => Some(Position {
                due,
                revision: Revision(before - 1),
            }),
        }
    }
}

/// A page of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<P = Position> {
    /// The records, in order.
    pub records: Vec<Record>,
    /// How many records were left out because they cannot be read. Those at the page's end may be
    /// counted again in the next page.
    pub unreadable: usize,
    /// Where the next page begins; `None` after the last. It is there also when the next page
    /// turns out to be empty.
    pub next: Option<P>,
}

/// How many records a queue has in each state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueCounts {
    /// The queue.
    pub queue: QueueName,
    /// In the order of [`StateKind::ALL`].
    pub by_state: [u64; 4],
}

impl QueueCounts {
    /// The number in one state.
    #[must_use]
    pub fn of(&self, state: StateKind) -> u64 {
        self.by_state[state as usize]
    }

    /// Adds what another shard has of the queue.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, count) in self.by_state.iter_mut().zip(other.by_state) {
            *sum += count;
        }
    }

    /// The sum for each queue, in order of name.
    pub(crate) fn summed(mut counts: Vec<Self>) -> Vec<Self> {
        counts.sort_by(|one, other| one.queue.cmp(&other.queue));
        counts.dedup_by(|next, sum| {
            let is_same = next.queue == sum.queue;
            if is_same {
                sum.add(next);
            }
            is_same
        });
        counts
    }
}

/// How many records there are in each state, in how many queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// The queues that have any.
    pub queues: u64,
    /// In the order of [`StateKind::ALL`].
    pub by_state: [u64; 4],
}

impl Totals {
    /// The number in one state.
    #[must_use]
    pub fn of(&self, state: StateKind) -> u64 {
        self.by_state[state as usize]
    }

    /// Counts a queue no more.
    pub(crate) fn take_off(&mut self, counts: &QueueCounts) {
        self.queues = self.queues.saturating_sub(1);
        for (sum, count) in self.by_state.iter_mut().zip(counts.by_state) {
            *sum = sum.saturating_sub(count);
        }
    }

    /// The sum of these.
    fn of_all(counts: &[QueueCounts]) -> Self {
        let mut totals = Self::default();
        for counts in counts {
            totals.queues += 1;
            for (sum, count) in totals.by_state.iter_mut().zip(counts.by_state) {
                *sum += count;
            }
        }
        totals
    }
}

/// What [`Store::summary`] says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The sum of all queues.
    pub totals: Totals,
    /// Some of them, at the same moment.
    pub queues: Vec<QueueCounts>,
}

impl Summary {
    /// As [`Store::summary`], of these counts.
    pub(crate) fn of(mut queues: Vec<QueueCounts>, first: &[QueueName], limit: usize) -> Self {
        let totals = Totals::of_all(&queues);
        queues.sort_by_cached_key(|counts| {
            let place = first.iter().position(|queue| *queue == counts.queue);
            let place = place.unwrap_or(usize::MAX);
            (place, Reverse(counts.of(StateKind::Dead)))
        });
        queues.truncate(limit);
        Self { totals, queues }
    }
}

/// What can go wrong with a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another owner has the shard. Drop everything known about it; do not retry.
    #[error("shard {} was taken: fence {} is now {}", shard.0, ours.0, current.0)]
    Fenced {
        /// The shard.
        shard: Shard,
        /// The fence of the refused commit.
        ours: Fence,
        /// The fence that holds now.
        current: Fence,
    },
    /// Nobody owns this shard, and no timer is in it. Use another.
    #[error("shard {} is reserved", shard.0)]
    Reserved {
        /// The shard.
        shard: Shard,
    },
    /// The system gave no thread.
    #[error("no thread could be started: {source}")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// The store cannot be reached or is busy. Nothing was changed: ask again.
    #[error("the store is not available: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// This ownership is over, and the shard may be free: take it again. What became of the last
    /// commit is known only then.
    #[error("shard {} was lost: {reason}", shard.0)]
    Lost {
        /// The shard.
        shard: Shard,
        /// Why.
        reason: String,
    },
    /// A commit failed before. Whether it survives is unknown: open the store again.
    #[error("the store failed earlier and must be opened again")]
    Poisoned,
    /// What only a store on a disk can run into.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A store without files has no room for it. Nothing was changed; it can be tried again once there
    /// is room. See [`is_full`](Self::is_full).
    #[error("the store has no room: {reason}; nothing was changed")]
    Full {
        /// What is used up.
        reason: String,
    },
    /// A store without files cannot read what it was asked for; it reads everything else. See
    /// [`is_unreadable`](Self::is_unreadable).
    #[error("what the store holds cannot be read: {problem}")]
    Unreadable {
        /// What does not add up.
        problem: String,
    },
    /// A store without files failed otherwise. Whether a commit survives that ended so is unknown:
    /// open the store again.
    #[error("the store failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

impl StoreError {
    /// Whether the store has no room for it. Nothing was changed then, and it can be tried again once
    /// there is room.
    ///
    /// ```
    /// use countwheel_durable::store::{DiskError, StoreError};
    ///
    /// let path = "/data".into();
    /// assert!(StoreError::from(DiskError::Full { path }).is_full());
    /// let reason = "the quota is used up".to_owned();
    /// assert!(StoreError::Full { reason }.is_full());
    /// let reason = "a table is not there".to_owned();
    /// assert!(!StoreError::Failed { reason }.is_full());
    /// ```
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Disk(DiskError::Full { .. }) | Self::Full { .. })
    }

    /// Whether a read failed for what it read: other reads may succeed, and commits.
    ///
    /// ```
    /// use countwheel_durable::store::{DiskError, StoreError};
    ///
    /// let (path, problem) = ("/data/tables/table-1".into(), "a block".to_owned());
    /// assert!(StoreError::from(DiskError::Corrupt { path, problem }).is_unreadable());
    /// let problem = "a record of a later version".to_owned();
    /// assert!(StoreError::Unreadable { problem }.is_unreadable());
    /// assert!(!StoreError::Poisoned.is_unreadable());
    /// ```
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::Disk(DiskError::Corrupt { .. } | DiskError::Io { .. }) | Self::Unreadable { .. }
        )
    }

    /// The file that it is about, if it is about one, and what was found there.
    #[must_use]
    pub fn finding(&self) -> (Option<&Path>, String) {
        match self {
            Self::Disk(
                DiskError::Corrupt { path, problem } | DiskError::NotAStore { path, problem },
            ) => (Some(path), problem.clone()),
            Self::Disk(DiskError::Io { path, source }) => (Some(path), source.to_string()),
            Self::Unreadable { problem } => (None, problem.clone()),
            error => (None, error.to_string()),
        }
    }
}
