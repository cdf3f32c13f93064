//! `tokio::time::timeout` around the receiver of a oneshot channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::EnterGuard;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::{Timeout, timeout};

use super::Calls;
use super::table::Table;
use crate::threaded::tokio_runtime;

#[derive(Clone)]
pub(crate) struct Tokio(Arc<Table<Sender<u64>>>);

/// Takes its request out of the table when its time is over.
pub(crate) struct Answer {
    waiting: Pin<Box<Timeout<Receiver<u64>>>>,
    id: u64,
    table: Arc<Table<Sender<u64>>>,
}

impl Future for Answer {
    type Output = Option<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        match self.waiting.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(value)) => Poll::Ready(value.ok()),
            Poll::Ready(Err(_)) => {
                self.table.remove(self.id);
                Poll::Ready(None)
            }
        }
    }
}

impl Calls for Tokio {
    type Id = u64;
    type Answer = Answer;
    type Entered = EnterGuard<'static>;

    fn start() -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Table::new())))
    }

    fn enter(&self) -> Self::Entered {
        tokio_runtime().enter()
    }

    fn register(&self, limit: Duration) -> (u64, Answer) {
        let (sender, receiver) = channel();
        let id = self.0.next_id();
        self.0.lock(id).insert(id, sender);
        let answer = Answer {
            waiting: Box::pin(timeout(limit, receiver)),
            id,
            table: Arc::clone(&self.0),
        };
        (id, answer)
    }

    fn complete(&self, id: u64, value: u64) -> bool {
        let sender = self.0.remove(id);
        sender.is_some_and(|sender| sender.send(value).is_ok())
    }

    fn in_flight(&self) -> u64 {
        self.0.len()
    }
}
