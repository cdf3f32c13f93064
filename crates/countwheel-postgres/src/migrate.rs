//! How tables of an earlier version become those of this one.
//!
//! A migration is a list of steps. Each step is one transaction, and can be repeated. The version is
//! written after the last step, so a migration that was interrupted is done again from its beginning.
//! A step waits for a lock for one second, and is tried again: whoever works on the tables is held up for
//! no longer than that.

use std::time::Duration;

use crate::PostgresError;
use crate::link::{Link, Sql};
use crate::schema::{self, LOCK, SchemaName, VERSION};
use crate::session::Failure;

/// How long a step waits for a lock.
const LOCK_WITHIN: &str = "SET LOCAL lock_timeout = '1s'";
/// So often a step is tried that gets no lock, with a pause between.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(200);
/// How long a step may take.
const STEP: Duration = Duration::from_secs(600);

/// What makes tables of a version out of those of the version before, `@` for the schema and a dot.
struct Migration {
    to: u32,
    steps: &'static [&'static str],
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        to: 2,
        steps: schema::SECOND,
    },
    Migration {
        to: 3,
        steps: schema::RING,
    },
];

/// What to do of a migration, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// The connection ends before the step of that number.
    pub(crate) steps: usize,
    /// The version is written before the steps: a mistake.
    pub(crate) version_first: bool,
}

impl Planned {
    /// All, and in order.
    pub(crate) const WHOLE: Self = Self {
        steps: usize::MAX,
        version_first: false,
    };
}

/// Upgrades the tables. Says of which version they were.
pub(crate) fn upgrade(
    link: &mut Link,
    schema: &SchemaName,
    planned: Planned,
) -> Result<u32, PostgresError> {
    let lock = Sql {
        name: "lock",
        text: format!("SELECT pg_try_advisory_lock({LOCK})"),
    };
    // Until the connection ends.
    let locked = link.query(&lock, &[])?.rows;
    if locked.first().is_none_or(|row| !row.get::<_, bool>(0)) {
        return Err(PostgresError::Unfit {
            found: "another program makes or upgrades tables here".to_owned(),
            remedy: "wait until it has ended",
        });
    }
    let found = schema::version(link, schema)?;
    if found > VERSION {
        return Err(schema::later(schema, found));
    }
    let mut left = planned.steps;
    for migration in MIGRATIONS.iter().filter(|it| it.to > found) {
        let version = format!(
            "UPDATE @meta SET schema_version = {to} WHERE schema_version < {to}",
            to = migration.to
        );
        let mut steps = migration.steps.to_vec();
        let at = if planned.version_first {
            0
        } else {
            steps.len()
        };
        steps.insert(at, &version);
        for text in steps {
            if left == 0 {
                link.close();
                return Err(PostgresError::System {
                    reason: "the upgrade was interrupted".to_owned(),
                });
            }
            left -= 1;
            step(link, &schema.sql("step", text).text)?;
        }
    }
    Ok(found)
}

fn step(link: &mut Link, text: &str) -> Result<(), PostgresError> {
    // Statements that are sent together are one transaction.
    let text = format!("{LOCK_WITHIN}; {text}");
    for tried in 1.. {
        match link.execute(&text, STEP) {
            Err(Failure::Refused(refusal)) => {
                if !refusal.has_no_lock() || tried >= TRIES {
                    return Err(Failure::Refused(refusal).into());
                }
            }
            done => return Ok(done?),
        }
        link.pause(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_migration() {
        let to: Vec<_> = MIGRATIONS.iter().map(|it| it.to).collect();
        assert_eq!(to, (2..=VERSION).collect::<Vec<_>>());
    }
}
