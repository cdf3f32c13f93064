//! `countwheel queues`.

use super::connection::Connection;
use super::table::Table;
use super::{Exit, Failure, Terminal};
use crate::client::Drain;
use crate::time::format_time;

/// `countwheel queues`.
#[derive(Clone, Debug, clap::Args)]
pub struct Queues {
    #[command(flatten)]
    connection: Connection,
}

impl Queues {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let mut answer = client.queues(None).await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            while let Some(next) = &answer.value.next {
                answer = client.queues(Some(next)).await?;
                writeln!(terminal.out, "{}", answer.json())?;
            }
            return Ok(Exit::Done);
        }
        while let Some(next) = answer.value.next.take() {
            let page = client.queues(Some(&next)).await?.value;
            answer.value.queues.extend(page.queues);
            answer.value.next = page.next;
        }
        let mut table = Table::new(["QUEUE", "PENDING>", "DELIVERING>", "DONE>", "DEAD>"]);
        for queue in &answer.value.queues {
            let counts = [queue.pending, queue.delivering, queue.done, queue.dead];
            let [pending, delivering, done, dead] = counts.map(|n| n.to_string());
            table.push([queue.queue.clone(), pending, delivering, done, dead]);
        }
        table.write(terminal.out)?;
        if let Some(drain) = &answer.value.drain {
            writeln!(terminal.out, "all queues are {}", words(drain))?;
        }
        let queues = answer.value.queues.iter();
        for (queue, drain) in queues.filter_map(|it| Some((&it.queue, it.drain.as_ref()?))) {
            writeln!(terminal.out, "{queue} is {}", words(drain))?;
        }
        let queues = answer.value.queues.iter();
        for (queue, purge) in queues.filter_map(|it| Some((&it.queue, it.purge.as_ref()?))) {
            writeln!(terminal.out, "{queue} {}", super::purge::words(purge))?;
        }
        Ok(Exit::Done)
    }
}

fn words(drain: &Drain) -> String {
    match (&*drain.mode, drain.until) {
        ("pause", None) => "paused".to_owned(),
        ("pause", Some(until)) => format!("paused until {}", format_time(until)),
        (mode, _) => format!("drained ({mode})"),
    }
}
