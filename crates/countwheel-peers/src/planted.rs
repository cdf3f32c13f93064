//! Mistakes that are easy to make here. The tests plant each of them, to prove that they would find it.
//! They are compiled in with the feature `planted-bugs` alone, which no program has that is meant to be
//! used, and even then none is made before [`plant`] is called.

#[cfg(feature = "planted-bugs")]
macro_rules! bugs {
    ($($(#[$what:meta])* $name:ident,)+) => {
        /// Mistakes that the tests must find, one at a time. Not in any release.
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
    /// An answer goes to who has waited longest.
    PeersAnswerOldest,
    /// What was sent is sent again when the connection breaks.
    PeersSentTwice,
    /// What was sent and has no answer in time counts as not done.
    PeersUnknownIsNotDone,
    /// What waits is kept beyond its deadline.
    PeersDeadlineIgnored,
    /// What nobody waits for any more is done.
    PeersExpiredIsDone,
    /// A receiver sends on whatever number of hops it has behind it.
    PeersHopsUnlimited,
    /// The receiver asks nobody for a certificate.
    PeersNoCertificateNeeded,
    /// The length of a frame is believed.
    PeersFrameUnchecked,
    /// A node of another cluster is welcome.
    PeersClusterUnchecked,
    /// Any number of requests may wait for a peer.
    PeersWaitingUnbounded,
    /// The room of an answered request is not given back.
    PeersRoomLeaks,
    /// What a peer says of shards that it was not asked for is counted.
    PeersCountsUnasked,
    /// What its owner does not count counts as no timers.
    PeersUncountedIsNone,
    /// Connections that say nothing keep their places while others call.
    PeersSilentStay,
    /// What comes to the outbox of an owner that was replaced meanwhile stays there.
    PeersOldWay,
    /// A question that came before a long stop of this process is done after it.
    PeersOldFrames,
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Makes `bug`, or none, on this thread from here on.
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
