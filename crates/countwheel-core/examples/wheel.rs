//! One turn of a wheel of eight slots, tick by tick: `cargo run -p countwheel-core --example wheel`.
//!
//! A column is a slot, `>` is the hand, and `c+1` is an entry that the hand passes by once more.

use countwheel_core::{GeometryError, HashedWheel, Tick};

const SLOTS: u64 = 8;

fn main() -> Result<(), GeometryError> {
    let mut wheel = HashedWheel::with_ticks_per_wheel(8)?;
    for (name, deadline) in [('a', 3), ('b', 5), ('c', 11), ('d', 5), ('e', 8), ('f', 21)] {
        wheel.insert(Tick::new(deadline), name);
        println!("{name} is due at tick {deadline}");
    }
    let answered = wheel.insert(Tick::new(6), 'g');
    println!(
        "g is due at tick 6, and is cancelled: {:?}\n",
        wheel.cancel(answered)
    );

    print!("tick");
    (0..SLOTS).for_each(|slot| print!("   {slot:<5}"));
    println!("expired");
    for tick in 0..=SLOTS {
        let mut expired = Vec::new();
        while let Some(entry) = wheel.expire(Tick::new(tick)) {
            expired.push(entry.value.to_string());
        }
        println!("{tick:>4}{}{}", row(&wheel), expired.join(" "));
    }
    println!("\nstill to come: {}", wheel.len());
    assert_eq!(wheel.len(), 2);
    assert_eq!(wheel.next_deadline(), Some(Tick::new(11)));
    Ok(())
}

/// What is in each slot, and where the hand stands.
fn row(wheel: &HashedWheel<char>) -> String {
    let now = wheel.now().get();
    let cell = |number: u64| {
        let mut slots = wheel.slots();
        let entries = slots.find(|slot| slot.slot as u64 == number);
        let entries = entries.map_or(Vec::new(), |slot| slot.entries);
        let names = entries.into_iter().map(|(deadline, name)| {
            // Once a turn the hand comes by; at the last time the entry leaves.
            match (deadline.get() - now - 1) / SLOTS {
                0 => name.to_string(),
                rounds => format!("{name}+{rounds}"),
            }
        });
        let names = names.collect::<Vec<_>>().join(" ");
        let hand = if now % SLOTS == number { '>' } else { ' ' };
        format!(" {hand} {:<5}", if names.is_empty() { "." } else { &names })
    };
    (0..SLOTS).map(cell).collect()
}
