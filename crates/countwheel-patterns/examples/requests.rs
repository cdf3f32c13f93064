//! A client whose requests are answered, not answered, not even sent, answered too late, cut
//! off with their connection, or stopped with everything:
//! `cargo run -p countwheel-patterns --example requests`.

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Deadline, RequestChannel, RequestError, RequestId, Requests, Response};

type Message = (u64, Duration, &'static str);

/// A connection: what is written to it is answered by the other side, each in its own time.
fn connect(timer: &Timer, requests: &Requests<String>) -> mpsc::Sender<Message> {
    let (connection, server) = mpsc::channel::<Message>();
    let (timer, reader) = (timer.clone(), requests.clone());
    thread::spawn(move || {
        for (header, delay, question) in server {
            let reader = reader.clone();
            let answer = move || {
                let id = RequestId::from_u64(header).expect("it was sent as one");
                if let Err(late) = reader.complete(id, format!("{question}: yes")) {
                    println!("  {:?}: {late}", late.value);
                }
            };
            if timer.schedule(delay, answer).is_err() {
                return;
            }
        }
    });
    connection
}

fn ask(
    channel: &RequestChannel<String>,
    connection: &mpsc::Sender<Message>,
    (deadline, delay): (Deadline, Duration),
    question: &'static str,
) -> Result<Response<String>, Box<dyn Error>> {
    let response = channel.register(deadline)?;
    connection.send((response.id().as_u64(), delay, question))?;
    channel.requests().mark_sent(response.id());
    Ok(response)
}

fn main() -> Result<(), Box<dyn Error>> {
    let millis = Duration::from_millis;
    let timer = Timer::new();
    let requests = Requests::new(timer.clone());
    let connection = connect(&timer, &requests);
    let channel = requests.channel();

    // Half a second for everything; each question gets less.
    let all = Deadline::after(&timer, millis(500));
    let step = |span| all.shrink_to(timer.now(), span);

    let answered = ask(
        &channel,
        &connection,
        (step(millis(200)), millis(5)),
        "quick",
    )?;
    println!("answered: {}", answered.wait()?);

    let unanswered = ask(
        &channel,
        &connection,
        (step(millis(30)), millis(60)),
        "slow",
    )?;
    let error = unanswered.wait().expect_err("it is slow");
    println!("the other side's fault: {error}");
    assert!(matches!(error, RequestError::TimedOut { sent: true, .. }));

    let unsent = channel.register(step(millis(30)))?; // the connection is too busy
    let error = unsent.wait().expect_err("nobody knows of it");
    println!("this side's fault: {error}");
    assert!(matches!(error, RequestError::TimedOut { sent: false, .. }));
    let (sender, tick) = mpsc::channel();
    while requests.stats().late == 0 {
        timer.schedule_send(millis(1), (), &sender)?;
        tick.recv()?; // until the answer to "slow" has come in vain
    }

    let left = ask(&channel, &connection, (all, millis(10)), "in the grace")?;
    drop(ask(&channel, &connection, (all, millis(10)), "cancelled")?);
    let cut_off = ask(&channel, &connection, (all, Duration::MAX), "never")?;
    channel.close(millis(100)).wait();
    println!(
        "closing: {}, {}",
        left.wait()?,
        cut_off.wait().expect_err("it is closed")
    );

    let (told, ended) = mpsc::channel();
    requests.register(Duration::MAX)?.on_end(move |result| {
        told.send(result.map_err(|error| error.to_string()))
            .unwrap_or_default();
    });
    requests.stop();
    println!("shutdown: {}", ended.recv()?.expect_err("it is stopped"));

    let stats = requests.stats();
    println!("{stats:?}");
    assert_eq!((stats.registered, stats.in_flight), (7, 0));
    assert_eq!((stats.completed, stats.closed, stats.stopped), (2, 1, 1));
    assert_eq!((stats.timed_out_sent, stats.timed_out_unsent), (1, 1));
    assert_eq!((stats.cancelled, stats.late), (1, 2));
    timer.stop();
    Ok(())
}
