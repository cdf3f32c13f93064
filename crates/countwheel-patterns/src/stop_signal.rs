//! The signal that tells running work to stop.

use std::collections::BTreeMap;
use std::future::{self, Future};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use countwheel::building::block_for;
use countwheel::building::returns;
use countwheel_time::Patience;
use countwheel_time::locks::lock;

/// Tells work that is under way to stop: because it took too long, was overtaken, or is no
/// longer wanted.
///
/// Nothing stops a thread from the outside. So a function looks here whenever it can end
/// early, and sleeps with [`wait_for`](Self::wait_for). A future need not look: it is dropped.
///
/// Clones are the same signal.
///
/// ```
/// use countwheel_patterns::StopSignal;
/// use std::time::Duration;
///
/// let signal = StopSignal::new();
/// let worker = {
///     let signal = signal.clone();
///     std::thread::spawn(move || {
///         let mut pages = 0;
///         while !signal.wait_for(Duration::from_millis(1)) {
///             pages += 1; // fetch a page
///         }
///         pages
///     })
/// };
/// signal.stop();
/// assert!(signal.check().is_err());
/// worker.join().unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    waiting: Mutex<Waiting>,
}

/// Who waits for it.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// The work was told to stop: see [`StopSignal::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("told to stop")]
pub struct ToldToStop;

impl StopSignal {
    /// A signal that nobody has given yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the signal, once for all. Wakes who waits for it.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut self.waiting().wakers);
        for (_, waker) in waiting {
            returns(|| waker.wake());
        }
    }

    /// Whether it was given. One load.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.is_stopped.load(Ordering::Acquire)
    }

    /// The same for use with `?`.
    ///
    /// # Errors
    /// [`ToldToStop`] if the signal was given.
    pub fn check(&self) -> Result<(), ToldToStop> {
        if self.is_stopped() {
            Err(ToldToStop)
        } else {
            Ok(())
        }
    }

    /// Blocks until the signal is given, or for `span` of real time. True if it was given.
    #[must_use]
    pub fn wait_for(&self, span: Duration) -> bool {
        let mut place = SignalPlace::new(self.clone());
        let stopped = block_for(Patience::of(span), |cx| {
            place.wait_with(cx.waker());
            if self.is_stopped() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        stopped.is_some() || self.is_stopped()
    }

    /// Waits until the signal is given.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, and leaves nothing behind.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + 'static {
        let mut place = SignalPlace::new(self.clone());
        future::poll_fn(move |cx| {
            place.wait_with(cx.waker());
            if place.signal.is_stopped() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.shared.waiting)
    }
}

/// The place of one who waits, until it is dropped.
struct SignalPlace {
    signal: StopSignal,
    number: Option<u64>,
}

impl SignalPlace {
    fn new(signal: StopSignal) -> Self {
        Self {
            signal,
            number: None,
        }
    }

    /// From now on this waker is woken. A waker is foreign: it is neither cloned nor dropped
    /// under the lock.
    fn wait_with(&mut self, waker: &Waker) {
        let waker = waker.clone();
        let mut waiting = self.signal.waiting();
        let number = *self.number.get_or_insert_with(|| {
            waiting.next += 1;
            waiting.next
        });
        let old = waiting.wakers.insert(number, waker);
        drop(waiting);
        drop(old);
    }
}

impl Drop for SignalPlace {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let old = self.signal.waiting().wakers.remove(&number);
            drop(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Wake};
    use std::thread;

    use super::*;

    #[test]
    fn everybody_who_waits_is_told() {
        let signal = StopSignal::new();
        let mut future = pin!(signal.stopped());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut cx).is_pending());
        let waiting = [(); 3].map(|()| {
            let signal = signal.clone();
            thread::spawn(move || signal.wait_for(Duration::MAX))
        });
        signal.stop();
        for thread in waiting {
            assert!(thread.join().unwrap());
        }
        assert!(future.poll(&mut cx).is_ready());
        assert!(signal.wait_for(Duration::MAX), "it stays given");
    }

    #[test]
    fn who_waits_in_vain_leaves_nothing_behind() {
        let signal = StopSignal::new();
        assert!(!signal.wait_for(Duration::ZERO));
        assert!(signal.check().is_ok());
        assert!(signal.waiting().wakers.is_empty());
        let mut future = signal.stopped();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
        assert_eq!(signal.waiting().wakers.len(), 1);
        drop(future);
        assert!(signal.waiting().wakers.is_empty());
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_woken() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }
        let signal = StopSignal::new();
        let mut first = signal.stopped();
        let bad = Waker::from(Arc::new(Panics));
        assert!(
            Pin::new(&mut first)
                .poll(&mut Context::from_waker(&bad))
                .is_pending()
        );
        let waiting = {
            let signal = signal.clone();
            thread::spawn(move || signal.wait_for(Duration::MAX))
        };
        signal.stop();
        assert!(waiting.join().unwrap());
    }
}
