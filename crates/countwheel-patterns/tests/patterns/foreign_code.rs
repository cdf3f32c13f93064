//! Foreign code that comes back at once: wakers that poll the host where they are woken,
//! listeners that wait, consumers that do not come.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use countwheel::{KeyedTimer, ManualClock, ManualHost, Timer};
use countwheel_patterns::broker::{LeaseConfig, Leases};
use countwheel_patterns::{
    Batcher, DelayQueue, ExpiringMap, Failure, IdleLimits, IdleWatch, KeyedDelayQueue, KeyedRetry,
    Periodic, Requests, RetryPolicy, RunEnd, Supervised, Ttl, Worker,
};

use crate::support::{Count, MS, SECOND};

/// A runtime that polls the host where it is woken, unless it is just being polled: then once
/// more, at the end of that.
struct AtOnce {
    host: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    again: AtomicBool,
    polls: AtomicUsize,
}

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        let Ok(mut host) = self.host.try_lock() else {
            return;
        };
        while self.again.swap(false, Ordering::SeqCst) {
            self.polls.fetch_add(1, Ordering::SeqCst);
            let waker = Waker::from(Arc::clone(&self));
            let _ = host.as_mut().poll(&mut Context::from_waker(&waker));
        }
    }
}

fn hosted_at_once() -> (Timer, ManualClock, Arc<AtOnce>) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).inline();
    let (timer, host) = builder.build_hosted(|_| std::future::pending());
    let runtime = Arc::new(AtOnce {
        host: Mutex::new(Box::pin(host)),
        again: AtomicBool::new(false),
        polls: AtomicUsize::new(0),
    });
    Arc::clone(&runtime).wake();
    (timer, clock, runtime)
}

// the host was woken under the lock of the keys: a runtime that polled it there and then made
// the task find that lock taken, by its own thread.
#[test]
fn a_key_fires_though_its_host_is_polled_where_it_is_woken() {
    let (timer, clock, _runtime) = hosted_at_once();
    let (sender, fired) = mpsc::channel();
    let keyed = KeyedTimer::new(timer.clone(), move |key: u32, ()| sender.send(key).unwrap());
    keyed.set(1, (), Duration::ZERO).unwrap();
    assert_eq!(fired.try_recv(), Ok(1));
    keyed.set_if_absent(2, (), Duration::ZERO).unwrap();
    assert_eq!(fired.try_recv(), Ok(2));
    keyed.set(3, (), SECOND).unwrap();
    keyed.set(3, (), Duration::ZERO).unwrap();
    assert_eq!(fired.try_recv(), Ok(3));
    keyed.set(4, (), SECOND).unwrap();
    keyed.move_to(&4, Duration::ZERO);
    assert_eq!(fired.try_recv(), Ok(4));
    clock.advance(SECOND);
    assert_eq!((keyed.len(), timer.pending()), (0, 0));
}

// the host was woken under the lock of the bell that a pattern rings by: it waited for itself.
#[test]
fn a_request_ends_though_its_host_is_polled_where_it_is_woken() {
    let (timer, _clock, _runtime) = hosted_at_once();
    let requests = Requests::<()>::new(timer.clone());
    let waits = requests.register(SECOND).unwrap();
    let ended = requests.register(Duration::ZERO).unwrap();
    assert!(ended.is_ended() && !waits.is_ended());

    let queue = DelayQueue::new(timer.clone());
    let mut next = queue.next();
    let woken = Count::new();
    assert!(woken.poll(&mut next).is_pending());
    queue.push((), Duration::ZERO).unwrap();
    assert_eq!(woken.woken(), 1);

    let ran = Count::new();
    let runs = Waker::from(Arc::clone(&ran));
    let task = Supervised::every(SECOND)
        .first_delay(Duration::ZERO)
        .start(&timer, move |_| runs.wake_by_ref())
        .unwrap();
    assert_eq!((ran.woken(), task.stats().success), (1, 1));
}

// The same for every other pattern that has deadlines of its own: what it does from within the
// call that makes it due must find no lock taken.
#[test]
fn every_pattern_goes_on_though_its_host_is_polled_where_it_is_woken() {
    let (timer, clock, _runtime) = hosted_at_once();
    let (sender, told) = mpsc::channel();
    let tell = move |what: &'static str| sender.send(what).unwrap();
    let came = |what| assert_eq!(told.try_recv(), Ok(what));
    let pass = |span| {
        clock.advance(span);
        timer.rouse();
    };

    let run = tell.clone();
    let task = Periodic::with_fixed_delay(SECOND)
        .first_delay(Duration::ZERO)
        .start(&timer, move || run("periodic"))
        .unwrap();
    came("periodic");
    pass(SECOND);
    came("periodic");
    task.cancel();

    let step = tell.clone();
    let worker = Worker::on_demand().start(&timer, move || step("worker"));
    let worker = worker.unwrap();
    worker.wake();
    came("worker");
    worker.close();

    let batch = tell.clone();
    let one = std::num::NonZeroUsize::MIN;
    let batcher = Batcher::bounded(timer.clone(), 9, one, SECOND, move |_: Vec<u8>| {
        batch("batch");
    });
    batcher.push(1).unwrap();
    came("batch");

    let attempt = tell.clone();
    let policy = RetryPolicy::fixed(SECOND);
    let retry = KeyedRetry::new(timer.clone(), policy, move |_: &u8, _: &u8, _| {
        attempt("retry");
        Err(Failure::Retryable("down"))
    });
    retry.submit(1, 1).unwrap();
    came("retry");
    pass(SECOND);
    came("retry");
    let _ = retry.cancel(&1);

    let evict = tell.clone();
    let config = LeaseConfig::new(SECOND);
    let leases = Leases::new(timer.clone(), config, move |_: &u8| evict("lease"));
    let lease = leases.grant(1).unwrap();
    for _ in 0..200 {
        pass(100 * MS); // no stall, for which leases would make up
    }
    came("lease");
    drop(lease);

    let hear = tell.clone();
    let idle = IdleWatch::new(timer.clone(), move |_: &u8, _| hear("idle"));
    let watched = idle.watch(1, IdleLimits::NONE.all(SECOND)).unwrap();
    for _ in 0..15 {
        pass(100 * MS);
    }
    came("idle");
    drop(watched);

    let expire = tell.clone();
    let map = ExpiringMap::builder()
        .ttl(Ttl::after(SECOND))
        .listener(move |_: u8, _: u8, _| expire("expired"))
        .build(timer.clone());
    map.insert(1, 1).unwrap();
    pass(SECOND);
    came("expired");

    assert!(told.try_recv().is_err(), "and nothing else");
}

// a listener that waited for the end, called with the last run, waited for itself.
#[test]
fn a_listener_does_not_wait_for_the_end_that_it_is_told_of() {
    let mut host = ManualHost::new();
    let (sender, answers) = mpsc::channel();
    let own: Arc<Mutex<Option<Supervised>>> = Arc::default();
    let task = {
        let own = Arc::clone(&own);
        Supervised::every(SECOND)
            .on_event(move |_| {
                let own = own.lock().unwrap().take().unwrap();
                sender.send((own.wait(), own.wait_for(SECOND))).unwrap();
            })
            .start(host.timer(), |_| RunEnd::Break)
            .unwrap()
    };
    *own.lock().unwrap() = Some(task.clone());
    host.advance(SECOND);
    assert_eq!(answers.try_recv(), Ok((false, false)));
    assert!(task.wait(), "it is over, for everybody else");
}

// one who was woken for an item and did not come kept it from all who waited: 3 s in the worst
// case that was seen.
#[test]
fn an_item_goes_to_another_if_the_one_who_was_called_does_not_come() {
    let mut host = ManualHost::new();
    let queue = DelayQueue::new(host.timer().clone());
    let (mut first, mut second) = (queue.next(), queue.next());
    let (one, other) = (Count::new(), Count::new());
    assert!(one.poll(&mut first).is_pending() && other.poll(&mut second).is_pending());
    queue.push("item", 110 * MS).unwrap();
    host.advance(110 * MS);
    assert_eq!((one.woken(), other.woken()), (1, 0), "one for one");
    host.advance(20 * MS);
    assert_eq!(
        (one.woken(), other.woken()),
        (1, 1),
        "the first does not come"
    );
    let Poll::Ready(Some(due)) = other.poll(&mut second) else {
        panic!("it is there");
    };
    assert_eq!((due.value, due.lateness), ("item", 20 * MS));
    assert!(
        one.poll(&mut first).is_pending(),
        "nothing is left for the first"
    );
    queue.push("next", Duration::ZERO).unwrap();
    assert_eq!(one.woken(), 2, "but it is in the line");
    assert!(one.poll(&mut first).is_ready());

    // And the same by keys, for any number of those who do not come.
    let queue = KeyedDelayQueue::new(host.timer().clone());
    let mut takes: Vec<_> = (0..5).map(|_| queue.next()).collect();
    let counts: Vec<_> = takes.iter().map(|_| Count::new()).collect();
    for (take, count) in takes.iter_mut().zip(&counts) {
        assert!(count.poll(take).is_pending());
    }
    queue.push(1, "item", SECOND).unwrap();
    host.advance(2 * SECOND);
    assert!(counts.iter().all(|count| count.woken() == 1));
    assert!(counts[4].poll(&mut takes[4]).is_ready());
    assert_eq!(host.timer().pending(), 1, "nobody is called for nothing");
}
