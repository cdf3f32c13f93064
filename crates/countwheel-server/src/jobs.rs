//! Carries out jobs and purges: the steps of the shards that this process owns, one after another.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::{Record, Timers};
use countwheel_time::Clock;

use crate::job::Job;

/// How many timers one commit changes.
const STEP: usize = 256;
/// The pause between two looks whether there is a job.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For how many times as long as a step took there is no other: a shard is at work for jobs a third of the time.
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
        let step = move || stepping.job_step(STEP, &has_tags);
        let step = tokio::task::spawn_blocking(step).await;
        let took = clock.now().saturating_since(began);
        let rest = match step {
            Ok(Ok(step)) => {
                failed = false;
                if step.goes_on {
                    (took * REST).max(REST_MIN)
                } else {
                    step.wait
                        .map_or(LOOK_EVERY, |wait| wait.clamp(REST_MIN, LOOK_EVERY))
                }
            }
            Ok(Err(error)) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, "a step of a job failed, and is tried again");
                }
                FAILED
            }
            Err(_) => {
                tracing::error!("jobs have ended: a step panicked");
                return;
            }
        };
        tokio::time::sleep(rest).await;
    }
}

fn has_tags(record: &Record, tags: &[String]) -> bool {
    Job::has_tags(&record.payload, tags)
}
