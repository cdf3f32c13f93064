//! `countwheel list`.

use countwheel_durable::StateKind;
use countwheel_time::{Clock, Timestamp};

use super::arguments::time;
use super::connection::Connection;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Filter, ListOf, ListOrder, Listing, Timer, one_line};

/// The longest page that the server gives.
const PAGE: u32 = 1_000;
/// How many characters of the first line of a body the table has.
const BODY_SHOWN: usize = 80;

/// The orders of lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Order {
    /// By due time
    Due,
    /// By the time of the set, the oldest first
    Created,
    /// The dead first, then those with the most failures
    Trouble,
}

impl From<Order> for ListOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Due => Self::Due,
            Order::Created => Self::Created,
            Order::Trouble => Self::Trouble,
        }
    }
}

/// What is shown of each timer beside the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Include {
    /// When the next attempt would come, and how many more after it, if each failed at once
    NextAttempts,
}

/// `countwheel list`.
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    /// Only those in this state: pending, delivering, done, dead
    #[arg(long)]
    state: Option<StateKind>,
    /// Only those whose key begins so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those due then or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_after: Option<Timestamp>,
    /// Only those due earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_before: Option<Timestamp>,
    /// Only those with this tag; said more than once, with all of them
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// In which order
    #[arg(long, value_enum, default_value_t = Order::Due)]
    order: Order,
    /// Show more of each timer
    #[arg(long, value_enum, value_name = "WHAT")]
    include: Vec<Include>,
    /// Show the body of each timer: its first line, and with --json all of it
    #[arg(long)]
    body: bool,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All there are
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Those of all queues
    #[arg(long)]
    all_queues: bool,
    /// Those of all queues whose name begins so
    #[arg(long, value_name = "PREFIX")]
    queue_prefix: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl List {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let filter = Filter {
            state: self.state,
            prefix: self.prefix.clone(),
            due_after: self.due_after,
            due_before: self.due_before,
            tags: self.tags.clone(),
        };
        let mut left = if self.all { u32::MAX } else { self.limit };
        let (mut cursor, mut unreadable) = (None, 0);
        let is_of_all = self.all_queues || self.queue_prefix.is_some();
        let of = match is_of_all {
            true => ListOf::All {
                queue_prefix: self.queue_prefix.as_deref(),
            },
            false => ListOf::Queue(&self.connection.queue),
        };
        let listing = Listing {
            order: self.order.into(),
            next_attempts: self.include.contains(&Include::NextAttempts),
            bodies: self.body,
        };
        let mut table = Table::new(header(listing));
        while left > 0 {
            let (limit, after) = (left.min(PAGE), cursor.as_deref());
            let page = client.list_of(of, &filter, &listing, limit, after).await?;
            let page = page.value;
            if self.connection.json {
                for item in &page.items {
                    writeln!(terminal.out, "{}", one_line(item))?;
                }
            } else {
                let now = terminal.clock.timestamp();
                for timer in page.timers()? {
                    table.push(row(&timer, now, is_of_all, listing));
                }
                table.write(terminal.out)?;
            }
            unreadable += page.unreadable;
            let shown = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
            left = if self.all {
                left
            } else {
                left.saturating_sub(shown)
            };
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if unreadable > 0 {
            writeln!(terminal.err, "{unreadable} timers cannot be read")?;
        }
        if cursor.is_none() {
            return Ok(Exit::Done);
        }
        if !self.connection.json {
            writeln!(terminal.err, "there may be more: --all shows them")?;
        }
        Ok(Exit::Done)
    }
}

/// What is shown beside the columns that are always there, in order.
fn more<T: Default, const N: usize>(columns: [(bool, T); N]) -> [T; N] {
    let mut asked = columns.into_iter().filter(|(is_asked, _)| *is_asked);
    std::array::from_fn(|_| asked.next().map_or_else(T::default, |(_, text)| text))
}

fn header(listing: Listing) -> [&'static str; 8] {
    let [first, second] = more([
        (listing.next_attempts, "NEXT ATTEMPT"),
        (listing.bodies, "BODY"),
    ]);
    [
        "KEY",
        "STATE",
        "DUE (UTC)",
        "FROM NOW",
        "ATTEMPT>",
        "REV>",
        first,
        second,
    ]
}

/// Of several queues, the name of the timer is its queue and its key.
fn row(timer: &Timer, now: Timestamp, has_queue: bool, listing: Listing) -> [String; 8] {
    let name = match has_queue {
        true => format!("{}/{}", timer.queue, timer.key),
        false => timer.key.clone(),
    };
    let [first, second] = more([
        (listing.next_attempts, next_attempt(timer)),
        (listing.bodies, body(timer)),
    ]);
    [
        name,
        timer.state.to_string(),
        text::moment(timer.due),
        text::from_now(timer.due, now),
        timer.attempt.to_string(),
        timer.revision.to_string(),
        first,
        second,
    ]
}

/// The next attempt, and how many are known behind it.
fn next_attempt(timer: &Timer) -> String {
    let Some((next, more)) = timer.next_attempts.split_first() else {
        return "none".to_owned();
    };
    match more.len() {
        0 => text::moment(next.at),
        more => format!("{} and {more} more", text::moment(next.at)),
    }
}

/// The first line of a body. The terminal shows what cannot be seen, and what would act on it, in an escaped form.
fn body(timer: &Timer) -> String {
    match (&timer.body, &timer.body_base64) {
        (Some(body), _) => {
            let first = body.lines().next().unwrap_or_default();
            let shown: String = first.chars().take(BODY_SHOWN).collect();
            let is_all = shown.len() == body.trim_end().len();
            format!("{shown}{}", if is_all { "" } else { " …" })
        }
        (None, Some(_)) => format!(
            "{}, no text",
            text::count(timer.body_bytes, "byte", "bytes")
        ),
        (None, None) => "empty".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn timer(more: &Value) -> Timer {
        let mut timer = json!({
            "queue": "q", "key": "k", "id": "1", "revision": 3, "state": "pending",
            "created": "2026-03-01T12:00:00Z", "due": "2026-03-01T12:00:00Z", "target": {},
        });
        let fields = timer.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        serde_json::from_value(timer).unwrap()
    }

    #[test]
    fn a_body_is_its_first_line_and_says_what_is_left_out() {
        for (more, shown) in [
            (json!({"body": "one"}), "one"),
            (json!({"body": "one\n"}), "one"),
            (json!({"body": "one\ntwo"}), "one …"),
            (
                json!({"body_base64": "gA==", "body_bytes": 1}),
                "1 byte, no text",
            ),
            (json!({}), "empty"),
        ] {
            assert_eq!(body(&timer(&more)), shown, "{more}");
        }
        let long = "ä".repeat(BODY_SHOWN + 1);
        let shown = format!("{} …", "ä".repeat(BODY_SHOWN));
        assert_eq!(body(&timer(&json!({"body": long}))), shown);
    }

    #[test]
    fn columns_that_are_asked_for_are_behind_the_others() {
        let listing = |next_attempts, bodies| Listing {
            next_attempts,
            bodies,
            ..Listing::default()
        };
        let last = |listing| header(listing)[6..].to_vec();
        assert_eq!(last(listing(false, false)), ["", ""]);
        assert_eq!(last(listing(false, true)), ["BODY", ""]);
        assert_eq!(last(listing(true, true)), ["NEXT ATTEMPT", "BODY"]);
        let next = json!({"next_attempts": [
            {"attempt": 1, "at": "2026-03-01T12:00:00Z"}, {"attempt": 2, "at": "2026-03-01T12:00:10Z"},
        ]});
        let row = row(&timer(&next), Timestamp::EPOCH, true, listing(true, false));
        assert_eq!(row[0], "q/k");
        assert!(row[6].ends_with(" and 1 more"), "{row:?}");
    }
}
