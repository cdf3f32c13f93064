//! The division of the process's open files.
//!
//! The store and the deliveries get their files before callers get any. An idle connection is no
//! caller's only way in, but a table that cannot be opened stops everything.

use std::ffi::OsString;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use countwheel_durable::store::OpenFiles;

/// How many names are looked up at a time.
const LOOKUPS_MAX: usize = 256;
/// What the system's resolver opens for one name.
const FILES_OF_A_LOOKUP: usize = 3;
/// For moments: a connection that comes before the one has gone that makes room for it, a snapshot's
/// copy, a directory that is read.
const SPARE: usize = 6;
/// Of idle connections to targets.
const KEPT_MAX: usize = 512;
/// With fewer for deliveries and callers nothing goes on.
const WORKING_MIN: usize = 4;

/// What the limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// Open for good, but for the store's.
    fixed: usize,
    /// How many attempts run at a time.
    pub(crate) attempts: usize,
    /// Whether connections to targets are kept, and a second address tried beside the first.
    pub(crate) is_ample: bool,
    pub(crate) lookups: usize,
}

/// The limit of open files is too low.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLow {
    pub(crate) limit: usize,
    pub(crate) needed: usize,
}

impl Budget {
    /// Divides `limit` when `open` files are open, those of the store included. `attempts` is how
    /// many were asked for.
    pub(crate) fn of(
        limit: usize,
        open: usize,
        store: OpenFiles,
        attempts: usize,
    ) -> Result<Self, TooLow> {
        let fixed = open.saturating_sub(store.open);
        let taken = fixed + store.open + store.ahead + SPARE;
        let lookups = limit.saturating_sub(taken) / (8 * FILES_OF_A_LOOKUP);
        let lookups = lookups.clamp(1, LOOKUPS_MAX);
        let taken = taken + lookups * FILES_OF_A_LOOKUP;
        if limit < taken + WORKING_MIN {
            let needed = taken + WORKING_MIN;
            return Err(TooLow { limit, needed });
        }
        let left = limit - taken;
        let ample = 2 * attempts + KEPT_MAX;
        let is_ample = left >= 2 * ample;
        Ok(Self {
            limit,
            fixed,
            // Half of what is left, if that is not enough for all.
            attempts: attempts.min(left / 2),
            is_ample,
            lookups,
        })
    }

    /// How many connections to targets are kept while they idle.
    pub(crate) fn kept(&self) -> usize {
        if self.is_ample { KEPT_MAX } else { 0 }
    }

    /// How many connections of callers may be open while the store has and needs as many.
    pub(crate) fn callers(&self, store: OpenFiles) -> usize {
        let deliveries = if self.is_ample {
            2 * self.attempts + KEPT_MAX
        } else {
            self.attempts
        };
        let lookups = self.lookups * FILES_OF_A_LOOKUP;
        let taken = self.fixed + store.open + store.ahead + SPARE + lookups + deliveries;
        // One always: whoever wants to know what is wrong has to get in.
        self.limit.saturating_sub(taken).max(1)
    }
}

/// Raises this process's limit as far as it may, and says what it is.
pub(crate) fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it was");
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files).unwrap_or(usize::MAX)
}

/// How many files a store in this directory will need, as far as its names say.
pub(crate) fn of_store(data: &Path) -> OpenFiles {
    /// The log, directories, locks, and what an ingest makes.
    const OTHERS: usize = 18;

    let tables = std::fs::read_dir(data.join("tables")).into_iter().flatten();
    let is_table = |name: OsString| name.to_string_lossy().starts_with("table-");
    let tables = tables.flatten().filter(|file| is_table(file.file_name()));
    OpenFiles {
        open: 0,
        ahead: 2 * tables.count() + OTHERS,
    }
}

/// How many files this process has open.
pub(crate) fn open(store: OpenFiles) -> usize {
    /// Where the system does not say: streams, the runtime's, signals, the listener.
    const OTHERS: usize = 16;

    match std::fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is read.
        Ok(open) => open.count().saturating_sub(1),
        Err(_) => OTHERS + store.open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(open: usize, ahead: usize) -> OpenFiles {
        OpenFiles { open, ahead }
    }

    #[test]
    fn what_is_set_aside_and_what_is_given_never_pass_the_limit() {
        for limit in (20..200).chain([1_024, 4_096, 1 << 20]) {
            for tables in [0, 1, 10, 50] {
                let store = files(6 + tables, 16 + tables);
                let open = 14 + store.open;
                let Ok(budget) = Budget::of(limit, open, store, 256) else {
                    assert!(limit < 60 + 2 * tables, "{limit} {tables}");
                    continue;
                };
                let callers = budget.callers(store);
                assert!(budget.attempts >= 2 && callers >= 2 && budget.lookups >= 1);
                let all = open + store.ahead + SPARE + 3 * budget.lookups;
                assert!(
                    all + budget.attempts + callers <= limit,
                    "{limit}: {budget:?}"
                );
                // As tables are added, callers make room for them.
                let more = files(store.open + 2, store.ahead);
                assert!(budget.callers(more) <= callers);
            }
        }
    }

    #[test]
    fn with_enough_files_everything_is_as_asked_for() {
        let budget = Budget::of(1 << 20, 20, files(6, 16), 256).unwrap();
        assert_eq!((budget.attempts, budget.lookups), (256, LOOKUPS_MAX));
        assert!(budget.is_ample);
        assert!(budget.callers(files(6, 16)) > 1 << 19);
    }

    #[test]
    fn a_limit_that_is_too_low_says_how_many_are_needed() {
        let refused = Budget::of(32, 20, files(6, 16), 256).unwrap_err();
        assert_eq!(refused.limit, 32);
        let enough = Budget::of(refused.needed, 20, files(6, 16), 256);
        assert!(enough.is_ok(), "{refused:?}");
        assert!(Budget::of(refused.needed - 1, 20, files(6, 16), 256).is_err());
    }
}
