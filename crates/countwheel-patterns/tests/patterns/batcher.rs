//! Batches: ELV-4 (when full, or when the oldest has waited as long as may be).

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{ManualClock, ManualHost, Stop, Timer};
use countwheel_patterns::{Batcher, BatcherStats, PushError};

use crate::support::{Desk, Journal, MS, Presence, SECOND};

fn size(items: usize) -> NonZeroUsize {
    NonZeroUsize::new(items).unwrap()
}

fn adds_up(stats: &BatcherStats) {
    let ends = stats.handled + stats.returned + stats.waiting + stats.in_flight;
    assert_eq!(stats.pushed, ends, "{stats:?}");
}

fn batcher(host: &ManualHost, capacity: usize) -> (Batcher<u32>, Journal<Vec<u32>>) {
    let batches = Journal::new();
    let log = batches.clone();
    let handler = move |batch| log.write(batch);
    let timer = host.timer().clone();
    let batcher = Batcher::bounded(timer, capacity, size(3), 500 * MS, handler);
    (batcher, batches)
}

#[test]
fn a_batch_goes_when_it_is_full_or_its_oldest_has_waited() {
    let mut host = ManualHost::new();
    let (batcher, batches) = batcher(&host, 100);
    for item in 0..7 {
        batcher.push(item).unwrap();
    }
    host.run_due();
    assert_eq!(batches.take(), [vec![0, 1, 2], vec![3, 4, 5]]);
    host.advance(300 * MS);
    batcher.push(7).unwrap(); // a younger one changes nothing
    host.advance(199 * MS);
    assert_eq!((batches.take(), batcher.len()), (vec![], 2));
    host.advance(MS);
    assert_eq!(batches.take(), [vec![6, 7]]);
    assert!(batcher.is_empty());
    host.advance(10 * SECOND);
    assert!(batches.take().is_empty(), "there are no empty batches");
    assert_eq!(host.timer().pending(), 0);

    // The next batch begins to wait with its own first item.
    for item in 0..3 {
        host.advance(200 * MS);
        batcher.push(item).unwrap();
    }
    batcher.push(9).unwrap();
    host.advance(499 * MS);
    assert_eq!(batches.take(), [vec![0, 1, 2]]);
    host.advance(MS);
    assert_eq!(batches.take(), [vec![9]]);
    let stats = batcher.stats();
    assert_eq!(stats.full, 3);
    adds_up(&stats);
}

#[test]
fn what_is_handled_takes_room_until_it_has_been() {
    let desk = Desk::with_room(9);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    let (batcher, batches) = batcher(&host, 4);
    for item in 0..4 {
        batcher.push(item).unwrap();
    }
    host.run_due();
    assert!(matches!(batcher.push(4), Err(PushError::Full(4))));
    assert_eq!((batcher.stats().in_flight, batcher.stats().refused), (3, 1));
    desk.run_all();
    batcher.push(4).unwrap();
    assert_eq!(batches.take(), [vec![0, 1, 2]]);
    assert_eq!(batcher.flush(), 2);
    host.run_due();
    desk.run_all();
    assert_eq!(batches.take(), [vec![3, 4]]);
    adds_up(&batcher.stats());
}

#[test]
fn what_the_executor_drops_waits_again_and_is_first() {
    let desk = Desk::with_room(9);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    let (batcher, batches) = batcher(&host, 100);
    for item in 0..4 {
        batcher.push(item).unwrap();
    }
    host.run_due();
    drop(desk.take());
    assert_eq!(batcher.len(), 4);
    host.advance(500 * MS);
    desk.run_all();
    assert_eq!(batches.take(), [vec![0, 1, 2], vec![3]]);
    let stats = batcher.stats();
    assert_eq!((stats.dropped, stats.handled), (1, 4));
    adds_up(&stats);
}

#[test]
fn a_function_that_panics_is_counted_and_gets_the_next_batch() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let panics = |_: Vec<u8>| resume_unwind(Box::new("on purpose"));
    let batcher = Batcher::bounded(timer, 9, size(1), SECOND, panics);
    for item in 0..3 {
        batcher.push(item).unwrap();
        host.run_due();
    }
    let stats = batcher.stats();
    assert_eq!((stats.panicked, stats.handled, stats.batches), (3, 3, 3));
    assert_eq!(host.timer().stats().panicked, 3);
    adds_up(&stats);
}

#[test]
fn a_stop_gives_back_what_waits_and_so_it_does_after_the_end_of_the_timer() {
    let host = ManualHost::new();
    let (batcher, batches) = batcher(&host, 100);
    for item in 0..4 {
        batcher.push(item).unwrap();
    }
    // The full batch has not begun: the timer gives its task back, and with it the items.
    drop(host.timer().close(Stop::Drop).wait());
    assert!(matches!(batcher.push(4), Err(PushError::Closed(4))));
    assert_eq!(batcher.stop(), [0, 1, 2, 3]);
    assert!(batcher.stop().is_empty() && batches.take().is_empty());
    let stats = batcher.stats();
    assert_eq!((stats.returned, stats.refused), (4, 1));
    adds_up(&stats);
}

#[test]
fn the_longest_delay_is_never_and_none_is_at_once() {
    let mut host = ManualHost::new();
    let presence = Presence::default();
    let log = Journal::new();
    for (delay, batches) in [(Duration::MAX, 0), (Duration::ZERO, 1)] {
        let (log, held) = (log.clone(), presence.clone());
        let handler = move |batch: Vec<u8>| {
            let _ = &held;
            log.write(batch);
        };
        let batcher = Batcher::bounded(host.timer().clone(), 9, size(9), delay, handler);
        batcher.push(1).unwrap();
        batcher.push(2).unwrap();
        host.advance(3_600 * SECOND);
        assert_eq!(batcher.stats().batches, batches);
    }
    assert_eq!(log.take(), [vec![1_u8, 2]]);
    assert!(
        presence.is_over(),
        "the last handle takes the function with it"
    );
    assert_eq!(host.timer().pending(), 0);
}
