//! `countwheel remove`.

use countwheel_time::{Clock, Timestamp};

use super::arguments::IfRevision;
use super::connection::Connection;
use super::{Exit, Failure, Terminal, text};
use crate::client::TimerRemoved;

/// `countwheel remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// The timer's key
    key: String,
    /// Only if it is pending
    #[arg(long)]
    only_pending: bool,
    #[command(flatten)]
    if_revision: IfRevision,
    #[command(flatten)]
    connection: Connection,
}

impl Remove {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let (queue, precondition) = (&self.connection.queue, self.if_revision.precondition());
        let answer = client
            .remove(queue, &self.key, self.only_pending, precondition)
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            let was = was(&answer.value, terminal.clock.timestamp());
            writeln!(terminal.out, "removed {} ({was})", self.key)?;
        }
        Ok(Exit::Done)
    }
}

fn was(removed: &TimerRemoved, now: Timestamp) -> String {
    let Some(state) = removed.was else {
        return "could not be read".to_owned();
    };
    match (removed.due, removed.attempt) {
        (Some(due), _) => format!("was {state}, due {}", text::from_now(due, now)),
        (None, Some(attempt)) => format!("was {state}, attempt {attempt} may still arrive"),
        (None, None) => format!("was {state}"),
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::StateKind;

    use super::*;

    #[test]
    fn what_the_timer_was_doing_is_told() {
        let now = Timestamp::from_micros(1_000_000);
        let removed = |state, due, attempt| {
            let was_doing = TimerRemoved {
                was: Some(state),
                due,
                attempt,
            };
            was(&was_doing, now)
        };
        let due = Timestamp::from_micros(59_200_000);
        assert_eq!(
            removed(StateKind::Pending, Some(due), None),
            "was pending, due in 58.2 s"
        );
        assert_eq!(
            removed(StateKind::Delivering, None, Some(2)),
            "was delivering, attempt 2 may still arrive"
        );
        assert_eq!(removed(StateKind::Dead, None, None), "was dead");
        let unreadable: TimerRemoved = serde_json::from_str(r#"{"was": "unreadable"}"#).unwrap();
        assert_eq!(was(&unreadable, now), "could not be read");
    }
}
