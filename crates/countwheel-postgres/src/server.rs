//! What the server says of itself: its version, and the standbys that it waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::Instant;
use parking_lot::Mutex;
use tokio_postgres::Row;

use crate::session::Session;

/// So often it is asked at the most.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// A user without the rights of `pg_read_all_stats` sees that there are standbys, and not which.
pub(crate) const ABOUT: &str = "\
    SELECT current_setting('server_version_num')::int4 / 10000, \
      ARRAY(SELECT application_name FROM pg_stat_replication \
        WHERE sync_state IN ('sync', 'quorum') ORDER BY 1), \
      EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IS NULL)";

/// What a server says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct About {
    pub(crate) major: u32,
    /// None if it does not say it to this user.
    pub(crate) standbys: Option<Vec<String>>,
}

impl About {
    /// Of a row of [`ABOUT`].
    pub(crate) fn of(row: &Row) -> Self {
        let is_hidden: bool = row.get(2);
        Self {
            major: row.get::<_, i32>(0).unsigned_abs(),
            standbys: (!is_hidden).then(|| row.get(1)),
        }
    }
}

/// The server of a store, as it was seen last: at the opening, and while somebody asks whether it can be
/// reached. Clones are the same.
///
/// ```
/// use countwheel_postgres::{PostgresOptions, PostgresStore};
///
/// fn say(store: &PostgresStore) {
///     let server = store.server();
///     println!("{}, with {:?}", server.name(), server.standbys());
/// }
/// # let _ = (say, PostgresOptions::new("postgres://127.0.0.1/timers"));
/// ```
#[derive(Clone, Default)]
pub struct PostgresServer(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    about: About,
    asked: Option<Instant>,
}

impl PostgresServer {
    /// Asks, unless that was a moment ago. Without an answer what was known stays.
    pub(crate) fn look(&self, session: &mut dyn Session, now: Instant) {
        let asked = self.0.lock().asked;
        if asked.is_some_and(|asked| now.saturating_since(asked) < ASKED_EVERY) {
            return;
        }
        let about = session.about();
        let mut seen = self.0.lock();
        seen.asked = Some(now);
        match about {
            Ok(about) => seen.about = about,
            Err(failure) => {
                let reason = failure.reason();
                tracing::debug!(reason, "what the server says of itself is not known");
            }
        }
    }

    /// What it is, with its major version: `postgres-15`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("postgres-{}", self.0.lock().about.major)
    }

    /// The synchronous standbys that are connected, by their names. None if the user may not see them
    /// (`pg_read_all_stats`).
    #[must_use]
    pub fn standbys(&self) -> Option<Vec<String>> {
        self.0.lock().about.standbys.clone()
    }
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
