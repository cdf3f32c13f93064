//! Futures that run on a timer's executor, one task a poll.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::concurrent::{Next, Notice};
use countwheel::building::{Panicked, caught, returns, run_soon, timer_name};
use countwheel::{ScheduleError, WeakTimer};
use countwheel_time::locks::lock;

/// A future that runs on a timer's executor. Dropping this lets it run on.
pub(crate) struct Spawned {
    courier: Arc<dyn End + Send + Sync>,
}

impl Spawned {
    /// Ends the future, wherever it is: it is dropped here and now, or by the poll that is
    /// under way, and never polled again.
    pub(crate) fn end(&self) {
        self.courier.end();
    }
}

/// Runs `future` to its end, as tasks of `timer`: on its executor, one task for each poll.
/// Needs no runtime, but what the future waits for may.
///
/// A future that panics is dropped, and so is one that is woken when the timer has stopped: it
/// has to say at its drop what else would never be said.
///
/// # Errors
/// If the timer has stopped or cannot start: the future has been dropped.
pub(crate) fn spawn(
    timer: &WeakTimer,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<Spawned, ScheduleError> {
    let courier = Arc::new(Courier {
        timer: timer.clone(),
        notice: Notice::queued(),
        future: Mutex::new(Some(Box::pin(future))),
    });
    let spawned = Spawned {
        courier: Arc::clone(&courier) as _,
    };
    courier.queue()?;
    Ok(spawned)
}

struct Courier<F> {
    timer: WeakTimer,
    notice: Notice,
    /// Whoever the notice lets poll or drop it finds the lock free.
    future: Mutex<Option<Pin<Box<F>>>>,
}

trait End {
    fn end(&self);
}

impl<F> End for Courier<F> {
    fn end(&self) {
        if self.notice.end() {
            self.drop_future();
        }
    }
}

impl<F> Courier<F> {
    fn drop_future(&self) {
        let future = lock(&self.future).take();
        returns(|| drop(future));
    }
}

impl<F: Future<Output = ()> + Send + 'static> Courier<F> {
    /// Queues a task that polls.
    fn queue(self: &Arc<Self>) -> Result<(), ScheduleError> {
        let Some(timer) = self.timer.upgrade() else {
            self.end();
            return Ok(());
        };
        let turn = SpawnedTurn(Some(Arc::clone(self)));
        run_soon(&timer, move || turn.run())
    }

    fn poll(self: &Arc<Self>) {
        if !self.notice.start() {
            return;
        }
        let waker = Waker::from(Arc::clone(self));
        let polled = caught(|| {
            let mut future = lock(&self.future);
            let mut cx = Context::from_waker(&waker);
            future
                .as_mut()
                .map_or(Poll::Ready(()), |future| future.as_mut().poll(&mut cx))
        });
        if polled == Err(Panicked::NoRuntime) {
            let timer = self.timer.upgrade();
            let timer = timer.as_ref().map(timer_name);
            tracing::error!(
                timer,
                "a future needs a tokio runtime, and its timer has none"
            );
        }
        if polled != Ok(Poll::Pending) {
            self.notice.end();
            return self.drop_future();
        }
        match self.notice.rest() {
            Next::Rest => {}
            // Refused only if the timer is closed: then the task, dropped, ends the future.
            Next::Queue => drop(self.queue()),
            Next::Over => self.drop_future(),
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for Courier<F> {
    fn wake(self: Arc<Self>) {
        if self.notice.wake() {
            drop(self.queue());
        }
    }
}

/// A task that polls, or that ends the future if it is never run.
struct SpawnedTurn<F: Future<Output = ()> + Send + 'static>(Option<Arc<Courier<F>>>);

impl<F: Future<Output = ()> + Send + 'static> SpawnedTurn<F> {
    fn run(mut self) {
        if let Some(courier) = self.0.take() {
            courier.poll();
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Drop for SpawnedTurn<F> {
    fn drop(&mut self) {
        if let Some(courier) = self.0.take() {
            courier.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use countwheel::{ManualHost, Timer};

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts how often it was dropped.
    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that sleeps again and again, and how often it did and was dropped.
    fn sleeper(timer: &Timer) -> (impl Future<Output = ()> + use<>, [Arc<AtomicUsize>; 2]) {
        let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let [slept, dropped] = counts.clone();
        let (weak, dropped) = (timer.downgrade(), Dropped(dropped));
        let future = async move {
            let _dropped = dropped;
            while let Some(timer) = weak.upgrade() {
                let sleep = timer.sleep(SECOND);
                drop(timer);
                if sleep.await.is_err() {
                    return;
                }
                slept.fetch_add(1, Ordering::SeqCst);
            }
        };
        (future, counts)
    }

    fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    #[test]
    fn a_future_goes_on_whenever_it_is_woken_until_it_is_ended() {
        let mut host = ManualHost::new();
        let (future, [slept, dropped]) = sleeper(host.timer());
        let spawned = spawn(&host.timer().downgrade(), future).unwrap();
        host.advance(5 * SECOND);
        assert_eq!((count(&slept), count(&dropped)), (5, 0));
        spawned.end();
        assert_eq!(count(&dropped), 1, "at once");
        host.advance(5 * SECOND);
        assert_eq!(count(&slept), 5);
        assert_eq!(host.timer().pending(), 0);
    }

    #[test]
    fn a_future_is_not_refused_for_want_of_room() {
        let mut host = Timer::builder()
            .max_pending(2)
            .manual(countwheel::ManualClock::new());
        let hour = 3600 * SECOND;
        let (future, [slept, _]) = sleeper(host.timer());
        spawn(&host.timer().downgrade(), future).unwrap();
        host.timer().schedule(hour, || ()).unwrap();
        host.advance(SECOND);
        assert_eq!(count(&slept), 1, "its sleep had the second place");
        assert!(host.timer().schedule(hour, || ()).is_err());
    }

    #[test]
    fn a_future_ends_with_its_timer() {
        let mut host = ManualHost::new();
        let (future, [_, dropped]) = sleeper(host.timer());
        spawn(&host.timer().downgrade(), future).unwrap();
        drop(host.timer().close(countwheel::Stop::HandBack));
        assert_eq!(
            count(&dropped),
            1,
            "its first task was handed back and dropped"
        );

        let (future, [_, dropped]) = sleeper(host.timer());
        assert!(spawn(&host.timer().downgrade(), future).is_err());
        assert_eq!(count(&dropped), 1);

        host = ManualHost::new();
        let (future, [_, dropped]) = sleeper(host.timer());
        spawn(&host.timer().downgrade(), future).unwrap();
        host.run_due();
        drop(host.timer().close(countwheel::Stop::HandBack));
        assert_eq!(
            count(&dropped),
            1,
            "its sleep was in vain, and nobody polls it any more"
        );
    }

    #[test]
    fn a_future_that_panics_is_dropped_and_harms_nobody() {
        let mut host = ManualHost::new();
        let dropped = Arc::new(AtomicUsize::new(0));
        let guard = Dropped(Arc::clone(&dropped));
        let panics = async move {
            let _guard = guard;
            panic!("on purpose");
        };
        spawn(&host.timer().downgrade(), panics).unwrap();
        host.run_due();
        assert_eq!(count(&dropped), 1);
    }

    #[test]
    fn a_future_may_end_itself() {
        let mut host = ManualHost::new();
        let dropped = Arc::new(AtomicUsize::new(0));
        let own = Arc::new(Mutex::new(None::<Spawned>));
        let (guard, handle) = (Dropped(Arc::clone(&dropped)), Arc::clone(&own));
        let future = async move {
            let _guard = guard;
            if let Some(own) = handle.lock().unwrap().take() {
                own.end();
            }
            std::future::pending::<()>().await;
        };
        *own.lock().unwrap() = spawn(&host.timer().downgrade(), future).ok();
        host.run_due();
        assert_eq!(count(&dropped), 1);
    }
}
