//! `countwheel events`: prints what happens, a line for each event.

use std::time::Duration;

use countwheel_time::Clock;
use serde_json::Value;

use super::connection::Service;
use super::{Exit, Failure, Terminal, text};
use crate::client::events::{Event, EventFilter};
use crate::time::parse_time;

/// How long to wait before a server is asked again that is away.
const PAUSE: Duration = Duration::from_secs(1);

/// `countwheel events`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Goes on until it is interrupted. A server that goes away is waited for, and the stream goes on \
                        behind the last event."
)]
pub struct Events {
    /// Only of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only of timers whose key begins so
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Only of these kinds, such as set,done,dead; may be given more than once
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kind: Vec<String>,
    /// Go on behind the event of this id
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print the data of each event, one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Events {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let filter = EventFilter {
            namespace: self.namespace.clone(),
            queue: self.queue.clone(),
            prefix: self.prefix.clone(),
            kinds: self.kind.clone(),
        };
        let mut after = self.after.clone();
        let mut was_there = false;
        loop {
            let ended = match client.listen(&filter, after.as_deref()).await {
                Err(error) if was_there && error.is_outage() => error.to_string(),
                Err(error) => return Err(error.into()),
                Ok(mut stream) => {
                    was_there = true;
                    let ended = loop {
                        match stream.next().await {
                            Ok(Some(event)) => {
                                self.print(&event, terminal)?;
                                terminal.out.flush()?;
                            }
                            Ok(None) => break "the server ended the stream".to_owned(),
                            Err(error) => break error.to_string(),
                        }
                    };
                    after = stream.place().map(str::to_owned).or(after);
                    ended
                }
            };
            writeln!(terminal.err, "countwheel: {ended}; waiting for the server")?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn print(&self, event: &Event, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let (kind, data) = (&event.kind, event.read::<Value>()?);
        if event.is_gap() {
            writeln!(terminal.err, "countwheel: events were missed")?;
        }
        if self.json {
            writeln!(terminal.out, "{data}")?;
        } else if !event.is_gap() {
            let now = terminal.clock.timestamp();
            let at = data["at"].as_str().and_then(parse_time);
            let at = at.map_or(String::new(), |at| text::clock(at, now));
            writeln!(terminal.out, "{at}  {kind:<16}  {}", line(&data))?;
        }
        Ok(())
    }
}

/// Whom an event is about, and what else it says.
fn line(data: &Value) -> String {
    let word = |name: &str| data[name].as_str();
    let subject = match (word("queue"), word("key"), word("endpoint")) {
        (Some(queue), Some(key), _) => format!("{queue}/{key}"),
        (Some(name), None, _) | (None, _, Some(name)) => name.to_owned(),
        (None, ..) => "all queues".to_owned(),
    };
    let mut words = vec![subject];
    if let Some(attempt) = data["attempt"]
        .as_u64()
        .filter(|_| data["result"].is_string())
    {
        words.push(format!("attempt {attempt}"));
    }
    let told = ["result", "detail", "dead_reason"];
    words.extend(told.into_iter().filter_map(word).map(str::to_owned));
    if let Some(late) = data["late_us"].as_u64() {
        words.push(format!("late {}", text::span(Duration::from_micros(late))));
    }
    if let Some(due) = word("due").filter(|_| data["state"] == "pending") {
        words.push(format!("due {due}"));
    }
    if let Some(until) = word("leased_until") {
        words.push(format!("until {until}"));
    }
    if data["removed"] == true {
        words.push("removed".to_owned());
    }
    words.join("  ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_line_says_whom_it_is_about() {
        let ended = json!({
            "kind": "attempt_ended", "queue": "orders", "key": "k", "state": "done", "attempt": 2,
            "result": "done", "detail": "200", "late_us": 1_300,
        });
        assert_eq!(line(&ended), "orders/k  attempt 2  done  200  late 1.3 ms");
        assert_eq!(
            line(&json!({"queue": "orders", "removed": true})),
            "orders  removed"
        );
        assert_eq!(line(&json!({"endpoint": "shop", "removed": false})), "shop");
        assert_eq!(line(&json!({"removed": false})), "all queues");
        let set = json!({"queue": "q", "key": "k", "state": "pending", "due": "2026-03-01T12:00:00.000000Z"});
        assert_eq!(line(&set), "q/k  due 2026-03-01T12:00:00.000000Z");
    }
}
