//! `countwheel move-from`: all timers of a cluster whose nodes are stopped go to a new data directory.
//!
//! The directory gets its name once it is whole, and asks the database at its first start whether the timers are
//! in it. One statement of the database decides that. Exit codes: 0 moved; 1 the timers stay where they were; 2
//! whether they were moved is not known, and the directory finds out at its start.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, ClockNote, Filter, Lease, Shard, Store, StoreError};
use countwheel_durable::{DueClock, Record, Revision, Setting, SettingsVersion};
use countwheel_postgres::{
    Departure, MoveState, PostgresError, PostgresOptions, PostgresStore, ShardEnd, Tried, shown_url,
};
use countwheel_time::{Clock, SystemClock, Timestamp};

use super::marker::{Marker, Way};
use super::pause;
use crate::config::{Log, StoreUrl, host_name};

/// So many timers a commit has.
const ROWS: usize = 1_000;
/// A directory is opened no more often than this to come to the number of the cluster's last owner.
const FENCES_MAX: u64 = 4_096;
/// So often it is asked what has become of the decision.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);
const UNKNOWN: u8 = 2;

/// `countwheel move-from`.
#[derive(Args, Clone, Debug)]
pub struct MoveFrom {
    /// The PostgreSQL of the cluster, postgres://user:password@host:5432/database
    #[arg(value_name = "URL", env = "COUNTWHEEL_STORE", hide_env_values = true)]
    pub store: StoreUrl,
    /// The data directory to make: it is not there yet
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The schema with the tables in the database
    #[arg(long, value_name = "NAME", default_value = "countwheel")]
    pub schema: String,
    /// Certificates (PEM) that the database's has to come from: the connection has TLS then
    #[arg(long, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
    /// How long a segment of the log is, in MiB: as in `serve`
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub log_segment_mib: u32,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

/// Why timers are not moved back.
#[derive(Debug, thiserror::Error)]
enum BackError {
    #[error("{} is there already: name a directory that is not", _0.display())]
    Exists(PathBuf),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("a record of shard {0} cannot be read: nothing was moved")]
    Unreadable(u16),
    #[error("shard {0} has given so many revisions that they cannot be numbered anew")]
    Revisions(u16),
    #[error("somebody else has given the move up: nothing was moved")]
    GivenUp,
    #[error(
        "whether the timers were moved is not known ({0}): start a service with the directory once the \
         database can be asked"
    )]
    Unknown(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Database(#[from] PostgresError),
    #[error("cannot start: {0}")]
    System(#[from] getrandom::Error),
}

/// Runs `countwheel move-from` to its end.
#[must_use]
pub fn run(args: &MoveFrom) -> ExitCode {
    let mut options = PostgresOptions::new(args.store.as_str());
    options.schema.clone_from(&args.schema);
    options.ca.clone_from(&args.store_ca);
    // The records stay as long as they are kept there.
    options.keep_done = Duration::ZERO;
    // It is read whatever may become of it.
    options.accept_loss = true;
    match back(args, &options) {
        Ok(timers) => {
            println!("moved {timers} timers to {}", args.data.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("countwheel: {error}");
            match error {
                BackError::Unknown(_) => ExitCode::from(UNKNOWN),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn back(args: &MoveFrom, options: &PostgresOptions) -> Result<u64, BackError> {
    let data = std::path::absolute(&args.data);
    let data = data.map_err(|source| failed(&args.data, source))?;
    let mut unnamed = data.clone().into_os_string();
    unnamed.push(".moving");
    let unnamed = PathBuf::from(unnamed);
    for path in [&data, &unnamed] {
        if path.symlink_metadata().is_ok() {
            return Err(BackError::Exists(path.clone()));
        }
    }
    let place = format!("{} on {}", data.display(), host_name());
    let mut departure = Departure::begin(options, &place)?;
    let copied = copy(args, options, &mut departure, &unnamed).and_then(|timers| {
        let marker = Marker {
            token: departure.token().to_string(),
            store: shown_url(options)?,
            schema: options.schema.clone(),
            store_ca: options.ca.clone(),
            way: Way::Coming,
        };
        marker
            .write(&unnamed)
            .map_err(|source| failed(&unnamed, source))?;
        fs::rename(&unnamed, &data).map_err(|source| failed(&data, source))?;
        let parent = data.parent().unwrap_or(Path::new("/"));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|source| failed(parent, source))?;
        Ok(timers)
    });
    let timers = match copied {
        Ok(timers) => timers,
        Err(error) => {
            // A node that is started finds out that nobody moves anything any more.
            let _ = departure.give_up();
            // If it is there, it is half, and has no name.
            let _ = fs::remove_dir_all(&unnamed);
            return Err(error);
        }
    };
    decide(&mut departure)?;
    // If it stays, the first start asks and removes it.
    if let Err(error) = Marker::remove(&data) {
        tracing::warn!(%error, "the first start asks the database whether the timers are here");
    }
    Ok(timers)
}

fn failed(path: &Path, source: io::Error) -> BackError {
    BackError::File {
        path: path.to_owned(),
        source,
    }
}

fn decide(departure: &mut Departure) -> Result<(), BackError> {
    let mut reason = String::new();
    for _ in 0..TRIES {
        match departure.decide() {
            Ok(Tried::Done) => return Ok(()),
            Ok(Tried::Refused) => {}
            Err(error) => reason = error.to_string(),
        }
        match departure.state() {
            Ok(MoveState::Decided) => return Ok(()),
            Ok(MoveState::GivenUp) => return Err(BackError::GivenUp),
            Ok(MoveState::Moving | MoveState::Unknown) => {}
            Err(error) => reason = error.to_string(),
        }
        pause(PAUSE);
    }
    Err(BackError::Unknown(reason))
}

/// Makes a store with all timers in a directory.
fn copy(
    args: &MoveFrom,
    options: &PostgresOptions,
    departure: &mut Departure,
    into: &Path,
) -> Result<u64, BackError> {
    let tables = PostgresStore::open(options)?;
    let mut disk = DiskOptions::default();
    disk.log.segment_bytes = u64::from(args.log_segment_mib) << 20;
    let store = DiskStore::init(into, getrandom::u64()?, disk)?;
    let ends = departure.ends()?;
    let fence = ends.iter().map(|end| end.fence.0).max().unwrap_or(0);
    let mut lease = store.acquire(Shard::ONLY)?.lease;
    // Receivers may go by it, so it has to grow.
    while lease.fence.0 <= fence && lease.fence.0 < FENCES_MAX {
        lease = store.acquire(Shard::ONLY)?.lease;
    }
    if lease.fence.0 <= fence {
        tracing::warn!(
            fence,
            "timer-fence begins anew: the last of the cluster was this"
        );
    }
    let clock = SystemClock::new();
    let lines = Lines::at(departure.now()?, &clock, &ends);
    let mut way = Written {
        store: &store,
        lease,
        changes: Vec::new(),
        timers: 0,
    };
    let mut last = Revision(0);
    for end in &ends {
        let shards = u64::from(departure.shards().count());
        let number = Renumbered { shards, end };
        last = last.max(number.of(end.revision)?);
        for counts in tables.counts(end.shard)? {
            let mut filter = Filter {
                limit: ROWS,
                ..Filter::queue(counts.queue)
            };
            loop {
                let page = tables.list(end.shard, &filter)?;
                if page.unreadable > 0 {
                    return Err(BackError::Unreadable(end.shard.0));
                }
                for mut record in page.records {
                    record.revision = number.of(record.revision)?;
                    lines.carry(&mut record, end.shard);
                    way.put(record)?;
                }
                match page.next {
                    Some(next) => filter.after = Some(next),
                    None => break,
                }
            }
        }
        if !departure.beat()? {
            return Err(BackError::GivenUp);
        }
    }
    way.changes.push(Change::Given(last));
    way.changes.extend(lines.note.map(Change::Clock));
    let settings = tables.settings(SettingsVersion::default())?;
    for (name, value) in settings.unwrap_or_default().iter() {
        way.changes.push(Change::Setting(Setting {
            name: name.clone(),
            value: Some(value.value.clone()),
        }));
    }
    way.flush()?;
    Ok(way.timers)
}

/// What is written to the new store.
struct Written<'a> {
    store: &'a DiskStore,
    lease: Lease,
    changes: Vec<Change>,
    timers: u64,
}

impl Written<'_> {
    fn put(&mut self, record: Record) -> Result<(), BackError> {
        self.timers += 1;
        self.changes.push(Change::put(record));
        match self.changes.len() < ROWS {
            true => Ok(()),
            false => self.flush(),
        }
    }

    fn flush(&mut self) -> Result<(), BackError> {
        self.store.commit(self.lease, &self.changes)?;
        self.changes.clear();
        Ok(())
    }
}

/// Revisions of several shards in one order, in which no two are the same.
struct Renumbered<'a> {
    shards: u64,
    end: &'a ShardEnd,
}

impl Renumbered<'_> {
    fn of(&self, revision: Revision) -> Result<Revision, BackError> {
        let shard = self.end.shard.0;
        let number = revision.0.checked_mul(self.shards);
        let number = number.and_then(|number| number.checked_add(shard.into()));
        number.map(Revision).ok_or(BackError::Revisions(shard))
    }
}

/// The second line of time of each shard, and the one that goes on in their place: that of the shard where it is
/// farthest. Deadlines of the others move with it, so that each is as far away as it was.
#[derive(Debug)]
struct Lines {
    /// Where the line of each shard stands.
    lines: Vec<(Shard, Timestamp)>,
    /// Where the new one stands.
    note: Option<ClockNote>,
}

impl Lines {
    /// At `now` by the clock of the database, which was read before the clocks here: so no line is ahead.
    fn at(now: Timestamp, clock: &dyn Clock, ends: &[ShardEnd]) -> Self {
        let (boot_id, boot) = (clock.boot_id(), clock.boot());
        let lines = ends.iter().filter_map(|end| {
            let note = end.clock?;
            let is_same = boot_id.is_some() && note.boot_id == boot_id && boot >= note.boot;
            let passed = match is_same {
                true => boot.saturating_since(note.boot),
                false => now.saturating_since(note.wall),
            };
            Some((end.shard, note.line + passed))
        });
        let lines: Vec<_> = lines.collect();
        let farthest = lines.iter().map(|(_, line)| *line).max();
        let note = farthest.map(|line| ClockNote {
            wall: clock.timestamp(),
            boot_id,
            boot,
            line,
        });
        Self { lines, note }
    }

    fn carry(&self, record: &mut Record, shard: Shard) {
        let line = self.lines.iter().find(|(of, _)| *of == shard);
        let (Some((_, line)), Some(note)) = (line, &self.note) else {
            return;
        };
        let by = note.line.saturating_since(*line);
        if record.clock != DueClock::Boot || by.is_zero() {
            return;
        }
        let later = |at: Timestamp| at + by;
        record.due = later(record.due);
        record.created = later(record.created);
        record.first_due = later(record.first_due);
        if let Some(recurring) = &mut record.recurring {
            recurring.nominal = later(recurring.nominal);
            recurring.origin = later(recurring.origin);
            recurring.moved = recurring.moved.map(later);
            recurring.busy_since = recurring.busy_since.map(later);
        }
    }
}
