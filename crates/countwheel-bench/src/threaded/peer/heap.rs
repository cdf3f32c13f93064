//! The yardstick: a timer written in an hour with the standard library.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use countwheel_time::locks;

use super::Peer;
use crate::stopwatch::Stopwatch;

/// A heap behind a lock, and a thread that waits for the first deadline.
///
/// To cancel is to raise a generation and to drop the closure. The entry in the heap is
/// dead from then on but keeps its memory until its deadline.
#[derive(Clone)]
pub(crate) struct LazyHeap(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    sooner: Condvar,
}

#[derive(Default)]
struct State {
    heap: BinaryHeap<Reverse<(Instant, Handle)>>,
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    work: Option<Work>,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle {
    place: u32,
    generation: u32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        locks::lock(&self.state)
    }

    /// What the thread does, for ever.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let Some(&Reverse((deadline, handle))) = state.heap.peek() else {
                state = locks::whole(self.sooner.wait(state));
                continue;
            };
            let left = deadline.saturating_duration_since(Stopwatch::start().instant());
            if left > Duration::ZERO {
                state = locks::whole(self.sooner.wait_timeout(state, left)).0;
                continue;
            }
            state.heap.pop();
            if let Some(work) = state.retire(handle) {
                drop(state);
                work();
                state = self.lock();
            }
        }
    }
}

impl State {
    /// Makes the handle stale, frees its place and gives back its work.
    fn retire(&mut self, handle: Handle) -> Option<Work> {
        let place = &mut self.places[handle.place as usize];
        if place.generation != handle.generation {
            return None;
        }
        place.generation = place.generation.wrapping_add(1);
        self.free.push(handle.place);
        place.work.take()
    }

    fn add(&mut self, deadline: Instant, work: Work) -> Handle {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 timers")
        });
        let filled = &mut self.places[place as usize];
        filled.work = Some(work);
        let handle = Handle {
            place,
            generation: filled.generation,
        };
        self.heap.push(Reverse((deadline, handle)));
        handle
    }
}

impl Peer for LazyHeap {
    type Handle = Handle;
    type Entered = ();

    fn start() -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().spawn(move || of_thread.serve());
        thread.context("its thread could not be started")?;
        Ok(Self(shared))
    }

    fn enter(&self) {}

    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> Handle {
        let work: Work = Box::new(work);
        let deadline = Stopwatch::start().instant() + delay;
        let mut state = self.0.lock();
        let handle = state.add(deadline, work);
        let is_first = matches!(state.heap.peek(), Some(Reverse((_, first))) if *first == handle);
        drop(state);
        if is_first {
            self.0.sooner.notify_one();
        }
        handle
    }

    fn cancel(&mut self, handle: Handle) -> bool {
        let work = self.0.lock().retire(handle);
        work.is_some()
    }
}
