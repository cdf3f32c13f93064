//! A registry that is down comes back after three failures, and what was asked of it last wins:
//! `cargo run -p countwheel-patterns --example registry`.
//!
//! The schedule is that of Dubbo's registry, five seconds for ever, a hundred times as fast.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Attempt, Failure, KeyedRetry, RetryPolicy};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Want {
    Register,
    Unregister,
}

/// A registry that fails at first, and takes its time with the rest.
#[derive(Default)]
struct Registry {
    failures: AtomicU32,
    urls: Mutex<BTreeSet<String>>,
}

impl Registry {
    fn send(&self, url: &str, want: Want) -> Result<(), &'static str> {
        if self.failures.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err("connection refused");
        }
        let mut urls = self.urls.lock().map_err(|_| "poisoned")?;
        match want {
            Want::Register => urls.insert(url.to_owned()),
            Want::Unregister => urls.remove(url),
        };
        Ok(())
    }

    fn has(&self, url: &str) -> bool {
        self.urls.lock().is_ok_and(|urls| urls.contains(url))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let start = timer.now();
    let registry = Arc::new(Registry::default());
    let (sender, done) = mpsc::channel();

    let (clock, remote) = (timer.clone(), Arc::clone(&registry));
    let handler = move |url: &String, want: &Want, attempt: &Attempt| {
        let at = clock.now().saturating_since(start);
        let number = attempt.number();
        let is_there = remote.has(url);
        if let Err(error) = remote.send(url, *want) {
            println!("{at:>6.1?}  {want:?} {url}: attempt {number} failed, {error}");
            return Err(Failure::Retryable(error));
        }
        // What is there already takes long to register again.
        let long = Duration::from_secs(10);
        if *want == Want::Register && is_there && attempt.signal().wait_for(long) {
            println!("        ... told to stop, somebody wants something else now");
        }
        println!("{at:>6.1?}  {want:?} {url}: attempt {number} succeeded");
        // Whoever waits for the example may be gone.
        let _ = sender.send(*want);
        Ok(())
    };
    let retries = KeyedRetry::new(timer, RetryPolicy::dubbo_registry().scaled(0.01)?, handler);

    let url = "dubbo://10.0.0.1/echo";
    retries.submit(url.to_owned(), Want::Register)?;
    assert_eq!(done.recv()?, Want::Register);
    while !retries.is_empty() {
        std::thread::yield_now();
    }
    assert!(registry.has(url), "after three failures");
    assert_eq!(retries.stats().failed, 3);

    // Now it is up. An unregistration overtakes a registration that is under way: it is sent
    // after the other has ended, so the registration cannot land behind it.
    retries.submit(url.to_owned(), Want::Register)?;
    while !retries.is_in_flight(&url.to_owned()) {
        std::thread::yield_now();
    }
    retries.submit(url.to_owned(), Want::Unregister)?;
    assert_eq!(
        [done.recv()?, done.recv()?],
        [Want::Register, Want::Unregister]
    );
    assert!(!registry.has(url));

    while !retries.is_empty() {
        std::thread::yield_now();
    }
    let stats = retries.stats();
    assert_eq!(
        (stats.submitted, stats.succeeded, stats.superseded),
        (3, 2, 1)
    );
    println!("{stats:#?}");
    Ok(())
}
