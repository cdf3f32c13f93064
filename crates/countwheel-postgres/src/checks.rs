//! What a server has to be like.

use crate::PostgresError;
use crate::link::{Link, Sql};

/// The oldest server, as `server_version_num` says it.
const OLDEST: i32 = 150_000;

/// Looks whether the server keeps what it acknowledges. With `accept_loss`, only whether it can hold
/// the store.
pub(crate) fn check(link: &mut Link, accept_loss: bool) -> Result<(), PostgresError> {
    let ask = Sql {
        name: "checks",
        text: "SELECT current_setting('server_version_num')::int4, \
               current_setting('server_encoding'), pg_is_in_recovery(), \
               current_setting('transaction_read_only'), current_setting('fsync'), \
               current_setting('full_page_writes'), current_setting('synchronous_commit'), \
               current_setting('server_version')"
            .to_owned(),
    };
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
    if accept_loss {
        return Ok(());
    }
    let refuse = |setting, column, remedy| {
        let value = text(column).to_owned();
        Err(PostgresError::Unsafe {
            setting,
            value,
            remedy,
        })
    };
    let set_on = "set it to on, or accept the loss with --accept-loss";
    if text(4) != "on" {
        return refuse("fsync", 4, set_on);
    }
    if text(5) != "on" {
        return refuse("full_page_writes", 5, set_on);
    }
    if matches!(text(6), "off" | "local") {
        return refuse("synchronous_commit", 6, set_on);
    }
    Ok(())
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
