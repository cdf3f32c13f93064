//! Loads of an expiring map: who waits for one, what it replaces, and who gives up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use countwheel::{Clock, Instant, ManualClock, ManualHost, Timer, Timestamp};
use countwheel_patterns::{ExpiringMap, InsertError, Ttl, WeakExpiringMap};
use countwheel_time::locks::lock;

use crate::support::{Count, SECOND};

struct Panics;
impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

/// A load that ends with `value` once somebody says so, and is polled again.
fn gated<V>(value: V) -> (mpsc::Sender<()>, impl Future<Output = Result<V, ()>>) {
    let (tx, rx) = mpsc::channel();
    let gate = async move {
        std::future::poll_fn(|_| match rx.try_recv() {
            Ok(()) => Poll::Ready(()),
            Err(_) => Poll::Pending,
        })
        .await;
        Ok(value)
    };
    (tx, gate)
}

// a waker that panics keeps others from being woken.
#[test]
fn a_waker_that_panics_keeps_nobody_waiting_for_a_load() {
    let host = ManualHost::new();
    let map = ExpiringMap::<u32, u32>::new(host.timer().clone(), Ttl::NEVER);
    let mut loader =
        Box::pin(map.try_get_or_load_async(&1, std::future::pending::<Result<u32, ()>>()));
    assert!(
        loader
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let mut first =
        Box::pin(map.try_get_or_load_async(&1, std::future::pending::<Result<u32, ()>>()));
    let bad = Waker::from(Arc::new(Panics));
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&bad))
            .is_pending()
    );
    let count = Count::new();
    let good = Waker::from(count.clone());
    let mut second = Box::pin(map.try_get_or_load_async(&1, async { Ok::<_, ()>(7) }));
    assert!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&good))
            .is_pending()
    );
    let _ = catch_unwind(AssertUnwindSafe(|| drop(loader)));
    assert_eq!(count.woken(), 1, "the second was never woken");
}

// the destructor of the value that a load replaces panics: those who wait hang.
#[test]
fn a_destructor_that_panics_keeps_nobody_waiting_for_a_load() {
    #[derive(Clone)]
    struct V(bool);
    impl Drop for V {
        fn drop(&mut self) {
            if self.0 && !thread::panicking() {
                panic!("on purpose");
            }
        }
    }
    let host = ManualHost::new();
    let map = ExpiringMap::<u32, V>::new(host.timer().clone(), Ttl::after(SECOND));
    map.insert(1, V(true)).unwrap();
    host.clock().advance(SECOND); // expired, but nobody has taken it out yet
    let (tx, gate) = gated(V(false));
    let mut loader = Box::pin(map.try_get_or_load_async(&1, gate));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(loader.as_mut().poll(&mut cx).is_pending());
    let count = Count::new();
    let good = Waker::from(count.clone());
    let mut second = Box::pin(map.try_get_or_load_async(&1, async { Ok::<_, ()>(V(false)) }));
    assert!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&good))
            .is_pending()
    );
    tx.send(()).unwrap();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(loader.as_mut().poll(&mut cx))));
    drop(loader);
    assert_eq!(count.woken(), 1, "the one who waits was never woken");
}

#[derive(Debug, Clone)]
struct Back {
    base: ManualClock,
    back: Arc<AtomicU64>,
}
impl Clock for Back {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.base.now().as_nanos() - self.back.load(Ordering::SeqCst))
    }
    fn timestamp(&self) -> Timestamp {
        self.base.timestamp()
    }
}

// `keep` drops the value it replaces under the lock. `back` stands for a reader that has
/// read the clock before the loader, and takes the lock after it.
#[test]
fn what_a_load_replaces_is_dropped_without_the_lock() {
    type Slot = Arc<Mutex<Option<WeakExpiringMap<u32, V>>>>;
    struct V(Option<(Slot, Arc<AtomicUsize>)>);
    impl Clone for V {
        fn clone(&self) -> Self {
            V(None)
        }
    }
    impl Drop for V {
        fn drop(&mut self) {
            if let Some((map, dropped)) = self.0.take() {
                dropped.fetch_add(1, Ordering::SeqCst);
                let map = map.lock().unwrap().clone();
                if let Some(map) = map.and_then(|m| m.upgrade()) {
                    let _ = map.contains(&2);
                }
            }
        }
    }
    let base = ManualClock::new();
    base.advance(10 * SECOND);
    let back = Arc::new(AtomicU64::new(0));
    let clock = Back {
        base: base.clone(),
        back: back.clone(),
    };
    // A host that nobody polls: nothing but the calls below looks at what has expired.
    let (timer, _host) =
        (Timer::builder().clock(clock)).build_hosted(|_| std::future::pending::<()>());
    let map = ExpiringMap::<u32, V>::new(timer, Ttl::idle(SECOND));
    let weak = Arc::new(Mutex::new(Some(map.downgrade())));
    let dropped = Arc::new(AtomicUsize::new(0));
    map.insert(1, V(Some((weak.clone(), dropped.clone()))))
        .unwrap();
    base.advance(SECOND);
    let (tx, gate) = gated(V(None));
    let mut loader = Box::pin(map.try_get_or_load_async(&1, gate));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(loader.as_mut().poll(&mut cx).is_pending());
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    back.store(1, Ordering::SeqCst);
    assert!(map.touch(&1), "read the clock before, and so renews it");
    back.store(0, Ordering::SeqCst);
    tx.send(()).unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        loader.as_mut().poll(&mut cx).is_ready()
    }));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    *lock(&weak) = None;
    assert!(
        ended.is_ok(),
        "the destructor ran under the lock of the map"
    );
}

// an insert that is refused throws away the load that is under way.
#[test]
fn an_insert_that_is_refused_leaves_the_load_alone() {
    let host = ManualHost::new();
    let map = ExpiringMap::<u32, u32>::builder()
        .max_entries(1)
        .build(host.timer().clone());
    map.insert(9, 9).unwrap();
    let loaded = map.get_or_insert_with(&1, || {
        assert!(matches!(map.insert(1, 5), Err(InsertError::Full(..))));
        map.remove(&9);
        7
    });
    assert_eq!(loaded, 7);
    assert_eq!(
        map.get(&1),
        Some(7),
        "nobody has inserted or removed 1, and there is room"
    );
}

// those who gave up waiting for a load leave nothing behind.
#[test]
fn who_gives_up_waiting_for_a_load_leaves_nothing_behind() {
    let host = ManualHost::new();
    let map = ExpiringMap::<u32, u32>::new(host.timer().clone(), Ttl::NEVER);
    let mut loader =
        Box::pin(map.try_get_or_load_async(&1, std::future::pending::<Result<u32, ()>>()));
    assert!(
        loader
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let presence = Count::new();
    struct Task(#[allow(dead_code)] Arc<Count>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    for _ in 0..1_000 {
        let waker = Waker::from(Arc::new(Task(presence.clone())));
        let mut waits = Box::pin(map.try_get_or_load_async(&1, async { Ok::<_, ()>(7) }));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    assert_eq!(
        Arc::strong_count(&presence),
        1,
        "wakers of futures that are gone"
    );
}
