//! The orders of `orders_threads` with a heap, a thread that waits, and serde:
//! `cargo run -p countwheel-programs --example orders_threads_usual`.

#![expect(clippy::disallowed_methods, reason = "this is how it is usually done")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

type Failure = Box<dyn Error + Send + Sync>;

/// Cents and deadline by number of order, and the deadlines in order: those of paid orders stay until they come.
#[derive(Default)]
struct Open {
    orders: HashMap<u32, (u64, SystemTime)>,
    heap: BinaryHeap<Reverse<(SystemTime, u32)>>,
    is_over: bool,
}

#[derive(Default)]
struct Orders {
    open: Mutex<Open>,
    changed: Condvar,
}

impl Orders {
    fn with<R>(&self, change: impl FnOnce(&mut Open) -> R) -> R {
        let result = change(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
        result
    }

    fn set_at(&self, number: u32, cents: u64, due: SystemTime) {
        self.with(|open| {
            open.orders.insert(number, (cents, due));
            open.heap.push(Reverse((due, number)));
        });
    }

    fn remove(&self, number: u32) -> Option<u64> {
        self.with(|open| Some(open.orders.remove(&number)?.0))
    }

    fn run(&self, close: impl Fn(u32)) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while !open.is_over {
            let next = open.heap.peek().map(|Reverse(next)| *next);
            let left = next.map_or(Duration::MAX, |(due, _)| {
                due.duration_since(SystemTime::now()).unwrap_or_default()
            });
            match next {
                Some((due, number)) if left.is_zero() => {
                    open.heap.pop();
                    if open.orders.get(&number).is_some_and(|order| order.1 == due) {
                        open.orders.remove(&number);
                        close(number);
                    }
                }
                _ => {
                    let woken = self.changed.wait_timeout(open, left);
                    open = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

fn open() -> (Arc<Orders>, Receiver<u32>) {
    let (sender, closed) = mpsc::channel();
    let orders = Arc::new(Orders::default());
    let shared = Arc::clone(&orders);
    thread::spawn(move || shared.run(|number| sender.send(number).unwrap_or_default()));
    (orders, closed)
}

/// Each shop sells a hundred orders: one in two is paid, one in four is due today.
fn sell(orders: &Orders, shop: u32) -> usize {
    let mut paid = 0;
    for number in 100 * shop..100 * (shop + 1) {
        let millis = if number % 4 == 1 { 50 } else { 900 };
        orders.set_at(
            number,
            999,
            SystemTime::now() + Duration::from_millis(millis),
        );
        if number % 2 == 0 {
            paid += usize::from(orders.remove(number).is_some());
        }
    }
    paid
}

fn save(orders: &Orders, file: &Path) -> Result<usize, Failure> {
    let left = orders.with(|open| {
        open.is_over = true;
        std::mem::take(&mut open.orders)
    });
    fs::write(file, serde_json::to_vec(&left)?)?;
    Ok(left.len())
}

fn restore(orders: &Orders, file: &Path) -> Result<(), Failure> {
    let saved: HashMap<u32, (u64, SystemTime)> = serde_json::from_slice(&fs::read(file)?)?;
    for (number, (cents, due)) in saved {
        orders.set_at(number, cents, due);
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("open.json");
    let (orders, closed) = open();
    let paid: usize = thread::scope(|scope| {
        let shops = [0, 1, 2].map(|shop| {
            let orders = &orders;
            scope.spawn(move || sell(orders, shop))
        });
        shops
            .into_iter()
            .map(|shop| shop.join().map_err(|_| "a shop panicked".into()))
            .sum::<Result<_, Failure>>()
    })?;
    let today: Vec<u32> = closed.iter().take(75).collect();
    let saved = save(&orders, &file)?;
    println!("paid {paid}, closed {}, saved {saved}", today.len());
    assert_eq!((paid, saved), (150, 75));
    assert!(today.iter().all(|number| number % 4 == 1));

    let (orders, closed) = open();
    restore(&orders, &file)?;
    assert_eq!(orders.remove(3), Some(999));
    let morning: Vec<u32> = closed.iter().take(74).collect();
    println!(
        "in the morning one is paid and {} are closed",
        morning.len()
    );
    assert!(
        morning.iter().all(|number| number % 4 == 3) && orders.with(|open| open.orders.is_empty())
    );
    Ok(())
}
