//! What a fuzzer hands to the readers of files, and what they have to do with it. Compiled in with
//! the feature `planted-bugs` alone.
//!
//! Random bytes would stop at the first checksum. So an input is a **recipe**: what stands in the
//! frames of files whose headers and checksums are made right. The files are on a simulated disk.
//! Whatever they hold,
//!
//! - no reader panics, loops or asks for more memory than the files have reason for: the fuzzer
//!   and the caller bound both;
//! - a store that is refused is as it was, to the byte;
//! - a store that a check finds sound is opened;
//! - a store that is opened answers, or says what is damaged; and if it answers, what it lists is
//!   found by name.
//!
//! ```
//! use countwheel_disk::fuzz::{Seen, Target};
//!
//! for target in Target::ALL {
//!     let recipe = &target.seeds()[0];
//!     assert_eq!(target.run(recipe), Seen::Right, "{target:?}");
//!     target.run(b"of no use");
//! }
//! ```

use std::collections::BTreeMap;

use countwheel_time::{BootId, Instant, Timestamp};

use super::codec;
use super::simulated::Disk;
use super::{
    Change, ClockNote, DueScan, Filter, LogOptions, LogStore, MemorySorted, Shard, Store,
    StoreError, TableOptions, TableStore, check_files, repair_files,
};
use crate::{
    DueClock, Missed, Record, RetryPolicy, Revision, Setting, SettingName, SettingsVersion, State,
    TimerId, TimerName,
};

const ID: u64 = 7;
/// The queues of what real stores are filled with: two of them of one name.
const QUEUES: [&str; 3] = ["a", "b", "other/b"];
/// So many pages of what a small file can hold are not read without an end.
const PAGES_MAX: usize = 10_000;

/// A reader of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Segments of a log: headers, snapshots, commits; opened, checked and repaired.
    Segment,
    /// Tables and their manifest: opened, read in each order, checked, salvaged.
    Table,
    /// `FORMAT` and `SNAPSHOT`.
    Text,
    /// The bytes of a record.
    Record,
}

/// What a reader made of its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Refused, at the opening or when it was asked.
    Refused,
    /// Read.
    Right,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Segment, Self::Table, Self::Text, Self::Record];

    /// What it is called: its corpus and its program have this name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Table => "table",
            Self::Text => "text",
            Self::Record => "record",
        }
    }

    /// Hands an input to the reader.
    ///
    /// # Panics
    /// If the reader does what no reader may do.
    #[expect(clippy::must_use_candidate, reason = "that it returns is what counts")]
    pub fn run(self, input: &[u8]) -> Seen {
        match self {
            Self::Segment => segment(input),
            Self::Table => table(input),
            Self::Text => text(input),
            Self::Record => record(input),
        }
    }

    /// Inputs to begin with: what real stores wrote. Each is read, except for a manifest without
    /// its tables.
    ///
    /// # Panics
    /// If a store cannot be made.
    #[must_use]
    pub fn seeds(self) -> Vec<Vec<u8>> {
        match self {
            Self::Segment | Self::Table => {
                let stores = [0, 10, 3_000].map(|payload| filled(payload, self));
                stores.into_iter().flatten().collect()
            }
            Self::Text => {
                let format = |version: u64, state: &str| {
                    format!(
                        "countwheel data directory\nformat {version}\nstore {ID:016x}\nstate \
                         {state}\n"
                    )
                };
                let listed = format!(
                    "countwheel snapshot\nformat 1\nstore {ID:016x}\ncommit 17\nfile 8192 5f0c1a2b \
                     log/segment-0000000000000004\nfile 4672 -------- \
                     tables/table-0000000000000004\n"
                );
                let sum = crc32c::crc32c(listed.as_bytes());
                let texts = [
                    format(2, "ready"),
                    format(2, "creating"),
                    format(3, "ready"),
                    format!("{listed}sum {sum:08x}\n"),
                ];
                texts.map(String::into_bytes).to_vec()
            }
            Self::Record => {
                let bytes = |number: u64, payload| codec::encode(&sample(number, payload));
                vec![bytes(1, 0), bytes(2, 20), bytes(3, 300)]
            }
        }
    }
}

/// Makes the checksum at the end of a record right.
pub(super) fn seal_record(bytes: &mut [u8]) {
    if let Some((covered, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32fast::hash(covered).to_le_bytes();
    }
}

fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 1 << 12,
        reserve_segments: 0,
        ..LogOptions::default()
    }
}

fn table_options() -> TableOptions {
    TableOptions {
        table_bytes: 1 << 12,
        block_bytes: 256,
        fan_in: 2,
        ..TableOptions::default()
    }
}

pub(super) fn sample(number: u64, payload: usize) -> Record {
    let due = Timestamp::from_micros(1_000_000 + number / 2);
    let queue = QUEUES[usize::try_from(number % 3).unwrap_or(0)];
    let name = TimerName::from_text(queue, &format!("k{number}"));
    Record {
        name: name.expect("a good name"),
        id: TimerId {
            store: ID,
            set: Revision(number),
        },
        revision: Revision(number),
        state: State::Pending,
        created: Timestamp::from_micros(5),
        due,
        clock: DueClock::ALL[usize::from(number % 2 == 1)],
        missed: Missed::Fire,
        recurring: None,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: vec![number.to_le_bytes()[0]; payload],
    }
}

/// The recipes of a store with payloads of this length.
fn filled(payload: usize, target: Target) -> Vec<Vec<u8>> {
    let disk = Disk::default();
    let fill = || -> Result<(), StoreError> {
        let (log, tables) = (disk.files("log"), disk.files("tables"));
        let log_options = LogOptions {
            segment_bytes: 1 << 14,
            ..log_options()
        };
        if target == Target::Segment {
            let log = LogStore::open(MemorySorted::default(), log, ID, log_options)?;
            return put_some(&log, payload, || Ok(()));
        }
        let tables = TableStore::open(tables, ID, table_options())?;
        let log = LogStore::open(tables, log, ID, log_options)?;
        put_some(&log, payload, || {
            log.seal()?;
            while log.flush_oldest()? {}
            Ok(())
        })
    };
    fill().expect("a simulated disk without a fault");
    disk.restart();
    match target {
        Target::Segment => vec![super::log::fuzz::recipe(&*disk.files("log"), ID)],
        _ => {
            let files = disk.files("tables");
            vec![
                super::table::fuzz::recipe(&*files, ID),
                super::table::fuzz::manifest_recipe(&*files, ID),
                super::table::fuzz::older_manifest_recipe(&*files, ID),
            ]
        }
    }
}

/// A note of the clocks.
fn clocks(number: u64) -> Change {
    Change::Clock(ClockNote {
        wall: Timestamp::from_micros(number),
        boot_id: Some(BootId::from_u128(number.into())),
        boot: Instant::from_nanos(number),
        line: Timestamp::from_micros(number),
    })
}

/// A change of one of three settings.
fn setting(number: u64, payload: usize) -> Change {
    Change::Setting(Setting {
        name: SettingName::new(format!("s{}", number % 3)).expect("a good name"),
        value: (!number.is_multiple_of(4)).then(|| vec![number.to_le_bytes()[0]; payload]),
    })
}

fn put_some(
    store: &dyn Store,
    payload: usize,
    between: impl Fn() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let lease = store.acquire(Shard::ONLY)?.lease;
    for number in 1..9 {
        let first = Change::put(sample(number, payload));
        let second = Change::put(sample(number + 20, payload / 2));
        store.commit(
            lease,
            &[
                clocks(number),
                first,
                second,
                Change::Given(Revision(number + 30)),
                setting(number, payload),
            ],
        )?;
        if number % 4 == 0 {
            store.commit(lease, &[Change::remove(sample(number - 1, 0).name)])?;
            between()?;
        }
    }
    Ok(())
}

fn segment(input: &[u8]) -> Seen {
    let disk = Disk::default();
    super::log::fuzz::write(input, &*disk.files("log"), ID);
    let ingested = input.first().map_or(0, |&first| u64::from(first));
    let base = || {
        let base = MemorySorted::default();
        // As if it had what the segments before left to it.
        super::Sorted::ingest(&base, ingested, super::Flushed::default()).map(|()| base)
    };
    let before = disk.image();
    repair(&disk);
    unchanged(&disk, &before, "a repair");
    let open = || LogStore::open(base()?, disk.files("log"), ID, log_options());
    seen(&disk, &before, open, |log| {
        while log.flush_oldest()? {}
        Ok(())
    })
}

fn table(input: &[u8]) -> Seen {
    let disk = Disk::default();
    super::table::fuzz::write(input, &*disk.files("tables"), ID);
    let before = disk.image();
    repair(&disk);
    unchanged(&disk, &before, "a repair");
    let sound = TableStore::check(disk.files("tables"), ID);
    let is_sound = sound.is_ok_and(|check| check.problems.is_empty());
    unchanged(&disk, &before, "a check");
    match TableStore::open(disk.files("tables"), ID, table_options()) {
        Ok(store) => {
            let asked = ask_sorted(&store);
            while store.merge_step().is_ok_and(|more| more) {}
            if asked.is_ok() {
                Seen::Right
            } else {
                Seen::Refused
            }
        }
        Err(error) => {
            assert!(!is_sound, "found sound, and refused: {error}");
            unchanged(&disk, &before, "a refused opening");
            Seen::Refused
        }
    }
}

/// Repairs what is on the disk into a store of its own, which has to answer.
fn repair(disk: &Disk) {
    let (log, tables) = (disk.files("log"), disk.files("tables"));
    let sound = check_files(&log, &tables, ID).is_ok_and(|report| report.is_sound());
    let into = Disk::default();
    let made = LogStore::open(
        MemorySorted::default(),
        into.files("log"),
        ID,
        log_options(),
    );
    let made = made.expect("an empty disk");
    match repair_files(&log, &tables, ID, &made, &mut |_| Ok(())) {
        Ok(repaired) => {
            assert!(
                !sound || repaired.problems == 0,
                "found sound: {repaired:?}"
            );
            let there = ask(&made).expect("a repaired store answers");
            // Others may be of other shards.
            assert!(there <= repaired.timers, "{there} of {}", repaired.timers);
        }
        Err(error) => assert!(!sound, "found sound, and not repaired: {error}"),
    }
}

fn seen<S: Store>(
    disk: &Disk,
    before: &BTreeMap<String, Vec<u8>>,
    open: impl Fn() -> Result<S, StoreError>,
    upkeep: impl Fn(&S) -> Result<(), StoreError>,
) -> Seen {
    let Ok(store) = open() else {
        unchanged(disk, before, "a refused opening");
        return Seen::Refused;
    };
    let ask_it = |store: &S| -> Result<(), StoreError> {
        ask(store)?;
        let lease = store.acquire(Shard::ONLY)?.lease;
        store.commit(lease, &[Change::put(sample(100, 10))])?;
        assert!(store.get(Shard::ONLY, &sample(100, 0).name)?.is_some());
        upkeep(store)?;
        ask(store).map(drop)
    };
    match ask_it(&store) {
        Ok(()) => Seen::Right,
        Err(_) => Seen::Refused,
    }
}

/// Asks for everything. How many timers there are.
fn ask(store: &dyn Store) -> Result<u64, StoreError> {
    let mut there = 0;
    let settings = store.settings(SettingsVersion::default())?;
    if let Some(settings) = settings {
        assert!(
            store.settings(settings.version())?.is_none(),
            "{settings:?}"
        );
    }
    for counts in store.counts(Shard::ONLY)? {
        let mut filter = Filter {
            limit: 5,
            ..Filter::queue(counts.queue)
        };
        for page in 0.. {
            assert!(page < PAGES_MAX, "a list without an end");
            let found = store.list(Shard::ONLY, &filter)?;
            for record in found.records {
                let by_name = store.get(Shard::ONLY, &record.name)?;
                // By their bytes, as in `record`.
                let found = by_name.as_ref().map(codec::encode);
                assert!(found == Some(codec::encode(&record)), "listed: {record:?}");
                there += 1;
            }
            match found.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
    }
    for clock in DueClock::ALL {
        let mut scan = DueScan {
            limit: 5,
            scan_limit: 7,
            ..DueScan::all(clock)
        };
        for page in 0.. {
            assert!(page < PAGES_MAX, "what is due has no end");
            let found = store.due(Shard::ONLY, &scan)?;
            match found.next {
                Some(next) => scan.after = Some(next),
                None => break,
            }
        }
    }
    Ok(there)
}

fn ask_sorted(store: &TableStore) -> Result<(), StoreError> {
    use super::Sorted as _;
    for queue in QUEUES {
        let queue = crate::QueueName::from_text(queue).expect("a good name");
        let mut filter = Filter {
            limit: 5,
            ..Filter::queue(queue)
        };
        for page in 0.. {
            assert!(page < PAGES_MAX, "a list without an end");
            let found = store.list(Shard::ONLY, &filter)?;
            for record in found.records {
                store.get(Shard::ONLY, &record.name)?;
            }
            match found.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
    }
    for clock in DueClock::ALL {
        let scan = DueScan {
            limit: 1_000,
            ..DueScan::all(clock)
        };
        for entry in store.due(Shard::ONLY, &scan)?.entries {
            store.get(Shard::ONLY, &entry.name)?;
        }
    }
    for number in 1..40 {
        store.get(Shard::ONLY, &sample(number, 0).name)?;
    }
    Ok(())
}

fn text(input: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(input);
    // The sum of a list is made right, or nothing behind it would be reached.
    let end = text.rfind("sum ").unwrap_or(text.len());
    let sum = crc32c::crc32c(&text.as_bytes()[..end]);
    let sealed = format!("{}sum {sum:08x}\n", &text[..end]);
    let is_read = super::directory::is_format(&text)
        || super::disk::is_list(&text, ID)
        || super::disk::is_list(&sealed, ID);
    if is_read { Seen::Right } else { Seen::Refused }
}

fn record(input: &[u8]) -> Seen {
    let mut bytes = input.to_vec();
    seal_record(&mut bytes);
    let indexed = codec::Indexed::decode(&bytes);
    match codec::decode(&bytes) {
        Ok(record) => {
            assert!(indexed.is_ok(), "read, and not its index");
            // What is read once is written so that it is read again. By its bytes: a factor may be
            // no number, and is not equal to itself then.
            let written = codec::encode(&record);
            let again = codec::decode(&written).expect("it was just written");
            assert!(
                codec::encode(&again) == written,
                "{record:?}, and then {again:?}"
            );
            Seen::Right
        }
        Err(_) => Seen::Refused,
    }
}

fn unchanged(disk: &Disk, before: &BTreeMap<String, Vec<u8>>, what: &str) {
    assert!(disk.image() == *before, "{what} changed a file");
}
