//! The slow round through all checksums, on the simulated disk.

use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{LogOptions, LogStore, TableOptions, TableStore};
use countwheel_durable::store::{OnDisk, Shard, Store};
use countwheel_durable::{
    Config, Due, Engine, Event, Precondition, Request, RetryPolicy, SetOptions, Ticket, TimerName,
    TroubleReason,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

type Log = LogStore<TableStore>;

fn open(disk: &Disk) -> Arc<Log> {
    disk.restart();
    let mut options = TableOptions::default();
    (
        options.table_bytes,
        options.block_bytes,
        options.cache_bytes,
    ) = (4_096, 256, 0);
    let tables = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let mut options = LogOptions::default();
    (options.segment_bytes, options.segments_max) = (8_192, 8);
    options.segment_bytes_first = 4_096;
    Arc::new(LogStore::open(tables, disk.files("log"), 7, options).unwrap())
}

/// A store with tables, and with two full segments in front of them.
fn filled(disk: &Disk) -> Arc<Log> {
    let log = open(disk);
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let mut engine = Engine::open(log.clone(), Shard::ONLY, clock, Config::default()).unwrap();
    let mut set = |key: u64| {
        let length = if key.is_multiple_of(20) {
            3_000
        } else {
            20 + key % 13
        };
        let set = Request::Set {
            name: TimerName::new("orders", key.to_string()).unwrap(),
            due: Due::In(Duration::from_secs(3_600 + key)),
            policy: RetryPolicy::default(),
            payload: vec![7; usize::try_from(length).unwrap()],
            options: SetOptions::default(),
            precondition: Precondition::None,
        };
        let events = vec![Event::Request(Ticket(key), set)];
        engine.turn(events, &mut |_| {}).unwrap();
    };
    (0..60).for_each(&mut set);
    log.seal().unwrap();
    while log.flush_oldest().unwrap() {}
    (60..75).for_each(&mut set);
    log.seal().unwrap();
    (75..90).for_each(&mut set);
    log.seal().unwrap();
    (90..92).for_each(&mut set);
    log
}

/// A whole round, in small pieces. How many bytes it read, and what it found.
fn round(log: &Log) -> (u64, Vec<String>) {
    let mut bytes = 0;
    loop {
        let step = log.scrub_step(64);
        bytes += step.bytes;
        if step.ended {
            break;
        }
    }
    let troubles = log.troubles().into_iter();
    let found = troubles.filter(|one| one.reason == TroubleReason::Scrub);
    (bytes, found.map(|one| one.to_string()).collect())
}

#[test]
fn a_round_reads_everything_and_finds_nothing_where_nothing_is_wrong() {
    let disk = Disk::default();
    let log = filled(&disk);
    let whole: u64 = disk
        .paths()
        .iter()
        .filter(|path| path.contains("table-"))
        .map(|path| disk.content(path).unwrap().len() as u64)
        .sum();
    for _ in 0..3 {
        let (bytes, found) = round(&log);
        assert_eq!(found, Vec::<String>::new());
        assert!(bytes > whole, "{bytes} of {whole} and the log");
    }
}

/// Where the commits of a full segment end: behind that may stand anything, up to the second
/// header.
fn commits_end(content: &[u8]) -> usize {
    let number = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
    let length = |at: usize| u32::from_le_bytes(content[at + 4..at + 8].try_into().unwrap());
    let (mut commit, nonce) = (number(32), number(48));
    // The first frame says what was before, under the number of the first commit.
    let mut at = 64 + (16 + length(64) as usize).next_multiple_of(8);
    while at + 16 < content.len() && number(at + 8) ^ nonce == commit {
        at += (16 + length(at) as usize).next_multiple_of(8);
        commit += 1;
    }
    at
}

/// Whether the byte counts: all of a table, of a segment what a reader of it reads.
fn counts(path: &str, content: &[u8], place: usize) -> bool {
    let is_table = !path.contains("segment-");
    is_table || place < commits_end(content) || place >= content.len() - 64
}

fn flips(disk: &Disk, log: &Log, every: usize) -> (usize, Vec<String>) {
    let mut tried = 0;
    let mut missed = Vec::new();
    let mut paths = disk.paths();
    paths.sort();
    let last = paths.iter().filter(|path| path.contains("segment-")).max();
    let last = last.unwrap().clone();
    let is_full =
        |path: &&String| path.contains("table-") || path.contains("segment-") && **path != last;
    for path in paths.iter().filter(is_full) {
        let sound = disk.content(path).unwrap();
        for place in (0..sound.len()).step_by(every) {
            if !counts(path, &sound, place) {
                continue;
            }
            let mut damaged = sound.clone();
            damaged[place] ^= 1 << (place % 8);
            disk.set_content(path, damaged);
            tried += 1;
            let (_, found) = round(log);
            let name = path.rsplit('/').next().unwrap();
            if !found.iter().any(|one| one.contains(name)) {
                missed.push(format!("{path} at {place}"));
            }
            disk.set_content(path, sound.clone());
            // What a round found is told until another round was through.
            round(log);
            let (_, found) = round(log);
            assert_eq!(found, Vec::<String>::new(), "{path} at {place}, mended");
        }
    }
    (tried, missed)
}

#[test]
fn a_flipped_bit_anywhere_in_a_table_or_a_full_segment_is_found_by_one_round() {
    let disk = Disk::default();
    let log = filled(&disk);
    let (tried, missed) = flips(&disk, &log, 11);
    assert!(tried > 1_000, "{tried}");
    assert_eq!(missed, Vec::<String>::new());
}

/// The proof above can fail: it objects to a scrub that leaves something out.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_scrub_that_leaves_something_out_is_found() {
    use countwheel_disk::{PlantedBug, plant};

    let disk = Disk::default();
    let log = filled(&disk);
    plant(Some(PlantedBug::ScrubLooksAway));
    let (_, missed) = flips(&disk, &log, 101);
    plant(None);
    assert!(!missed.is_empty());
}

#[test]
fn what_was_found_is_told_as_long_as_its_file_is_needed() {
    let disk = Disk::default();
    let log = filled(&disk);
    let paths = disk.paths();
    let segment = paths.iter().filter(|path| path.contains("segment-")).min();
    let segment = segment.unwrap();
    let mut content = disk.content(segment).unwrap();
    // The second header: the segment can be flushed all the same.
    let place = content.len() - 20;
    content[place] ^= 1;
    disk.set_content(segment, content);
    assert_eq!(round(&log).1.len(), 1);
    assert_eq!(round(&log).1.len(), 1, "each place once");
    assert!(log.flush_oldest().unwrap());
    let troubles = log.troubles();
    assert!(troubles.is_empty(), "{troubles:?}");
}

/// Each round begins elsewhere, and each reads all.
#[test]
fn rounds_do_not_all_begin_at_the_same_file() {
    let disk = Disk::default();
    let log = filled(&disk);
    let mut paths = disk.paths();
    paths.retain(|path| path.contains("table-"));
    assert!(paths.len() > 2, "{paths:?}");
    for path in &paths {
        let mut content = disk.content(path).unwrap();
        content[30] ^= 4;
        disk.set_content(path, content);
    }
    let first_found = || {
        loop {
            log.scrub_step(64);
            let found = log.troubles();
            if let Some(last) = found.first() {
                return last.path.clone().unwrap();
            }
        }
    };
    let first = first_found();
    let mut firsts = std::collections::BTreeSet::from([first]);
    for _ in 0..8 {
        // A process that was started again.
        let log = open(&disk);
        loop {
            log.scrub_step(64);
            if let Some(found) = log.troubles().first() {
                firsts.insert(found.path.clone().unwrap());
                break;
            }
        }
    }
    assert!(firsts.len() > 1, "{firsts:?}");
}
