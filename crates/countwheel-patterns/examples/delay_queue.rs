//! Orders that nobody pays are closed, by two workers, and a price that changes all the time is
//! pushed at most every 100 ms: `cargo run -p countwheel-patterns --example delay_queue`.

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{DelayQueue, KeyedDelayQueue};

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    close_unpaid_orders(&timer)?;
    push_prices(&timer)
}

fn close_unpaid_orders(timer: &Timer) -> Result<(), Box<dyn Error>> {
    let unpaid = DelayQueue::new(timer.clone());
    let (report, closed) = mpsc::channel();
    let workers: Vec<_> = (1..=2)
        .map(|worker| {
            let (unpaid, report) = (unpaid.clone(), report.clone());
            thread::spawn(move || {
                while let Some(order) = unpaid.take() {
                    println!(
                        "worker {worker} closes order {}, {:.1?} after its deadline",
                        order.value, order.lateness
                    );
                    // Whoever wants to know may be gone already.
                    let _ = report.send(order.value);
                }
            })
        })
        .collect();
    drop(report);

    let mut orders = Vec::new();
    for order in 1..=6_u32 {
        let half_an_hour = Duration::from_millis(100 + 10 * u64::from(order));
        orders.push(unpaid.push(order, half_an_hour)?);
    }
    for paid in [2, 5] {
        let order = unpaid.cancel(orders[paid - 1]);
        println!("order {order:?} is paid");
        assert!(order.is_some());
    }
    // No more orders today. The workers go home when the last one was closed.
    unpaid.close();
    let mut closed: Vec<u32> = closed.iter().collect();
    closed.sort_unstable();
    assert_eq!(closed, [1, 3, 4, 6]);
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")?;
    }
    let stats = unpaid.stats();
    println!(
        "{} orders: {} paid, {} closed\n",
        stats.pushed, stats.cancelled, stats.taken
    );
    Ok(())
}

fn push_prices(timer: &Timer) -> Result<(), Box<dyn Error>> {
    let changed = KeyedDelayQueue::new(timer.clone());
    let publisher = {
        let changed = changed.clone();
        thread::spawn(move || {
            let mut pushed = Vec::new();
            while let Some(due) = changed.take() {
                println!("the price of {} is {}", due.value.0, due.value.1);
                pushed.push(due.value.1);
            }
            pushed
        })
    };
    // A change each 10 ms: they are gathered, and do not put each other off.
    let ticks = DelayQueue::new(timer.clone());
    for price in 1..=35 {
        ticks.push(price, Duration::from_millis(10 * price))?;
    }
    ticks.close();
    while let Some(tick) = ticks.take() {
        changed.push_sooner("tea", tick.value, Duration::from_millis(100))?;
    }
    changed.close();
    let pushed = publisher.join().map_err(|_| "the publisher panicked")?;
    println!("35 changes, {} pushes", pushed.len());
    assert_eq!(pushed.last(), Some(&35), "the last one is always pushed");
    assert!(pushed.len() < 18, "{pushed:?}");
    Ok(())
}
