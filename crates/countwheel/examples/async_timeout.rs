//! A slow answer, a limit, and a stop, on a runtime that knows nothing of timers:
//! `cargo run -p countwheel --example async_timeout`.

use std::time::Duration;

use countwheel::{SleepError, Stop, TimeoutError, Timer};

/// Somebody who takes their time.
async fn answer(timer: &Timer, after: Duration) -> Result<&'static str, SleepError> {
    timer.sleep(after).await?;
    Ok("42")
}

async fn run(timer: &Timer) -> Result<(), TimeoutError> {
    let limit = Duration::from_millis(50);
    for after in [5, 500].map(Duration::from_millis) {
        match timer.timeout(limit, answer(timer, after)).await {
            Ok(answer) => println!("asked {after:?} of thought: {}", answer?),
            Err(TimeoutError::Elapsed) => println!("asked {after:?} of thought: no answer"),
            Err(error) => return Err(error),
        }
    }

    // One limit over several questions; the last of them does not fit in any more.
    let deadline = timer.now() + limit;
    let mut answers = 0;
    let questions = async {
        loop {
            answer(timer, limit / 4).await?;
            answers += 1;
        }
    };
    let end: Result<Result<(), SleepError>, _> = timer.timeout_at(deadline, questions).await;
    println!("{answers} answers within {limit:?}: {end:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let timer = Timer::new();
    runtime.block_on(run(&timer))?;

    // Who sleeps when the timer stops does not sleep on.
    let sleeper = timer.clone();
    let sleep = runtime.spawn(async move { sleeper.sleep(Duration::MAX).await });
    runtime.block_on(async {
        timer.sleep(Duration::from_millis(5)).await?;
        let stopped = timer.close(Stop::HandBack).await;
        println!("all is still: {}", stopped.is_complete());
        println!("the sleeper says: {:?}", sleep.await?);
        Ok(())
    })
}
