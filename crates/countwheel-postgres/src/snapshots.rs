//! Who keeps a snapshot of the database: the server removes no version of a row that the oldest may see.

use std::time::Duration;

use countwheel_durable::{Trouble, TroubleReason};
use countwheel_time::Instant;
use parking_lot::Mutex;
use tokio_postgres::Row;

use crate::session::Session;

/// So often the server is asked at the most.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// Everybody sees who keeps a snapshot, and from which transaction on. A user without the rights of
/// `pg_read_all_stats` does not see since when, of the sessions of others; nobody sees it of a
/// replication slot and of a standby. A vacuum keeps back no other.
pub(crate) const HOLDERS: &str = "\
    WITH h AS ( \
      SELECT 'session ' || a.pid || coalesce(' of ' || a.usename, '') AS who, \
        a.xact_start AS since, coalesce(a.backend_xmin, a.backend_xid) AS xid \
      FROM pg_stat_activity a \
      WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid() \
        AND (a.datid IS NULL OR a.datname = current_database()) \
        AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid) \
      UNION ALL SELECT 'prepared transaction ' || gid, prepared, transaction \
      FROM pg_prepared_xacts WHERE database = current_database() \
      UNION ALL SELECT 'replication slot ' || slot_name, NULL, xmin \
      FROM pg_replication_slots WHERE xmin IS NOT NULL) \
    SELECT who, extract(epoch FROM clock_timestamp() - since)::float8, xid::text FROM ( \
      (SELECT * FROM h WHERE since IS NOT NULL ORDER BY since LIMIT 1) UNION ALL \
      (SELECT * FROM h WHERE since IS NULL ORDER BY age(xid) DESC LIMIT 1)) AS oldest";

/// One who keeps a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) who: String,
    /// How long the transaction lasts, if the server says it.
    pub(crate) age: Option<Duration>,
    /// The first transaction of which the snapshot may not see the end.
    pub(crate) transaction: String,
}

impl Holder {
    /// Of a row of [`HOLDERS`].
    pub(crate) fn of(row: &Row) -> Self {
        let age: Option<f64> = row.get(1);
        Self {
            who: row.get(0),
            age: age.map(|age| Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default()),
            transaction: row.get(2),
        }
    }
}

/// What is known of the oldest snapshot.
pub(crate) struct Snapshots {
    /// How old one may be.
    within: Duration,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    asked: Option<Instant>,
    /// One whose age is not said, and since when it is known.
    ageless: Option<(Holder, Instant)>,
    oldest: Option<Oldest>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Oldest {
    who: String,
    age: Duration,
    /// Whether the age is counted from when this process noticed it.
    is_counted: bool,
}

impl Snapshots {
    pub(crate) fn new(within: Duration) -> Self {
        Self {
            within,
            seen: Mutex::default(),
        }
    }

    /// Asks the server, unless it was asked a moment ago. Without an answer what was known stays.
    pub(crate) fn look(&self, session: &mut dyn Session, now: Instant) {
        let asked = self.seen.lock().asked;
        if asked.is_some_and(|asked| now.saturating_since(asked) < ASKED_EVERY) {
            return;
        }
        match session.snapshots() {
            Ok(holders) => self.note(holders, now),
            Err(failure) => {
                self.seen.lock().asked = Some(now);
                tracing::debug!(
                    reason = failure.reason(),
                    "who keeps a snapshot is not known"
                );
            }
        }
    }

    fn note(&self, holders: Vec<Holder>, now: Instant) {
        let mut seen = self.seen.lock();
        let before = self.too_old(&seen);
        let mut oldest = Oldest {
            who: String::new(),
            age: Duration::ZERO,
            is_counted: false,
        };
        let mut ageless = None;
        for holder in holders {
            let (age, is_counted) = match (holder.age, &seen.ageless) {
                (Some(age), _) => (age, false),
                (None, Some((known, since))) if *known == holder => {
                    ageless = Some((holder.clone(), *since));
                    (now.saturating_since(*since), true)
                }
                (None, _) => {
                    ageless = Some((holder.clone(), now));
                    (Duration::ZERO, true)
                }
            };
            if age >= oldest.age {
                let who = holder.who;
                oldest = Oldest {
                    who,
                    age,
                    is_counted,
                };
            }
        }
        seen.asked = Some(now);
        seen.ageless = ageless;
        seen.oldest = Some(oldest);
        let after = self.too_old(&seen);
        match (&before, &after) {
            (_, Some(detail)) if before != after => tracing::warn!("{detail}"),
            (Some(_), None) => tracing::info!("the old snapshot of the database is gone"),
            _ => {}
        }
    }

    /// How old the oldest was when the server was asked last.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.seen.lock().oldest.as_ref().map(|oldest| oldest.age)
    }

    /// That it is too old. The text stays the same as it grows older.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let detail = self.too_old(&self.seen.lock())?;
        Some(Trouble::new(TroubleReason::OldSnapshot, None, detail))
    }

    fn too_old(&self, seen: &Seen) -> Option<String> {
        let oldest = seen.oldest.as_ref();
        let oldest = oldest.filter(|oldest| oldest.age > self.within)?;
        let (who, within) = (&oldest.who, self.within.as_secs());
        let counted = match oldest.is_counted {
            true => {
                ", counted from when this process noticed it: the server does not say since when"
            }
            false => "",
        };
        Some(format!(
            "{who} has kept a snapshot of the database for more than {within} s{counted}; until it ends, \
             the server removes no old versions of rows"
        ))
    }
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(who: &str, age: Option<u64>) -> Holder {
        Holder {
            who: who.to_owned(),
            age: age.map(Duration::from_secs),
            transaction: "740".to_owned(),
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_snapshot_that_is_too_old_is_a_trouble_of_one_text_until_it_ends() {
        let snapshots = Snapshots::new(Duration::from_secs(60));
        assert_eq!(snapshots.oldest(), None);
        snapshots.note(vec![holder("session 7", Some(60))], at(0));
        assert_eq!(snapshots.trouble(), None);
        snapshots.note(vec![holder("session 7", Some(61))], at(5));
        let trouble = snapshots.trouble().expect("it is too old");
        let begin = "session 7 has kept a snapshot of the database for more than 60 s; until";
        assert!(trouble.detail.starts_with(begin), "{trouble}");
        snapshots.note(vec![holder("session 7", Some(90))], at(10));
        assert_eq!(snapshots.trouble(), Some(trouble));
        assert_eq!(snapshots.oldest(), Some(Duration::from_secs(90)));
        snapshots.note(Vec::new(), at(15));
        assert_eq!(snapshots.trouble(), None);
        assert_eq!(snapshots.oldest(), Some(Duration::ZERO));
    }

    #[test]
    fn an_age_that_is_not_said_is_counted_while_the_snapshot_is_the_same() {
        let snapshots = Snapshots::new(Duration::from_secs(60));
        let (timed, slot) = (holder("session 7", Some(3)), holder("slot a", None));
        for seconds in [0, 40, 61] {
            snapshots.note(vec![timed.clone(), slot.clone()], at(seconds));
        }
        assert_eq!(snapshots.oldest(), Some(Duration::from_secs(61)));
        let trouble = snapshots.trouble().expect("it is too old");
        assert!(trouble.detail.contains("counted from when"), "{trouble}");
        let mut later = slot;
        later.transaction = "741".to_owned();
        snapshots.note(vec![timed, later], at(70));
        assert_eq!(snapshots.oldest(), Some(Duration::from_secs(3)));
        assert_eq!(snapshots.trouble(), None);
    }
}
