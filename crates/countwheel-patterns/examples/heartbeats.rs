//! 100,000 connections with heartbeats, on one thread: what traffic, silence and a stall cost.
//! `cargo run --release -p countwheel-patterns --example heartbeats`.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel::{Clock, ManualHost, SystemClock};
use countwheel_patterns::{Dead, Heartbeat, HeartbeatConfig, Heartbeats, Peer, Recovery};

const CONNECTIONS: usize = 100_000;

/// A client that counts. The other side answers each heartbeat until it dies.
struct Client {
    heartbeats: Arc<AtomicU64>,
    reconnects: Arc<AtomicU64>,
}

impl Peer for Client {
    fn send_heartbeat(&self) {
        self.heartbeats.fetch_add(1, Ordering::Relaxed);
    }

    async fn recover(&self, _dead: Dead) -> Recovery {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        Recovery::Restored
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let real = SystemClock::new();
    let took = |what: &str, began| {
        println!("{what}: {:.1?}", real.now().saturating_since(began));
    };
    let minute = Duration::from_secs(60);

    // Time is moved by hand, so that some minutes take as long as what there is to do in them.
    let mut host = ManualHost::new();
    let config = HeartbeatConfig::dubbo().jitter_percent(10);
    let table = Heartbeats::new(host.timer().clone(), config)?;
    let (heartbeats, reconnects) = (Arc::default(), Arc::default());

    let began = real.now();
    let connections = (0..CONNECTIONS).map(|_| {
        table.watch(Client {
            heartbeats: Arc::clone(&heartbeats),
            reconnects: Arc::clone(&reconnects),
        })
    });
    let connections = connections.collect::<Result<Vec<_>, _>>()?;
    took("connecting 100,000", began);
    println!("  {} bytes each", table.memory_bytes() / CONNECTIONS);

    let began = real.now();
    for _ in 0..10 {
        let now = host.timer().now();
        for connection in &connections {
            connection.touch_at(now);
        }
    }
    took("a million messages", began);

    let began = real.now();
    for _ in 0..6 {
        host.advance(minute / 2);
        connections.iter().for_each(Heartbeat::touch);
    }
    took("three minutes with traffic", began);
    assert_eq!(heartbeats.load(Ordering::Relaxed), 0);

    let began = real.now();
    host.advance(minute);
    took("a minute of silence", began);
    let sent = heartbeats.load(Ordering::Relaxed);
    println!("  {sent} heartbeats, which the other side answers");
    assert_eq!(sent, CONNECTIONS as u64);

    // This process does not run for an hour: nobody else is to blame for that.
    for connection in &connections {
        connection.touch();
    }
    host.clock().advance(60 * minute);
    host.run_due();
    println!(
        "after a stall: {} reconnects",
        reconnects.load(Ordering::Relaxed)
    );
    assert_eq!(reconnects.load(Ordering::Relaxed), 0);

    // One in a hundred is dead.
    for (number, connection) in connections.iter().enumerate() {
        if number % 100 != 0 {
            connection.touch();
        }
    }
    let began = real.now();
    host.advance(3 * minute - Duration::from_millis(500));
    took("three minutes in which one in a hundred is dead", began);
    println!("  {} reconnects", reconnects.load(Ordering::Relaxed));
    assert_eq!(reconnects.load(Ordering::Relaxed), CONNECTIONS as u64 / 100);

    let began = real.now();
    drop(connections);
    took("closing all", began);
    println!("{:#?}", table.stats());
    assert!(table.is_empty());
    Ok(())
}
