//! A plain timer of ours for each connection.

use std::pin::Pin;

use countwheel::{ScheduleError, Timeout, Timer};

use super::{Board, Heard, Watch};

/// Moved whenever its connection is heard of.
pub(crate) struct Rescheduled {
    timer: Timer,
    board: &'static Board,
}

impl Watch for Rescheduled {
    type Tag = Timeout;

    fn start(board: &'static Board) -> anyhow::Result<Self> {
        let timer = Timer::new();
        Ok(Self { timer, board })
    }

    fn watch(&mut self, number: u32) -> anyhow::Result<Timeout> {
        let board = self.board;
        let timeout = self
            .timer
            .schedule(board.limit, move || board.is_idle(number));
        Ok(timeout?)
    }

    #[inline]
    fn touch(&mut self, tag: Pin<&mut Timeout>) {
        tag.reschedule(self.board.limit);
    }
}

/// Looks at the time its connection was heard of when it fires.
pub(crate) struct Rearmed(&'static Shared);

struct Shared {
    timer: Timer,
    board: &'static Board,
}

impl Watch for Rearmed {
    type Tag = Heard;

    fn start(board: &'static Board) -> anyhow::Result<Self> {
        let timer = Timer::new();
        Ok(Self(Box::leak(Box::new(Shared { timer, board }))))
    }

    fn watch(&mut self, number: u32) -> anyhow::Result<Heard> {
        let heard = Heard::default();
        self.0.board.hear(&heard);
        self.0.look_at(number, Heard::clone(&heard))?;
        Ok(heard)
    }

    #[inline]
    fn touch(&mut self, tag: Pin<&mut Heard>) {
        self.0.board.hear(&tag);
    }
}

impl Shared {
    fn look_at(&'static self, number: u32, heard: Heard) -> Result<(), ScheduleError> {
        let left = self.board.left(&heard);
        if left.is_zero() {
            self.board.is_idle(number);
            return Ok(());
        }
        let again = move || {
            let again = self.look_at(number, heard);
            again.expect("nobody stops the timer");
        };
        self.timer.schedule(left, again).map(drop)
    }
}
