//! The way of an entry from its shard to the listener, on the executor.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Cause;
use countwheel::WeakTimer;
use countwheel::building::returns;
use countwheel::building::run_soon;
use countwheel_time::locks::lock;

/// Who hears of the entries that leave.
pub(super) struct Listener<K, V> {
    pub(super) hear: Box<dyn Fn(K, V, Cause) + Send + Sync>,
    /// For values that also go back to a caller.
    pub(super) copy: fn(&V) -> V,
}

/// The entries that have left a shard, in that order, until the listener has heard of them.
///
/// One task at a time takes them from here, so they are heard in order. If the timer drops that
/// task, as it may when it stops, the task tells the listener while it is dropped: nothing is
/// lost. Without a listener, it is here that expired values wait to be dropped.
pub(super) struct Outbox<K, V> {
    listener: Option<Arc<Listener<K, V>>>,
    /// Weak, since the timer holds the task that holds this.
    timer: WeakTimer,
    queue: Mutex<Queue<K, V>>,
    panics: AtomicU64,
}

struct Queue<K, V> {
    left: VecDeque<(K, V, Cause)>,
    /// Whether there is a task that sees to it.
    is_manned: bool,
}

/// So many entries a task: so others have their turn.
const SLICE: usize = 64;

impl<K, V> Outbox<K, V> {
    pub(super) fn new(listener: Option<Arc<Listener<K, V>>>, timer: WeakTimer) -> Self {
        Self {
            listener,
            timer,
            queue: Mutex::new(Queue {
                left: VecDeque::new(),
                is_manned: false,
            }),
            panics: AtomicU64::new(0),
        }
    }

    pub(super) fn has_listener(&self) -> bool {
        self.listener.is_some()
    }

    /// A value for the listener, if there is one, while the value itself goes to a caller.
    /// Foreign code: nothing must have been changed yet when it panics.
    pub(super) fn copy(&self, value: &V) -> Option<V> {
        let listener = self.listener.as_ref()?;
        Some((listener.copy)(value))
    }

    /// To be called under the lock of the shard, and [`send`](Self::send) after it.
    pub(super) fn push(&self, key: K, value: V, cause: Cause) {
        self.queue().left.push_back((key, value, cause));
    }

    /// How many wait here, and how often the listener has panicked.
    pub(super) fn counts(&self) -> (u64, u64) {
        let waiting = self.queue().left.len() as u64;
        (waiting, self.panics.load(Ordering::Relaxed))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<K, V>> {
        lock(&self.queue)
    }

    /// Some of what waits.
    fn slice(&self) -> Vec<(K, V, Cause)> {
        let mut queue = self.queue();
        let some = queue.left.len().min(SLICE);
        queue.left.drain(..some).collect()
    }

    /// Whether nothing waits any more: then whoever asks must be the task that saw to it, and
    /// does so no longer.
    fn is_done(&self) -> bool {
        let mut queue = self.queue();
        if queue.left.is_empty() {
            queue.is_manned = false;
            // The room that a peak has taken goes with it.
            queue.left.shrink_to(SLICE);
        }
        !queue.is_manned
    }

    fn tell(&self, slice: Vec<(K, V, Cause)>) {
        for (key, value, cause) in slice {
            let whole = match &self.listener {
                Some(listener) => returns(|| (listener.hear)(key, value, cause)),
                None => returns(|| drop((key, value))),
            };
            if !whole {
                self.panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> Outbox<K, V> {
    /// Makes sure that somebody sees to what was pushed. Without a timer, here and now.
    pub(super) fn send(self: &Arc<Self>) {
        let mut queue = self.queue();
        if queue.left.is_empty() || mem::replace(&mut queue.is_manned, true) {
            return;
        }
        drop(queue);
        self.dispatch();
    }

    fn dispatch(self: &Arc<Self>) {
        let delivery = Delivery(Some(Arc::clone(self)));
        if let Some(timer) = self.timer.upgrade() {
            // Refused only if the timer is closed: then it is dropped, and sees to it so.
            drop(run_soon(&timer, move || delivery.run()));
        }
    }
}

/// A task that tells the listener of what waits: if it is run, of a slice; if not, of all.
struct Delivery<K: Send + 'static, V: Send + 'static>(Option<Arc<Outbox<K, V>>>);

impl<K: Send + 'static, V: Send + 'static> Delivery<K, V> {
    fn run(mut self) {
        if let Some(outbox) = self.0.take() {
            outbox.tell(outbox.slice());
            if !outbox.is_done() {
                outbox.dispatch();
            }
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> Drop for Delivery<K, V> {
    fn drop(&mut self) {
        if let Some(outbox) = self.0.take() {
            while !outbox.is_done() {
                outbox.tell(outbox.slice());
            }
        }
    }
}
