//! A plain timer of ours for each request, which removes the request from the table.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use countwheel::{Timeout, Timer};
use tokio::sync::oneshot::{Receiver, Sender, channel};

use super::Calls;
use super::table::Table;

#[derive(Clone)]
pub(crate) struct ByHand {
    table: Arc<Table<Entry>>,
    timer: Timer,
}

struct Entry {
    sender: Sender<Option<u64>>,
    timeout: Timeout,
}

pub(crate) struct Answer(Receiver<Option<u64>>);

impl Future for Answer {
    type Output = Option<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        let received = Pin::new(&mut self.0).poll(cx);
        received.map(|answer| answer.ok().flatten())
    }
}

impl Calls for ByHand {
    type Id = u64;
    type Answer = Answer;
    type Entered = ();

    fn start() -> anyhow::Result<Self> {
        Ok(Self {
            table: Arc::new(Table::new()),
            timer: Timer::new(),
        })
    }

    fn enter(&self) {}

    fn register(&self, limit: Duration) -> (u64, Answer) {
        let (sender, receiver) = channel();
        let id = self.table.next_id();
        let table = Arc::clone(&self.table);
        let give_up = move || {
            if let Some(entry) = table.remove(id) {
                // Nobody may be interested any more.
                entry.sender.send(None).unwrap_or_default();
            }
        };
        // Locked first: who fires at once has to find the entry.
        let mut shard = self.table.lock(id);
        let timeout = self.timer.schedule(limit, give_up);
        let timeout = timeout.expect("nobody stops the timer");
        shard.insert(id, Entry { sender, timeout });
        (id, Answer(receiver))
    }

    fn complete(&self, id: u64, value: u64) -> bool {
        let Some(entry) = self.table.remove(id) else {
            return false;
        };
        entry.timeout.cancel();
        entry.sender.send(Some(value)).is_ok()
    }

    fn in_flight(&self) -> u64 {
        self.table.len()
    }
}
