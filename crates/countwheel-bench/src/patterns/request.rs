//! P2: requests that wait for an answer, each with a deadline. P2t: one request in a hundred never
//! gets an answer.

mod by_hand;
mod ours;
mod table;
mod tokio;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

pub(super) use by_hand::ByHand;
pub(super) use ours::Ours;
pub(super) use tokio::Tokio;

use super::workload::{Extent, Workload};
use crate::gate::{Gate, at_once, role};
use crate::stopwatch::{Stopwatch, pause};
use crate::system::processor_nanoseconds;
use crate::workload::{Figures, figures};

/// Knows which requests wait for an answer. Clones know the same.
pub(crate) trait Calls: Clone + Send + 'static {
    /// What an answer names its request by.
    type Id: Copy + Send;

    /// Ready with the value, or with nothing once the time is over.
    type Answer: Future<Output = Option<u64>> + Unpin;

    /// What a thread holds while it makes calls.
    type Entered;

    fn start() -> anyhow::Result<Self>;

    /// Makes this thread one that may call.
    fn enter(&self) -> Self::Entered;

    /// Makes a request that waits for this long.
    fn register(&self, limit: Duration) -> (Self::Id, Self::Answer);

    /// Answers it. Whether it was still waiting.
    fn complete(&self, id: Self::Id, value: u64) -> bool;

    /// How many wait.
    fn in_flight(&self) -> u64;
}

/// What becomes of the requests.
#[derive(Clone, Copy)]
struct Course {
    requests: u64,
    limit: Duration,
    /// How many requests of a thread wait.
    window: usize,
    /// Of so many, one is never answered.
    lost_of: Option<u64>,
    /// How long the last ones may take to time out.
    patience: Duration,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Course {
    fn of(workload: Workload, requests: u64) -> Self {
        if workload == Workload::P2t {
            Self {
                requests,
                limit: Duration::from_millis(50),
                window: 1_000,
                lost_of: Some(100),
                patience: PATIENCE,
            }
        } else {
            Self {
                requests,
                limit: Duration::from_secs(5),
                window: 10_000,
                lost_of: None,
                patience: PATIENCE,
            }
        }
    }

    fn is_lost(self, number: u64) -> bool {
        self.lost_of.is_some_and(|of| number.is_multiple_of(of))
    }
}

pub(super) fn measure<P: Calls>(
    workload: Workload,
    threads: u64,
    extent: Extent,
) -> anyhow::Result<Figures> {
    run::<P>(Course::of(workload, extent.requests), threads)
}

fn run<P: Calls>(course: Course, threads: u64) -> anyhow::Result<Figures> {
    let peer = P::start()?;
    let roles = (0..threads).map(|_| {
        let peer = peer.clone();
        role(move |gate| Caller::new(peer, course).run(gate))
    });
    let mut processor = 0.0;
    let parts = at_once(roles.collect(), || processor = processor_nanoseconds());
    let processor = processor_nanoseconds() - processor;

    let parts: Vec<Part> = parts.into_iter().collect::<anyhow::Result<_>>()?;
    ensure!(parts.len() as u64 == threads, "a thread panicked");
    let total = |count: fn(&Part) -> u64| parts.iter().map(count).sum::<u64>();
    let (answered, expired) = (total(|part| part.answered), total(|part| part.expired));
    let requests = threads * course.requests;
    ensure!(
        answered + expired == requests,
        "of {requests} requests {answered} were answered and {expired} timed out"
    );
    let lost = threads * (0..course.requests).filter(|&n| course.is_lost(n)).count() as u64;
    ensure!(
        expired >= lost,
        "{lost} requests were never answered, but {expired} timed out"
    );
    ensure!(
        total(|part| part.woken) >= total(|part| part.waits),
        "of {} who waited only {} were woken",
        total(|part| part.waits),
        total(|part| part.woken)
    );
    ensure!(
        peer.in_flight() == 0,
        "{} requests are left behind",
        peer.in_flight()
    );
    let from = parts.iter().map(|part| part.from).min();
    let to = parts.iter().map(|part| part.to).max();
    let (from, to) = from.zip(to).context("there is no thread")?;
    // Left to the end of the process.
    std::mem::forget(peer);
    let requests = requests as f64;
    Ok(figures([
        ("per-core", requests / processor * 1e3),
        ("mops", requests / (to - from).as_secs_f64().max(1e-9) / 1e6),
        ("expired", 100.0 * expired as f64 / requests),
    ]))
}

/// What a thread has to tell.
struct Part {
    from: Instant,
    /// When the last answer had been given.
    to: Instant,
    /// How many requests were not over when their answer was first polled.
    waits: u64,
    answered: u64,
    expired: u64,
    woken: u64,
}

/// Counts how often somebody was woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One thread: it makes requests, and answers each a window later.
struct Caller<P: Calls> {
    peer: P,
    course: Course,
    woken: Arc<Woken>,
    waker: Waker,
    /// In the order in which they were made.
    waiting: VecDeque<Waiting<P>>,
    /// Those that are never answered.
    lost: VecDeque<P::Answer>,
    waits: u64,
    answered: u64,
    expired: u64,
}

struct Waiting<P: Calls> {
    number: u64,
    id: P::Id,
    answer: P::Answer,
}

impl<P: Calls> Caller<P> {
    fn new(peer: P, course: Course) -> Self {
        let woken = Arc::new(Woken::default());
        Self {
            peer,
            course,
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            waiting: VecDeque::with_capacity(course.window + 1),
            lost: VecDeque::new(),
            waits: 0,
            answered: 0,
            expired: 0,
        }
    }

    fn run(mut self, gate: &Gate) -> anyhow::Result<Part> {
        let _entered = self.peer.enter();
        gate.pass();
        let from = Stopwatch::start().instant();
        let made = self.make_all();
        let to = Stopwatch::start().instant();
        made?;
        while !self.lost.is_empty() && to.elapsed() < self.course.patience {
            self.look_at_the_lost()?;
            pause(Duration::from_millis(1));
        }
        // Who times out may be seen before its waker is called.
        while self.woken.0.load(Ordering::Relaxed) < self.waits
            && to.elapsed() < self.course.patience
        {
            pause(Duration::from_millis(1));
        }
        Ok(Part {
            from,
            to,
            waits: self.waits,
            answered: self.answered,
            expired: self.expired,
            woken: self.woken.0.load(Ordering::Relaxed),
        })
    }

    fn make_all(&mut self) -> anyhow::Result<()> {
        for number in 0..self.course.requests {
            let (id, mut answer) = self.peer.register(self.course.limit);
            match self.poll(&mut answer) {
                Poll::Pending => {
                    self.waits += 1;
                    self.waiting.push_back(Waiting { number, id, answer });
                }
                // The machine was so slow that the time was over.
                Poll::Ready(None) => self.expired += 1,
                Poll::Ready(Some(value)) => bail!("nobody has answered {value}"),
            }
            if self.waiting.len() > self.course.window {
                self.end_the_oldest()?;
            }
            if self.course.is_lost(number) {
                self.look_at_the_lost()?;
            }
        }
        while !self.waiting.is_empty() {
            self.end_the_oldest()?;
        }
        Ok(())
    }

    fn end_the_oldest(&mut self) -> anyhow::Result<()> {
        let Some(mut oldest) = self.waiting.pop_front() else {
            return Ok(());
        };
        if self.course.is_lost(oldest.number) {
            self.lost.push_back(oldest.answer);
        } else if self.peer.complete(oldest.id, oldest.number) {
            let polled = self.poll(&mut oldest.answer);
            ensure!(
                polled == Poll::Ready(Some(oldest.number)),
                "request {} was answered, but sees {polled:?}",
                oldest.number
            );
            self.answered += 1;
        } else {
            // Too slow again, but it waits.
            self.lost.push_back(oldest.answer);
        }
        Ok(())
    }

    fn look_at_the_lost(&mut self) -> anyhow::Result<()> {
        while let Some(mut first) = self.lost.pop_front() {
            match self.poll(&mut first) {
                Poll::Pending => {
                    self.lost.push_front(first);
                    break;
                }
                Poll::Ready(None) => self.expired += 1,
                Poll::Ready(Some(value)) => bail!("nobody has answered {value}"),
            }
        }
        Ok(())
    }

    fn poll(&self, answer: &mut P::Answer) -> Poll<Option<u64>> {
        Pin::new(answer).poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;

    /// What it does wrong.
    const NOTHING: u8 = 0;
    const WAKES_NOBODY: u8 = 1;
    const FORGETS_NOTHING: u8 = 2;
    const NEVER_TIMES_OUT: u8 = 3;
    const ANSWERS_SOMETHING_ELSE: u8 = 4;
    const ANSWERS_THE_LOST: u8 = 5;

    /// Requests that time out when somebody looks.
    #[derive(Clone, Default)]
    struct Fake<const WRONG: u8>(Arc<Mutex<HashMap<u64, Entry>>>);

    struct Entry {
        due: Instant,
        value: Option<u64>,
        waker: Option<Waker>,
    }

    struct Answer<const WRONG: u8>(u64, Fake<WRONG>);

    impl<const WRONG: u8> Future for Answer<WRONG> {
        type Output = Option<u64>;

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u64>> {
            let mut entries = self.1.0.lock().unwrap();
            let entry = entries.get_mut(&self.0).unwrap();
            let is_over = entry.due.elapsed() > Duration::ZERO && WRONG != NEVER_TIMES_OUT;
            if entry.value.is_none() && !is_over {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if entry.value.is_none() {
                cx.waker().wake_by_ref();
            }
            let answer = entry.value.map(|value| match WRONG {
                ANSWERS_SOMETHING_ELSE => value + 1,
                _ => value,
            });
            if WRONG != FORGETS_NOTHING {
                entries.remove(&self.0);
            }
            Poll::Ready(if WRONG == ANSWERS_THE_LOST {
                answer.or(Some(0))
            } else {
                answer
            })
        }
    }

    impl<const WRONG: u8> Calls for Fake<WRONG> {
        type Id = u64;
        type Answer = Answer<WRONG>;
        type Entered = ();

        fn start() -> anyhow::Result<Self> {
            Ok(Self::default())
        }

        fn enter(&self) {}

        fn register(&self, limit: Duration) -> (u64, Self::Answer) {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            let entry = Entry {
                due: Stopwatch::start().instant() + limit,
                value: None,
                waker: None,
            };
            self.0.lock().unwrap().insert(id, entry);
            (id, Answer(id, self.clone()))
        }

        fn complete(&self, id: u64, value: u64) -> bool {
            let mut entries = self.0.lock().unwrap();
            let entry = entries.get_mut(&id).unwrap();
            entry.value = Some(value);
            if let Some(waker) = entry.waker.take()
                && WRONG != WAKES_NOBODY
            {
                waker.wake();
            }
            true
        }

        fn in_flight(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }
    }

    fn complaint<const WRONG: u8>() -> String {
        let course = Course {
            requests: 300,
            limit: Duration::from_millis(50),
            window: 10,
            lost_of: Some(100),
            patience: Duration::from_millis(200),
        };
        let found = run::<Fake<WRONG>>(course, 2);
        found.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn whoever_is_wrong_is_found_out() {
        assert_eq!(complaint::<NOTHING>(), "");
        let woken = complaint::<WAKES_NOBODY>();
        assert!(woken.ends_with("who waited only 6 were woken"), "{woken}");
        let left = complaint::<FORGETS_NOTHING>();
        assert_eq!(left, "600 requests are left behind");
        let ended = complaint::<NEVER_TIMES_OUT>();
        assert!(ended.ends_with("594 were answered and 0 timed out"));
        let other = complaint::<ANSWERS_SOMETHING_ELSE>();
        assert!(other.contains("was answered, but sees"), "{other}");
        assert_eq!(complaint::<ANSWERS_THE_LOST>(), "nobody has answered 0");
    }
}
