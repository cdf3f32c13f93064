//! The orders of `orders_killed` (of `countwheel-disk`) in redb, closed by a loop that looks for what is due:
//! `cargo run -p countwheel-programs --example orders_killed_usual`.

#![expect(clippy::disallowed_methods, reason = "this is how it is usually done")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use redb::{Database, ReadableTable, TableDefinition};

const ORDERS: u64 = 200;
/// Microseconds since 1970, and the number of the order.
const DUE: TableDefinition<(u64, u64), ()> = TableDefinition::new("due");
/// Of every order ever sold, when it is due.
const SOLD: TableDefinition<u64, u64> = TableDefinition::new("sold");

fn now() -> Result<u64, Box<dyn Error>> {
    Ok(u64::try_from(
        SystemTime::UNIX_EPOCH.elapsed()?.as_micros(),
    )?)
}

/// The process that is killed: it takes over what the last one left, and prints what it closes.
fn shop(directory: &Path) -> Result<(), Box<dyn Error>> {
    let database = Database::create(directory.join("orders.redb"))?;
    for order in 0..ORDERS {
        let change = database.begin_write()?;
        {
            let (mut due, mut sold) = (change.open_table(DUE)?, change.open_table(SOLD)?);
            if sold.get(order)?.is_none() {
                let at = now()? + 5_000 * order;
                due.insert((at, order), ())?;
                sold.insert(order, at)?;
            }
        }
        change.commit()?;
    }
    loop {
        let change = database.begin_write()?;
        let next = {
            let mut due = change.open_table(DUE)?;
            let next = due.first()?.map(|(key, _)| key.value());
            if let Some((at, order)) = next.filter(|&(at, _)| at <= now().unwrap_or(0)) {
                println!("close {order} 1");
                due.remove((at, order))?;
            }
            next
        };
        change.commit()?;
        let left = next.map_or(60_000_000, |(at, _)| at.saturating_sub(now().unwrap_or(at)));
        std::thread::sleep(Duration::from_micros(left));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(directory) = std::env::args_os().nth(1) {
        return shop(Path::new(&directory));
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
