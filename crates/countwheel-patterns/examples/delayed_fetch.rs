//! Consumers fetch from a log and want at least so many bytes, or whatever there is after a
//! while, as in Kafka: `cargo run -p countwheel-patterns --example delayed_fetch`.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::broker::{DelayedOperation, DelayedOperations};

/// Some partitions of a log, each known by how many bytes it has.
struct Log {
    partitions: [AtomicU64; 2],
}

impl Log {
    fn append(&self, partition: usize, bytes: u64) {
        self.partitions[partition].fetch_add(bytes, Ordering::SeqCst);
    }

    fn bytes(&self, partitions: &[usize]) -> u64 {
        let of = |&partition: &usize| self.partitions[partition].load(Ordering::SeqCst);
        partitions.iter().map(of).sum()
    }
}

/// One request, which is answered once.
struct Fetch {
    consumer: &'static str,
    log: Arc<Log>,
    partitions: Vec<usize>,
    min_bytes: u64,
    answer: mpsc::Sender<(&'static str, u64)>,
}

impl DelayedOperation for Fetch {
    fn try_complete(&self) -> bool {
        self.log.bytes(&self.partitions) >= self.min_bytes
    }

    fn on_complete(&self) {
        let bytes = self.log.bytes(&self.partitions);
        println!("{} gets {bytes} bytes", self.consumer);
        // A consumer may have hung up.
        let _ = self.answer.send((self.consumer, bytes));
    }

    fn on_expire(&self) {
        println!("    since its time was up");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let fetches = DelayedOperations::new(timer.clone());
    let log = Arc::new(Log {
        partitions: [AtomicU64::new(0), AtomicU64::new(0)],
    });
    let (answer, answers) = mpsc::channel();
    let fetch = |consumer, partitions: &[usize], min_bytes| {
        let fetch = Arc::new(Fetch {
            consumer,
            log: Arc::clone(&log),
            partitions: partitions.to_vec(),
            min_bytes,
            answer: answer.clone(),
        });
        let keys = partitions.iter().copied();
        fetches.try_complete_else_watch(fetch, keys, Duration::from_millis(300))
    };

    fetch("Ada", &[0], 100)?;
    fetch("Bob", &[0, 1], 250)?;
    fetch("Eve", &[1], 10_000)?;
    println!(
        "{} fetches wait, on {} lists",
        fetches.len(),
        fetches.watched()
    );

    // First the change, then the check.
    for (partition, bytes) in [(0, 120), (1, 80), (1, 60)] {
        log.append(partition, bytes);
        let completed = fetches.check(&partition);
        println!("{bytes} bytes more in partition {partition}: {completed} completed");
    }
    assert_eq!(
        answers.try_iter().collect::<Vec<_>>(),
        [("Ada", 120), ("Bob", 260)]
    );

    // Eve asks for too much, and gets what there is when her time is up.
    assert_eq!(answers.recv()?, ("Eve", 140));
    timer.stop(); // not before everything that runs has returned
    let stats = fetches.stats();
    assert_eq!((stats.completed, stats.expired, stats.pending), (2, 1, 0));
    assert_eq!(fetches.watched(), 0);
    Ok(())
}
