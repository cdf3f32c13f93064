//! Many deadlines of one tick, in the patterns that keep wheels of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use countwheel::ManualHost;
use countwheel_patterns::{Attempt, ExpiringMap, Failure, Requests, Retry, RetryPolicy, Ttl};

use crate::support::{HOUR, MS};

/// The lock of a pattern was held for as long as all its deadlines of one tick took to come
/// nearer.
#[test]
fn what_comes_nearer_in_many_pieces_is_due_in_its_tick_all_the_same() {
    const CROWD: u32 = 100_000; // for each lock several times what is moved while it is held once
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let map = ExpiringMap::new(timer.clone(), Ttl::after(HOUR));
    let requests = Requests::<()>::new(timer.clone());
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    let retry = Retry::new(
        timer,
        RetryPolicy::fixed(HOUR),
        move |_: &u32, _: &Attempt| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failure<()>>(())
        },
    );
    let mut responses = Vec::new();
    for number in 0..CROWD {
        map.insert(number, ()).unwrap();
        responses.push(requests.register(HOUR).unwrap());
        retry.submit_failed(number, ()).unwrap();
    }
    host.advance(HOUR - MS);
    let in_flight = requests.stats().in_flight;
    assert_eq!((map.len(), in_flight), (CROWD as usize, u64::from(CROWD)));
    assert_eq!(tried.load(Ordering::SeqCst), 0);
    host.advance(MS);
    assert_eq!((map.len(), requests.stats().in_flight), (0, 0));
    assert_eq!(tried.load(Ordering::SeqCst), CROWD as usize);
}
