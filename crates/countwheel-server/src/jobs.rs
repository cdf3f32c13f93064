//! Carries out the purges of queues: the steps of the shards that this process owns, one after another.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::Timers;
use countwheel_time::Clock;

/// How many timers one commit removes.
const STEP: usize = 256;
/// How often it is looked whether there is a purge.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For how many times as long as a step took there is no other: a shard is at work for a purge a third of the time.
const REST: u32 = 2;
/// The shortest time between two steps.
const REST_MIN: Duration = Duration::from_millis(5);
/// How long it waits after a failure.
const FAILED: Duration = Duration::from_secs(1);

/// Does step after step, until the runtime ends.
pub(crate) async fn run(timers: Timers, clock: Arc<dyn Clock>) {
    let mut failed = false;
    loop {
        let began = clock.now();
        let stepping = timers.clone();
        let step = tokio::task::spawn_blocking(move || stepping.purge_step(STEP)).await;
        let took = clock.now().saturating_since(began);
        let rest = match step {
            Ok(Ok(step)) => {
                failed = false;
                if step.goes_on {
                    (took * REST).max(REST_MIN)
                } else {
                    LOOK_EVERY
                }
            }
            Ok(Err(error)) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, "a step of a purge failed, and is tried again");
                }
                FAILED
            }
            Err(_) => {
                tracing::error!("purges have ended: a step panicked");
                return;
            }
        };
        tokio::time::sleep(rest).await;
    }
}
