//! A heartbeat that misses some beats, three ways to go on, and no runtime at all:
//! `cargo run -p countwheel --example interval`.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use countwheel::{Instant, MissedTicks, Timer};

/// All that a future needs: somebody who polls it when it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

async fn beats(
    timer: &Timer,
    missed: MissedTicks,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let period = Duration::from_millis(20);
    let mut heartbeat = timer.interval(period)?.missed_ticks(missed);
    let start: Instant = heartbeat.tick().await?;
    let mut beats = Vec::new();
    for number in 1..=7 {
        heartbeat.tick().await?;
        beats.push(timer.now().saturating_since(start));
        if number == 2 {
            timer.sleep(period * 5 / 2).await?; // busy with something else
        }
    }
    Ok(beats)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let timer = Timer::new();
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let beats = block_on(beats(&timer, missed))?;
        let millis: Vec<_> = beats.iter().map(Duration::as_millis).collect();
        println!("{missed:?}: after {millis:?} ms");
    }
    Ok(())
}
