//! `countwheel audit`.

use countwheel_time::Timestamp;

use super::arguments::time;
use super::endpoint::Asked;
use super::table::Table;
use super::text::moment;
use super::{Exit, Failure, Terminal};
use crate::client::{AuditEntry, AuditFilter, one_line};

/// The longest page that the server gives.
const PAGE: u32 = 1_000;

/// `countwheel audit`.
#[derive(Clone, Debug, clap::Args)]
pub struct Audit {
    /// Only what was changed then or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only what was changed earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Only what the token with this id or name has changed, or this kind of caller: configured, anyone, service
    #[arg(long, value_name = "WHO")]
    who: Option<String>,
    /// Only this operation, such as putQueue
    #[arg(long, value_name = "OPERATION")]
    operation: Option<String>,
    /// The oldest first
    #[arg(long)]
    oldest: bool,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    asked: Asked,
}

impl Audit {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.asked.service.client()?;
        let filter = AuditFilter {
            since: self.since,
            until: self.until,
            who: self.who.clone(),
            operation: self.operation.clone(),
            oldest_first: self.oldest,
        };
        let (mut left, mut cursor, mut unreadable) = (self.limit, None, 0);
        let mut table = Table::new(["WHEN (UTC)", "WHO", "FROM", "OPERATION", "WHAT", "CHANGE"]);
        while left > 0 {
            let (limit, after) = (left.min(PAGE), cursor.as_deref());
            let page = client.audit(&filter, limit, after).await?.value;
            if self.asked.json {
                for item in &page.items {
                    writeln!(terminal.out, "{}", one_line(item))?;
                }
            } else {
                for entry in page.entries()? {
                    table.push(row(&entry));
                }
                table.write(terminal.out)?;
            }
            unreadable += page.unreadable;
            left = left.saturating_sub(u32::try_from(page.items.len()).unwrap_or(u32::MAX));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if unreadable > 0 {
            writeln!(terminal.err, "{unreadable} entries cannot be read")?;
        }
        if cursor.is_some() && !self.asked.json {
            writeln!(terminal.err, "there may be more: --limit shows them")?;
        }
        Ok(Exit::Done)
    }
}

fn row(entry: &AuditEntry) -> [String; 6] {
    [
        moment(entry.at),
        entry.who.shown(),
        entry.from.clone().unwrap_or_default(),
        entry.operation.clone().unwrap_or_default(),
        entry.about(),
        change(entry),
    ]
}

/// The fields of a setting that changed, or how a timer stood.
fn change(entry: &AuditEntry) -> String {
    if !entry.fields.is_empty() {
        let fields = entry.fields.iter().map(|field| field.field.as_str());
        return fields.collect::<Vec<_>>().join(", ");
    }
    let state = |stood: &Option<serde_json::Value>| match stood {
        None => "nothing".to_owned(),
        Some(stood) => match stood["state"].as_str() {
            Some(state) => state.to_owned(),
            None => format!("revision {}", stood["revision"]),
        },
    };
    format!("{} to {}", state(&entry.before), state(&entry.after))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(more: &Value) -> AuditEntry {
        let mut entry = json!({
            "id": "1-2", "at": "2026-03-01T12:00:00Z", "kept_until": "2026-06-01T12:00:00Z",
            "who": {"kind": "anyone"}, "before": null, "after": null,
        });
        let fields = entry.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn a_change_is_the_fields_of_a_setting_or_the_states_of_a_timer() {
        let fields = json!({"setting": "queue/q", "fields": [{"field": "rate"}, {"field": "mode", "after": "pull"}]});
        let fired = json!({
            "queue": "q", "key": "k", "before": {"state": "dead"}, "after": {"state": "pending"},
        });
        let made = json!({"setting": "drain/q", "after": {"revision": 7}});
        for (more, about, shown) in [
            (fields, "queue/q", "rate, mode"),
            (fired, "q/k", "dead to pending"),
            (made, "drain/q", "nothing to revision 7"),
        ] {
            let entry = entry(&more);
            assert_eq!((&*entry.about(), &*change(&entry)), (about, shown));
        }
    }
}
