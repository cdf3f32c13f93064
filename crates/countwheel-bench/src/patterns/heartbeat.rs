//! P1: many connections, each with a message once a period. The peer has to notice every silent
//! connection, and no other.

mod idle_watch;
mod timer;
mod tokio;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pin_project_lite::pin_project;

pub(super) use idle_watch::IdleWatch;
pub(super) use timer::{Rearmed, Rescheduled};
pub(super) use tokio::{SleepRearmed, SleepReset};

use super::workload::Extent;
use crate::random::{index, shuffle};
use crate::statistics::Summary;
use crate::stopwatch::{Stopwatch, pause};
use crate::system::{processor_nanoseconds, resident};
use crate::workload::{Figures, figures};

/// Notices which connections have been silent for too long.
pub(crate) trait Watch: Sized {
    /// What a connection keeps for it.
    type Tag;

    /// Tells the board who is idle.
    fn start(board: &'static Board) -> anyhow::Result<Self>;

    /// Watches a connection from now on.
    fn watch(&mut self, number: u32) -> anyhow::Result<Self::Tag>;

    /// The tag is where it stays.
    fn settle(&mut self, _tag: Pin<&mut Self::Tag>, _number: u32) -> anyhow::Result<()> {
        Ok(())
    }

    /// A connection is heard of. Called by the thread that has called `start`.
    fn touch(&mut self, tag: Pin<&mut Self::Tag>);
}

pin_project! {
    /// As much as a small connection needs for itself, and its tag, in one piece of memory.
    struct Connection<T> {
        received: u64,
        state: [u64; 14],
        #[pin]
        tag: Option<T>,
    }
}

impl<T> Connection<T> {
    fn new() -> Pin<Box<Self>> {
        Box::pin(Self {
            received: 0,
            state: [0; 14],
            tag: None,
        })
    }
}

/// Of so many connections, one is never heard of.
const SILENT: u64 = 100;

/// How often the loop goes round alone: the median is what it takes.
const ALONE: usize = 3;

/// How long after the limit has passed the loop goes on: until then, who re-arms has done so
/// once for each connection.
const MARGIN: Duration = Duration::from_millis(300);

/// How long it may take to notice all who are idle.
const PATIENCE: Duration = Duration::from_secs(10);

/// When a connection was heard of, in nanoseconds since the board was opened.
pub(crate) type Heard = Arc<AtomicU64>;

/// Where it is told who is idle.
pub(crate) struct Board {
    pub(crate) limit: Duration,
    opened: Instant,
    idle: AtomicU64,
    /// Of the numbers of those who are idle.
    sum: AtomicU64,
    /// Nanoseconds from the opening until the first was idle.
    first: AtomicU64,
}

impl Board {
    fn open(limit: Duration) -> &'static Self {
        Box::leak(Box::new(Self {
            limit,
            opened: Stopwatch::start().instant(),
            idle: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
        }))
    }

    /// Since it was opened.
    fn nanoseconds(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A connection is heard of now, for those who only store it.
    pub(crate) fn hear(&self, heard: &Heard) {
        heard.store(self.nanoseconds(), Ordering::Relaxed);
    }

    /// How long it may still be silent.
    pub(crate) fn left(&self, heard: &Heard) -> Duration {
        let silent = self
            .nanoseconds()
            .saturating_sub(heard.load(Ordering::Relaxed));
        self.limit.saturating_sub(Duration::from_nanos(silent))
    }

    /// A connection has been silent for as long as the limit.
    pub(crate) fn is_idle(&self, connection: u32) {
        self.first.fetch_min(self.nanoseconds(), Ordering::Relaxed);
        self.sum.fetch_add(connection.into(), Ordering::Relaxed);
        self.idle.fetch_add(1, Ordering::Release);
    }

    /// Until exactly these are idle, none of them too early.
    fn wait_for(&self, silent: Vec<u32>) -> anyhow::Result<()> {
        let idle = || self.idle.load(Ordering::Acquire);
        let all = silent.len() as u64;
        let from = Stopwatch::start().instant();
        while idle() < all && from.elapsed() < PATIENCE {
            pause(Duration::from_millis(1));
        }
        ensure!(idle() == all, "{all} were idle, and {} noticed", idle());
        let sum = silent.into_iter().map(u64::from).sum::<u64>();
        ensure!(
            self.sum.load(Ordering::Relaxed) == sum,
            "the wrong connections were noticed"
        );
        let first = Duration::from_nanos(self.first.load(Ordering::Relaxed));
        ensure!(first >= self.limit, "one was idle after {first:?}");
        Ok(())
    }
}

pub(super) fn measure<W: Watch>(connections: u64, extent: Extent) -> anyhow::Result<Figures> {
    let count = u32::try_from(connections)?;
    let is_silent = |number: &u32| u64::from(*number).is_multiple_of(SILENT);
    let mut loud: Vec<u32> = (0..count).filter(|n| !is_silent(n)).collect();
    shuffle(&mut loud);

    let mut connections: Vec<_> = (0..count).map(|_| Connection::new()).collect();
    let alone: Vec<Listened> = (0..ALONE)
        .map(|_| {
            listen(&loud, extent.period, extent.period, |number| {
                *connections[number].as_mut().project().received += 1;
            })
        })
        .collect();
    let before = resident()?;
    let board = Board::open(extent.limit);
    let mut watch = W::start(board)?;
    for (number, connection) in (0..).zip(&mut connections) {
        let mut tag = connection.as_mut().project().tag;
        tag.set(Some(watch.watch(number)?));
        if let Some(tag) = tag.as_pin_mut() {
            watch.settle(tag, number)?;
        }
    }
    let span = extent.limit + MARGIN;
    let watched = listen(&loud, extent.period, span, |number| {
        let connection = connections[number].as_mut().project();
        *connection.received += 1;
        if let Some(tag) = connection.tag.as_pin_mut() {
            watch.touch(tag);
        }
    });
    let grown = resident()? - before;

    board.wait_for((0..count).filter(is_silent).collect())?;
    let received = connections.iter().map(|connection| connection.received);
    let heard = alone.iter().map(|alone| alone.heard).sum::<u64>() + watched.heard;
    ensure!(received.sum::<u64>() == heard, "not all was received");
    // Left to the end of the process.
    std::mem::forget((watch, connections));
    let alone: Vec<f64> = alone.iter().map(|alone| alone.processor).collect();
    let alone = Summary::of(&alone).context("the loop went round")?.median;
    Ok(figures([
        ("cpu", watched.processor - alone),
        ("loop", alone),
        (
            "bytes",
            grown / f64::from(count) + size_of::<W::Tag>() as f64,
        ),
        ("behind", watched.behind),
    ]))
}

/// What it took to go through the connections.
struct Listened {
    /// Milliseconds of processor time in each second.
    processor: f64,
    /// How many touches there were.
    heard: u64,
    /// By how many milliseconds the loop was late at worst.
    behind: f64,
}

/// Hears of each connection once a period, in the order given, for a while: some in each
/// millisecond. All that is to be done is done, however long it takes.
fn listen(
    order: &[u32],
    period: Duration,
    span: Duration,
    mut hear: impl FnMut(usize),
) -> Listened {
    let slots = milliseconds(span);
    let in_period = milliseconds(period);
    let all = order.len() as u64;
    let until = |slot: u64| index(slot * all / in_period);
    let processor = processor_nanoseconds();
    let from = Stopwatch::start().instant();
    let mut behind = Duration::ZERO;
    for slot in 0..slots {
        let due = from + Duration::from_millis(slot);
        let now = Stopwatch::start().instant();
        pause(due.saturating_duration_since(now));
        behind = behind.max(now.saturating_duration_since(due));
        for place in until(slot)..until(slot + 1) {
            hear(order[place % order.len()] as usize);
        }
    }
    let processor = processor_nanoseconds() - processor;
    Listened {
        processor: processor / 1e6 / span.as_secs_f64(),
        heard: until(slots) as u64,
        behind: behind.as_secs_f64() * 1e3,
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn told(limit: Duration, idle: &[u32]) -> Result<(), String> {
        let board = Board::open(limit);
        idle.iter().for_each(|&number| board.is_idle(number));
        let waited = board.wait_for(vec![100, 200]);
        waited.map_err(|error| error.to_string())
    }

    #[test]
    fn a_watch_that_is_wrong_is_found_out() {
        assert_eq!(told(Duration::ZERO, &[200, 100]), Ok(()));
        let too_many = told(Duration::ZERO, &[200, 100, 100]);
        assert_eq!(too_many.unwrap_err(), "2 were idle, and 3 noticed");
        let others = told(Duration::ZERO, &[200, 101]);
        assert_eq!(others.unwrap_err(), "the wrong connections were noticed");
        let early = told(HOUR, &[100, 200]).unwrap_err();
        assert!(early.starts_with("one was idle after"), "{early}");
    }

    #[test]
    fn each_connection_is_heard_of_once_a_period() {
        let mut times = vec![0; 10];
        let period = Duration::from_millis(4);
        let order = [3, 1, 4, 0, 2, 6, 9];
        let listened = listen(&order, period, period * 3, |number| times[number] += 1);
        assert_eq!(listened.heard, 21);
        assert_eq!(times, [3, 3, 3, 3, 3, 0, 3, 0, 0, 3]);
    }
}
