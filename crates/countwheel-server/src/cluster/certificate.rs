//! The certificate that this node shows to others, while its files change.

use std::fmt;
use std::time::Duration;

use countwheel_durable::{Trouble, TroubleReason};
use countwheel_peers::PeerTls;
use countwheel_time::Timestamp;
use parking_lot::Mutex;

/// The certificate, and the host under which others call this node.
pub(crate) struct Certificate {
    tls: PeerTls,
    host: String,
    /// For how long it was good at which time.
    left: Mutex<(Timestamp, Duration)>,
}

impl Certificate {
    pub(crate) fn new(tls: PeerTls, host: String, now: Timestamp) -> Self {
        let left = tls.good_for_another(&host, now);
        Self {
            tls,
            host,
            left: Mutex::new((now, left)),
        }
    }

    /// Reads its files if they have changed. Blocks.
    pub(crate) fn look(&self, now: Timestamp) {
        self.tls.look(&self.host, now);
        *self.left.lock() = (now, self.tls.good_for_another(&self.host, now));
    }

    /// For how long others will take it, as of the last look.
    pub(crate) fn left(&self) -> Duration {
        self.left.lock().1
    }

    /// What is wrong with it, while everything goes on.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let (now, left) = *self.left.lock();
        let problem = self.tls.problem().or_else(|| {
            let is_over = left.is_zero();
            is_over.then(|| format!("other nodes do not take it since {now}, or before"))
        });
        problem.map(|problem| Trouble::new(TroubleReason::PeerCertificate, None, problem))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
