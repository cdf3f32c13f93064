//! The host of a simulated timer: its holder moves the clock and runs due tasks.

use std::time::Duration;

use crate::{Clock, Instant, ManualClock, Timer};

/// Drives a [`Timer`] by hand, on a [`ManualClock`]: no thread, no waiting, no luck.
///
/// Only the waiting is simulated. Wheel, order, rounding and accounting are those of a timer
/// with a thread. Tasks run on the thread that calls, inside [`advance`](Self::advance) or
/// [`run_due`](Self::run_due); as with a thread, a panic of theirs is counted in
/// [`Stats::panicked`](crate::Stats) and goes no further, so a test asserts outside.
///
/// ```
/// use countwheel::ManualHost;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let timer = host.timer().clone();
/// let (sender, receiver) = mpsc::channel();
/// for hours in [30, 5, 2] {
///     let sender = sender.clone();
///     let task = move || sender.send(hours).unwrap();
///     timer.schedule(Duration::from_secs(hours * 3600), task)?;
/// }
///
/// assert_eq!(host.advance(Duration::from_secs(24 * 3600)), 2);
/// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2, 5]);
/// assert!(host.next_wake().unwrap() <= timer.now() + Duration::from_secs(6 * 3600));
///
/// // A stall: the thread does not get its turn for a day.
/// host.clock().advance(Duration::from_secs(24 * 3600));
/// assert_eq!(host.run_due(), 1);
/// assert_eq!(timer.stats().lateness_max, Duration::from_secs(18 * 3600));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Debug)]
pub struct ManualHost {
    timer: Timer,
    clock: ManualClock,
}

impl ManualHost {
    /// A host with a clock of its own and a timer of the default options. Others come from
    /// [`TimerBuilder::manual`](crate::TimerBuilder::manual).
    #[must_use]
    pub fn new() -> Self {
        Timer::builder().manual(ManualClock::new())
    }

    pub(crate) fn with(timer: Timer, clock: ManualClock) -> Self {
        Self { timer, clock }
    }

    /// The timer, to be used like any other. The host holds it, too: dropping the clones
    /// does not stop it before the host is dropped.
    #[must_use]
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// The clock. Moving it runs nothing, like a thread that does not get its turn:
    /// [`run_due`](Self::run_due) makes up for it.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// When there is next something to do: the next deadline, or earlier.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.timer.engine().next_wake()
    }

    /// Moves the clock `span` ahead and stops on the way wherever a task is due, so that
    /// each one finds the clock less than a tick after its deadline. Returns how many ran.
    ///
    /// A task may schedule others; what is due within `span` runs as well. (So a task that
    /// always schedules its successor without a delay is never done.) A task may even move
    /// the clock, to play a slow one.
    pub fn advance(&mut self, span: Duration) -> usize {
        let target = self.clock.now() + span;
        let mut ran = self.run_due();
        while let Some(wake) = self.next_wake().filter(|&wake| wake <= target) {
            self.move_to(wake);
            let due = self.run_due();
            ran += due;
            if due == 0 && wake == target {
                break; // an executor without room would be asked again for ever at the end of time
            }
        }
        self.move_to(target);
        ran
    }

    /// Runs what is due, in order, without moving the clock. Returns how many ran, or were
    /// handed to an [`Executor`](crate::Executor) if there is one.
    pub fn run_due(&mut self) -> usize {
        let engine = self.timer.engine();
        let steps = || std::iter::from_fn(|| engine.step(engine.clock().now())).sum();
        engine.context.within(steps)
    }

    fn move_to(&self, target: Instant) {
        self.clock
            .advance(target.saturating_since(self.clock.now()));
    }
}

impl Default for ManualHost {
    fn default() -> Self {
        Self::new()
    }
}
