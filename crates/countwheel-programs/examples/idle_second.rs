//! What each of the programs costs while nothing is due: wake-ups and processor time of an idle second, and memory or
//! disk of what is pending. Of what is on a disk, also how long it took to set, one after another. Each row is a
//! process of its own. Linux only: `cargo run -p countwheel-programs --example idle_second`.

#![expect(clippy::disallowed_methods, reason = "this is how it is usually done")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use countwheel::{Clock, KeyedTimer, SystemClock, Timer};
use countwheel_patterns::{ExpiringMap, IdleLimits, IdleWatch, Ttl};
use moka::sync::Cache;
use redb::{Database, TableDefinition};
use tokio::time::sleep;
use tokio_util::time::DelayQueue;

type Failure = Box<dyn Error + Send + Sync>;

const HOUR: Duration = Duration::from_secs(3600);
/// What is pending in a process, and on a disk.
const MANY: u32 = 100_000;
const DURABLE: u32 = 200;
const DUE: TableDefinition<(u64, u32), ()> = TableDefinition::new("due");

/// The rows: the program, what it is made with, and how it is set up.
const ROWS: [(&str, &str, SetUp); 9] = [
    ("tcp_server", "`IdleWatch`, a task each", idle_watch),
    (
        "tcp_server",
        "two sleeps of tokio's, a task each",
        tokio_sleeps,
    ),
    ("tcp_server", "two entries of one `DelayQueue`", delay_queue),
    ("orders_threads", "`KeyedTimer`, half paid", keyed),
    ("orders_threads", "heap and map, half paid", heap),
    ("orders_killed", "`Timers` in a directory", durable),
    ("orders_killed", "redb", redb),
    ("webhook", "`ExpiringMap`", expiring),
    ("webhook", "moka", moka),
];

/// Sets something up and calls `measure` while it is there, on the thread that would go on.
type SetUp = fn(measure: &mut dyn FnMut()) -> Result<(), Failure>;

/// Spawns as many tasks as are to be pending, on a runtime of one thread.
fn with_tasks<F>(measure: &mut dyn FnMut(), task: impl Fn(u32) -> F) -> Result<(), Failure>
where
    F: Future<Output: Send> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()?;
    let _entered = runtime.enter();
    (0..MANY).for_each(|number| drop(tokio::spawn(task(number))));
    measure();
    runtime.shutdown_background();
    Ok(())
}

fn idle_watch(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let idle = IdleWatch::new(Timer::new(), |_: &u32, _| {});
    let limits = IdleLimits::NONE.reader(HOUR).writer(HOUR);
    with_tasks(measure, move |number| {
        let watched = idle.watch(number, limits);
        async move {
            if let Ok(watched) = watched {
                drop(watched.idle().await);
            }
        }
    })
}

fn tokio_sleeps(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    with_tasks(measure, |_| async {
        tokio::select! {
            () = sleep(HOUR) => {}
            () = sleep(HOUR) => {}
        }
    })
}

fn delay_queue(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()?;
    let _entered = runtime.enter();
    let mut queue = DelayQueue::new();
    for number in 0..2 * MANY {
        queue.insert(number / 2, HOUR);
    }
    runtime.spawn(async move { std::future::poll_fn(|cx| queue.poll_expired(cx)).await });
    measure();
    runtime.shutdown_background();
    Ok(())
}

fn keyed(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let orders = KeyedTimer::new(Timer::new(), |_: u32, _: u64| {});
    for number in 0..MANY {
        orders.set(number, 999, HOUR)?;
        if number % 2 == 0 {
            orders.remove(&number);
        }
    }
    measure();
    Ok(())
}

fn heap(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let mut orders: HashMap<u32, (u64, SystemTime)> = HashMap::new();
    let mut heap = BinaryHeap::new();
    for number in 0..MANY {
        let due = SystemTime::now() + HOUR;
        orders.insert(number, (999, due));
        heap.push(Reverse((due, number)));
        if number % 2 == 0 {
            orders.remove(&number);
        }
    }
    let shared = Arc::new((Mutex::new((orders, heap)), Condvar::new()));
    let held = Arc::clone(&shared);
    thread::spawn(move || {
        let open = held.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(held.1.wait_timeout(open, HOUR));
    });
    measure();
    Ok(())
}

fn durable(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let timers = countwheel_disk::open(directory.path(), |_| {})?;
    for number in 0..DURABLE {
        timers.set(("unpaid", number.to_string()), HOUR, "")?;
    }
    measure();
    println!("disk {}", bytes_of(directory.path())?);
    Ok(())
}

fn redb(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let database = Database::create(directory.path().join("orders.redb"))?;
    for number in 0..DURABLE {
        let change = database.begin_write()?;
        change.open_table(DUE)?.insert((1, number), ())?;
        change.commit()?;
    }
    thread::spawn(|| thread::sleep(HOUR));
    measure();
    println!("disk {}", bytes_of(directory.path())?);
    Ok(())
}

fn expiring(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let seen = ExpiringMap::new(Timer::new(), Ttl::after(HOUR));
    for number in 0..MANY {
        seen.insert(number, ())?;
    }
    measure();
    Ok(())
}

fn moka(measure: &mut dyn FnMut()) -> Result<(), Failure> {
    let seen = Cache::builder().time_to_live(HOUR).build();
    for number in 0..MANY {
        seen.insert(number, ());
    }
    measure();
    Ok(())
}

/// What a directory takes on the disk.
fn bytes_of(directory: &Path) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            bytes_of(&entry.path())?
        } else {
            512 * metadata.blocks()
        };
    }
    Ok(bytes)
}

/// Of this process: its resident memory in bytes.
fn memory() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(1024 * kib.ok_or("no VmRSS")?.parse::<u64>()?)
}

/// Of all threads but this one: how often they went to sleep, and nanoseconds on a processor.
fn activity() -> Result<(u64, u64), Failure> {
    let (mut sleeps, mut nanos) = (0, 0);
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?.path();
        if thread.file_name().and_then(|name| name.to_str())
            == Some(&std::process::id().to_string())
        {
            continue;
        }
        let status = fs::read_to_string(thread.join("status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps += line.ok_or("no switches")?.trim().parse::<u64>()?;
        let schedule = fs::read_to_string(thread.join("schedstat"))?;
        nanos += schedule.split(' ').next().unwrap_or("0").parse::<u64>()?;
    }
    Ok((sleeps, nanos))
}

/// The process of a row: prints what it has measured.
fn row(number: usize) -> Result<(), Failure> {
    let (_, _, set_up) = ROWS[number];
    let before = memory()?;
    let clock = SystemClock::new();
    let began = clock.now();
    let mut measured = Err("nothing was measured".into());
    let mut measure = || {
        let took = clock.now().saturating_since(began).as_millis();
        measured = (|| {
            thread::sleep(Duration::from_millis(500)); // until all is set up
            let bytes = memory()?.saturating_sub(before);
            let (sleeps, nanos) = activity()?;
            thread::sleep(Duration::from_secs(1));
            let (sleeps, nanos) = (activity()?.0 - sleeps, activity()?.1 - nanos);
            Ok::<_, Failure>((took, bytes, sleeps, nanos))
        })();
    };
    set_up(&mut measure)?;
    let (took, bytes, sleeps, nanos) = measured?;
    println!("took {took}\nmemory {bytes}\nwake-ups {sleeps}\nnanos {nanos}");
    Ok(())
}

fn main() -> Result<(), Failure> {
    if let Some(number) = std::env::args().nth(1) {
        return row(number.parse()?);
    }
    if !Path::new("/proc/self/task").exists() {
        println!("this system does not tell");
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let start = |number: usize| {
        let mut command = Command::new(&program);
        command
            .arg(number.to_string())
            .stdout(Stdio::piped())
            .spawn()
    };
    let rows = (0..ROWS.len()).map(start).collect::<Result<Vec<_>, _>>()?;
    println!(
        "| program | with | set | ms to open and set | then wake-ups a second | µs of processor | takes |"
    );
    println!("|---|---|---|---|---|---|---|");
    for ((program, with, _), process) in ROWS.iter().zip(rows) {
        let output = process.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let figures: HashMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, figure)| Some((name, figure.parse().ok()?)))
            .collect();
        assert!(
            output.status.success() && figures.contains_key("wake-ups"),
            "{program}: {text}"
        );
        let (pending, took, takes) = match figures.get("disk") {
            Some(disk) => {
                let took = figures["took"].to_string();
                (DURABLE, took, format!("{} KiB of disk", disk >> 10))
            }
            None => {
                let each = figures["memory"] / u64::from(MANY);
                let takes = format!("{each} bytes of memory each");
                (MANY, "-".to_owned(), takes)
            }
        };
        println!(
            "| `{program}` | {with} | {pending} | {took} | {} | {} | {takes} |",
            figures["wake-ups"],
            figures["nanos"] / 1_000,
        );
    }
    Ok(())
}
