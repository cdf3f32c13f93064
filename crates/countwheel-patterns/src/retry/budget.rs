//! A bound on the retries of many operations together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel::Instant;
use countwheel_time::locks::lock;

/// How many retries many operations may make together: a share of their first attempts, and a
/// few each second in any case. So when all fail, a service that is down gets a fifth more
/// requests, say, and not four times as many.
///
/// The token bucket of Finagle's `RetryBudget`: each first attempt puts in `share` of a token,
/// each retry takes a whole one, and what was put in or taken counts for one window of time.
/// An operation that finds no token is given up, with [`GiveUp::Budget`](super::GiveUp::Budget).
///
/// Clones share the tokens. It reads no clock; the instants it is told should be of one clock.
/// Each call takes one lock for a moment.
///
/// ```
/// use countwheel_patterns::{RetryBudgetError, RetryBudget};
/// use countwheel::Instant;
/// use std::time::Duration;
///
/// // One retry for five first attempts, and one in ten seconds in any case.
/// let budget = RetryBudget::new(0.2, 0.1, Duration::from_secs(10))?;
/// let now = Instant::ZERO;
/// (0..15).for_each(|_| budget.deposit(now));
/// assert_eq!(budget.balance(now), 4);
/// assert_eq!((0..10).filter(|_| budget.withdraw(now)).count(), 4);
/// let later = now + Duration::from_secs(20);
/// assert_eq!(budget.balance(later), 1, "all that was put in is forgotten");
/// assert!(matches!(RetryBudget::new(-1.0, 0.0, Duration::MAX), Err(RetryBudgetError::Retries(_))));
/// # Ok::<(), RetryBudgetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// What a first attempt puts in.
    deposit: i128,
    /// What is there in any case.
    floor: i128,
    slot_nanos: u64,
    window: Mutex<Window>,
}

/// Why something is not a [`RetryBudget`].
///
/// ```
/// use countwheel_patterns::RetryBudget;
/// use std::time::Duration;
///
/// let error = RetryBudget::new(-1.0, 0.0, Duration::MAX).unwrap_err();
/// assert_eq!(error.to_string(), "a budget's retries are 0 to a billion, not -1");
/// ```
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetryBudgetError {
    /// Less than nothing, more than a billion, or not a number.
    #[error("a budget's retries are 0 to a billion, not {0}")]
    Retries(f64),
    /// No time over which a budget could be counted.
    #[error("a budget's window is at least ten nanoseconds")]
    Window,
}

/// Tokens are counted in billionths.
const TOKEN: i128 = 1_000_000_000;
/// The window moves in steps of a tenth.
const SLOTS: usize = 10;

/// What was put in less what was taken, by tenths of the window.
#[derive(Debug, Default)]
struct Window {
    /// The slot of the latest time told, counted from the clock's beginning.
    slot: u64,
    slots: [i128; SLOTS],
}

impl RetryBudget {
    /// `share` retries for each first attempt, and `floor_per_second` on top, counted over
    /// `window`. Finagle's own: 0.2, 10.0 and 10 s.
    ///
    /// # Errors
    /// [`RetryBudgetError::Retries`] if a number is negative, more than a billion or none;
    /// [`RetryBudgetError::Window`] if the window is shorter than ten nanoseconds.
    pub fn new(
        share: f64,
        floor_per_second: f64,
        window: Duration,
    ) -> Result<Self, RetryBudgetError> {
        let window_nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let slot_nanos = window_nanos / SLOTS as u64;
        if slot_nanos == 0 {
            return Err(RetryBudgetError::Window);
        }
        let deposit = tokens(share)?;
        let seconds = Duration::from_nanos(window_nanos);
        let floor = tokens(floor_per_second)?
            .saturating_mul(i128::try_from(seconds.as_nanos()).unwrap_or(i128::MAX))
            / TOKEN;
        Ok(Self {
            shared: Arc::new(Shared {
                deposit,
                floor,
                slot_nanos,
                window: Mutex::default(),
            }),
        })
    }

    /// A first attempt was made.
    pub fn deposit(&self, now: Instant) {
        self.with(now, |window| window.add(self.shared.deposit));
    }

    /// Takes a token for a retry. False if there is none: do not retry.
    #[must_use]
    pub fn withdraw(&self, now: Instant) -> bool {
        self.with(now, |window| {
            let is_enough = self.left(window) >= TOKEN;
            if is_enough {
                window.add(-TOKEN);
            }
            is_enough
        })
    }

    /// Undoes a deposit, and a withdrawal if there was one: the operation was not taken on.
    pub(crate) fn undo(&self, now: Instant, has_withdrawn: bool) {
        let withdrawn = if has_withdrawn { TOKEN } else { 0 };
        self.with(now, |window| window.add(withdrawn - self.shared.deposit));
    }

    /// How many retries could be made now.
    #[must_use]
    pub fn balance(&self, now: Instant) -> u64 {
        let left = self.with(now, |window| self.left(window));
        u64::try_from(left.max(0) / TOKEN).unwrap_or(u64::MAX)
    }

    fn left(&self, window: &Window) -> i128 {
        let sum = window.slots.iter().sum::<i128>();
        sum.saturating_add(self.shared.floor)
    }

    fn with<R>(&self, now: Instant, act: impl FnOnce(&mut Window) -> R) -> R {
        let mut window = lock(&self.shared.window);
        window.advance(now.as_nanos() / self.shared.slot_nanos);
        act(&mut window)
    }
}

impl Window {
    /// A time that goes backwards changes nothing.
    fn advance(&mut self, slot: u64) {
        let passed = slot.saturating_sub(self.slot).min(SLOTS as u64);
        self.slot = self.slot.max(slot);
        for past in 0..passed {
            *self.at(self.slot - past) = 0;
        }
    }

    fn add(&mut self, tokens: i128) {
        let slot = self.at(self.slot);
        *slot = slot.saturating_add(tokens);
    }

    fn at(&mut self, slot: u64) -> &mut i128 {
        let index = usize::try_from(slot % SLOTS as u64).unwrap_or(0);
        &mut self.slots[index]
    }
}

fn tokens(number: f64) -> Result<i128, RetryBudgetError> {
    // A duration is a number of billionths, too, and checks what it is made of.
    let tokens =
        Duration::try_from_secs_f64(number).map_err(|_| RetryBudgetError::Retries(number))?;
    if tokens > Duration::from_secs(1_000_000_000) {
        return Err(RetryBudgetError::Retries(number));
    }
    i128::try_from(tokens.as_nanos()).map_err(|_| RetryBudgetError::Retries(number))
}
