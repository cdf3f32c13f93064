//! Tasks by name, as go-zero's `TimingWheel` has them: set, moved, removed, and drained at the end.
//! `cargo run -p countwheel --example scheduler`.

use std::sync::mpsc;
use std::time::Duration;

use countwheel::{KeyedTimer, Move, SetError, Timer};

/// A second of the example, so that it is over soon.
const SECOND: Duration = Duration::from_millis(20);

type Job = Box<dyn FnOnce() + Send>;

fn main() -> Result<(), SetError<&'static str, Job>> {
    let timer = Timer::new();
    let start = timer.now();
    let (sender, done) = mpsc::channel();
    let job = |text: &'static str| -> Job {
        let (clock, sender) = (timer.clone(), sender.clone());
        Box::new(move || {
            let seconds = clock.now().saturating_since(start).as_secs_f64() / SECOND.as_secs_f64();
            println!("second {seconds:>4.1}: {text}");
            sender.send(text).expect("the example waits");
        })
    };
    let tasks = KeyedTimer::new(timer.clone(), |_name: &'static str, job: Job| job());

    // SetTimer: a name has one task, and the newer one takes the place of the older.
    tasks.set("backup", job("the backup of yesterday"), 3 * SECOND)?;
    tasks.set("report", job("the report"), 5 * SECOND)?;
    tasks.set("mail", job("the mail"), 6 * SECOND)?;
    tasks.set("log", job("the log is rotated"), 60 * SECOND)?;
    let replaced = tasks.set("backup", job("the backup of today"), 4 * SECOND)?;
    println!(
        "set:     backup again, which replaced a task: {}",
        replaced.is_some()
    );

    // MoveTimer: sooner or later than before, with the same task.
    let moved = tasks.move_to("report", 2 * SECOND);
    println!("move:    report from second 5 to second 2: {moved:?}");
    assert_eq!(moved, Move::Moved);
    println!("move:    lunch: {:?}", tasks.move_to("lunch", SECOND));

    // RemoveTimer: the task comes back, and never runs.
    println!("remove:  mail: {}", tasks.remove("mail").is_some());
    println!("remove:  mail again: {}", tasks.remove("mail").is_some());

    let ran = [done.recv(), done.recv()].map(|text| text.expect("two tasks are due"));
    assert_eq!(ran, ["the report", "the backup of today"]);

    // Drain: every task that is left comes back in order. go-zero runs them; so does this.
    for entry in tasks.drain() {
        let left = entry.deadline.saturating_since(timer.now()).as_secs_f64();
        let seconds = left / SECOND.as_secs_f64();
        println!("drain:   {}, {seconds:.0} seconds early", entry.key);
        (entry.value)();
    }
    assert_eq!(done.recv(), Ok("the log is rotated"));

    assert!(tasks.stop().is_empty());
    match tasks.set("late", job("never"), SECOND) {
        Err(SetError::Closed(name, _)) => println!("stop:    {name} is refused"),
        _ => unreachable!("it has stopped"),
    }
    let stats = tasks.stats();
    assert_eq!((stats.fired, stats.removed, stats.drained), (2, 1, 1));
    Ok(())
}
