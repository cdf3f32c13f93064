//! Close an unpaid order, survive a restart: `cargo run -p countwheel-disk --example order_timeout`.

use std::sync::mpsc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let (send, closed) = mpsc::channel();
    let open = || {
        let send = send.clone();
        countwheel_disk::open(directory.path(), move |attempt| {
            let (order, late) = (attempt.name.key.to_string(), attempt.lateness());
            println!(
                "close {order} (attempt {}, {late:.1?} late)",
                attempt.number
            );
            send.send(order)
        })
    };

    let timers = open()?;
    for (order, millis) in [("order-1", 400), ("order-2", 500), ("order-3", 600)] {
        timers.set(("unpaid", order), Duration::from_millis(millis), "")?;
    }
    // Order 2 is paid. The answer says what the timer was doing.
    let was = timers.remove("unpaid/order-2")?;
    println!("order-2 is paid: {was:?}");

    println!("the process ends, and another one begins");
    drop(timers);
    let timers = open()?;
    assert_eq!(closed.recv()?, "order-1");
    assert_eq!(closed.recv()?, "order-3");
    timers.stop(Duration::from_secs(1));
    Ok(())
}
