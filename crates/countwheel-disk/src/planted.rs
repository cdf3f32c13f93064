//! Mistakes that are easy to make here. The simulation plants each of them, to prove that it would
//! find it. They are compiled in with the feature `planted-bugs` alone, which no program has that
//! is meant to be used, and even then none is made before [`plant`] is called.

#[cfg(feature = "planted-bugs")]
macro_rules! bugs {
    ($($(#[$what:meta])* $name:ident,)+) => {
        /// Mistakes that a simulation must find, one at a time. Not in any release.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum PlantedBug {
            $($(#[$what])* $name,)+
        }

        impl PlantedBug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

#[cfg(feature = "planted-bugs")]
bugs! {
    /// The range in which everything is replaced reaches to the first record that counts.
    TablesSkipWhatCounts,
    /// That the directory above cannot be synced is passed over, whatever the reason.
    MakingPassesOverParentSync,
    /// A sync of the directory above is believed after one that failed.
    MakingBelievesSecondSync,
    /// A directory of an older format keeps it, whatever is written into it.
    MakingLeavesFormat,
    /// A directory that keeps an older format since the disk was full keeps it when there is room.
    MakingRaisesOnce,
    /// The log does not sync a commit.
    LogCommitUnsynced,
    /// The log does not sync the directory when a segment got its name.
    LogNameUnsynced,
    /// A segment takes commits before the tables know of it.
    OpeningWithoutCheckpoint,
    /// An opening does not compare the log with the commit that the manifest names.
    OpeningBelievesShortLog,
    /// The tables are made durable before the log was read: a start that is refused has written.
    OpeningPersistsFirst,
    /// A reader of the log takes as many bytes as a length says, without a look at how many there
    /// are.
    ReaderTrustsLengths,
    /// An opening does not write the last commit again before it syncs.
    LogPersistsWithoutWrite,
    /// An opening takes all segments to be as long as the first.
    LogTrustsOneLength,
    /// A segment is said to be as long as those that are made now, however long the spare is that it
    /// begins in.
    LogTrustsSpareLength,
    /// An opening leaves the name of a segment without commits to a sync that may have failed.
    LogKeepsUnsureName,
    /// The first segment that is flushed takes no removals along for what older tables have and the log
    /// says is nowhere.
    FlushHidesNothing,
    /// What changed meanwhile is flushed as it was.
    LogFlushesOutdated,
    /// What is flushed is not marked as being in the sorted store.
    LogFlushesUnmarked,
    /// A segment is flushed before the counts are copied behind it.
    CountsFlushUncopied,
    /// A piece of a copy of the counts leaves out its last queue.
    CopyForgetsQueue,
    /// Copies of the counts have no room beside the segments of the options: one that is longer
    /// pushes itself out of the log for ever.
    CopiesPushThemselvesOut,
    /// A segment's snapshot forgets the last revision.
    LogSnapshotForgets,
    /// A segment's snapshot forgets the note of the clocks.
    LogSnapshotForgetsClock,
    /// A scan leaves out what is due at its very end.
    LogScanEndsEarly,
    /// What the log hides is listed.
    LogListsHidden,
    /// A commit is acknowledged whatever became of the file that it is in.
    LogOverlooksRemoval,
    /// After an error, the log goes on.
    LogGoesOn,
    /// A setting that is flushed with a segment is forgotten.
    LogForgetsSettingsAtFlush,
    /// Settings have a commit of their own before that of the timers with which they come.
    LogCommitsSettingsApart,
    /// The log looks a name up by its queue and its key alone, whatever its namespace.
    LogIgnoresNamespace,
    /// An owner that was replaced may commit.
    LogIgnoresFence,
    /// What is committed together is all said to be of the first commit's shard.
    LogTogetherInOneShard,
    /// Of what is committed together the first commit alone is asked for its lease.
    LogTogetherUnfenced,
    /// The tables do not sync their directory after the manifest got its name, so that a
    /// segment is used again before they have it for good.
    TablesUnsynced,
    /// A manifest gets its name before it is synced.
    ManifestUnsynced,
    /// A removal that a merge or an ingest should keep is dropped.
    TablesForgetRemovals,
    /// What a newer table replaced is listed and due.
    TablesShowReplaced,
    /// A block of an index that cannot be read ends the read.
    IndexEndsReads,
    /// A record that cannot be read ends the list.
    ListEndsAtDamage,
    /// A record that cannot be read fails the merge, and with it the store.
    MergeFailsStore,
    /// What a segment has that cannot be read is forgotten when it is flushed.
    FlushForgetsUnreadable,
    /// A change of something unreadable reads it first.
    ChangeReadsFirst,
    /// A repair leaves out the settings.
    RepairForgetsSettings,
    /// A scrub does not look at what a table says of what is due.
    ScrubLooksAway,
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Makes `bug`, or none, on this thread from here on.
///
/// ```
/// use countwheel_disk::{PlantedBug, plant};
///
/// plant(Some(PlantedBug::LogIgnoresFence));
/// // whatever runs here has it
/// plant(None);
/// ```
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a planted bug is on.
#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::PlantedBug::$bug)
    };
}

/// Always false without the feature, and so is not in the program.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

pub(crate) use planted;
