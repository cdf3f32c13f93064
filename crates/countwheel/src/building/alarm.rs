//! One entry in a timer, moved to the earliest of many deadlines.

use std::fmt;
use std::task::Waker;

use crate::concurrent;
use crate::task::Job;
use crate::timer::Rouse;
use crate::{Instant, ScheduleError, Timeout, Timer};

/// One entry in a timer, no later than the earliest of many deadlines, that wakes a waker.
///
/// Who files a deadline does so under a lock of its own, gives the lock up, and then calls
/// [`ring_by`](Self::ring_by). Who is woken calls [`silence`](Self::silence), and then takes out
/// what is due under that same lock. So no deadline is missed. Each call is O(1); a
/// [`Bell`](super::Bell) does all of it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel::building::Alarm;
/// use std::task::Waker;
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let (timer, alarm) = (host.timer(), Alarm::new());
/// let waker = || Waker::noop().clone();
/// let soon = timer.now() + Duration::from_secs(1);
/// alarm.ring_first_by(timer, soon + Duration::from_secs(9), waker)?;
/// alarm.ring_by(timer, soon, waker)?;
/// assert_eq!(timer.pending(), 1, "it was moved");
/// alarm.silence();
/// assert_eq!(timer.pending(), 0);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
pub struct Alarm(concurrent::Alarm<Timeout>);

impl Alarm {
    /// An alarm that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self(concurrent::Alarm::new())
    }

    /// Makes sure that it rings at `due` at the latest, as the continuation of something that was
    /// accepted before: [`max_pending`](crate::TimerBuilder::max_pending) does not apply.
    ///
    /// The host's waker may be woken, and may poll the host right here.
    ///
    /// # Errors
    /// If the timer is closed or its thread cannot be started.
    #[inline]
    pub fn ring_by(
        &self,
        timer: &Timer,
        due: Instant,
        waker: impl FnOnce() -> Waker,
    ) -> Result<(), ScheduleError> {
        let set = |set: Option<&Timeout>| {
            if let Some(rouse) = set.and_then(|timeout| timeout.reschedule_at_quietly(due)) {
                return Ok((None, rouse));
            }
            let (timeout, rouse) = timer.go_on_at_quietly(due, Job::Wake(waker()))?;
            Ok((Some(timeout), rouse))
        };
        let rouse = self.0.ring_by(due, set)?;
        timer.rouse_if(rouse.unwrap_or(Rouse::NO));
        Ok(())
    }

    /// The same for an alarm that was never set, with an entry that counts against
    /// [`max_pending`](crate::TimerBuilder::max_pending): for something new.
    ///
    /// # Errors
    /// Those of [`Timer::schedule`].
    pub fn ring_first_by(
        &self,
        timer: &Timer,
        due: Instant,
        waker: impl FnOnce() -> Waker,
    ) -> Result<(), ScheduleError> {
        let set = |_: Option<&Timeout>| {
            let (timeout, rouse) = timer.at_quietly(due, Job::Wake(waker()))?;
            Ok((Some(timeout), rouse))
        };
        let rouse = self.0.ring_by(due, set)?;
        timer.rouse_if(rouse.unwrap_or(Rouse::NO));
        Ok(())
    }

    /// Takes the entry out of the timer, if there is one: until the next call of
    /// [`ring_by`](Self::ring_by) it does not ring. Also to be called when it rings.
    pub fn silence(&self) {
        if let Some(timeout) = self.0.rang() {
            timeout.cancel();
        }
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}
