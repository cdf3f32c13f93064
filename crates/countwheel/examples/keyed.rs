//! Orders that close themselves unless they are paid:
//! `cargo run -p countwheel --example keyed`.
//!
//! Each order has a timer under its number. Paying removes it, a reminder of the customer's
//! moves it, and at the end whatever is open is drained, to be kept somewhere for tomorrow.

use std::sync::mpsc;
use std::time::Duration;

use countwheel::{KeyedEntry, KeyedTimer, Move, SetError, Timer};

/// A minute of the shop, so that the example is over soon.
const MINUTE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
struct Order {
    customer: &'static str,
    cents: u64,
}

type Refused = SetError<u32, Order>;

fn main() -> Result<(), Refused> {
    let (sender, closed) = mpsc::channel();
    let orders = KeyedTimer::new(Timer::new(), move |number: u32, order: Order| {
        println!("{number}: closed, {} has not paid", order.customer);
        sender.send(number).expect("the shop is open");
    });

    let customers = [(1, "Ada", 1_250), (2, "Bob", 400), (3, "Eve", 9_900)];
    for (number, customer, cents) in customers {
        orders.set(number, Order { customer, cents }, 30 * MINUTE)?;
        println!("{number}: open, {customer} has half an hour to pay");
    }

    // Ada pays: her order can no longer be closed by itself, or it just was. Never both.
    match orders.remove(&1) {
        Some(order) => println!("1: paid, {} cents from {}", order.cents, order.customer),
        None => println!("1: too late"),
    }

    // Bob asks for more time, and Eve changes her mind about what she wants.
    assert_eq!(orders.move_to(&2, 60 * MINUTE), Move::Moved);
    let order = Order {
        customer: "Eve",
        cents: 100,
    };
    if let Some(old) = orders.set(3, order, 20 * MINUTE)? {
        println!("3: changed, it was {} cents", old.cents);
    }
    if let Some(left) = orders.remaining(&2) {
        println!("2: {left:.1?} left of {:.0?}", 60 * MINUTE);
    }

    for _ in 0..2 {
        closed.recv().expect("the handler says what it closes");
    }

    // Closing time. What is open goes where it survives the night, with its deadline.
    for number in 4..=6 {
        let order = Order {
            customer: "Joe",
            cents: 100 * u64::from(number),
        };
        orders.set(number, order, (100 - 10 * number) * MINUTE)?;
    }
    for KeyedEntry { key, value, .. } in orders.drain() {
        println!("{key}: kept for tomorrow, {} cents", value.cents);
    }
    assert!(orders.stop().is_empty());
    println!("{:#?}", orders.stats());
    Ok(())
}
