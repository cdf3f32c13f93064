//! What is counted, for metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection between two nodes was closed, or did not come to be.
///
/// ```
/// use countwheel_peers::CloseReason;
///
/// assert_eq!(CloseReason::Certificate.as_str(), "certificate");
/// assert_eq!(CloseReason::ALL.len(), 10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The other side went, or the network between.
    Ended,
    /// It has no certificate of our authority, or speaks no TLS as we do.
    Certificate,
    /// No version of the protocol in common.
    Version,
    /// A node of another cluster.
    Cluster,
    /// Another node than the one that was called, or another start of it.
    Node,
    /// A frame longer than 8 MiB.
    TooLong,
    /// A frame that no version of ours writes.
    Malformed,
    /// Nothing came for too long.
    Silent,
    /// There are too many connections.
    TooMany,
    /// Without TLS only addresses of loopback are called.
    NotLoopback,
}

impl CloseReason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ended,
        Self::Certificate,
        Self::Version,
        Self::Cluster,
        Self::Node,
        Self::TooLong,
        Self::Malformed,
        Self::Silent,
        Self::TooMany,
        Self::NotLoopback,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Certificate => "certificate",
            Self::Version => "version",
            Self::Cluster => "cluster",
            Self::Node => "node",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Silent => "silent",
            Self::TooMany => "too_many",
            Self::NotLoopback => "not_loopback",
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was counted since the start, and what there is now.
///
/// ```
/// use countwheel_peers::{CloseReason, PeerCounts};
///
/// let counts = PeerCounts::default();
/// assert_eq!((counts.frames_sent, counts.closed(CloseReason::Silent)), (0, 0));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PeerCounts {
    /// Frames of questions and answers that left.
    pub frames_sent: u64,
    /// Frames of questions and answers that came.
    pub frames_received: u64,
    /// Questions that were sent to an owner; a batch is one.
    pub asked: u64,
    /// Questions of others.
    pub answered: u64,
    /// How often a question was held, since its shard had no owner that took it.
    pub held: u64,
    /// Questions that ended as `ShardUnavailable`.
    pub unavailable: u64,
    /// Questions that ended as `Unknown` here.
    pub unknown: u64,
    /// Answers for which nobody waited any more.
    pub late: u64,
    /// Questions of others that would have needed a third hop.
    pub hops_refused: u64,
    /// Connections that were closed or did not come to be, in the order of [`CloseReason::ALL`].
    pub closed: [u64; CloseReason::ALL.len()],
    /// Peers with a connection that questions go to.
    pub connected: u64,
    /// Requests that wait for a peer, an owner or an answer now.
    pub waiting: u64,
    /// How long they are as they are written.
    pub waiting_bytes: u64,
}

impl PeerCounts {
    /// How many connections were closed for this reason.
    #[must_use]
    pub fn closed(&self, reason: CloseReason) -> u64 {
        let place = CloseReason::ALL.iter().position(|&one| one == reason);
        place.map_or(0, |place| self.closed[place])
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) frames_sent: Counter,
    pub(crate) frames_received: Counter,
    pub(crate) asked: Counter,
    pub(crate) answered: Counter,
    pub(crate) held: Counter,
    pub(crate) unavailable: Counter,
    pub(crate) unknown: Counter,
    pub(crate) late: Counter,
    pub(crate) hops_refused: Counter,
    closed: [Counter; CloseReason::ALL.len()],
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub(crate) fn close(&self, reason: CloseReason) {
        if let Some(place) = CloseReason::ALL.iter().position(|&one| one == reason) {
            self.closed[place].add(1);
        }
    }

    pub(crate) fn read(&self) -> PeerCounts {
        PeerCounts {
            frames_sent: self.frames_sent.get(),
            frames_received: self.frames_received.get(),
            asked: self.asked.get(),
            answered: self.answered.get(),
            held: self.held.get(),
            unavailable: self.unavailable.get(),
            unknown: self.unknown.get(),
            late: self.late.get(),
            hops_refused: self.hops_refused.get(),
            closed: std::array::from_fn(|place| self.closed[place].get()),
            connected: 0,
            waiting: 0,
            waiting_bytes: 0,
        }
    }
}
