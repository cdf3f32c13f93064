//! Mistakes that are easy to make here. The tests plant each of them, to prove that they would find
//! it. They are compiled in with the feature `planted-bugs` alone, which no program has that is meant
//! to be used, and even then none is made before [`plant`] is called.

#[cfg(feature = "planted-bugs")]
macro_rules! bugs {
    ($($(#[$what:meta])* $name:ident,)+) => {
        /// Mistakes that a test must find, one at a time. Not in any release.
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
    /// Who has only just renewed takes what is overdue.
    NodesTakeUnsteady,
    /// A look that failed is no gap.
    NodesGapUnseen,
    /// A step of the registry's clock is no gap.
    NodesStepUnseen,
    /// A shard is taken as soon as the lease of its owner is over, without the margin.
    NodesTakeWithoutMargin,
    /// All shards that are to go are handed over at once.
    NodesHandOverAll,
    /// A shard is handed over again right after it came.
    NodesMoveAgain,
    /// A node that drains is given shards.
    NodesGiveToDraining,
    /// Where all nodes drain, nobody takes what is free.
    NodesAllDrain,
    /// A shard is given to a node that has not renewed its lease for long.
    NodesGiveToDying,
    /// A look that was sent before a shard was taken counts afterwards.
    NodesBelieveOlder,
    /// The scheduler of a shard that another has taken goes on.
    NodesKeepOthers,
    /// The scheduler of a shard that another has taken and given back goes on.
    NodesKeepReturned,
    /// Who joins again takes what is overdue at once.
    NodesRejoinSteady,
    /// A wish counts also if its node is gone.
    NodesWantTheGone,
    /// What operators want is passed over.
    NodesWishPassed,
    /// A shard that a node was given and cannot take stays with it.
    NodesKeepUntaken,
    /// What the first choice does not take, nobody takes.
    NodesNobodyElse,
    /// A node that becomes the lender of a flow lends at once.
    LoansLendAtOnce,
    /// A lender believes a question that a later one has overtaken.
    LoansOldQuestion,
    /// A start that is given back right after it was used is lent at once.
    LoansStartAgain,
    /// Where there are more nodes than places, a node keeps the one that it has.
    LoansNoTurns,
    /// A borrower uses what was lent for as long as nobody answers.
    LoansForEver,
    /// A borrower does not say what runs beyond what it keeps.
    LoansOverlookRunning,
    /// A loan counts from when the answer came.
    LoansFromAnswer,
    /// What is left of an offer that was taken in part is not released.
    OffersKeepRest,
    /// An owner confirms an offer that it has released.
    OffersTakenLate,
    /// What nobody has taken in time is not released.
    OffersForgotten,
    /// A call takes all that is offered.
    GatherOverMax,
    /// A call hands out what the owner has not confirmed.
    GatherUnconfirmed,
    /// The clock counts from when the registry was asked.
    NodesClockFromAsking,
    /// The clock goes on after the registry's was set back.
    NodesClockKeepsStep,
    /// The clock believes that its machine's runs as the registry's does.
    NodesClockWithoutDrift,
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Makes `bug`, or none, on this thread from here on.
///
/// ```
/// use countwheel_cluster::{PlantedBug, plant};
///
/// plant(Some(PlantedBug::NodesTakeUnsteady));
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
