//! Orders of several shops are closed in time unless they are paid; what is open in the evening is
//! saved, and goes on in the morning: `cargo run -p countwheel --example orders`.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use countwheel::{KeyedTimer, SetError, Timer};

/// A minute of the example, so that it is over soon.
const MINUTE: Duration = Duration::from_millis(10);

/// Cents owed by number of order.
type Orders = KeyedTimer<u32, u64>;

/// Orders that report their number when they are closed.
fn open(timer: &Timer) -> (Orders, mpsc::Receiver<u32>) {
    let (sender, closed) = mpsc::channel();
    let close = move |number, _cents| sender.send(number).unwrap_or_default();
    (KeyedTimer::new(timer.clone(), close), closed)
}

/// A shop takes four orders. The customer of the first pays at once, that of the last has all day.
fn sell(orders: &Orders, shop: u32) -> Result<u64, SetError<u32, u64>> {
    for (place, minutes) in (1..).zip([30, 20, 30, 100]) {
        let number = 10 * shop + place;
        orders.set(number, u64::from(100 * number), minutes * MINUTE)?;
    }
    // An order that was closed in this moment is not there any more: never paid and closed.
    Ok(orders.remove(&(10 * shop + 1)).unwrap_or(0))
}

/// The next so many orders that are closed.
fn unpaid(closed: &mpsc::Receiver<u32>, orders: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = closed.iter().take(orders).collect();
    numbers.sort_unstable();
    println!("closed, since nobody paid: {numbers:?}");
    numbers
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let (orders, closed) = open(&timer);
    let shops: Vec<_> = (1..=3)
        .map(|shop| {
            let orders = orders.clone();
            thread::spawn(move || sell(&orders, shop))
        })
        .collect();
    for (number, shop) in (1..).zip(shops) {
        let cents = shop.join().map_err(|_| "a shop panicked")??;
        println!("shop {number}: four orders, one is paid: {cents} cents");
    }
    assert_eq!(unpaid(&closed, 6), [12, 13, 22, 23, 32, 33]);

    // In the evening: a line for each order with the time that is left to it.
    let (mut saved, now) = (String::new(), timer.now());
    for entry in orders.stop() {
        let left = entry.deadline.saturating_since(now).as_millis();
        writeln!(saved, "{} {} {left}", entry.key, entry.value)?;
    }
    print!("saved as order, cents, milliseconds left:\n{saved}");

    // In the morning. Only durable timers count the night: see `countwheel-durable`.
    let (orders, closed) = open(&timer);
    for line in saved.lines() {
        let [number, cents, left] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err("a line has three numbers".into());
        };
        let left = Duration::from_millis(left.parse()?);
        orders.set(number.parse()?, cents.parse()?, left)?;
    }
    let paid = orders.remove(&14).ok_or("it is open")?;
    println!("in the morning order 14 is paid: {paid} cents");
    assert_eq!(unpaid(&closed, 2), [24, 34]);
    Ok(())
}
