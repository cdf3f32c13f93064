//! How tables of an earlier version become those of this one.
//!
//! A migration is a list of steps. Each step is one transaction, and can be repeated. The version is
//! written after the last step, so a migration that was interrupted is done again from its beginning.
//! A step waits for a lock for one second, and is tried again: whoever works on the tables is held up for
//! no longer than that. An index is made concurrently, a part of the table at a time.

use std::time::Duration;

use crate::PostgresError;
use crate::link::{Link, Sql};
use crate::schema::{self, Index, LOCK, SchemaName, VERSION};
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
    /// Made before the steps.
    indexes: &'static [Index],
    steps: &'static [&'static str],
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        to: 2,
        indexes: &[],
        steps: schema::SECOND,
    },
    Migration {
        to: 3,
        indexes: &[],
        steps: schema::RING,
    },
    Migration {
        to: 4,
        indexes: schema::QUEUES,
        steps: schema::LISTS,
    },
    Migration {
        to: 5,
        indexes: &[],
        steps: schema::NODES,
    },
    Migration {
        to: 6,
        indexes: &[],
        steps: schema::MOVES,
    },
    Migration {
        to: 7,
        indexes: &[],
        steps: schema::DEAD_WAKE,
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
        let mut steps = indexing(link, schema, migration.indexes)?;
        let texts = migration.steps.iter();
        steps.extend(texts.map(|text| Step::Text((*text).to_owned())));
        let at = if planned.version_first {
            0
        } else {
            steps.len()
        };
        steps.insert(at, Step::Text(version));
        for step in steps {
            if left == 0 {
                link.close();
                return Err(PostgresError::System {
                    reason: "the upgrade was interrupted".to_owned(),
                });
            }
            left -= 1;
            step.make(link, schema)?;
        }
    }
    Ok(found)
}

/// A part of a migration.
enum Step {
    Text(String),
    /// The index of a part of a table.
    Concurrently {
        name: String,
        on: String,
    },
}

/// How indexes are made: first those of the parts, then that of the whole, which the others become parts of.
fn indexing(
    link: &mut Link,
    schema: &SchemaName,
    indexes: &[Index],
) -> Result<Vec<Step>, PostgresError> {
    let mut steps = Vec::new();
    for Index { table, name, of } in indexes {
        let parts = parts(link, schema, table)?;
        steps.extend(parts.iter().map(|part| Step::Concurrently {
            name: format!("{part}_{name}"),
            on: format!("@{part} {of}"),
        }));
        let whole = format!("{table}_{name}");
        steps.push(Step::Text(format!(
            "CREATE INDEX IF NOT EXISTS {whole} ON ONLY @{table} {of}"
        )));
        let attach = |part| format!("ALTER INDEX @{whole} ATTACH PARTITION @{part}_{name}");
        steps.extend(parts.iter().map(attach).map(Step::Text));
    }
    Ok(steps)
}

/// The names of the tables that a table is divided into.
fn parts(link: &mut Link, schema: &SchemaName, table: &str) -> Result<Vec<String>, PostgresError> {
    let parts = Sql {
        name: "parts",
        text: "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
               WHERE i.inhparent = to_regclass($1) ORDER BY 1"
            .to_owned(),
    };
    let table = schema.sql("table", &format!("@{table}")).text;
    let rows = link.query(&parts, &[&table])?.rows;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

impl Step {
    fn make(self, link: &mut Link, schema: &SchemaName) -> Result<(), PostgresError> {
        match self {
            Self::Text(text) => locking(link, &schema.sql("step", &text).text),
            Self::Concurrently { name, on } => concurrently(link, schema, &name, &on),
        }
    }
}

/// Makes an index that nobody waits for. One that was interrupted is there and not valid.
fn concurrently(
    link: &mut Link,
    schema: &SchemaName,
    name: &str,
    on: &str,
) -> Result<(), PostgresError> {
    let valid = Sql {
        name: "valid",
        text: "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)".to_owned(),
    };
    let index = schema.sql("name", &format!("@{name}")).text;
    let rows = link.query(&valid, &[&index])?.rows;
    match rows.first().map(|row| row.get(0)) {
        Some(true) => return Ok(()),
        Some(false) => link.execute_alone(&format!("DROP INDEX CONCURRENTLY {index}"), STEP)?,
        None => {}
    }
    let text = format!("CREATE INDEX CONCURRENTLY {name} ON {on}");
    Ok(link.execute_alone(&schema.sql("index", &text).text, STEP)?)
}

fn locking(link: &mut Link, text: &str) -> Result<(), PostgresError> {
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
