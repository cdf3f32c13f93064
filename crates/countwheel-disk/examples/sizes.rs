//! How much disk and memory durable timers take: an empty directory, so many timers, the same
//! directory opened again. The timers are due in a year, each with a payload of 100 bytes.
//! `cargo run --release -p countwheel-disk --example sizes [TIMERS [SEGMENT_KIB [DIRECTORY]]]`

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use countwheel_disk::{DiskOptions, Opening};
use countwheel_durable::{
    Precondition, Request, RetryPolicy, SetOptions, TimerName, Timers, inline,
};

const YEAR: Duration = Duration::from_secs(365 * 86_400);
const BATCH: u64 = 1_000;

/// The blocks that a directory has on the disk, in bytes, as `du` counts them.
fn on_disk(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            bytes += on_disk(&entry.path())?;
        }
    }
    Ok(bytes)
}

/// The anonymous memory of this process, in KiB.
fn memory() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.ok_or("the system does not say")?.parse()?)
}

fn report(when: &str, directory: &Path, timers: &Timers) -> Result<(), Box<dyn Error>> {
    println!(
        "{when}: {} KiB on the disk, {} KiB of memory, {} timers in the window",
        on_disk(directory)? >> 10,
        memory()?,
        timers.stats().in_window,
    );
    Ok(())
}

fn set(number: u64) -> Result<Request, Box<dyn Error>> {
    Ok(Request::Set {
        name: TimerName::new("orders", format!("order-{number:010}"))?,
        due: (YEAR + Duration::from_millis(number * 7_919 % 86_400_000)).into(),
        policy: RetryPolicy::default(),
        payload: number.to_string().repeat(100).into_bytes()[..100].to_vec(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the program waits for the threads of the store, in real time"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().map_or(Ok(2_000), |text| text.parse())?;
    let mut options = DiskOptions::default();
    if let Some(kib) = arguments.next() {
        options.log.segment_bytes = kib.parse::<u64>()? << 10;
    }
    let temporary = tempfile::tempdir()?;
    let directory = arguments
        .next()
        .map_or_else(|| temporary.path().to_owned(), PathBuf::from);

    println!("before the opening: {} KiB of memory", memory()?);
    let open = || {
        Opening::new(&directory)
            .options(options)
            .start(inline(|_| ()))
    };
    let timers = open()?;
    report("empty", &directory, &timers)?;
    for first in (0..count).step_by(usize::try_from(BATCH)?) {
        let numbers = first..count.min(first + BATCH);
        let requests: Result<Vec<_>, _> = numbers.map(set).collect();
        let (send, receive) = mpsc::channel();
        timers.submit_batch(requests?, move |answer| {
            send.send(answer).unwrap_or_default();
        });
        receive.recv()??;
    }
    report("all set", &directory, &timers)?;
    timers.stop(Duration::ZERO);
    drop(timers);

    let timers = open()?;
    // The background work of the store comes to rest.
    let mut before = 0;
    while before != on_disk(&directory)? {
        before = on_disk(&directory)?;
        std::thread::sleep(Duration::from_secs(u64::from(count > 10_000)));
    }
    report("opened again", &directory, &timers)?;
    Ok(())
}
