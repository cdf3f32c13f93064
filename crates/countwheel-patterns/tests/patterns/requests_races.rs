//! Everything that may end a request, at the same time, on threads of the real kind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{RequestError, RequestStats, Requests};

use crate::support::{HOUR, block_on};

fn ends(stats: &RequestStats) -> u64 {
    stats.completed
        + stats.failed
        + stats.timed_out_unsent
        + stats.timed_out_sent
        + stats.cancelled
        + stats.closed
        + stats.stopped
}

#[test]
fn answer_time_out_cancel_close_and_stop_race_and_one_wins() {
    for round in 0..40_u64 {
        let timer = Timer::new();
        let requests = Requests::<u64>::new(timer.clone());
        let channel = requests.channel();
        let handled = Arc::new(AtomicU64::new(0));
        let (mut responses, mut handlers) = (Vec::new(), 0);
        let mut ids = Vec::new();
        for number in 0..200_u64 {
            let limit = Duration::from_micros(200 * (number % 8));
            let registered = match number % 2 {
                0 => requests.register(limit),
                _ => channel.register(limit),
            };
            let response = registered.unwrap();
            ids.push(response.id());
            if number % 5 == 0 {
                let handled = Arc::clone(&handled);
                handlers += 1;
                response.on_end(move |_| {
                    handled.fetch_add(1, Ordering::SeqCst);
                });
            } else {
                responses.push(response);
            }
        }
        let start = Barrier::new(5);
        let (completed, cancelled) = (AtomicU64::new(0), AtomicU64::new(0));
        let outcomes = thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for &id in &ids {
                    requests.mark_sent(id);
                    let ok = requests.complete(id, id.as_u64()).is_ok();
                    completed.fetch_add(u64::from(ok), Ordering::SeqCst);
                }
            });
            scope.spawn(|| {
                start.wait();
                for &id in ids.iter().rev() {
                    let ok = requests.cancel(id);
                    cancelled.fetch_add(u64::from(ok), Ordering::SeqCst);
                }
            });
            scope.spawn(|| {
                start.wait();
                drop(channel.close(Duration::from_micros(300)));
            });
            scope.spawn(|| {
                start.wait();
                match round % 4 {
                    0 => drop(requests.stop()),
                    1 => drop(timer.stop()),
                    _ => {}
                }
            });
            let waiting = scope.spawn(|| {
                start.wait();
                // All come back: nobody waits for ever.
                let one = |response: countwheel_patterns::Response<u64>| {
                    let id = response.id();
                    match id.as_u64() % 2 {
                        0 => (id, response.wait()),
                        _ => (id, block_on(response)),
                    }
                };
                responses.into_iter().map(one).collect::<Vec<_>>()
            });
            waiting.join().unwrap()
        });
        let right = outcomes.iter().all(|(id, outcome)| match outcome {
            Ok(value) => *value == id.as_u64(),
            Err(error) => !matches!(error, RequestError::Failed(_)),
        });
        assert!(right);
        let stats = requests.stats();
        assert_eq!(
            (stats.registered, ends(&stats), stats.in_flight),
            (200, 200, 0)
        );
        assert_eq!(stats.completed, completed.into_inner());
        assert_eq!(stats.cancelled, cancelled.into_inner());
        // The last handlers may be on their way through the pool: the drop waits for none.
        drop(requests);
        drop(channel);
        let _ = timer.stop();
        assert_eq!(handled.load(Ordering::SeqCst), handlers);
    }
}

#[test]
fn who_drops_and_who_answers_agree() {
    let requests = Requests::<u64>::new(Timer::new());
    let (sender, receiver) = mpsc::channel();
    let completed = thread::scope(|scope| {
        let table = requests.clone();
        let answering = scope.spawn(move || {
            let sent = receiver.iter();
            sent.filter(|&id| table.complete(id, 1).is_ok()).count() as u64
        });
        for _ in 0..20_000 {
            let response = requests.register(HOUR).unwrap();
            sender.send(response.id()).unwrap();
            drop(response);
        }
        drop(sender);
        answering.join().unwrap()
    });
    let stats = requests.stats();
    assert_eq!(
        (stats.completed, stats.completed + stats.cancelled),
        (completed, 20_000)
    );
    assert_eq!(stats.late, stats.cancelled);
}

#[test]
fn registering_while_it_stops_is_refused_or_ended() {
    for round in 0..60 {
        let timer = Timer::new();
        let requests = Requests::<()>::new(timer.clone());
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    let channel = requests.channel();
                    let limits = [HOUR, Duration::MAX, Duration::from_millis(1)];
                    let mut kept = Vec::new();
                    for number in 0..100 {
                        let limit = limits[number % 3];
                        let registered = match number % 2 {
                            0 => requests.register(limit),
                            _ => channel.register(limit),
                        };
                        match registered {
                            Ok(response) => kept.push(response),
                            Err(_) => break,
                        }
                    }
                    start.wait(); // the stop has begun, at least
                    for response in kept {
                        assert!(response.wait().is_err(), "nobody answers");
                    }
                });
            }
            start.wait();
            match round % 2 {
                0 => drop(requests.stop()),
                _ => drop(timer.stop()),
            }
            start.wait();
        });
        let stats = requests.stats();
        assert_eq!((stats.registered, stats.in_flight), (ends(&stats), 0));
    }
}
