//! The engine under load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use countwheel_durable::store::Store;
use countwheel_durable::{
    Attempt, Config, Due, Inline, Outcome, Precondition, Request, RetryPolicy, SetOptions, Shards,
    TimerName, Timers,
};
use countwheel_time::{Clock as _, SystemClock, Timestamp};

use crate::ours::PAYLOAD_BYTES;
use crate::{rate, wait};

const CALLERS: usize = 4;
/// How many answers each caller leaves open.
pub(crate) const AHEAD: usize = 1_000;
/// How many timers of each caller are due and not handed over, in the load of lives.
const DUE_AHEAD: usize = 2_500;
/// Nothing takes longer, or the load has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The stop waits so long for attempts that run.
const GRACE: Duration = Duration::from_secs(5);

/// What the callers set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Timers that are due a day from now.
    Sets,
    /// Timers that are due after their set was committed, so that the claim is a write of its own.
    Lives,
    /// Timers that are due at once: most are claimed with their set, in one write.
    LivesAtOnce,
}

/// The engine, and how late its attempts were.
pub(crate) struct Engine {
    pub(crate) timers: Timers,
    fired: Arc<Fired>,
    clock: SystemClock,
}

#[derive(Default)]
struct Fired {
    /// To whom each attempt is told, by the caller's number in its name.
    callers: RwLock<Vec<Sender<bool>>>,
    lateness: Mutex<Vec<Duration>>,
}

/// How many requests the callers had answered, and how many were refused.
#[derive(Default)]
struct Answers {
    answered: AtomicU64,
    refused: AtomicU64,
    /// Why the first was.
    why: OnceLock<String>,
}

/// Callers at work.
pub(crate) struct Load {
    kind: Kind,
    stop: Arc<AtomicBool>,
    answers: Arc<Answers>,
    callers: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Of all shards. Done timers are kept as long as `keep_done`.
    pub(crate) fn open(
        store: impl Store + 'static,
        shards: Shards,
        keep_done: Duration,
    ) -> anyhow::Result<Self> {
        let fired = Arc::new(Fired::default());
        let told = Arc::clone(&fired);
        let handler = Inline(move |attempt: &Attempt| {
            told.tell(attempt);
            Outcome::done()
        });
        let config = Config {
            max_in_flight: 10_000,
            catch_up_per_second: u32::MAX,
            keep_done,
            ..Config::default()
        };
        let clock = SystemClock::new();
        let timers = Timers::open_divided(
            store,
            shards,
            shards.all(),
            handler,
            Arc::new(clock),
            config,
        )?;
        Ok(Self {
            timers,
            fired,
            clock,
        })
    }

    /// Sets `count` far timers.
    pub(crate) fn fill(&self, count: u64) -> anyhow::Result<()> {
        self.set_all("far", count, Due::In(Duration::from_secs(86_400)))
    }

    /// Lets `count` timers live from their set to their outcome.
    pub(crate) fn live(&self, kind: Kind, count: u64) -> anyhow::Result<()> {
        let load = self.load(kind);
        let before = self.done();
        let mut last = (before, self.clock.now());
        while self.done() - before < count {
            wait(self.clock, Duration::from_millis(20));
            if self.done() > last.0 {
                last = (self.done(), self.clock.now());
            }
            let stands = self.clock.now().saturating_since(last.1);
            ensure!(stands < LIMIT, "nothing was done for {stands:?}");
        }
        load.end()
    }

    /// How many lives had their outcome committed.
    pub(crate) fn done(&self) -> u64 {
        self.timers.stats().done
    }

    /// Waits until all that was set is done but `left`, at most as long as anything may take.
    pub(crate) fn settle(&self, left: u64) -> anyhow::Result<()> {
        let until = self.clock.now() + LIMIT;
        loop {
            let stats = self.timers.stats();
            if stats.done + left >= stats.set {
                return Ok(());
            }
            ensure!(self.clock.now() < until, "timers are left that are due");
            wait(self.clock, Duration::from_millis(20));
        }
    }

    fn set_all(&self, prefix: &str, count: u64, due: Due) -> anyhow::Result<()> {
        let (send, receive) = channel();
        let mut open = 0;
        for number in 0..count {
            let name = TimerName::new("bench", format!("{prefix}-{number:012}"))?;
            let send = send.clone();
            self.timers.submit(request(name, due), move |answer| {
                // Nobody listens any more if another was refused.
                send.send(answer.map(drop)).unwrap_or_default();
            });
            open += 1;
            if open >= CALLERS * AHEAD {
                receive.recv_timeout(LIMIT)??;
                open -= 1;
            }
        }
        for _ in 0..open {
            receive.recv_timeout(LIMIT)??;
        }
        Ok(())
    }

    /// Starts the callers.
    pub(crate) fn load(&self, kind: Kind) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(Answers::default());
        let callers = &self.fired.callers;
        let mut told = callers.write().unwrap_or_else(PoisonError::into_inner);
        told.clear();
        let callers = (0..CALLERS)
            .map(|number| {
                let (send, receive) = channel();
                told.push(send.clone());
                let caller = Caller {
                    number,
                    kind,
                    timers: self.timers.clone(),
                    stop: Arc::clone(&stop),
                    answers: Arc::clone(&answers),
                    began: self.clock.timestamp(),
                };
                thread::spawn(move || caller.call(&send, &receive))
            })
            .collect();
        Load {
            kind,
            stop,
            answers,
            callers,
        }
    }

    /// How many sets are answered a second, or lives done.
    pub(crate) fn rate(&self, kind: Kind, span: Duration) -> anyhow::Result<f64> {
        let load = self.load(kind);
        wait(self.clock, span / 5);
        let before = load.count(self);
        wait(self.clock, span);
        let count = load.count(self) - before;
        load.end()?;
        Ok(rate(count, span))
    }

    /// Has timers fire at times that are planned, `per_second` of them, each set half a second before.
    /// Gives how late they were, sorted.
    pub(crate) fn pace(&self, per_second: f64, span: Duration) -> anyhow::Result<Vec<Duration>> {
        const STEP: Duration = Duration::from_millis(5);
        const BEFORE: Duration = Duration::from_millis(500);
        self.fired.lateness().clear();
        let began = self.clock.now();
        let first_due = self.clock.timestamp() + BEFORE;
        let gap = Duration::from_secs_f64(1.0 / per_second);
        let (send, receive) = channel();
        let mut number: u32 = 0;
        while gap * number < span {
            let passed = self.clock.now().saturating_since(began);
            while gap * number < passed.min(span) {
                let name = TimerName::new("bench", format!("paced-{number:012}"))?;
                let due = Due::At(first_due + gap * number);
                let send = send.clone();
                self.timers.submit(request(name, due), move |answer| {
                    send.send(answer.map(drop)).unwrap_or_default();
                });
                number += 1;
            }
            wait(self.clock, STEP);
        }
        for _ in 0..number {
            receive.recv_timeout(LIMIT)??;
        }
        self.settle(0)?;
        let mut lateness = std::mem::take(&mut *self.fired.lateness());
        ensure!(
            lateness.len() == usize::try_from(number)?,
            "of {number} timers {} fired",
            lateness.len()
        );
        lateness.sort_unstable();
        Ok(lateness)
    }

    /// How many sets a second one caller has answered that sends `together` at a time and waits.
    pub(crate) fn batches(&self, together: usize, span: Duration) -> anyhow::Result<f64> {
        let until = self.clock.now() + span;
        let began = self.clock.now();
        let mut count: u64 = 0;
        while self.clock.now() < until {
            let requests: Result<Vec<_>, _> = (0..together)
                .map(|_| {
                    count += 1;
                    let name = TimerName::new("bench", format!("batch-{count:012}"))?;
                    anyhow::Ok(request(name, Due::In(Duration::from_secs(86_400))))
                })
                .collect();
            let (send, receive) = channel();
            self.timers.submit_batch(requests?, move |answer| {
                send.send(answer.map(drop)).unwrap_or_default();
            });
            let answer = receive.recv_timeout(LIMIT)?;
            answer.map_err(|refused| anyhow!("a batch was refused: {}", refused.error))?;
        }
        Ok(rate(count, self.clock.now().saturating_since(began)))
    }

    /// Ends it, and its store.
    pub(crate) fn stop(self) {
        self.timers.stop(GRACE);
    }
}

impl Load {
    pub(crate) fn count(&self, engine: &Engine) -> u64 {
        match self.kind {
            Kind::Sets => self.answers.answered.load(Ordering::Relaxed),
            Kind::Lives | Kind::LivesAtOnce => engine.done(),
        }
    }

    /// Stops the callers.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.join().map_err(|_| anyhow!("a caller panicked"))?;
        }
        let refused = self.answers.refused.load(Ordering::Relaxed);
        let why = self.answers.why.get().map_or("no answer", String::as_str);
        ensure!(
            refused == 0,
            "{refused} requests were refused or lost: {why}"
        );
        Ok(())
    }
}

impl Fired {
    fn tell(&self, attempt: &Attempt) {
        let key = attempt.name.key.as_str();
        if key.starts_with("paced") {
            let late = attempt.started.saturating_since(attempt.due);
            self.lateness().push(late);
        }
        let number = key.strip_prefix("order-").and_then(|key| key.get(..1));
        if let Some(number) = number.and_then(|digit| digit.parse::<usize>().ok())
            && let Some(caller) = self
                .callers
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(number)
        {
            // It has stopped if it does not listen.
            caller.send(true).unwrap_or_default();
        }
    }

    fn lateness(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.lateness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Caller {
    number: usize,
    kind: Kind,
    timers: Timers,
    stop: Arc<AtomicBool>,
    answers: Arc<Answers>,
    /// Makes the names of this load others than those before.
    began: Timestamp,
}

impl Caller {
    /// Sets timers until it is stopped. It waits for answers, or for attempts that were handed over.
    fn call(&self, send: &Sender<bool>, receive: &Receiver<bool>) {
        let (due, ahead) = match self.kind {
            Kind::Sets => (Duration::from_secs(86_400), AHEAD),
            Kind::Lives => (Duration::from_millis(100), DUE_AHEAD),
            Kind::LivesAtOnce => (Duration::ZERO, DUE_AHEAD),
        };
        let mut open = 0;
        for number in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!(
                "order-{}-{}-{number:09}",
                self.number,
                self.began.as_micros()
            );
            let Ok(name) = TimerName::new("bench", key) else {
                return;
            };
            let (send, answers, kind) = (send.clone(), Arc::clone(&self.answers), self.kind);
            self.timers
                .submit(request(name, Due::In(due)), move |answer| {
                    let counter = match &answer {
                        Ok(_) => &answers.answered,
                        Err(error) => {
                            answers.why.get_or_init(|| error.to_string());
                            &answers.refused
                        }
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    if kind == Kind::Sets || answer.is_err() {
                        send.send(answer.is_ok()).unwrap_or_default();
                    }
                });
            open += 1;
            if open >= ahead {
                for _ in 0..open / 2 {
                    if receive.recv_timeout(LIMIT).is_err() {
                        self.answers.refused.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    open -= 1;
                }
            }
        }
    }
}

pub(crate) fn request(name: TimerName, due: Due) -> Request {
    Request::Set {
        name,
        due,
        policy: RetryPolicy::default(),
        payload: vec![7; PAYLOAD_BYTES],
        options: SetOptions::default(),
        precondition: Precondition::None,
    }
}

/// The value below which `share` of the sorted spans lie, in milliseconds.
pub(crate) fn quantile(sorted: &[Duration], share: f64) -> anyhow::Result<f64> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place among some thousands"
    )]
    let place = (sorted.len() as f64 * share) as usize;
    let span = sorted.get(place.min(sorted.len().saturating_sub(1)));
    Ok(span.context("nothing was measured")?.as_secs_f64() * 1_000.0)
}

/// How many were counted in each second.
pub(crate) struct Timeline(pub(crate) VecDeque<f64>);

impl Timeline {
    /// The mean of the first and of the last `seconds`, the first one left out.
    pub(crate) fn ends(&self, seconds: usize) -> anyhow::Result<(f64, f64)> {
        let whole: Vec<f64> = self.0.iter().skip(1).copied().collect();
        ensure!(whole.len() >= 2 * seconds && seconds > 0, "too few seconds");
        #[expect(clippy::cast_precision_loss, reason = "some seconds")]
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        Ok((
            mean(&whole[..seconds]),
            mean(&whole[whole.len() - seconds..]),
        ))
    }
}
