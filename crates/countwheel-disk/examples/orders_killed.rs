//! Orders that close on time although the process is killed three times:
//! `cargo run -p countwheel-disk --example orders_killed`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const ORDERS: u64 = 200;

/// The process that is killed: it takes over what the last one left, and prints what it closes.
fn shop(directory: &str) -> Result<(), Box<dyn Error>> {
    let timers = countwheel_disk::open(directory, |attempt| {
        println!("close {} {}", attempt.name.key, attempt.number);
    })?;
    for order in 0..ORDERS {
        let name = ("unpaid", order.to_string());
        if timers.get((name.0, &name.1))?.is_none() {
            timers.set(name, Duration::from_millis(5 * order), "")?;
        }
    }
    std::thread::park();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(directory) = std::env::args().nth(1) {
        return shop(&directory);
    }
    let directory = tempfile::tempdir()?;
    let mut closed: BTreeMap<String, u32> = BTreeMap::new();
    let mut life = 0;
    while (closed.len() as u64) < ORDERS {
        life += 1;
        let mut shop = Command::new(std::env::current_exe()?)
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(shop.stdout.take().ok_or("no pipe")?).lines();
        let before = closed.len();
        for line in lines {
            let line = line?;
            let order = line.split(' ').nth(1).ok_or("no order")?;
            *closed.entry(order.to_owned()).or_default() += 1;
            let all = closed.len() as u64 == ORDERS;
            if all || (life < 4 && closed.len() >= before + 40) {
                shop.kill()?; // SIGKILL: nothing is tidied up. What it has printed is read on
            }
        }
        shop.wait()?;
        println!(
            "life {life}: {} of {ORDERS} orders are closed",
            closed.len()
        );
    }
    let again: u32 = closed.values().map(|times| times - 1).sum();
    println!("each order was closed, {again} of them once more than needed");
    assert!((0..ORDERS).all(|order| closed.contains_key(&order.to_string())));
    Ok(())
}
