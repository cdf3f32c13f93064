//! What a client does, against a server: `cargo run -p countwheel-client --example tour http://127.0.0.1:7070`.

use std::time::Duration;

use countwheel_client::worker::{Failure, Job, Worker};
use countwheel_client::{Client, Filter, NewTimer};
use countwheel_durable::{Due, Precondition};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1);
    tour(server.as_deref().unwrap_or("http://127.0.0.1:7070")).await
}

/// Sets, lists and removes a timer, and works on another one.
pub(crate) async fn tour(server: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(server, None)?.with_retry(Client::usual_retry());

    let later = NewTimer::to(
        "http://127.0.0.1:8080/hook",
        Due::In(Duration::from_secs(3_600)),
    );
    let set = client
        .set("tour", "later", &later, Precondition::None)
        .await?;
    println!("set, revision {}", set.value.revision);
    let mut timers = client.timers("tour", Filter::default());
    while let Some(timer) = timers.next().await? {
        println!("{} is {}", timer.key, timer.state);
    }
    client
        .remove("tour", "later", false, Precondition::None)
        .await?;

    let pull = r#"{"mode": "pull"}"#.to_owned();
    client
        .put_queue("tour-jobs", pull, Precondition::None)
        .await?;
    let now = NewTimer::to("", Due::In(Duration::ZERO));
    client
        .set("tour-jobs", "job", &now, Precondition::None)
        .await?;
    let (done, is_done) = tokio::sync::mpsc::channel(1);
    let handle = move |job: Job| {
        let done = done.clone();
        async move {
            println!("working on {}", job.key);
            done.send(()).await.map_err(Failure::from)
        }
    };
    let mut is_done = is_done;
    let stop = async move { is_done.recv().await.unwrap_or_default() };
    let worked = Worker::new(client, ["tour-jobs"]).run(handle, stop).await?;
    println!("{} done", worked.done);
    Ok(())
}
