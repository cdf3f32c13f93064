//! A replay finds out what became of each operation, and never sets a timer twice.

use std::convert::Infallible;
use std::time::Duration;

use countwheel_departures::{Flight, write_trace};
use countwheel_durable::{Due, Key, SetOptions};
use countwheel_server::cli::replay::{
    Acknowledgement, Action, Operation, OperationKind, OperationResult, Planner, Replay, Report,
    Speed,
};
use countwheel_server::client::Client;
use countwheel_server::trace::{TraceReader, TracedTimer};
use countwheel_time::{Clock, SystemClock, Timestamp};
use hyper::Method;
use serde_json::json;
use tokio::sync::mpsc;

use crate::stub::{Fault, Stub};

fn flight(i: u64, delay_minutes: Option<i32>) -> Flight {
    Flight {
        scheduled: Timestamp::from_micros(1_357_041_600_000_000) + Duration::from_secs(60 * i),
        key: format!("flight/{i}"),
        delay_minutes,
    }
}

/// Flights a minute apart; every third is late, every fifth cancelled.
fn flights(number: u64) -> Vec<Flight> {
    let delay = |i: u64| match i {
        _ if i.is_multiple_of(5) => None,
        _ if i.is_multiple_of(3) => Some(45),
        _ => Some(0),
    };
    (0..number).map(|i| flight(i, delay(i))).collect()
}

fn replay(stub: &Stub, concurrency: usize) -> Replay {
    Replay {
        // The stub answers requests one by one.
        batches: false,
        client: Client::new(&stub.url, None).unwrap(),
        queue: "default".to_owned(),
        target: None,
        echo: Some(format!("{}/echo", stub.url)),
        run: "this-run".to_owned(),
        concurrency,
        retry: Replay::default_retry(),
    }
}

/// The operations of flights, by way of a trace.
fn plan(flights: &[Flight], speed: f64, start: Timestamp) -> Vec<Operation> {
    let mut trace = Vec::new();
    write_trace(flights.iter().cloned().map(Ok), &mut trace).unwrap();
    let speed = Speed::new(speed).unwrap();
    let operations = Planner::new(TraceReader::new(&trace[..]), speed, start);
    operations.collect::<Result<_, _>>().unwrap()
}

/// A channel that has these operations, and then is closed.
fn all(operations: Vec<Operation>) -> mpsc::Receiver<Result<Operation, Infallible>> {
    let (sender, receiver) = mpsc::channel(operations.len().max(1));
    for operation in operations {
        sender.try_send(Ok(operation)).unwrap();
    }
    receiver
}

/// Carries out the flights' operations and gives what was observed.
async fn run(stub: &Stub, flights: &[Flight], speed: f64) -> (Report, Vec<Acknowledgement>) {
    let clock = SystemClock::new();
    let operations = plan(flights, speed, clock.timestamp());
    carry_out(replay(stub, 16), operations).await
}

async fn carry_out(replay: Replay, operations: Vec<Operation>) -> (Report, Vec<Acknowledgement>) {
    let mut seen = Vec::new();
    let mut observer = |one: &Acknowledgement| seen.push(one.clone());
    let never = std::future::pending();
    let run = replay.run(all(operations), SystemClock::new(), &mut observer, never);
    let report = run.await.unwrap();
    (report, seen)
}

/// One operation, due now, against whatever the stub has.
async fn one(stub: &Stub, action: impl FnOnce(Timestamp) -> Action) -> Acknowledgement {
    let now = SystemClock::new().timestamp();
    let (_, mut seen) = carry_out(replay(stub, 1), vec![operation(7, now, action(now))]).await;
    seen.pop().unwrap()
}

fn operation(line: u64, issue: Timestamp, action: Action) -> Operation {
    Operation {
        line,
        queue: None,
        key: Key::new("flight/0").unwrap(),
        issue,
        action,
    }
}

fn set_at(at: Timestamp) -> Action {
    let timer = Box::new(TracedTimer {
        due: Due::At(at),
        says_when: true,
        options: SetOptions::default(),
        target: None,
        body: None,
        content_type: None,
        retry: None,
    });
    Action::Set { timer }
}

fn set_in_a_minute(now: Timestamp) -> Action {
    set_at(now + Duration::from_secs(60))
}

fn move_to_two_minutes(now: Timestamp) -> Action {
    Action::Move {
        at: now + Duration::from_secs(120),
    }
}

/// Lets the first request of this method go wrong, and no other.
fn first(method: Method, fault: Fault) -> impl FnMut(&Method, &str, usize) -> Fault {
    let mut left = 1;
    move |asked, _, _| {
        if *asked == method && left > 0 {
            left -= 1;
            return fault;
        }
        Fault::None
    }
}

#[tokio::test]
async fn a_set_that_was_taken_before_the_connection_broke_is_found_and_not_repeated() {
    for fault in [Fault::After, Fault::AfterFailing] {
        let stub = Stub::start().await;
        stub.faults(first(Method::PUT, fault));
        let set = one(&stub, set_in_a_minute).await;
        assert_eq!(set.result, OperationResult::Found);
        assert_eq!(set.tries, 2);
        let inner = stub.inner();
        assert_eq!(inner.requests, ["PUT flight/0", "GET flight/0"]);
        let entry = &inner.timers["flight/0"];
        assert_eq!(entry.sets, 1);
        assert_eq!(set.id.as_ref(), entry.live.as_ref().map(|live| &live.id));
    }
}

#[tokio::test]
async fn a_set_that_was_not_taken_is_repeated() {
    let stub = Stub::start().await;
    stub.faults(first(Method::PUT, Fault::Before));
    let set = one(&stub, set_in_a_minute).await;
    assert_eq!(set.result, OperationResult::Ok);
    let inner = stub.inner();
    assert_eq!(
        inner.requests,
        ["PUT flight/0", "GET flight/0", "PUT flight/0"]
    );
    assert_eq!(inner.timers["flight/0"].sets, 1);
}

#[tokio::test]
async fn a_set_that_was_taken_and_has_fired_is_found_too() {
    let stub = Stub::start().await;
    stub.fires();
    stub.faults(first(Method::PUT, Fault::After));
    let set = one(&stub, set_at).await;
    assert_eq!(set.result, OperationResult::Found);
    assert_eq!(stub.inner().timers["flight/0"].sets, 1);
}

#[tokio::test]
async fn an_overloaded_server_is_asked_again_without_a_look() {
    let stub = Stub::start().await;
    stub.faults(first(Method::PUT, Fault::Overloaded));
    let set = one(&stub, set_in_a_minute).await;
    assert_eq!((set.result, set.tries), (OperationResult::Ok, 2));
    assert_eq!(stub.inner().requests, ["PUT flight/0", "PUT flight/0"]);
}

#[tokio::test]
async fn a_timer_that_another_replay_left_is_replaced() {
    let stub = Stub::start().await;
    stub.put("flight/0", vec![json!({ "state": "done" })]);
    // Also if the replacing set is the one whose answer is lost.
    let mut puts = 0;
    stub.faults(move |method, _, _| {
        puts += usize::from(*method == Method::PUT);
        if puts == 2 && *method == Method::PUT {
            Fault::After
        } else {
            Fault::None
        }
    });
    let set = one(&stub, set_in_a_minute).await;
    assert_eq!(set.result, OperationResult::Found);
    assert_eq!(stub.inner().timers["flight/0"].sets, 1);

    stub.put("flight/0", vec![json!({ "state": "done" })]);
    let set = one(&stub, set_in_a_minute).await;
    assert_eq!(set.result, OperationResult::Replaced);
    assert_eq!(set.was, Some("done"));
}

#[tokio::test]
async fn a_move_whose_answer_is_lost_is_found() {
    let stub = Stub::start().await;
    stub.put("flight/0", Vec::new());
    stub.faults(first(Method::PATCH, Fault::After));
    let moved = one(&stub, move_to_two_minutes).await;
    assert_eq!(moved.result, OperationResult::Found);
    assert_eq!(moved.due_us, moved.at_us);
    assert_eq!(stub.inner().requests, ["PATCH flight/0", "GET flight/0"]);
}

#[tokio::test]
async fn a_move_whose_answer_is_lost_and_that_came_too_late_is_told_from_one_that_did_not() {
    let now = SystemClock::new().timestamp();
    let due = |at| countwheel_server::time::format_time(at);
    let fired = |number: u32, at: Timestamp| {
        let attempt = json!({ "number": number, "due": due(at), "started": due(at) });
        vec![json!({ "state": "done", "attempt": number, "attempts": [attempt] })]
    };
    let before = now + Duration::from_secs(60);
    let after = now + Duration::from_secs(180);
    for (states, expected) in [
        (fired(1, before), OperationResult::TooLate),
        (fired(1, after), OperationResult::Found),
        (fired(40, after), OperationResult::Unclear),
    ] {
        let stub = Stub::start().await;
        stub.put("flight/0", states);
        stub.faults(first(Method::PATCH, Fault::Before));
        let moved = one(&stub, move_to_two_minutes).await;
        assert_eq!(moved.result, expected);
    }
}

#[tokio::test]
async fn a_move_or_remove_of_what_has_fired_or_is_not_there_is_too_late() {
    let stub = Stub::start().await;
    let removed = one(&stub, |_| Action::Remove).await;
    assert_eq!(removed.result, OperationResult::TooLate);
    assert_eq!(removed.was, None);
    stub.put("flight/0", vec![json!({ "state": "done" })]);
    let moved = one(&stub, move_to_two_minutes).await;
    assert_eq!(moved.result, OperationResult::TooLate);
    assert_eq!(moved.was, Some("done"));
}

#[tokio::test]
async fn a_remove_whose_answer_is_lost_is_found() {
    let stub = Stub::start().await;
    stub.put("flight/0", Vec::new());
    stub.faults(first(Method::DELETE, Fault::After));
    let removed = one(&stub, |_| Action::Remove).await;
    assert_eq!(removed.result, OperationResult::Found);
}

#[tokio::test]
async fn with_faults_everywhere_each_flight_is_set_once_and_ends_where_it_should() {
    let stub = Stub::start().await;
    let mut seed = 1_u64;
    stub.faults(move |_, _, _| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match seed >> 60 {
            0 | 1 => Fault::Before,
            2 | 3 => Fault::After,
            4 => Fault::AfterFailing,
            5 => Fault::Overloaded,
            _ => Fault::None,
        }
    });
    let flights = flights(300);
    let (report, seen) = run(&stub, &flights, 200_000.0).await;
    assert_eq!(seen.len(), 300 + 60 + 80);
    assert_eq!(report.acknowledged, 440);
    assert_eq!(report.count(OperationResult::Refused), 0);
    assert_eq!(report.count(OperationResult::TooLate), 0);
    assert!(report.retries > 0);
    let inner = stub.inner();
    for flight in &flights {
        let entry = &inner.timers[&flight.key];
        assert_eq!(entry.sets, 1, "{}", flight.key);
        let of_flight = |one: &&Acknowledgement| one.key == flight.key;
        let last = seen.iter().rfind(of_flight).unwrap();
        // A move may be taken again, which changes nothing; its place is behind the set.
        assert_eq!(entry.taken[0], "PUT");
        assert!(entry.taken[1..].iter().all(|verb| verb != "PUT"));
        match &entry.live {
            None => assert_eq!(last.op, OperationKind::Remove),
            Some(live) => assert!(Some(live.due.as_micros()) >= last.at_us),
        }
        assert_eq!(entry.live.is_none(), flight.delay_minutes.is_none());
    }
}

#[tokio::test]
async fn operations_of_a_flight_wait_for_each_other_and_no_more_than_allowed_run_at_once() {
    let stub = Stub::start().await;
    stub.delay(Duration::from_millis(30));
    // Everything is due at once, so nothing but the flight's own order holds it back.
    let flights = flights(60);
    let (report, seen) = run(&stub, &flights, 1e9).await;
    assert_eq!(report.acknowledged, 60 + 12 + 16);
    let inner = stub.inner();
    assert_eq!(inner.most_of_one_key, 1);
    assert!(inner.most_under_way <= 16, "{}", inner.most_under_way);
    assert!(inner.most_under_way > 8, "{}", inner.most_under_way);
    for flight in &flights {
        let mut kinds = seen
            .iter()
            .filter(|one| one.key == flight.key)
            .map(|one| one.op);
        assert_eq!(kinds.next(), Some(OperationKind::Set));
    }
}

#[tokio::test]
async fn operations_are_asked_at_their_time() {
    let stub = Stub::start().await;
    // A flight every 10 ms.
    let (report, seen) = run(&stub, &flights(20), 6_000.0 * 16.0).await;
    assert!(report.seconds >= 0.8, "{}", report.seconds);
    for one in seen {
        assert!(one.sent_us + 2_000 >= one.planned_us, "{one:?}");
    }
}

#[tokio::test]
async fn a_replay_can_be_stopped() {
    let stub = Stub::start().await;
    let clock = SystemClock::new();
    let operations = plan(&flights(5), 1.0, clock.timestamp());
    let stop = tokio::time::sleep(Duration::from_millis(200));
    let mut observer = |_: &Acknowledgement| ();
    let run = replay(&stub, 4).run(all(operations), clock, &mut observer, stop);
    let report = run.await.unwrap();
    assert!(report.stopped);
    assert_eq!(report.acknowledged, 1);
}

#[tokio::test]
async fn a_key_that_a_trace_sets_twice_has_the_later_timer_and_a_lost_answer_is_found_all_the_same()
{
    let stub = Stub::start().await;
    let mut puts = 0;
    // The answers of both sets that take effect are lost.
    stub.faults(move |method, _, _| {
        puts += usize::from(*method == Method::PUT);
        match (method, puts) {
            (&Method::PUT, 1 | 3) => Fault::After,
            _ => Fault::None,
        }
    });
    let now = SystemClock::new().timestamp();
    let minutes = |minutes: u64| now + Duration::from_secs(60 * minutes);
    let operations = [1, 2].map(|line| operation(line, now, set_at(minutes(line))));
    let (report, seen) = carry_out(replay(&stub, 4), operations.to_vec()).await;
    assert_eq!(report.count(OperationResult::Found), 2);
    assert_eq!((seen[0].line, seen[1].line), (1, 2));
    let inner = stub.inner();
    let entry = &inner.timers["flight/0"];
    assert_eq!(entry.sets, 2);
    let live = entry.live.as_ref().unwrap();
    assert_eq!(live.due, minutes(2));
    assert_eq!(
        live.body["target"]["headers"],
        json!({ "replay-run": "this-run", "replay-line": "2" })
    );
}

#[tokio::test]
async fn what_is_under_way_goes_on_while_the_next_operation_is_awaited() {
    let stub = Stub::start().await;
    let now = SystemClock::new().timestamp();
    let (sender, operations) = mpsc::channel(1);
    let sent = operation(1, now, set_in_a_minute(now));
    sender.send(Ok::<_, Infallible>(sent)).await.unwrap();
    let (answered, mut answers) = mpsc::unbounded_channel();
    let run = tokio::spawn({
        let replay = replay(&stub, 4);
        async move {
            let mut observer = |one: &Acknowledgement| answered.send(one.line).unwrap();
            let never = std::future::pending();
            replay
                .run(operations, SystemClock::new(), &mut observer, never)
                .await
        }
    });
    assert_eq!(answers.recv().await, Some(1));
    let sent = operation(2, now, Action::Remove);
    sender.send(Ok(sent)).await.unwrap();
    assert_eq!(answers.recv().await, Some(2));
    drop(sender);
    assert_eq!(run.await.unwrap().unwrap().acknowledged, 2);
}
