//! The heap of the standard library.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Competitor, Fired};

/// A heap that forgets cancelled timers only when they come up.
///
/// A timer owns a place in an array of generations. To cancel is to raise the
/// generation; the entry in the heap is dead from then on but keeps its memory until
/// its deadline, so many far timers that are cancelled early make the heap grow.
pub(crate) struct LazyHeap {
    now: u64,
    timers: BinaryHeap<Timer>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

/// 24 bytes. Equal deadlines leave the heap in any order.
struct Timer {
    deadline: u64,
    id: u64,
    handle: Handle,
}

#[derive(Clone, Copy)]
pub(crate) struct Handle {
    place: u32,
    generation: u32,
}

impl LazyHeap {
    /// Makes the handle stale and frees its place; false if it is stale already.
    fn retire(&mut self, handle: Handle) -> bool {
        let generation = &mut self.generations[handle.place as usize];
        let live = *generation == handle.generation;
        if live {
            *generation = generation.wrapping_add(1);
            self.free.push(handle.place);
        }
        live
    }
}

impl Competitor for LazyHeap {
    type Handle = Handle;

    fn new(_longest_delay: u64) -> Self {
        Self {
            now: 0,
            timers: BinaryHeap::new(),
            generations: Vec::new(),
            free: Vec::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> Handle {
        let place = self.free.pop().unwrap_or_else(|| {
            self.generations.push(0);
            u32::try_from(self.generations.len() - 1).expect("fewer than 2^32 timers")
        });
        let handle = Handle {
            place,
            generation: self.generations[place as usize],
        };
        self.timers.push(Timer {
            deadline: self.now + delay,
            id,
            handle,
        });
        handle
    }

    fn cancel(&mut self, handle: Handle) -> bool {
        self.retire(handle)
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.now = now;
        while self.timers.peek().is_some_and(|next| next.deadline <= now) {
            let Some(timer) = self.timers.pop() else {
                break;
            };
            if self.retire(timer.handle) {
                fired.fire(timer.id);
            }
        }
    }

    fn copy(handle: &Handle) -> Option<Handle> {
        Some(*handle)
    }
}

/// The greatest is the one that is due first.
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        other.deadline.cmp(&self.deadline)
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.deadline == other.deadline
    }
}

impl Eq for Timer {}
