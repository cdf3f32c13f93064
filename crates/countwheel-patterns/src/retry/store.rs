//! Books behind a lock, and all work without that lock.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::books::{Effects, Landing, Operation, Passage, RetryBooks};
use super::builder::Options;
use super::flight::{Launch, Ticket};
use super::keyed::Refused;
use super::{
    Cancelled, DeadLetter, Failure, Key, OnPanic, PendingRetry, Refusal, RetryRule, RetryStats,
    RetryStopped, SubmitError,
};
use crate::{Attempts, GiveUp, RetryBudget, RetryPolicy, StopSignal};
use countwheel::building::{Bell, Panicked, Rung, returns, start_host, timer_name};
use countwheel::{Instant, Timer};
use countwheel_time::Random;
use countwheel_time::locks;

/// What both kinds of retry store are made of.
pub(super) struct Store<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    bell: Bell,
    policy: RetryPolicy,
    budget: Option<RetryBudget>,
    on_panic: OnPanic,
    first_delay: Duration,
    handler: Box<dyn Launch<K, T, E>>,
    dead_letter: Option<DeadLetterHandler<K, T, E>>,
    hasher: RandomState,
    seed: u64,
    seeds: AtomicU64,
    books: Mutex<RetryBooks<K, T, E>>,
}

pub(super) type DeadLetterHandler<K, T, E> = Box<dyn Fn(DeadLetter<K, T, E>) + Send + Sync>;

/// How many deadlines one ring of the bell deals with.
const SLICE: usize = 256;

/// How long an operation waits that the executor did not take.
const TURNED_AWAY: Duration = Duration::from_millis(100);

/// What is submitted.
pub(super) enum RetryEntry<T, E> {
    /// Nothing was tried yet.
    Fresh(T),
    /// The caller has tried once.
    Failed(T, Failure<E>),
    /// Another store has come so far.
    Resumed(T, Attempts, Option<E>, Instant),
}

impl<K, T, E> Store<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    pub(super) fn new(
        timer: Timer,
        options: Options<K, T, E>,
        handler: Box<dyn Launch<K, T, E>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|store: &Weak<Self>| {
            let bell = Bell::new(timer, Weak::clone(store));
            let driver = bell.driver();
            Self {
                bell,
                policy: options.policy,
                budget: options.budget,
                on_panic: options.on_panic,
                first_delay: options.first_delay,
                handler,
                dead_letter: options.dead_letter,
                hasher: RandomState::new(),
                seed: options.seed.unwrap_or_else(|| Random::unseeded().draw()),
                seeds: AtomicU64::new(0),
                books: Mutex::new(RetryBooks::new(driver, options.limits)),
            }
        })
    }

    pub(super) fn timer(&self) -> &Timer {
        self.bell.timer()
    }

    fn lock(&self) -> MutexGuard<'_, RetryBooks<K, T, E>> {
        // What a panic of somebody's `Eq` leaves behind is whole: keys are found first.
        locks::lock(&self.books)
    }

    /// Changes the books, and then does what follows from it.
    fn change<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut RetryBooks<K, T, E>, &mut Effects<K, T, E>) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let answer = change(&mut self.lock(), &mut effects);
        self.carry_out(effects);
        answer
    }

    fn carry_out(self: &Arc<Self>, mut effects: Effects<K, T, E>) {
        for signal in effects.signals.drain(..) {
            returns(|| signal.stop());
        }
        for passage in effects.launches.drain(..) {
            self.handler.launch(self, Ticket::new(self, passage));
        }
        if let Some(due) = effects.ring.take() {
            // Refused only if the timer is closed: then what was filed waits for the stop.
            let _ = self.bell.ring_by(due);
        }
        for (key, operation, reason) in effects.letters.drain(..) {
            self.deliver(key, operation, reason);
        }
        returns(|| drop(effects));
    }

    fn deliver(&self, key: Arc<K>, operation: Operation<T, E>, reason: GiveUp) {
        let Some(dead_letter) = &self.dead_letter else {
            let timer = timer_name(self.timer());
            let attempts = operation.attempts.made();
            tracing::warn!(timer, attempts, %reason, "an operation was given up");
            returns(|| drop((key, operation)));
            return;
        };
        let whole = returns(|| {
            let key = Arc::unwrap_or_clone(key);
            let pending = operation.into_pending(key);
            dead_letter(DeadLetter {
                key: pending.key,
                value: pending.value,
                attempts: pending.attempts,
                error: pending.error,
                reason,
            });
        });
        if !whole {
            let timer = timer_name(self.timer());
            tracing::error!(timer, "a dead letter handler panicked");
        }
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        key: K,
        entry: RetryEntry<T, E>,
        rule: RetryRule,
    ) -> Result<Option<T>, Refused<K, T, E>> {
        let now = self.bell.now();
        let hash = self.hasher.hash_one(&key);
        let started = start_host(self.timer());
        let is_new = !matches!(entry, RetryEntry::Resumed(..));
        let has_failed = matches!(entry, RetryEntry::Failed(..));
        let (operation, verdict) = self.assess(entry, now);
        // What is not taken on, or takes the place of a value alone, is no first attempt.
        let has_withdrawn = has_failed && verdict.is_ok();
        let undo = || {
            if let Some(budget) = self.budget.as_ref().filter(|_| is_new) {
                budget.undo(now, has_withdrawn);
            }
        };
        if let Err(source) = started {
            undo();
            self.lock().refused();
            let value = (key, operation);
            return Err(SubmitError::NoThread { value, source });
        }
        if self.bell.is_stopped() {
            undo();
            self.lock().refused();
            return Err(SubmitError::Closed((key, operation)));
        }
        let named = (hash, Arc::new(key));
        let answer = self
            .change(|books, effects| books.submit(named, operation, rule, verdict, now, effects));
        if answer.is_err() || rule == RetryRule::InPlace && matches!(answer, Ok(Some(_))) {
            undo();
        }
        answer.map_err(|(refusal, key, operation)| {
            let back = (Arc::unwrap_or_clone(key), operation);
            match refusal {
                Refusal::Closed => SubmitError::Closed(back),
                Refusal::Full => SubmitError::Full(back),
                Refusal::Present => SubmitError::Present(back),
            }
        })
    }

    /// How far it has come, and whether it is tried at all.
    fn assess(
        &self,
        entry: RetryEntry<T, E>,
        now: Instant,
    ) -> (Operation<T, E>, Result<(), GiveUp>) {
        let (value, failure) = match entry {
            RetryEntry::Fresh(value) => (value, None),
            RetryEntry::Failed(value, failure) => (value, Some(failure)),
            RetryEntry::Resumed(value, attempts, error, next_at) => {
                return (Operation::new(value, attempts, error, next_at), Ok(()));
            }
        };
        if let Some(budget) = &self.budget {
            budget.deposit(now);
        }
        let mut attempts = Attempts::new(now, self.next_seed());
        let Some(failure) = failure else {
            let first = now + self.first_delay;
            return (Operation::new(value, attempts, None, first), Ok(()));
        };
        attempts.begin();
        let next = self.next(&attempts, &failure, now);
        let next_at = next.unwrap_or(now);
        let error = Some(failure.into_error());
        let operation = Operation::new(value, attempts, error, next_at);
        (operation, next.map(drop))
    }

    fn next_seed(&self) -> u64 {
        let count = self.seeds.fetch_add(1, Ordering::Relaxed);
        Random::new(self.seed.wrapping_add(count)).draw()
    }

    /// When an operation is tried again after such a failure.
    fn next(
        &self,
        attempts: &Attempts,
        failure: &Failure<E>,
        now: Instant,
    ) -> Result<Instant, GiveUp> {
        let next = match failure {
            Failure::Permanent(_) => Err(GiveUp::Permanent),
            Failure::Retryable(_) => attempts.next(&self.policy, now),
            Failure::RetryAfter(_, wanted) => attempts.next_after(&self.policy, now, *wanted),
        };
        self.afford(next, now)
    }

    fn afford(&self, next: Result<Instant, GiveUp>, now: Instant) -> Result<Instant, GiveUp> {
        let next = next?;
        match &self.budget {
            Some(budget) if !budget.withdraw(now) => Err(GiveUp::Budget),
            _ => Ok(next),
        }
    }

    pub(super) fn cancel<Q>(self: &Arc<Self>, key: &Q) -> Cancelled<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        match self.change(|books, effects| books.cancel(hash, key, effects)) {
            Ok(value) => Cancelled::Pending(value),
            Err(true) => Cancelled::InFlight,
            Err(false) => Cancelled::Absent,
        }
    }

    /// Whether there is an operation of the key, and whether it is being tried.
    pub(super) fn look<Q>(&self, key: &Q) -> Option<bool>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        self.lock().look(hash, key)
    }

    pub(super) fn stop(self: &Arc<Self>) -> RetryStopped<K, T, E> {
        let (lifted, in_flight) = self.change(|books, effects| {
            let lifted = books.close(false, effects);
            let stats = books.stats();
            (lifted, stats.in_flight + stats.fencing)
        });
        self.bell.silence();
        let pending = lifted
            .into_iter()
            .map(|(key, operation)| -> PendingRetry<_, _, _> {
                operation.into_pending(Arc::unwrap_or_clone(key))
            });
        RetryStopped {
            pending: pending.collect(),
            in_flight: usize::try_from(in_flight).unwrap_or(usize::MAX),
        }
    }

    /// The last handle is gone.
    pub(super) fn abandon(self: &Arc<Self>) {
        let lifted = self.change(|books, effects| books.close(true, effects));
        self.bell.silence();
        if !lifted.is_empty() {
            let timer = timer_name(self.timer());
            let pending = lifted.len();
            tracing::warn!(
                timer,
                pending,
                "a retry store was dropped with work pending"
            );
        }
        for (key, operation) in lifted {
            self.deliver(key, operation, GiveUp::Dropped);
        }
    }

    /// The attempt starts, unless something came in between.
    pub(super) fn take_off(
        &self,
        passage: Passage,
    ) -> Option<(Arc<K>, Operation<T, E>, StopSignal)> {
        self.lock().take_off(passage)
    }

    /// The executor did not take it.
    pub(super) fn turned_away(self: &Arc<Self>, passage: Passage) {
        let now = self.bell.now();
        let until = (!self.bell.is_stopped()).then_some(now + TURNED_AWAY);
        self.change(|books, effects| books.turned_away(passage, until, now, effects));
    }

    /// An attempt has ended, if only by a panic.
    pub(super) fn land(
        self: &Arc<Self>,
        passage: Passage,
        operation: Operation<T, E>,
        result: Result<Result<(), Failure<E>>, Panicked>,
    ) {
        let now = self.bell.now();
        let attempts = operation.attempts;
        self.change(|books, effects| {
            // An attempt that changes nothing costs nothing either.
            let is_void = books.is_void(passage);
            let landing = match result {
                Ok(Ok(())) => Landing::Succeeded,
                Ok(Err(failure)) => {
                    let next = if is_void {
                        Err(GiveUp::Dropped)
                    } else {
                        self.next(&attempts, &failure, now)
                    };
                    Landing::Failed(Some(failure.into_error()), next)
                }
                Err(_) if is_void => Landing::Panicked(Err(GiveUp::Panic)),
                // What the first try has not found, no other would.
                Err(Panicked::NoRuntime) => Landing::Panicked(Err(GiveUp::NoRuntime)),
                Err(_) => Landing::Panicked(match self.on_panic {
                    OnPanic::Retry => self.afford(attempts.next(&self.policy, now), now),
                    OnPanic::GiveUp => Err(GiveUp::Panic),
                }),
            };
            books.land(passage, operation, landing, now, effects);
        });
    }

    /// An attempt was dropped before its end: the timer has stopped, or nobody can wake it any
    /// more.
    pub(super) fn interrupted(self: &Arc<Self>, passage: Passage, operation: Operation<T, E>) {
        let now = self.bell.now();
        let attempts = operation.attempts;
        self.change(|books, effects| {
            // On a timer that has stopped, it is turned away and left for the stop.
            let next = if self.bell.is_stopped() || books.is_void(passage) {
                Ok(now)
            } else {
                self.afford(attempts.next(&self.policy, now), now)
            };
            books.land(passage, operation, Landing::Interrupted(next), now, effects);
        });
    }

    pub(super) fn stats(&self) -> RetryStats {
        self.lock().stats()
    }

    pub(super) fn is_stopped(&self) -> bool {
        !self.lock().is_open()
    }
}

impl<K, T, E> Rung for Store<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        self.change(|books, effects| {
            if self.bell.is_stopped() {
                books.signal_all(effects);
                return None;
            }
            books.expire(now, SLICE, effects)
        })
    }
}
