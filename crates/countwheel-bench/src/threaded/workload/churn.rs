//! W4: threads schedule timers of 5 to 60 s and cancel each 1000 schedules later.
//! W4x: one thread of each pair schedules, the other cancels.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::{delays, milliseconds, settle, tally};
use crate::gate::{Gate, Role, at_once, role};
use crate::random::index;
use crate::statistics::percentile;
use crate::stopwatch::Stopwatch;
use crate::system::processor_nanoseconds;
use crate::threaded::peer::Peer;
use crate::workload::{Figures, figures};

/// How many timers of a thread pend.
const WINDOW: usize = 1000;

/// Delays in milliseconds: the least, and how much may come on top.
const DELAYS: (u64, u64) = (5_000, 55_000);

/// Of so many schedules, one is timed.
const SAMPLED: u64 = 16;

/// How many handles cross threads in one message, and how many messages may wait.
const BATCH: usize = 64;
const MESSAGES: usize = 4;

/// W4.
pub(super) fn own<P: Peer>(peer: &P, threads: u64, schedules: u64) -> anyhow::Result<Figures> {
    let roles = (0..threads).map(|thread| {
        let peer = peer.clone();
        role(move |gate| produce(peer, thread, schedules, gate, Window::new()))
    });
    run(peer, roles.collect(), threads * schedules)
}

/// W4x.
pub(super) fn crossing<P: Peer>(peer: &P, threads: u64, schedules: u64) -> anyhow::Result<Figures> {
    let mut roles = Vec::new();
    for pair in 0..threads / 2 {
        let (sender, receiver) = sync_channel::<Vec<P::Handle>>(MESSAGES);
        let (producer, mut consumer) = (peer.clone(), peer.clone());
        roles.push(role(move |gate| {
            produce(producer, pair, schedules, gate, Batches::new(sender))
        }));
        roles.push(role(move |gate| {
            let _entered = consumer.enter();
            let mut window = Window::new();
            gate.pass();
            let from = Stopwatch::start();
            for handle in receiver.into_iter().flatten() {
                window.put(&mut consumer, handle);
            }
            Part::since(from, Vec::new(), window.finish(&mut consumer))
        }));
    }
    run(peer, roles, threads / 2 * schedules)
}

/// What a thread has to tell.
struct Part {
    from: Instant,
    to: Instant,
    samples: Vec<u32>,
    /// Cancels that came too late.
    late: u64,
}

impl Part {
    fn since(from: Stopwatch, samples: Vec<u32>, late: u64) -> Self {
        Self {
            from: from.instant(),
            to: Stopwatch::start().instant(),
            samples,
            late,
        }
    }
}

fn run<P: Peer>(peer: &P, roles: Vec<Role<Part>>, schedules: u64) -> anyhow::Result<Figures> {
    let mut peer = peer.clone();
    let _entered = peer.enter();
    let mut processor = 0.0;
    let parts = at_once(roles, || processor = processor_nanoseconds());
    let watch = Stopwatch::start();
    settle(&mut peer)?;
    let settled = watch.nanoseconds_per(1_000_000);
    let processor = processor_nanoseconds() - processor;

    let from = parts.iter().map(|part| part.from).min();
    let to = parts.iter().map(|part| part.to).max();
    let (from, to) = from.zip(to).context("no thread came to its end")?;
    let late: u64 = parts.iter().map(|part| part.late).sum();
    ensure!(
        late == 0,
        "{late} timers fired before their cancel, which is far too early"
    );
    let mut samples: Vec<u32> = parts.into_iter().flat_map(|part| part.samples).collect();
    samples.sort_unstable();
    let sample = |part| percentile(&samples, part).map_or(0.0, f64::from);
    let operations = (2 * schedules) as f64;
    Ok(figures([
        ("mops", operations / wall(to - from) / 1e6),
        ("cpu", processor / operations),
        ("p50", sample(0.5)),
        ("p99", sample(0.99)),
        ("p99.9", sample(0.999)),
        ("max", sample(1.0)),
        ("settle", settled),
    ]))
}

fn wall(duration: Duration) -> f64 {
    duration.as_secs_f64().max(1e-9)
}

/// Where a producer puts its handles.
trait Sink<P: Peer> {
    fn put(&mut self, peer: &mut P, handle: P::Handle);

    /// Comes to an end, and says how many cancels came too late.
    fn finish(self, peer: &mut P) -> u64;
}

fn produce<P: Peer>(
    mut peer: P,
    thread: u64,
    schedules: u64,
    gate: &Gate,
    mut sink: impl Sink<P>,
) -> Part {
    let _entered = peer.enter();
    let delays = delays(thread, schedules, DELAYS.0, DELAYS.1);
    let mut samples = vec![1; index(schedules / SAMPLED + 1)];
    samples.clear();
    gate.pass();
    let from = Stopwatch::start();
    for (id, &delay) in (0..).zip(&delays) {
        let work = move || tally(id);
        let handle = if id % SAMPLED == 0 {
            let watch = Stopwatch::start();
            let handle = peer.schedule(milliseconds(delay), work);
            samples.push(u32::try_from(watch.nanoseconds()).unwrap_or(u32::MAX));
            handle
        } else {
            peer.schedule(milliseconds(delay), work)
        };
        sink.put(&mut peer, handle);
    }
    Part::since(from, samples, sink.finish(&mut peer))
}

/// The latest handles of a thread. Each is cancelled when it becomes too old.
struct Window<H> {
    ring: Vec<Option<H>>,
    place: usize,
    late: u64,
}

impl<H> Window<H> {
    fn new() -> Self {
        Self {
            ring: (0..WINDOW).map(|_| None).collect(),
            place: 0,
            late: 0,
        }
    }
}

impl<P: Peer> Sink<P> for Window<P::Handle> {
    fn put(&mut self, peer: &mut P, handle: P::Handle) {
        if let Some(old) = self.ring[self.place].replace(handle) {
            self.late += u64::from(!peer.cancel(old));
        }
        self.place = (self.place + 1) % WINDOW;
    }

    fn finish(mut self, peer: &mut P) -> u64 {
        for old in self.ring.into_iter().flatten() {
            self.late += u64::from(!peer.cancel(old));
        }
        self.late
    }
}

/// Handles on their way to another thread.
struct Batches<H> {
    batch: Vec<H>,
    sender: SyncSender<Vec<H>>,
}

impl<H> Batches<H> {
    fn new(sender: SyncSender<Vec<H>>) -> Self {
        Self {
            batch: Vec::with_capacity(BATCH),
            sender,
        }
    }

    fn send(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        let sent = self.sender.send(batch);
        assert!(sent.is_ok(), "the other thread waits for all handles");
    }
}

impl<P: Peer> Sink<P> for Batches<P::Handle> {
    fn put(&mut self, _peer: &mut P, handle: P::Handle) {
        self.batch.push(handle);
        if self.batch.len() == BATCH {
            self.send();
        }
    }

    fn finish(mut self, _peer: &mut P) -> u64 {
        self.send();
        0
    }
}
