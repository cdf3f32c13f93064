//! A registry that loses its network does not lose everybody:
//! `cargo run -p countwheel-patterns --example leases`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::ManualHost;
use countwheel_patterns::broker::{Lease, LeaseConfig, Leases};

fn main() -> Result<(), Box<dyn Error>> {
    let mut host = ManualHost::new();
    let seconds = Duration::from_secs;
    let (sender, evicted) = mpsc::channel();
    // As Eureka, but without self-preservation: 90 s, and at most 15 percent in a minute.
    let config = LeaseConfig::new(seconds(90)).seed(7);
    let leases = Leases::new(host.timer().clone(), config, move |instance: &String| {
        // The registry may be gone already.
        let _ = sender.send(instance.clone());
    });

    let mut registry = HashMap::new();
    for number in 0..200 {
        let instance = format!("orders-{number}");
        registry.insert(instance.clone(), leases.grant(instance)?);
    }

    // Everybody renews, but one has crashed.
    for _ in 0..5 {
        host.advance(seconds(30));
        for (instance, lease) in &registry {
            if instance != "orders-13" {
                lease.renew();
            }
        }
    }
    let crashed: Vec<_> = evicted.try_iter().collect();
    println!("crashed: {crashed:?}");
    assert_eq!(crashed, ["orders-13"]);
    registry.remove("orders-13");

    // This process is suspended for ten minutes, and with it the renewals that arrive.
    host.clock().advance(seconds(600));
    host.run_due();
    assert!(registry.values().all(Lease::renew));
    host.advance(seconds(30));
    println!("evicted after a stall: {}", evicted.try_iter().count());
    assert_eq!(leases.stats().evicted, 1);

    // The network breaks for two minutes.
    host.advance(seconds(120));
    let lost = evicted.try_iter().count();
    println!(
        "the network is back: {lost} of {} were evicted",
        registry.len()
    );
    assert_eq!(lost, 199 * 15 / 100);
    registry.retain(|_, lease| lease.renew());
    host.advance(seconds(60));
    println!("{:#?}", leases.stats());
    assert_eq!((leases.len(), leases.stats().suspects), (170, 0));
    Ok(())
}
