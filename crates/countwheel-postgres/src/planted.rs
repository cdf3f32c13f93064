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
    /// The statement does not compare the token: an owner that was replaced writes.
    PostgresNoToken,
    /// A takeover does not wait for the statements that are under way.
    PostgresNoLock,
    /// The statement writes its turn in place of another of the same number.
    PostgresReplacesTurn,
    /// The statement looks neither for the turn before its own nor at the history of the server.
    PostgresNoTurnBefore,
    /// The statement writes the timers whether it inserts its turn or not.
    PostgresNotJoined,
    /// The statement writes the settings whether it inserts its turn or not.
    PostgresSettingsNotJoined,
    /// A taking does not look whether another came before it.
    PostgresTakesLate,
    /// The token of a taking is the number of the node.
    PostgresTokenOfNode,
    /// If one shard of a statement is done, all count as done.
    PostgresBelievesAll,
    /// If one shard of a statement is refused, all count as refused.
    PostgresBelievesNone,
    /// A commit whose answer is lost counts as done.
    PostgresLostIsDone,
    /// A commit whose answer is lost counts as not done.
    PostgresLostIsNotDone,
    /// A commit that was done is sent again under the next number.
    PostgresSendsAgain,
    /// A refusal counts, although an earlier sending may still come.
    PostgresRefusalIsAll,
    /// The empty turn in the place of a commit counts as the commit.
    PostgresEmptyIsDone,
    /// A warning that the standby may not have the commit is passed over.
    PostgresWarningPassed,
    /// A turn that is found counts as the standby's as well, although the warning of it may be lost.
    PostgresFoundIsKept,
    /// Where the turn before is missing, the owner goes on from the last one that is there.
    PostgresLossPassed,
    /// A changed timeline at a takeover is passed over.
    PostgresTimelinePassed,
    /// An owner from before a failover goes on, whatever the failover has forgotten.
    PostgresPromotionPassed,
    /// A shard counts as taken although the standby may not have heard of it.
    PostgresTakingUnproved,
    /// A fence that a failover has forgotten is given again.
    PostgresFenceTwice,
    /// A version of the settings that a failover has forgotten is given again.
    PostgresSettingsGoBack,
    /// A takeover goes on with the counts that this process has had before.
    PostgresCountsStay,
    /// The counts change although the commit was refused.
    PostgresCountsRefused,
    /// What turns change of a page of counts while it is read is passed over.
    PostgresPageIsOld,
    /// Saved counts are believed although turns came after them.
    PostgresSavedIsOld,
    /// A turn says the highest revision of its own changes alone.
    PostgresRevisionOfTurn,
    /// A turn without a note of the clocks forgets the last one.
    PostgresClockOfTurn,
    /// A name that a commit changes twice is in the statement twice.
    PostgresNameTwice,
    /// A record with a new payload is written without it.
    PostgresKeepsPayload,
    /// A row that was removed stays.
    PostgresKeepsRemoved,
    /// A set over a done timer leaves the record that it replaces in the ring.
    PostgresDoneStays,
    /// A timer that becomes done is written into the ring and stays where it was as well.
    PostgresDoneTwice,
    /// A timer that becomes done loses its payload.
    PostgresDoneIsBare,
    /// A table of the ring is emptied without a look whether a record in it is kept still.
    PostgresForgetsKept,
    /// The counts have done timers that were forgotten.
    PostgresForgottenCount,
    /// A commit that replaces a done timer takes it for one that is kept until now.
    PostgresDoneIsNew,
    /// The low mark of a turn passes over what the turn itself puts before it.
    PostgresMarkPassesPut,
    /// Those that a low mark leaves behind are not named beside it.
    PostgresForgetsNamed,
    /// A takeover goes on with the low marks that this process has had before.
    PostgresFrontStays,
    /// The low marks move although the commit was refused.
    PostgresFrontOfRefused,
    /// What turns change of a page of the front while it is read is passed over.
    PostgresFrontIsOld,
    /// A front that gives up the last that it knows still ends where it did.
    PostgresEndStays,
    /// A read of due timers does not look for those that are named beside the low mark.
    PostgresReadsPastNamed,
    /// A further page of due timers begins one entry too late.
    PostgresSkipsBorder,
    /// A renewal that comes after the end of the lease is believed without a look at the tokens.
    PostgresLateIsBelieved,
    /// A lease is counted from the answer.
    PostgresLeaseFromAnswer,
    /// A lease is counted by a clock that stands while the machine sleeps.
    PostgresLeaseAwake,
    /// An attempt leaves although the lease is over.
    PostgresLeaseNotLookedAt,
    /// A node that joins again keeps what it had.
    PostgresRejoinKeeps,
    /// A shard is taken although the lease was over meanwhile.
    PostgresTermPassed,
    /// A takeover does not look at the lease of the owner.
    PostgresTakesLiving,
    /// A takeover does not lock the row of the owner: its lease may be renewed after the look at it.
    PostgresOwnerUnlocked,
    /// A taking of many shards takes what others have taken since it was sent.
    PostgresAtOnceLate,
    /// A shard that is given away keeps its token.
    PostgresGivenKeepsToken,
    /// A giving that is sent again and refused counts as not done, although the first sending had no answer.
    PostgresGivenByHalf,
    /// A node that leaves keeps the tokens of its shards.
    PostgresLeftKeepsTokens,
    /// A node that was told to leave renews its lease, and its leaving comes late.
    PostgresGoesOnAfterLeaving,
}

#[cfg(feature = "planted-bugs")]
impl PlantedBug {
    /// Those with leases of nodes, which [`leases`](crate::testing::leases) has to find.
    pub const OF_LEASES: &[Self] = &[
        Self::PostgresLateIsBelieved,
        Self::PostgresLeaseFromAnswer,
        Self::PostgresLeaseAwake,
        Self::PostgresLeaseNotLookedAt,
        Self::PostgresRejoinKeeps,
        Self::PostgresTermPassed,
        Self::PostgresTakesLiving,
        Self::PostgresOwnerUnlocked,
        Self::PostgresAtOnceLate,
        Self::PostgresGivenKeepsToken,
        Self::PostgresGivenByHalf,
        Self::PostgresLeftKeepsTokens,
        Self::PostgresGoesOnAfterLeaving,
    ];
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Makes `bug`, or none, on this thread from here on.
///
/// ```
/// use countwheel_postgres::{PlantedBug, plant};
///
/// plant(Some(PlantedBug::PostgresNoToken));
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
