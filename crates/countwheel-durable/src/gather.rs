//! The time for which a scheduler waits for the next requests before it commits the present ones.
//!
//! Callers that wait for their answers send the next request soon after. Without a pause they fall
//! into two groups: the scheduler commits one while it answers the other, so each sync serves half
//! of the callers. PostgreSQL's `commit_delay` is such a pause. Here the pause ends as soon as as
//! many requests are there as were under way before. Each pause in vain makes the scheduler skip
//! the pause for longer.

use std::time::Duration;

use countwheel_time::Clock;

/// No pause is longer, however slow the disk is.
const PAUSE_MAX: Duration = Duration::from_micros(500);
/// After pauses in vain so many turns have none: 1, 2, 4, 8, and so on.
const LEFT_OUT_MAX: u32 = 4_096;
/// A pause ends after so many looks.
const YIELDS_MAX: u32 = 1_024;

/// What is known of the requests of the last turns. See the module.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// How many turns have no pause from now on.
    left_out: u32,
    /// How many will have none after the next pause in vain.
    in_vain: u32,
}

/// A pause before a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// It ends once so many requests are there.
    pub(crate) requests: usize,
    /// Or after so long.
    pub(crate) at_most: Duration,
}

impl Pause {
    /// Waits until `ended` says how it ended, which is the result, or until the time is up: then it was
    /// in vain.
    pub(crate) fn wait(self, clock: &dyn Clock, ended: impl Fn() -> Option<bool>) -> bool {
        let until = clock.now() + self.at_most;
        // A clock that stands still must not keep it here.
        for _ in 0..YIELDS_MAX {
            if let Some(is_full) = ended() {
                return is_full;
            }
            if clock.now() >= until {
                break;
            }
            // To sleep takes longer than the pause may.
            std::thread::yield_now();
        }
        false
    }
}

impl Gather {
    /// The pause after a turn that took `lasted` and answered so many requests, while as many as
    /// `arrived` came in.
    pub(crate) fn pause(
        &mut self,
        lasted: Duration,
        answered: usize,
        arrived: usize,
    ) -> Option<Pause> {
        if answered == 0 {
            return None;
        }
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        // A pause holds up the requests that are there: so the rate falls by a third at most, for
        // as long as the pause is in vain. With none there it holds up nobody, and saves a sleep.
        let at_most = if arrived == 0 { lasted } else { lasted / 2 }.min(PAUSE_MAX);
        let requests = answered + arrived;
        (!at_most.is_zero()).then_some(Pause { requests, at_most })
    }

    /// How a pause ended: whether as many requests came as there were before.
    pub(crate) fn ended(&mut self, is_full: bool) {
        if is_full {
            self.in_vain = 0;
            return;
        }
        self.in_vain = (2 * self.in_vain).clamp(1, LEFT_OUT_MAX);
        self.left_out = self.in_vain;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(100);

    #[test]
    fn waits_for_as_many_as_were_under_way() {
        let mut gather = Gather::default();
        for _ in 0..3 {
            let pause = gather.pause(TURN, 8, 8);
            let expected = Pause {
                requests: 16,
                at_most: TURN / 2,
            };
            assert_eq!(pause, Some(expected));
            gather.ended(true);
        }
        let alone = gather.pause(TURN, 1, 0);
        assert_eq!(alone.map(|pause| pause.at_most), Some(TURN));
        let slow = gather.pause(Duration::from_secs(1), 1, 0);
        assert_eq!(slow.map(|pause| pause.at_most), Some(PAUSE_MAX));
    }

    #[test]
    fn is_left_out_for_longer_as_long_as_it_is_in_vain() {
        let mut gather = Gather::default();
        for left_out in [1, 2, 4, 8] {
            assert!(gather.pause(TURN, 1, 0).is_some());
            gather.ended(false);
            for _ in 0..left_out {
                assert_eq!(gather.pause(TURN, 1, 0), None);
            }
        }
        assert!(gather.pause(TURN, 1, 0).is_some());
        gather.ended(true);
        assert!(gather.pause(TURN, 1, 0).is_some());
        gather.ended(false);
        assert_eq!(gather.pause(TURN, 1, 0), None);
        assert!(gather.pause(TURN, 1, 0).is_some());
    }

    #[test]
    fn there_is_none_where_nobody_was_answered_or_time_stands_still() {
        let mut gather = Gather::default();
        assert_eq!(gather.pause(TURN, 0, 5), None);
        assert_eq!(gather.pause(Duration::ZERO, 5, 0), None);
    }
}
