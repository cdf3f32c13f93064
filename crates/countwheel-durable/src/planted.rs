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
    /// Requests are answered before the commit.
    AnswerBeforeCommit,
    /// A timer starts a microsecond before its deadline.
    FireEarly,
    /// After a restart, the timers in delivery are not delivered again.
    ForgetInterrupted,
    /// Remove answers, and leaves the record in the store.
    KeepRemoved,
    /// The outcome of a timer that was replaced ends the new one.
    OutdatedOutcomeCounts,
    /// A move changes the record, not the window.
    MoveKeepsOldDeadline,
    /// A failed attempt is recorded, its retry is not scheduled.
    LoseRetry,
    /// What is more than one commit takes is forgotten.
    DeferredForgotten,
    /// The last entry of a full page read from the store is dropped.
    SkipPageBorder,
    /// A page of due timers that ends early says that it was the last.
    DuePageForgetsRest,
    /// The next turn is asked for ten seconds after the next deadline.
    WakeLate,
    /// A retry gets an id of its own, so that receivers take it for another timer.
    NewIdForRetry,
    /// Each scheduler of a process has all of the memory and of the rate.
    BudgetForEach,
    /// Who was woken for a place and needs none wakes nobody else.
    BudgetPromiseEnds,
    /// Who gives a place back takes it again, however long others wait.
    BudgetNobodyElse,
    /// The records read for one step are believed in the next.
    ReadBelievedTwice,
    /// The copy kept of an attempt in flight stays after a change of the record.
    KeptThoughChanged,
    /// An attempt leaves without a look at the lease.
    StartsWithoutLease,
    /// An answer that rests on no commit leaves without a look at the lease.
    AnswersWithoutLease,
    /// A shard that is handed over counts as an end of the process for what was in flight.
    HandOverCounts,
    /// The timers of all shards begin their ids with the store's.
    OneIdForAllShards,
    /// Attempts start before the commit that claims them.
    StartBeforeCommit,
    /// A refused batch keeps its changes from before the refused request.
    HalfBatch,
    /// A timer that a batch sets is in the store, and not in the window.
    BatchWakesNobody,
    /// The requests of a batch are done from the last to the first.
    BatchReversed,
    /// Batches are answered before the commit.
    BatchAnswersEarly,
    /// The refusal of a batch names its first request, whichever was refused.
    BatchNamesFirst,
    /// The place of an attempt in its queue's share is not given back.
    LeakPlace,
    /// A drain that lets nothing start lets it start.
    DrainLetsStart,
    /// A drained queue takes timers.
    DrainTakesSets,
    /// A drain counts from the turn after the one that answered it.
    DrainForgotten,
    /// A change that wants no other setting changed is done after another.
    SettingsUnchecked,
    /// What a pause held does not start when the pause ends, but with the next turn.
    PauseEndUnseen,
    /// A flow has as many places as it asks for.
    FlowUnbounded,
    /// A flow that hangs takes the places that are meant for others.
    FlowTakesAll,
    /// Attempts of a flow start faster than its rate.
    FlowRateIgnored,
    /// Each change of a flow's rate begins a burst.
    FlowBurstAnew,
    /// The place of an attempt in its flow is not given back.
    FlowPlaceLeaks,
    /// What waits for a flow is not looked at when a place in it is free.
    FlowWakesNobody,
    /// A change of limits is seen by nobody who waits.
    FlowChangeUnseen,
    /// What waits for a flow waits for it though it belongs to another by now.
    FlowRoutesStay,
    /// Who gives back a place of a flow takes it again, however long others wait.
    FlowNobodyElse,
    /// What was left to the store of a flow is not read again.
    FlowForgetsRest,
    /// The room that a leased attempt had in its flows is never given back.
    LeaseLeaks,
    /// A lease that ends without an outcome does not count as a failure.
    LostUncounted,
    /// The end of a lease is not looked for.
    LeaseNeverEnds,
    /// A worker with the token of an earlier attempt settles the one that is leased now.
    OldTokenCounts,
    /// An attempt that was given back before anybody began counts as one.
    ReleaseCounts,
    /// The rates of leased attempts go by the time line of their scheduler, and others by the boot clock.
    LeaseRateByLine,
    /// The leases of the scheduler before have no room in the limits of their flows.
    LeasesForgotten,
    /// An extended lease ends when it would have.
    ExtendForgotten,
    /// The receipt of a set is stored in the commit behind that of its timer.
    ReceiptLater,
    /// The entry of a change is stored in the commit behind it.
    AuditLater,
    /// A request that is refused has an entry in the audit log.
    AuditOfRefused,
    /// A request that changes nothing has an entry in the audit log.
    AuditOfNothing,
    /// What an entry says of the time before the change is what there is after it.
    AuditBeforeIsAfter,
    /// A change of a setting has no entry.
    AuditForgetsSettings,
    /// An entry is kept for half its time.
    AuditEndsEarly,
    /// An entry that is over stays in the store.
    AuditKeptForGood,
    /// The end of an entry counts as that of a timer.
    AuditCounted,
    /// A receipt is kept for half its time.
    ReceiptEndsEarly,
    /// A receipt that is over stays in the store.
    ReceiptKeptForGood,
    /// A set that asks for something else is answered like the first.
    ReceiptTakesAnyBody,
    /// A receipt counts as long as its timer is there.
    ReceiptOfLiveTimer,
    /// A repeated set is answered with the revision and the deadline that the timer has by now.
    ReplayAnswersLater,
    /// A set whose receipt is over replaces a timer that is still there.
    ReceiptReplaces,
    /// An attempt that was not made has used up its number.
    FlowHeldCounts,
    /// An attempt that was not made has used up a step of the retry schedule.
    FlowHeldFails,
    /// The time since an attempt was not made counts as late.
    FlowHeldIsLate,
    /// What was not made is not looked at when limits change.
    FlowHeldUnwoken,
    /// What was not made is not looked at when its time comes.
    FlowHeldForgotten,
    /// The handler of what was not made is asked again at once.
    FlowHeldRestless,
    /// A change of limits while the handler looked is not noticed.
    FlowHeldMissesChange,
    /// Runs that came due while a flow held the run before count as late.
    FlowRunsAreLate,
    /// Schedulers that lack a share hand a place to each other for ever.
    SharePassedOn,
    /// The most urgent of those that wait for a flow do not start first.
    PriorityIgnored,
    /// The window has no bound.
    WindowWithoutBound,
    /// Timers overdue at the opening start without a rate.
    CatchUpAtOnce,
    /// Timers taken out of the window for a commit that found no room are not read again.
    LostAfterFull,
    /// A revision that no record shows is not remembered.
    ForgetGiven,
    /// When the wall clock is set back, the timers that it holds back stay as they are.
    StepBackIgnored,
    /// The time line of delays begins at the wall clock at each opening.
    LineStartsAtWall,
    /// After a step of the wall clock, none of the clocks' notes says so.
    StepUnnoted,
    /// Of missed runs that are all to be made, only the last is made.
    LoseMissedRuns,
    /// One run more is made than a timer repeats.
    OneRunMore,
    /// The run whose nominal time is the end itself is not made.
    EndExcluded,
    /// A run that overlaps is made, whatever the timer asks for.
    OverlapMade,
    /// A move of a run that comes again is not noted in its series.
    MoveForgottenByRun,
    /// A run goes on with the failures of the one before.
    FailuresOutliveRun,
    /// A suspect starts however short the process has lived.
    SuspectsUnheld,
    /// As many suspects run together as there are.
    SuspectsTogether,
    /// An end of the process counts against a suspect that only waited.
    WaitingCountsAsInterrupted,
    /// A done timer whose retention has ended is there until it is forgotten.
    RetentionEndsLate,
    /// A queue keeps its done timers as long as others do, whatever it says.
    DoneKeptAsOthers,
    /// A queue keeps its done timers for longer than any may be kept.
    DoneKeptTooLong,
    /// A queue keeps its dead timers for good, whatever it says.
    DeadKeptForGood,
    /// The end of the retention of a dead timer is noticed after a restart alone.
    DeadWakeNobody,
    /// A dead timer whose retention has ended is looked at, and stays.
    DeadStayForGood,
    /// A deadline that has passed already is taken for now.
    PassedTimeForgotten,
    /// A queue that has had its share of the attempts that run counts as held for good.
    HoldsNeverEnd,
    /// The time of waiting for a place counts as late.
    HeldCountsAsLate,
    /// The record of an ended attempt says when the attempt was claimed, not when its receiver had
    /// it.
    HandOverForgotten,
    /// An attempt whose receiver ended the timer is in no count of how attempts end.
    StopsUncounted,
    /// A timer that waits for the end of its retention counts as overdue.
    BacklogCountsAll,
    /// A removed or started timer still counts as overdue.
    BacklogMissesRemovals,
    /// A timer that was moved, removed or started stays where it was counted by due time.
    AheadKeepsOldPlace,
    /// What is written while timers are counted by due time counts at once, and again when it is read.
    AheadCountsUnread,
    /// The first page of the order of wakes is taken for all of it.
    AheadCountEndsEarly,
    /// What a split bucket is found to hold counts in the bucket as well.
    AheadSplitCountsTwice,
    /// The rest of a bucket that is being split is said to begin behind where it does.
    AheadSplitHidesRest,
    /// A step of the wall clock leaves the buckets by due time where they were.
    AheadStepIgnored,
    /// A change of an unreadable timer reads its record first.
    ChangeReadsFirst,
    /// A step fails for a record that cannot be read.
    StepEndsAtDamage,
    /// The gap in an index is not read again after the index was made anew.
    GapNotReadAgain,
    /// After a restart, a purge begins in each shard from the start, and counts what it had removed no more.
    PurgeForgetsPosition,
    /// A purge removes what was set since it was asked for.
    PurgeTakesLaterSets,
    /// After a failure, the retry policy is the one with which the timer was set.
    RulesRetryOfTheSet,
    /// A lease without an outcome counts by the policy with which the timer was set.
    RulesLostOfTheSet,
    /// A retry is too old by the policy with which the timer was set.
    RulesAgeOfTheSet,
    /// Whether a timer was missed is judged by the rule with which it was set.
    RulesMissedOfTheSet,
    /// Runs overlap by the rule with which the timer was set.
    RulesOverlapOfTheSet,
    /// Another queue is asked for the rules of a timer.
    RulesOfAnotherQueue,
    /// The rules of the queue hold, although the timer has named its own.
    RulesOverOwn,
    /// The policy by which an attempt was made stays with the timer.
    RulesKept,
    /// A purge goes over each shard once.
    PurgePassesOnce,
    /// A job meets timers again that it has moved itself.
    JobMeetsAgain,
    /// A job acts on timers in one commit, and notes how far it is in the next.
    JobNotesLater,
    /// The tags of a job are not read back.
    JobForgetsTags,
    /// A job that was cancelled goes on.
    JobCancelUnseen,
    /// A timer that had changed counts as one on which the job has acted.
    JobCountsRefused,
    /// A job acts as fast as its steps follow each other, whatever its rate.
    JobIgnoresRate,
    /// A dry run acts.
    JobDryRunActs,
    /// A job acts on a timer that has changed since it was read.
    JobActsOnChanged,
    /// A step that fails takes the outcomes of its turn along.
    OutcomesEndWithReads,
    /// Events are told before the commit.
    EventsBeforeCommit,
    /// Events of a refused batch are told.
    EventsOfRefused,
    /// A reader of events that is too slow is not told of the gap.
    EventsLostAtEdge,
    /// A term of events goes on from one whose end nobody knows.
    EventsTermsJoined,
    /// A term of events goes on from one before it, although another one was between them.
    EventsTermSkipped,
    /// A copy of events has a hole of which readers are not told.
    EventsHoleUnsaid,
    /// A copy of events believes that a term has ended before it has all of its events.
    EventsCloseTooEarly,
    /// A reader that goes on elsewhere is refused as long as the copy there is behind.
    EventsResumeRefused,
}

#[cfg(feature = "planted-bugs")]
impl PlantedBug {
    /// Those between schedulers that wait for a place. The tests of the budget have to find them: in a simulation
    /// nobody sleeps.
    pub const OF_WAITING: &[Self] = &[Self::BudgetPromiseEnds, Self::BudgetNobodyElse];
    /// Those of purges. The tests of purges have to find them: no simulation purges a queue.
    pub const OF_PURGES: &[Self] = &[
        Self::PurgeForgetsPosition,
        Self::PurgeTakesLaterSets,
        Self::PurgePassesOnce,
    ];
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Makes `bug`, or none, on this thread from here on.
///
/// ```
/// use countwheel_durable::{PlantedBug, plant};
///
/// plant(Some(PlantedBug::FireEarly));
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
