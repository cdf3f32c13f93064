//! Sessions that end after a while without use, and a token that is fetched once for all who
//! want it: `cargo run -p countwheel-patterns --example expiring_map`.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Cause, ExpiringMap, Ttl};

fn main() -> Result<(), Box<dyn Error>> {
    let millis = Duration::from_millis;
    let timer = Timer::new();

    // 200 ms without use end a session; so does a second, used or not.
    let (sender, left) = mpsc::channel();
    let sessions = ExpiringMap::builder()
        .ttl(Ttl::after(millis(1_000)).or_idle(millis(200)))
        .listener(move |id: u32, user: &str, cause| {
            // Whoever listens may be gone already.
            let _ = sender.send((id, user, cause));
        })
        .build(timer.clone());
    for (id, user) in [(1, "Ada"), (2, "Bob"), (3, "Eve")] {
        sessions.insert(id, user)?;
    }
    sessions.remove(&2);
    let mut ended = Vec::new();
    while ended.len() < 3 {
        // Ada works, Eve has gone home, and Bob has logged out.
        sessions.touch(&1);
        if let Ok((id, user, cause)) = left.recv_timeout(millis(20)) {
            println!("session {id} of {user} has ended: {cause:?}");
            ended.push((user, cause));
        }
    }
    let expected = [
        ("Bob", Cause::Removed),
        ("Eve", Cause::Expired),
        ("Ada", Cause::Expired),
    ];
    assert_eq!(ended, expected);

    // Eight threads want a token. One fetches it.
    let tokens = ExpiringMap::<String, u64>::new(timer, Ttl::after(millis(60_000)));
    let fetched = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let token = tokens.get_or_insert_with("api", || {
                    fetched.fetch_add(1, Ordering::Relaxed);
                    4711
                });
                assert_eq!(token, 4711);
            });
        }
    });
    let stats = tokens.stats();
    println!(
        "fetched {} time; {} waited for that, {} found it",
        fetched.load(Ordering::Relaxed),
        stats.waited,
        stats.hits
    );
    assert_eq!(fetched.into_inner(), 1);
    Ok(())
}
