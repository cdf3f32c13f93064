//! Unpaid orders close after their time; three shops are threads. In the evening what is open is saved, and the next
//! morning it goes on: `cargo run -p countwheel-programs --example orders_threads`.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use countwheel::{ClockReading, KeyedTimer, SavedEntry, Timer};

/// Cents by number of order.
type Orders = KeyedTimer<u32, u64>;
type Failure = Box<dyn Error + Send + Sync>;

fn open(timer: &Timer) -> (Orders, Receiver<u32>) {
    let (sender, closed) = mpsc::channel();
    let close = move |number, _| sender.send(number).unwrap_or_default();
    (KeyedTimer::new(timer.clone(), close), closed)
}

/// Each shop sells a hundred orders: one in two is paid, one in four is due today.
fn sell(orders: &Orders, shop: u32) -> Result<usize, Failure> {
    let mut paid = 0;
    for number in 100 * shop..100 * (shop + 1) {
        let millis = if number % 4 == 1 { 50 } else { 900 };
        orders.set(number, 999, Duration::from_millis(millis))?;
        if number % 2 == 0 {
            paid += usize::from(orders.remove(&number).is_some());
        }
    }
    Ok(paid)
}

fn save(orders: &Orders, file: &Path) -> Result<usize, Failure> {
    let now = ClockReading::of(orders.timer().clock());
    let left: Vec<_> = orders
        .stop()
        .into_iter()
        .map(|entry| entry.saved(now))
        .collect();
    fs::write(file, serde_json::to_vec(&left)?)?;
    Ok(left.len())
}

fn restore(orders: &Orders, file: &Path) -> Result<(), Failure> {
    let now = ClockReading::of(orders.timer().clock());
    let saved: Vec<SavedEntry<u32, u64>> = serde_json::from_slice(&fs::read(file)?)?;
    for entry in saved {
        let entry = entry.restored(now);
        orders.set_at(entry.key, entry.value, entry.deadline)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("open.json");
    let timer = Timer::new();
    let (orders, closed) = open(&timer);
    let paid: usize = thread::scope(|scope| {
        let shops = [0, 1, 2].map(|shop| {
            let orders = &orders;
            scope.spawn(move || sell(orders, shop))
        });
        shops
            .into_iter()
            .map(|shop| shop.join().map_err(|_| "a shop panicked")?)
            .sum::<Result<_, Failure>>()
    })?;
    let today: Vec<u32> = closed.iter().take(75).collect();
    let saved = save(&orders, &file)?;
    println!("paid {paid}, closed {}, saved {saved}", today.len());
    assert_eq!((paid, saved), (150, 75));
    assert!(today.iter().all(|number| number % 4 == 1));

    let (orders, closed) = open(&timer);
    restore(&orders, &file)?;
    assert_eq!(orders.remove(&3), Some(999));
    let morning: Vec<u32> = closed.iter().take(74).collect();
    println!(
        "in the morning one is paid and {} are closed",
        morning.len()
    );
    assert!(morning.iter().all(|number| number % 4 == 3) && orders.is_empty());
    Ok(())
}
