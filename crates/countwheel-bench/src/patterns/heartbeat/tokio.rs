//! A `Sleep` of tokio for each connection.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use anyhow::ensure;
use tokio::runtime::EnterGuard;
use tokio::time::{Instant, Sleep, sleep};

use super::{Board, Heard, Watch};
use crate::threaded::tokio_runtime;

/// Moved whenever its connection is heard of.
pub(crate) struct SleepReset {
    board: &'static Board,
    _entered: EnterGuard<'static>,
}

/// Whoever is woken by a `Sleep` has been silent.
struct Idle {
    number: u32,
    board: &'static Board,
}

impl Wake for Idle {
    fn wake(self: Arc<Self>) {
        self.board.is_idle(self.number);
    }
}

impl Watch for SleepReset {
    type Tag = Sleep;

    fn start(board: &'static Board) -> anyhow::Result<Self> {
        let _entered = tokio_runtime().enter();
        Ok(Self { board, _entered })
    }

    fn watch(&mut self, _number: u32) -> anyhow::Result<Sleep> {
        Ok(sleep(self.board.limit))
    }

    fn settle(&mut self, tag: Pin<&mut Sleep>, number: u32) -> anyhow::Result<()> {
        let board = self.board;
        let waker = Waker::from(Arc::new(Idle { number, board }));
        let polled = tag.poll(&mut Context::from_waker(&waker));
        ensure!(polled.is_pending(), "the limit has passed already");
        Ok(())
    }

    #[inline]
    fn touch(&mut self, tag: Pin<&mut Sleep>) {
        tag.reset(Instant::now() + self.board.limit);
    }
}

/// A task for each connection, which sleeps for what is left.
pub(crate) struct SleepRearmed(&'static Board);

impl Watch for SleepRearmed {
    type Tag = Heard;

    fn start(board: &'static Board) -> anyhow::Result<Self> {
        Ok(Self(board))
    }

    fn watch(&mut self, number: u32) -> anyhow::Result<Heard> {
        let board = self.0;
        let tag = Heard::default();
        board.hear(&tag);
        let heard = Heard::clone(&tag);
        tokio_runtime().spawn(async move {
            loop {
                let left = board.left(&heard);
                if left.is_zero() {
                    return board.is_idle(number);
                }
                sleep(left).await;
            }
        });
        Ok(tag)
    }

    #[inline]
    fn touch(&mut self, tag: Pin<&mut Heard>) {
        self.0.hear(&tag);
    }
}
