//! A bit of a file is flipped while the real server delivers from it, under a supervisor that starts
//! it again when it ends: in each region of each kind of file, at a drawn moment. Whoever is not
//! damaged is delivered and not dead, nobody is early, and the damage shows: health says degraded,
//! or a start is refused and names the file.
//!
//! `COUNTWHEEL_FLIPS` says how many of them, `COUNTWHEEL_REGION` with which region it begins and
//! `COUNTWHEEL_REGION_STEP` how many regions on the next flip is (0: always the same).
//! `COUNTWHEEL_STILL_MS` is how long it waits for what may still come. `COUNTWHEEL_SEED` repeats what
//! is drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::caller::{Caller, moment};
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{
    Directory, Random, figures, micros, now_us, pause, seed, setting, turn, wait,
};

/// Timers that are due while the server delivers, and those that fill segments between them.
const NEAR: usize = 200;
const FAR: usize = 400;
/// How many of those that are near are set last.
const IN_LOG: usize = 50;
const CALLERS: usize = 6;
/// Timers that are set after a bit was flipped.
const SET_LATER: usize = 10;
/// How long it may take to set them all, at first.
const SETTING: Duration = Duration::from_millis(1_800);
/// How long nothing arrives before nothing more is waited for, in milliseconds.
const STILL_MS: u64 = 700;
/// Which timers are dead.
const DEAD: &str = "/v1/queues/default/timers?state=dead&limit=1000";
/// So many records a flipped bit may take along, at the most: those of one block.
const TAKEN_ALONG_MAX: usize = 100;
/// The supervisor gives up after as many ends.
const ENDS_MAX: usize = 12;

/// What part of which file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Region {
    SegmentHeader,
    Snapshot,
    FrameHeader,
    FrameBody,
    SecondHeader,
    /// A frame of this kind in a table.
    Table(TablePart),
    Manifest,
    Format,
    Lock,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum TablePart {
    Records = 1,
    Due = 2,
    List = 3,
    Index = 4,
    Large = 5,
    Filter = 6,
    Footer = 7,
}

impl Region {
    const ALL: [Self; 15] = [
        Self::Table(TablePart::Records),
        Self::Table(TablePart::Due),
        Self::FrameBody,
        Self::Table(TablePart::Filter),
        Self::SegmentHeader,
        Self::Table(TablePart::Footer),
        Self::Manifest,
        Self::Table(TablePart::List),
        Self::FrameHeader,
        Self::Table(TablePart::Large),
        Self::Snapshot,
        Self::SecondHeader,
        Self::Table(TablePart::Index),
        Self::Format,
        Self::Lock,
    ];
}

/// What became of one flipped bit.
#[derive(Clone, Debug, Default)]
struct History {
    /// When each timer was due that has to be delivered, and when it arrived.
    timers: BTreeMap<String, (u64, Vec<u64>)>,
    /// Those that the server says are dead.
    dead: BTreeSet<String>,
    /// How often it ended by itself, and how often it was killed.
    ends: usize,
    kills: usize,
    /// What health said last before the kill.
    health: Option<String>,
    /// Why the last start was refused, if it was.
    refused: Option<String>,
    /// What a check finds wrong afterwards.
    problem: Option<String>,
    /// Whether it ran when nothing more came.
    is_still_up: bool,
    file: PathBuf,
    /// Whether it has to start: all but a block of a table can be read.
    has_to_start: bool,
    /// Some of what is damaged is a record, which cannot be delivered.
    takes_along: usize,
}

impl History {
    fn missing(&self) -> Vec<&str> {
        let timers = self.timers.iter();
        let missing = timers.filter(|(_, (_, arrived))| arrived.is_empty());
        missing.map(|(key, _)| key.as_str()).collect()
    }

    fn twice(&self) -> usize {
        let more = |(_, arrived): &(u64, Vec<u64>)| arrived.len().saturating_sub(1);
        self.timers.values().map(more).sum()
    }

    /// What is wrong with how the server took it.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, (due, arrived)) in &self.timers {
            if let Some(early) = arrived.iter().find(|at| *at < due) {
                faults.push(format!("{key} came {} us early", due - early));
            }
            if arrived.len() > 1 + self.ends + self.kills {
                faults.push(format!("{key} came {} times", arrived.len()));
            }
        }
        let missing = self.missing();
        // A start that is refused leaves everything as it is, for who restores or repairs it.
        if self.refused.is_none() && missing.len() > self.takes_along {
            let some = &missing[..missing.len().min(3)];
            faults.push(format!("{} never came, as {some:?}", missing.len()));
        }
        // What was damaged may be dead, or not be seen at all.
        if self.dead.len() > self.takes_along {
            let some = self.dead.first();
            faults.push(format!("{} are dead, as {some:?}", self.dead.len()));
        }
        if self.ends > 1 && self.refused.is_none() {
            faults.push(format!("it ended {} times", self.ends));
        }
        let is_told = self.health.as_deref() == Some("degraded");
        match &self.refused {
            Some(why) if self.has_to_start => {
                faults.push(format!("a start was refused for a block of a table: {why}"));
            }
            Some(why) => {
                let directory = self.file.parent().unwrap_or(&self.file);
                let names = [self.file.as_path(), directory];
                if !names
                    .iter()
                    .any(|name| why.contains(&*name.to_string_lossy()))
                {
                    faults.push(format!("a start was refused without a name: {why}"));
                }
            }
            None if is_told => {}
            None => faults.extend(self.problem.as_ref().map(|problem| {
                let health = self.health.as_deref();
                format!("nobody was told of it: {health:?}, but a check says {problem}")
            })),
        }
        faults
    }
}

/// A directory with timers in tables and in the log, and when each near one is due.
struct Prepared {
    data: PathBuf,
    due: BTreeMap<String, u64>,
}

/// Sets the timers, and stops before they are due; anew with more time, if that was too little.
fn prepare(directory: &Directory, target: &str) -> Prepared {
    let mut span = SETTING;
    loop {
        let data = directory.join(&format!("prepared-{}", span.as_millis()));
        if let Some(prepared) = try_prepare(&data, target, span) {
            return prepared;
        }
        span *= 2;
    }
}

fn try_prepare(data: &Path, target: &str, span: Duration) -> Option<Prepared> {
    let mut server = Server::start(data);
    let begins = now_us() + micros(span);
    let near = |number: usize| {
        let at = begins + number as u64;
        let body = json!({"at": moment(at), "target": {"url": target}, "body": number});
        (format!("near-{number}"), body)
    };
    let far = |number: usize| {
        let body = json!({
            "in": "9h",
            "target": {"url": target},
            "body": "timers ".repeat(1_800),
            "content_type": "text/plain",
        });
        (format!("far-{number}"), body)
    };
    // Most of what is near is in tables, some of it in the log.
    let asked: Vec<_> = (0..NEAR - IN_LOG)
        .map(near)
        .chain((0..FAR).map(far))
        .chain((NEAR - IN_LOG..NEAR).map(near))
        .collect();
    for phase in asked.chunks(NEAR - IN_LOG) {
        std::thread::scope(|scope| {
            for part in phase.chunks(phase.len().div_ceil(CALLERS)) {
                let mut caller = server.caller();
                scope.spawn(move || {
                    for (key, body) in part {
                        let reply = caller.ask("PUT", &path(key), Some(body));
                        assert_eq!(reply.expect("an answer").status, 201);
                    }
                });
            }
        });
    }
    let is_there = || !files(&data.join("tables"), "table-").is_empty();
    while !is_there() && now_us() < begins {
        pause();
    }
    server.kill();
    let took = now_us();
    println!("prepared in {} ms", (micros(span) + took - begins) / 1_000);
    if took >= begins {
        return None;
    }
    while now_us() < begins + NEAR as u64 {
        pause();
    }
    let due = (0..NEAR).map(|number| (near(number).0, begins + number as u64));
    Some(Prepared {
        data: data.to_owned(),
        due: due.collect(),
    })
}

fn path(key: &str) -> String {
    format!("/v1/queues/default/timers/{key}")
}

fn copy(from: &Path, into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = into.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

fn files(directory: &Path, begins: &str) -> Vec<PathBuf> {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(begins)
    };
    let mut files: Vec<_> = names.map(|entry| entry.path()).filter(is_it).collect();
    files.sort();
    files
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).unwrap_or(&[0; 4]);
    u32::from_le_bytes(bytes.try_into().unwrap())
}

/// Where in which file a byte of the region stands; `None` if there is none now.
fn place(data: &Path, region: Region, random: &mut Random) -> Option<(PathBuf, u64)> {
    let mut pick = |from: usize, to: usize| -> Option<u64> {
        (from < to).then(|| random.between(from as u64, to as u64))
    };
    match region {
        Region::Manifest | Region::Format | Region::Lock => {
            let path = match region {
                Region::Manifest => data.join("tables/manifest"),
                Region::Format => data.join("FORMAT"),
                _ => data.join("LOCK"),
            };
            let length = std::fs::metadata(&path).ok()?.len();
            let at = pick(0, usize::try_from(length).ok()?.max(1))?;
            Some((path, at))
        }
        Region::Table(part) => {
            let mut tables = files(&data.join("tables"), "table-");
            let first = usize::try_from(pick(0, tables.len())?).ok()?;
            tables.rotate_left(first);
            let found = tables.into_iter().find_map(|path| {
                let bytes = std::fs::read(&path).ok()?;
                let frames = table_frames(&bytes, part);
                (!frames.is_empty()).then_some((path, frames))
            });
            let (path, frames) = found?;
            let (from, to) = frames[usize::try_from(pick(0, frames.len())?).ok()?];
            Some((path, pick(from, to)?))
        }
        _ => {
            let segments = files(&data.join("log"), "segment-");
            let path = segments[usize::try_from(pick(0, segments.len())?).ok()?].clone();
            let bytes = std::fs::read(&path).ok()?;
            let frames = segment_frames(&bytes);
            let (snapshot, commits) = frames.split_first()?;
            let at = match region {
                Region::SegmentHeader => pick(0, 60)?,
                Region::SecondHeader => pick(bytes.len() - 64, bytes.len() - 4)?,
                Region::Snapshot => pick(snapshot.0, snapshot.1)?,
                part => {
                    let frame = commits[usize::try_from(pick(0, commits.len())?).ok()?];
                    match part {
                        Region::FrameHeader => pick(frame.0, frame.0 + 16)?,
                        _ => pick(frame.0 + 16, frame.1)?,
                    }
                }
            };
            Some((path, at))
        }
    }
}

/// From where to where the frames of this part of a table reach.
fn table_frames(bytes: &[u8], part: TablePart) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at + 12 < bytes.len() {
        let end = at + 12 + number(bytes, at + 4) as usize;
        if bytes[at + 8] & 0x7f == part as u8 {
            frames.push((at, end.min(bytes.len())));
        }
        at = end.next_multiple_of(8);
    }
    frames
}

/// The same of a segment: the snapshot, and every commit.
fn segment_frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let long = |at: usize| u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32;
    let (mut commit, nonce) = (long(32), long(48));
    let mut frames = Vec::new();
    let mut at = 64;
    while at + 16 < bytes.len() && (frames.is_empty() || long(at + 8) ^ nonce == commit) {
        commit += u64::from(!frames.is_empty());
        let end = at + 16 + number(bytes, at + 4) as usize;
        frames.push((at, end.min(bytes.len())));
        at = end.next_multiple_of(8);
    }
    frames
}

fn flip(path: &Path, at: u64, random: &mut Random) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    // It may have been merged away or moved just now: then nothing is damaged.
    let Ok(file) = file else { return };
    let mut byte = [0];
    drop(file.read_at(&mut byte, at));
    byte[0] ^= 1 << random.between(0, 8);
    file.write_all_at(&byte, at).unwrap();
}

fn launch() -> Launch {
    let options = "--catch-up-per-second 400 --scrub-interval 100ms --scrub-rate 1000";
    Launch {
        options: options.split(' ').collect(),
        ..Launch::default()
    }
}

/// What health says.
fn status(server: &Server) -> Option<String> {
    let mut caller = Caller::connect(server.address)?;
    let body: Value = caller.ask("GET", "/healthz", None)?.body;
    Some(body["status"].as_str()?.to_owned())
}

/// Sets a few more, if it answers.
fn set_later(server: &Server, receiver: &Receiver, history: &mut History) {
    let Some(mut caller) = Caller::connect(server.address) else {
        return;
    };
    for number in 0..SET_LATER {
        let due = now_us() + 50_000;
        let body = json!({"at": moment(due), "target": {"url": receiver.url}});
        let key = format!("later-{number}");
        let reply = caller.ask("PUT", &path(&key), Some(&body));
        if reply.is_some_and(|reply| reply.status == 201) {
            history.timers.insert(key, (due, Vec::new()));
        }
    }
}

/// Kills it, if it has not ended, and starts it again, if it starts.
fn restart(server: &mut Server, history: &mut History) {
    if server.end_within(Duration::ZERO).is_some() {
        history.ends += 1;
    } else {
        server.kill();
        history.kills += 1;
    }
    if let Err(why) = server.try_restart() {
        history.refused = Some(why);
    }
}

/// Flips a bit of the region while the timers of a copy of `prepared` are delivered.
fn run(
    prepared: &Prepared,
    data: &Path,
    region: Region,
    receiver: &Receiver,
    random: &mut Random,
) -> History {
    copy(&prepared.data, data);
    let before = receiver.arrivals().len();
    let mut history = History {
        takes_along: match region {
            Region::Table(TablePart::Records) | Region::FrameBody | Region::FrameHeader => {
                TAKEN_ALONG_MAX
            }
            Region::Table(TablePart::Large) => 1,
            _ => 0,
        },
        has_to_start: matches!(region, Region::Table(part) if part != TablePart::Footer),
        ..History::default()
    };
    let mut server = Server::start_as(data, launch());
    wait(Duration::from_millis(random.between(0, 300)));
    if let Some((path, at)) = place(data, region, random) {
        flip(&path, at, random);
        history.file = path;
    }
    for (key, due) in &prepared.due {
        history.timers.insert(key.clone(), (*due, Vec::new()));
    }
    set_later(&server, receiver, &mut history);
    // What is left is read from a file that is damaged by now.
    wait(Duration::from_millis(random.between(0, 200)));
    restart(&mut server, &mut history);
    let still = Duration::from_millis(setting("COUNTWHEEL_STILL_MS", || STILL_MS));
    let arrived = || receiver.arrivals().len() - before;
    let (mut last, mut since) = (arrived(), now_us());
    while history.refused.is_none() && now_us() < since + micros(still) {
        if server.end_within(Duration::ZERO).is_some() {
            history.ends += 1;
            if history.ends > ENDS_MAX {
                break;
            }
            if let Err(why) = server.try_restart() {
                history.refused = Some(why);
            }
        }
        if arrived() != last {
            (last, since) = (arrived(), now_us());
        }
        pause();
    }
    history.is_still_up = history.refused.is_none() && history.ends <= ENDS_MAX;
    if history.is_still_up {
        history.health = status(&server);
        if let Some(mut caller) = Caller::connect(server.address)
            && let Some(reply) = caller.ask("GET", DEAD, None)
            && let Some(items) = reply.body["items"].as_array()
        {
            let keys = items.iter().filter_map(|item| item["key"].as_str());
            history.dead = keys.map(str::to_owned).collect();
        }
        restart(&mut server, &mut history);
    }
    drop(server);
    let checked = program().arg("check").arg(data).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    history.problem = (!checked.status.success()).then(|| said.trim().to_owned());
    for arrival in &receiver.arrivals()[before..] {
        if let Some((_, arrived)) = history.timers.get_mut(&arrival.key) {
            arrived.push(arrival.at_us);
        }
    }
    std::fs::remove_dir_all(data).unwrap_or_default();
    history
}

#[test]
#[ignore = "some seconds: cargo xtask check damage"]
fn a_flipped_bit_costs_no_more_than_what_it_hit_and_is_told() {
    let _turn = turn();
    let mut random = Random::new(seed());
    let flips = setting("COUNTWHEEL_FLIPS", || 1);
    let directory = Directory::new("damage");
    let receiver = Receiver::start();
    let prepared = prepare(&directory, &receiver.url);
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    let first = setting("COUNTWHEEL_REGION", || random.between(0, 15));
    let first = usize::try_from(first).unwrap();
    let step = usize::try_from(setting("COUNTWHEEL_REGION_STEP", || 1)).unwrap();
    for number in 0..usize::try_from(flips).unwrap() {
        let region = Region::ALL[(first + number * step) % Region::ALL.len()];
        let data = directory.join(&format!("data-{number}"));
        let history = run(&prepared, &data, region, &receiver, &mut random);
        let faults = history.faults();
        let ended = match &history.refused {
            Some(_) => "the start is refused",
            None => history.health.as_deref().unwrap_or("no answer"),
        };
        let timers = history.timers.len();
        let row = format!(
            "{} of {} delivered, {} twice, {} dead, ended {} times: {ended}{}",
            timers - history.missing().len(),
            timers,
            history.twice(),
            history.dead.len(),
            history.ends,
            if history.problem.is_none() {
                ", sound"
            } else {
                ""
            },
        );
        let name = format!("{region:?}");
        wrong.extend(faults.iter().map(|fault| format!("{name}: {fault}")));
        rows.push((name, row));
    }
    let rows: Vec<_> = rows
        .iter()
        .map(|(name, row)| (name.as_str(), row.clone()))
        .collect();
    figures::print(&format!("{flips} bits flipped while it runs"), &rows);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is wrong with a history that was sound.
type Change = fn(&mut History);

/// The checker objects to what the server must never do.
#[test]
fn a_healthy_timer_that_is_dead_late_or_early_is_a_fault() {
    let sound = History {
        timers: [("a", 5), ("b", 6)]
            .map(|(key, due)| (key.to_owned(), (due, vec![due + 1])))
            .into(),
        health: Some("degraded".to_owned()),
        problem: Some("a block is damaged".to_owned()),
        kills: 1,
        file: PathBuf::from("/data/tables/table-1"),
        ..History::default()
    };
    assert_eq!(sound.faults(), Vec::<String>::new());
    let with = |change: fn(&mut History)| {
        let mut history = sound.clone();
        change(&mut history);
        history.faults()
    };
    let planted: [(&str, Change); 8] = [
        ("dead", |one| one.dead = BTreeSet::from(["a".to_owned()])),
        ("never came", |one| {
            one.timers.get_mut("b").unwrap().1.clear();
        }),
        ("early", |one| one.timers.get_mut("b").unwrap().1 = vec![5]),
        ("3 times", |one| {
            one.timers.get_mut("a").unwrap().1 = vec![7, 8, 9];
        }),
        ("nobody was told", |one| one.health = Some("ok".to_owned())),
        ("without a name", |one| one.refused = Some("no".to_owned())),
        ("ended 4 times", |one| one.ends = 4),
        ("for a block", |one| {
            (one.has_to_start, one.refused) = (true, Some("/data/tables".to_owned()));
        }),
    ];
    for (says, change) in planted {
        let faults = with(change);
        assert!(
            faults.iter().any(|fault| fault.contains(says)),
            "{says}: {faults:?}"
        );
    }
    // A start that is refused by name, and a place that is not needed any more, are no faults.
    assert!(
        with(|one| one.refused = Some("/data/tables/table-1 is damaged".to_owned())).is_empty()
    );
    assert!(with(|one| (one.health, one.problem) = (None, None)).is_empty());
}
