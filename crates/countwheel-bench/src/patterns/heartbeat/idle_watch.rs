//! Our watch for idle connections.

use std::pin::Pin;

use countwheel::Timer;
use countwheel_patterns::{self as pattern, IdleEvent, IdleLimits, Watched};

use super::{Board, Watch};

/// A connection stores when it was heard of; the watch looks at it when its time is over.
pub(crate) struct IdleWatch {
    watch: pattern::IdleWatch<u32>,
    limits: IdleLimits,
}

impl Watch for IdleWatch {
    type Tag = Watched<u32>;

    fn start(board: &'static Board) -> anyhow::Result<Self> {
        let notice = |number: &u32, event: IdleEvent| {
            if event.first {
                board.is_idle(*number);
            }
        };
        Ok(Self {
            watch: pattern::IdleWatch::new(Timer::new(), notice),
            limits: IdleLimits::NONE.reader(board.limit),
        })
    }

    fn watch(&mut self, number: u32) -> anyhow::Result<Watched<u32>> {
        Ok(self.watch.watch(number, self.limits)?)
    }

    #[inline]
    fn touch(&mut self, tag: Pin<&mut Watched<u32>>) {
        tag.read();
    }
}
