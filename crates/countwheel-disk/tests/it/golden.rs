//! Data directories as earlier versions made them, kept in `tests/golden`, and what is in them.
//!
//! `format-2` has a log of version 4, `format-2-log-5` one of version 5, and `format-2-log-6` has notes
//! of the clocks. The manifest of `format-2-manifest-3` names a commit. The tables of
//! `format-2-table-3` say in which state is what wakes, and its log has the counts in pieces. The
//! attempts of `format-2-record-3` say for how long they were held. `format-3` has queues of a
//! namespace and settings. `format-3-record-4` has linear schedules and every preset.
//! `format-3-record-5`, with answers of attempts, was made by
//! `cargo test -p countwheel-disk --features simulated --test it -- --ignored make_the_newest`, which
//! is for when a format is new: what is there is never made anew. Beside them are listings, in the
//! words of the program that made each format first.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Read as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore, LogStore, SystemFiles, TableStore};
use countwheel_durable::store::{
    Before, Change, ClockNote, DiskError, DueScan, Filter, MemoryStore, Shard, Store, StoreError,
    stored_answers,
};
use countwheel_durable::{
    Answer, AttemptEnd, AttemptRecord, AttemptResult, CronExpression, DeadReason, Delays, DueClock,
    Jitter, Key, Missed, Overlap, Preset, QueueName, Record, Recurrence, Recurring, RetryPolicy,
    Revision, Schedule, Setting, SettingName, SettingValue, SettingsVersion, State, TimerId,
    TimerName, Zone,
};
use countwheel_time::{BootId, Instant, Timestamp};

use crate::support::content::files_of;

/// Those of a log and tables, oldest first.
const LOGS_AND_TABLES: [&str; 9] = [
    "format-2",
    "format-2-log-5",
    "format-2-log-6",
    "format-2-manifest-3",
    "format-2-table-3",
    "format-2-record-3",
    "format-3",
    "format-3-record-4",
    "format-3-record-5",
];
const STORE: u64 = 0x0123_4567_89ab_cdef;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Small, so that the directory is.
fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 13;
    (options.log.counts_whole, options.log.counts_at_once) = (1, 2);
    options.tables.table_bytes = 1 << 13;
    options.tables.block_bytes = 512;
    options
}

/// What every version has had of attempts.
struct Attempts<'a>(&'a [AttemptRecord]);

impl fmt::Debug for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for attempt in self.0 {
            list.entry(&fmt::from_fn(|f| {
                f.debug_struct("AttemptRecord")
                    .field("number", &attempt.number)
                    .field("due", &attempt.due)
                    .field("started", &attempt.started)
                    .field("ended", &attempt.ended.as_ref().map(Ended))
                    .finish()
            }));
        }
        list.finish()
    }
}

/// What every version has had of the end of an attempt.
struct Ended<'a>(&'a AttemptEnd);

impl fmt::Debug for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptEnd")
            .field("at", &self.0.at)
            .field("result", &self.0.result)
            .field("detail", &self.0.detail)
            .finish()
    }
}

/// A retry policy in the words of the version that wrote the first of them.
struct Policy<'a>(&'a RetryPolicy);

impl fmt::Debug for Policy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.0.settings();
        let delays = fmt::from_fn(|f| match (settings.preset, settings.delays) {
            (Some(preset), _) => f.debug_tuple("Preset").field(&preset).finish(),
            (None, Delays::Exponential { first, factor }) => f
                .debug_struct("Exponential")
                .field("first", &first)
                .field("factor", &factor)
                .field("cap", &settings.cap.unwrap())
                .finish(),
            (None, Delays::Linear { first, increment }) => f
                .debug_struct("Linear")
                .field("first", &first)
                .field("increment", &increment)
                .field("cap", &settings.cap.unwrap())
                .finish(),
            (None, delays) => write!(f, "{delays:?}"),
        });
        f.debug_struct("RetryPolicy")
            .field("delays", &delays)
            .field("jitter", &settings.jitter)
            .field("max_attempts", &settings.max_attempts)
            .field("max_age", &settings.max_age)
            .finish()
    }
}

/// A state as the listings have it: they are of a time when the dead were kept for good.
fn state(record: &Record) -> String {
    format!("{:?}", record.state).replace(", keep_until: None", "")
}

/// What every version has had.
fn line(record: &Record) -> String {
    format!(
        "{} {} {} {} created={} due={} first={} failures={} interruptions={} attempt={} {:?} \
         payload={:?} policy={:?}",
        record.name,
        record.id,
        record.revision,
        state(record),
        record.created.as_micros(),
        record.due.as_micros(),
        record.first_due.as_micros(),
        record.failures,
        record.interruptions,
        record.attempt,
        Attempts(&record.attempts),
        record.payload,
        Policy(&record.policy),
    )
}

/// The same, with what came later.
fn long_line(record: &Record) -> String {
    let mut line = line(record);
    let (clock, missed) = (record.clock, &record.missed);
    write!(line, " clock={clock:?} missed={missed:?}").unwrap();
    if let Some(recurring) = &record.recurring {
        write!(line, " {recurring:?}").unwrap();
    }
    for (place, answer) in stored_answers::of(&record.attempts) {
        let bytes = String::from_utf8_lossy(answer.as_bytes());
        write!(line, " answer {place}={bytes:?}").unwrap();
    }
    let held: Vec<_> = record.attempts.iter().map(|attempt| attempt.held).collect();
    if held.iter().any(|held| !held.is_zero()) {
        write!(line, " held={held:?}").unwrap();
    }
    line
}

/// Everything that a store answers, as a listing has it.
fn listing(store: &dyn Store, line: fn(&Record) -> String) -> String {
    let mut lines = Vec::new();
    let counts = store.counts(Shard::ONLY).unwrap();
    for counts in &counts {
        let mut filter = Filter::queue(counts.queue.clone());
        filter.limit = 7;
        loop {
            let page = store.list(Shard::ONLY, &filter).unwrap();
            for record in &page.records {
                let found = store.get(Shard::ONLY, &record.name).unwrap();
                assert_eq!(found.as_ref(), Some(record));
                lines.push(line(record));
            }
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
    }
    lines.sort();
    for counts in &counts {
        lines.push(format!("count {} {:?}", counts.queue, counts.by_state));
    }
    for clock in DueClock::ALL {
        for entry in store
            .due(Shard::ONLY, &DueScan::all(clock))
            .unwrap()
            .entries
        {
            let (at, name) = (entry.wake.at.as_micros(), &entry.name);
            lines.push(format!("due {clock:?} {at} {} {name}", entry.wake.revision));
        }
    }
    let settings = store.settings(SettingsVersion::default()).unwrap();
    for (name, SettingValue { version, value }) in settings.unwrap_or_default().iter() {
        lines.push(format!("setting {name} {} {value:?}", version.0));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The records of a listing and what has to follow from them.
fn expected(name: &str) -> String {
    fs::read_to_string(golden(name)).unwrap()
}

fn copy_all(from: &Path, into: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = into.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
            continue;
        }
        match target.to_str().unwrap().strip_suffix(".gz") {
            Some(target) => {
                let mut content = Vec::new();
                let file = fs::File::open(entry.path()).unwrap();
                flate2::read::GzDecoder::new(file)
                    .read_to_end(&mut content)
                    .unwrap();
                fs::write(target, content).unwrap();
            }
            None => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn copy(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_all(&golden(name), copy.path());
    copy
}

#[test]
fn format_2_is_read() {
    LOGS_AND_TABLES.into_iter().for_each(is_read);
}

/// The entries of what wakes say in which state the records are, unless they are of an older table.
#[test]
fn the_tables_of_version_3_say_in_which_state_is_what_wakes() {
    for name in LOGS_AND_TABLES {
        let directory = copy(name);
        let store = DiskStore::open(directory.path(), 0, options()).unwrap();
        let entries = DueClock::ALL.map(|clock| {
            let page = store.due(Shard::ONLY, &DueScan::all(clock));
            page.unwrap().entries
        });
        let mut unknown = 0;
        for entry in entries.into_iter().flatten() {
            let record = store.get(Shard::ONLY, &entry.name).unwrap().unwrap();
            match entry.kind {
                Some(kind) => assert_eq!(kind, record.state.kind(), "{name}, {}", entry.name),
                None => unknown += 1,
            }
        }
        let is_new = LOGS_AND_TABLES[4..].contains(&name);
        assert_eq!(unknown > 0, !is_new, "{name}, {unknown}");
    }
}

/// The listing of a directory.
fn listed(name: &str) -> String {
    expected(match name {
        "format-2-record-3" => "format-2-record-3.txt",
        "format-3" => "format-3.txt",
        "format-3-record-4" => "format-3-record-4.txt",
        "format-3-record-5" => "format-3-record-5.txt",
        _ => "format-2.txt",
    })
}

fn format_of(directory: &Path) -> String {
    fs::read_to_string(directory.join("FORMAT")).unwrap()
}

fn is_read(name: &str) {
    let expected = listed(name);
    let directory = copy(name);
    let report = DiskStore::check(directory.path()).unwrap();
    assert_eq!(report.problems, []);
    let says = fs::read_to_string(golden(name).join("FORMAT")).unwrap();
    assert_eq!(format_of(directory.path()), says, "a check changed it");
    let store = DiskStore::open(directory.path(), 0, options()).unwrap();
    assert_eq!(listing(&store, long_line), expected);
    // Whatever it was, an earlier program refuses it from here on.
    let newest = says.replace("\nformat 2\n", "\nformat 3\n");
    assert_eq!(format_of(directory.path()), newest);
    let ownership = store.acquire(Shard::ONLY).unwrap();
    assert_eq!(ownership.store_id, STORE);
    assert_eq!(ownership.last_revision, Revision(500));
    assert_eq!(ownership.lease.fence.0, 3);
    drop(store);
    // And it is written as it was read.
    let store = DiskStore::open(directory.path(), 0, options()).unwrap();
    assert_eq!(listing(&store, long_line), expected);
    assert_eq!(store.acquire(Shard::ONLY).unwrap().lease.fence.0, 4);
}

/// A file of another version is refused, and nothing is touched, whatever is asked for.
#[track_caller]
fn is_refused(path: &Path) {
    let before = files_of(path);
    let into = tempfile::tempdir().unwrap();
    let refusals = [
        DiskStore::open(path, 0, options()).map(drop),
        DiskStore::check(path).map(drop),
        DiskStore::repair(path, into.path(), options(), &mut |_| Ok(())).map(drop),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap_err();
        assert!(
            matches!(refusal, StoreError::Disk(DiskError::NotAStore { .. })),
            "{refusal}"
        );
    }
    assert!(files_of(path) == before, "something was touched");
    let made = DiskStore::open(into.path(), 9, options()).unwrap();
    assert_eq!(made.acquire(Shard::ONLY).unwrap().store_id, 9, "half made");
}

#[test]
fn a_directory_of_a_later_format_is_refused_and_not_touched() {
    for name in ["format-2", "format-3"] {
        let directory = copy(name);
        let path = directory.path().join("FORMAT");
        let text = fs::read_to_string(&path).unwrap();
        let number = name.rsplit('-').next().unwrap();
        let later = text.replace(&format!("format {number}\n"), "format 4\n");
        // Whatever else a later version may say.
        fs::write(&path, later + "more\n").unwrap();
        is_refused(directory.path());
    }
}

/// Where a checksum stands, and what it has to be.
type Checksum = fn(&[u8]) -> (usize, u32);

#[test]
fn a_file_of_a_later_format_is_refused_and_not_touched() {
    let segment = |bytes: &[u8]| (60, crc32fast::hash(&bytes[..60]));
    let manifest = |bytes: &[u8]| (24, crc32fast::hash(&[&bytes[..24], &bytes[28..]].concat()));
    let checksums: [(&str, &str, Checksum); 2] = [
        ("log", "segment-", segment),
        ("tables", "manifest", manifest),
    ];
    for (part, begins, checksum) in checksums {
        let directory = copy("format-2");
        let files = fs::read_dir(directory.path().join(part)).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        let path = files
            .find(|path| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with(begins)
            })
            .unwrap();
        let mut bytes = fs::read(&path).unwrap();
        // The rule is right: the version that is there has the checksum that is there.
        let (at, sum) = checksum(&bytes);
        assert_eq!(bytes[at..at + 4], sum.to_le_bytes(), "{begins}");
        bytes[8] = 99;
        let (at, sum) = checksum(&bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let is_it = DiskStore::check(directory.path());
        assert!(
            matches!(is_it, Err(StoreError::Disk(DiskError::NotAStore { .. }))),
            "{begins}"
        );
        let before = files_of(directory.path());
        let opened = DiskStore::open(directory.path(), 0, options());
        assert!(
            matches!(opened, Err(StoreError::Disk(DiskError::NotAStore { .. }))),
            "{begins}"
        );
        assert!(files_of(directory.path()) == before, "{begins}");
        is_refused(directory.path());
    }
}

/// The note of the clocks that is there since version 6 of the log.
fn noted() -> ClockNote {
    ClockNote {
        wall: at(77),
        boot_id: Some(BootId::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210)),
        boot: Instant::from_nanos(123_456_789_000),
        line: at(42),
    }
}

fn newest_segment(path: &Path) -> PathBuf {
    let files = fs::read_dir(path.join("log")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.to_str().unwrap().contains("segment-"));
    segments.max().unwrap()
}

/// The last ingest left out what the segments behind it had replaced: the tables are right only
/// with these segments. A manifest of version 3 says so, and one before did not.
#[test]
fn a_manifest_of_version_3_needs_the_commit_that_it_names() {
    for (name, version) in LOGS_AND_TABLES.into_iter().zip([2, 2, 2, 3, 3]) {
        let directory = copy(name);
        let path = directory.path();
        let manifest = fs::read(path.join("tables/manifest")).unwrap();
        assert_eq!(manifest[8], version, "{name}");
        fs::remove_file(newest_segment(path)).unwrap();
        for entry in fs::read_dir(path.join("tables")).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().contains("reached-") {
                fs::remove_file(path).unwrap();
            }
        }
        let before = files_of(path);
        let sound = DiskStore::check(path).unwrap().is_sound();
        assert_eq!(sound, version < 3, "{name}");
        let opened = DiskStore::open(path, 0, options());
        assert_eq!(opened.is_ok(), version < 3, "{name}");
        drop(opened);
        assert!(
            version < 3 || files_of(path) == before,
            "something was touched"
        );
    }
}

/// What is read of an older log is written on in one of this version, which an older program
/// refuses by its header: it cannot read a note of the clocks.
#[test]
fn an_older_log_is_carried_on_in_a_segment_of_this_version() {
    let version = |path: &Path| fs::read(newest_segment(path)).unwrap()[8];
    for (name, old) in LOGS_AND_TABLES.into_iter().zip([4, 5, 6, 6, 7, 7, 8, 8, 8]) {
        let directory = copy(name);
        assert_eq!(version(directory.path()), old, "{name}");
        let expected = listed(name);
        for round in 0..3 {
            let store = DiskStore::open(directory.path(), 0, options()).unwrap();
            let ownership = store.acquire(Shard::ONLY).unwrap();
            let note = (round > 0 || old >= 6).then(noted);
            assert_eq!(ownership.clock, note, "{name}, {round}");
            store
                .commit(ownership.lease, &[Change::Clock(noted())])
                .unwrap();
            assert_eq!(listing(&store, long_line), expected, "{name}, {round}");
            drop(store);
            assert_eq!(version(directory.path()), 8, "{name}, {round}");
            assert!(DiskStore::check(directory.path()).unwrap().is_sound());
        }
        // A repair keeps what was noted.
        let into = tempfile::tempdir().unwrap();
        let lost = &mut |_| Ok(());
        DiskStore::repair(directory.path(), into.path(), options(), lost).unwrap();
        let store = DiskStore::open(into.path(), 0, options()).unwrap();
        let ownership = store.acquire(Shard::ONLY).unwrap();
        assert_eq!(ownership.clock, Some(noted()), "{name}");
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Records of every kind.
fn made(number: u64) -> Record {
    let pick = |n: u64| usize::try_from(number % n).unwrap();
    let queue = ["orders", "reports", "customer-7/orders"][pick(3)];
    let key = ["key", "key", "ключ"][pick(3)];
    let name = TimerName {
        queue: QueueName::from_text(queue).unwrap(),
        key: Key::new(format!("{key}-{number}")).unwrap(),
    };
    let end = |result| {
        let detail = "503".to_owned();
        Some(AttemptEnd {
            at: at(number + 101),
            result,
            detail,
            answer: Answer::new(
                format!("answer {number}").repeat(usize::from(number % 5 == 2) * 4),
            ),
        })
    };
    let one = |nth, ended| AttemptRecord {
        number: nth,
        due: at(number + 100),
        started: at(number + 100),
        held: Duration::from_micros(number * 1_001),
        ended,
    };
    let over = at(number + 101);
    let keep_until = at(number + 90_000);
    let reason = [
        DeadReason::Exhausted,
        DeadReason::Missed,
        DeadReason::Stopped,
    ][pick(3)];
    let (state, attempts) = match number % 6 {
        0 => {
            let attempts = vec![
                one(1, end(AttemptResult::Failed)),
                one(2, end(AttemptResult::Done)),
            ];
            (
                State::Done {
                    at: over,
                    keep_until,
                },
                attempts,
            )
        }
        1 => (State::Delivering, vec![one(1, None)]),
        2 => (
            State::Dead {
                at: over,
                reason,
                keep_until: None,
            },
            vec![one(1, end(AttemptResult::Failed))],
        ),
        3 => (
            State::Pending,
            vec![one(1, end(AttemptResult::Interrupted))],
        ),
        _ => (State::Pending, vec![]),
    };
    let policy = match number % 4 {
        0 => match Preset::ALL.get(usize::try_from(number / 4 % 6).unwrap()) {
            Some(preset) => preset.policy(),
            None => RetryPolicy::linear(Duration::from_secs(number), Duration::from_secs(5))
                .cap(Duration::from_secs(90)),
        },
        1 => RetryPolicy::fixed(Duration::from_secs(number)),
        2 => RetryPolicy::list([Duration::from_millis(number), Duration::from_secs(9)]).unwrap(),
        _ => RetryPolicy::default(),
    };
    let id = TimerId {
        store: STORE,
        set: Revision(number),
    };
    let schedule = match number % 9 {
        0 => Some(Schedule::Cron {
            expression: CronExpression::new("*/5 9-17 * * mon-fri").unwrap(),
            zone: Zone::new("Europe/Berlin").unwrap(),
        }),
        3 => Some(Schedule::FixedRate {
            every: Duration::from_secs(60),
            anchor: Some(at(0)),
        }),
        6 => Some(Schedule::FixedDelay {
            every: Duration::from_millis(1_500),
        }),
        _ => None,
    };
    let recurring = schedule.map(|schedule| {
        Box::new(Recurring {
            recurrence: Recurrence {
                repeats: NonZeroU32::new(u32::try_from(number % 2 * 10).unwrap()),
                until: (number % 4 == 3).then(|| at(1 << 30)),
                jitter: Duration::from_millis(number),
                overlap: [Overlap::Skip, Overlap::Queue][pick(2)],
                ..Recurrence::new(schedule)
            },
            run: 3,
            nominal: at(number + 100),
            moved: (number % 2 == 1).then(|| at(number + 150)),
            origin: at(7),
            busy_since: Some(at(number)),
            missed: number,
            overlapped: 2,
            dead: 1,
        })
    });
    Record {
        name,
        id,
        revision: Revision(number + 200 * (number % 2)),
        state,
        created: at(number),
        due: at(number * 7 % 50 + 100),
        clock: DueClock::ALL[pick(2)],
        missed: match number % 3 {
            0 => Missed::Fire,
            1 => Missed::Collapse,
            _ => Missed::SkipIfOlderThan(Duration::from_secs(number)),
        },
        recurring,
        first_due: at(number + 100),
        policy: policy.jitter(Jitter::Full).repeat_last().max_retries(19),
        failures: u32::try_from(number % 3).unwrap(),
        interruptions: u32::try_from(number % 2).unwrap(),
        attempt: u32::try_from(attempts.len()).unwrap(),
        attempts,
        payload: (0..number * 3 % 256)
            .map(|byte| byte.to_le_bytes()[0])
            .collect(),
    }
}

/// One of five, of which the last is removed.
fn setting(round: u64) -> Change {
    let number = round % 5;
    Change::Setting(Setting {
        name: SettingName::new(format!("setting-{number}")).unwrap(),
        value: (number < 4).then(|| vec![round.to_le_bytes()[0]; 20]),
    })
}

#[test]
#[ignore = "makes the directory that the others read"]
fn make_the_newest() {
    let [.., name] = LOGS_AND_TABLES;
    let path = golden(name);
    assert!(!path.exists(), "remove it first, if it is to be made anew");
    let mut options = options();
    options.log.reserve_segments = 0;
    drop(DiskStore::open(&path, STORE, options).unwrap());
    let files = |part| Arc::new(SystemFiles::new(&path.join(part)));
    let base = TableStore::open(files("tables"), STORE, options.tables).unwrap();
    let log = LogStore::open(base, files("log"), STORE, options.log).unwrap();
    log.acquire(Shard::ONLY).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let mut now: BTreeMap<TimerName, Record> = BTreeMap::new();
    let mut settings: Vec<Setting> = Vec::new();
    let mut commit = |changes: Vec<Change>| {
        for change in &changes {
            match change {
                Change::Put { record, .. } => {
                    now.insert(record.name.clone(), Record::clone(record));
                }
                Change::Remove { name, .. } => drop(now.remove(name)),
                Change::Setting(change) => settings.push(change.clone()),
                Change::Given(_) | Change::Clock(_) => {}
            }
        }
        log.commit(lease, &changes).unwrap();
    };
    let wall = at(1);
    commit(vec![Change::Clock(ClockNote { wall, ..noted() })]);
    for round in 0..8 {
        let numbers = round * 8 + 1..round * 8 + 9;
        let puts = numbers.map(|n| Change::put(made(n)));
        commit(puts.chain([setting(round)]).collect());
        if round % 2 == 1 && round < 7 {
            // An older one again, and one that goes: in the tables both are known.
            let mut again = made(round * 2);
            again.revision = Revision(400 + round);
            again.payload = b"again".to_vec();
            commit(vec![Change::put(again), Change::remove(made(round).name)]);
            log.seal().unwrap();
            // What is flushed last goes at the end, with more behind it in the log.
            while round < 5 && log.flush_oldest().unwrap() {}
        }
    }
    let key = Key::new("x".repeat(Key::MAX_BYTES)).unwrap();
    let mut long = made(65);
    long.name.key = key;
    let note = Change::Clock(noted());
    commit(vec![Change::put(long), note, Change::remove(made(30).name)]);
    log.seal().unwrap();
    let before = Before::Absent;
    let record = Box::new(made(66));
    commit(vec![
        Change::Put { record, before },
        Change::Given(Revision(500)),
    ]);
    assert!(log.flush_oldest().unwrap(), "the oldest of three");
    drop(log);
    // Made by what was given to the store, not by what it says.
    let model = MemoryStore::new(0);
    let own = model.acquire(Shard::ONLY).unwrap().lease;
    let puts: Vec<_> = now.into_values().map(Change::put).collect();
    model.commit(own, &puts).unwrap();
    let settings: Vec<_> = settings.into_iter().map(Change::Setting).collect();
    model.commit(own, &settings).unwrap();
    let listing = listing(&model, long_line);
    let path = path.with_extension("txt");
    fs::write(path, listing).unwrap();
}
