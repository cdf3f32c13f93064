//! What a server has to be like.

use countwheel_durable::store::Durability;

use crate::link::{Link, Sql};
use crate::{PostgresError, PostgresOptions};

/// The oldest server, as `server_version_num` says it.
const OLDEST: i32 = 150_000;

/// Looks whether the server can hold the store, and says what it keeps of what it acknowledges: no less
/// than the options ask for.
pub(crate) fn check(
    link: &mut Link,
    options: &PostgresOptions,
) -> Result<Durability, PostgresError> {
    let ask = Sql {
        name: "checks",
        text: "SELECT current_setting('server_version_num')::int4, \
               current_setting('server_encoding'), pg_is_in_recovery(), \
               current_setting('transaction_read_only'), current_setting('fsync'), \
               current_setting('full_page_writes'), current_setting('synchronous_commit'), \
               current_setting('server_version'), current_setting('synchronous_standby_names')"
            .to_owned(),
    };
    link.open()?;
    let rows = link.query(&ask, &[])?.rows;
    let Some(row) = rows.first() else {
        return Err(PostgresError::Refused {
            reason: "it answers a question about its settings with nothing".to_owned(),
        });
    };
    let text = |column| row.get::<_, &str>(column);
    let unfit = |found: String, remedy| Err(PostgresError::Unfit { found, remedy });
    if row.get::<_, i32>(0) < OLDEST {
        let found = format!("the server is PostgreSQL {}", text(7));
        return unfit(found, "use 15 or later");
    }
    if text(1) != "UTF8" {
        let found = format!("server_encoding is {}", text(1));
        return unfit(found, "make a database with encoding UTF8");
    }
    if row.get(2) {
        let found = "the server is a standby (pg_is_in_recovery)".to_owned();
        return unfit(found, "name the primary");
    }
    if text(3) == "on" {
        let found = "transaction_read_only is on".to_owned();
        return unfit(found, "name the primary, or a user that may write");
    }
    let unsafe_setting = [
        ("fsync", 4, text(4) != "on"),
        ("full_page_writes", 5, text(5) != "on"),
        ("synchronous_commit", 6, matches!(text(6), "off" | "local")),
    ]
    .into_iter()
    .find(|(_, _, is_unsafe)| *is_unsafe);
    if let Some((setting, column, _)) = unsafe_setting {
        if options.accept_loss {
            return Ok(Durability::MayLose);
        }
        return Err(PostgresError::Unsafe {
            setting,
            value: text(column).to_owned(),
            remedy: "set it to on, or accept the loss with --accept-loss",
        });
    }
    if !text(8).is_empty() {
        return Ok(Durability::Standby);
    }
    if options.require_standby {
        return unfit(
            "synchronous_standby_names is empty: nobody but this server has what it acknowledges"
                .to_owned(),
            "name a standby there",
        );
    }
    Ok(if options.managed {
        Durability::Managed
    } else {
        Durability::OneMachine
    })
}

/// Looks whether a pooler gives another session to each transaction: while one session holds a
/// transaction open, the other one would be given another.
pub(crate) fn check_pooler(one: &mut Link, other: &mut Link) -> Result<(), PostgresError> {
    let ask = Sql {
        name: "backend",
        text: "SELECT pg_backend_pid()".to_owned(),
    };
    let pid = |link: &mut Link| -> Result<i32, PostgresError> {
        let rows = link.query(&ask, &[])?.rows;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    };
    let before = pid(one)?;
    other.execute("BEGIN", crate::STEP)?;
    let held = pid(other);
    let after = pid(one);
    other.execute("ROLLBACK", crate::STEP)?;
    if held? == before || after? != before {
        return Err(PostgresError::Unfit {
            found: "a pooler in transaction mode stands before the database".to_owned(),
            remedy: "name the server itself, or a pooler in session mode",
        });
    }
    Ok(())
}
