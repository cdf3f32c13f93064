//! Stores that are made in directories that are not there yet, on a disk that fails meanwhile: what
//! such a store acknowledges is there after a loss of power.
//!
//! Each call that makes something durable fails once, or from then on, for the process that makes
//! the store or for those after it as well; or the power goes. Whoever starts the service tries
//! again. A sync that succeeds after one that failed says nothing of what that one was for.
//!
//! The same of stores of an older format, which become such of the newest before they acknowledge
//! anything; if the disk is full then, with the first commit for which there is room.

use countwheel_disk::DiskOptions;
use countwheel_disk::simulated::{Calls, Disk, Failure, Fault, Operation};
use countwheel_durable::Revision;
use countwheel_durable::store::{Change, Shard, StoreError};

use crate::random::Random;

/// What is there before, and what is made in it.
const DIRECTORIES: [(&str, &str); 5] = [
    ("", "data"),
    ("srv", "srv/data"),
    ("srv", "srv/timers/data"),
    ("srv/data", "srv/data"),
    (OLDER, OLDER),
];
/// Where a store of the format before is.
const OLDER: &str = "srv/older";
const FORMATS: [&str; 2] = ["\nformat 2\n", "\nformat 3\n"];
/// More calls than a making makes.
const CALLS_MAX: u64 = 200;
/// Whoever starts a service tries again so often.
const TRIES: u32 = 3;
const ACKNOWLEDGED: Revision = Revision(17);
const ID: u64 = 7;
const OTHER_ID: u64 = 8;

/// What makings came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Stores that were made, or were not because the disk failed to the end.
    pub makings: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Syncs of directories among them.
    pub failed_names: u64,
    /// Starts that failed.
    pub refused: u64,
    /// Stores that acknowledged something, which was there after the loss of power.
    pub kept: u64,
    /// Stores that were opened with an older format, for which there was no room to be raised.
    pub older: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.makings += other.makings;
        self.failed += other.failed;
        self.failed_names += other.failed_names;
        self.refused += other.refused;
        self.kept += other.kept;
        self.older += other.older;
    }
}

/// A making.
#[derive(Clone, Copy, Debug)]
struct Making {
    directory: (&'static str, &'static str),
    fault: Fault,
    /// Whether the fault ends with the process that met it.
    heals: bool,
    seed: u64,
}

/// Makes stores while each of the calls fails, in each way. What is wrong, if something is.
///
/// ```
/// let tally = countwheel_sim::stores::makings::run(1).expect("nothing is lost");
/// assert!(tally.failed_names > 0 && tally.kept > 0 && tally.older > 0);
/// ```
///
/// # Errors
/// What is wrong.
pub fn run(seed: u64) -> Result<Tally, String> {
    let mut random = Random::new(seed, "makings");
    let mut tally = Tally::default();
    for directory in DIRECTORIES {
        for (calls, failure, lasts) in [
            (Operation::SyncDirectory, Failure::Io, false),
            (Operation::SyncDirectory, Failure::Io, true),
            (Operation::SyncDirectory, Failure::Torn, false),
            (Operation::Sync, Failure::Io, false),
            (Operation::Rename, Failure::Torn, false),
            (Operation::Create, Failure::Torn, false),
            (Operation::Remove, Failure::Io, true),
        ]
        .map(|(operation, failure, lasts)| (Calls::Only(operation), failure, lasts))
        .into_iter()
        .chain([
            (Calls::Changing, Failure::Torn, true),
            (Calls::Changing, Failure::NoSpace, false),
        ]) {
            for after in 0..CALLS_MAX {
                let fault = Fault {
                    calls,
                    after,
                    lasts,
                    failure,
                };
                let making = Making {
                    directory,
                    fault,
                    heals: random.below(2) == 0,
                    seed: random.draw(),
                };
                let made = making.run();
                let made = made.map_err(|wrong| format!("{making:?}: {wrong}"))?;
                tally.add(made);
                if made.failed == 0 {
                    break; // no such call was left
                }
            }
        }
    }
    Ok(tally)
}

impl Making {
    fn run(self) -> Result<Tally, String> {
        let mut random = Random::new(self.seed, "making");
        let (there, directory) = self.directory;
        let disk = Disk::new(random.draw());
        let said = |error: StoreError| error.to_string();
        disk.make_directory(there);
        if there == OLDER {
            drop(disk.open_store(OLDER, ID, options()).map_err(said)?);
            make_older(&disk)?;
            disk.restart();
        }
        disk.fail(self.fault);
        let mut tally = Tally {
            makings: 1,
            ..Tally::default()
        };
        let mut acknowledged = false;
        for number in 1..=TRIES {
            if let Ok(kept_older) = self.start(&disk, directory) {
                acknowledged = true;
                tally.older += u64::from(kept_older);
                break;
            }
            tally.refused += 1;
            if number == TRIES - 1 || self.heals {
                disk.heal();
            }
            match random.below(4) {
                // It tries again by itself.
                0 => {}
                1 => disk.cut(random.draw()),
                _ => disk.restart(),
            }
        }
        tally.failed = disk.struck();
        if self.fault.calls == Calls::Only(Operation::SyncDirectory) {
            tally.failed_names = tally.failed;
        }
        if !acknowledged {
            return Err("no start succeeds, although nothing fails any more".to_owned());
        }
        disk.cut(random.draw());
        let says = format_of(&disk, directory)?;
        if !says.contains(FORMATS[1]) {
            return Err(format!("it is written, and FORMAT says {says:?}"));
        }
        let store = disk.open_store(directory, OTHER_ID, options());
        let store = store.map_err(said)?;
        let was_made = store.was_made();
        let known = store.acquire(Shard::ONLY).map_err(said)?;
        if was_made || known.last_revision < ACKNOWLEDGED {
            let last = known.last_revision;
            return Err(format!(
                "what was acknowledged is gone: made anew {was_made}, {last:?}"
            ));
        }
        tally.kept = 1;
        Ok(tally)
    }

    /// Starts a service, which acknowledges something. Says whether its directory had an older format
    /// once it was open.
    fn start(self, disk: &Disk, directory: &str) -> Result<bool, StoreError> {
        let store = disk.open_store(directory, ID, options())?;
        let kept_older = format_of(disk, directory).is_ok_and(|says| says.contains(FORMATS[0]));
        let lease = store.acquire(Shard::ONLY)?.lease;
        store.commit(lease, &[Change::Given(ACKNOWLEDGED)])?;
        Ok(kept_older)
    }
}

fn format_of(disk: &Disk, directory: &str) -> Result<String, String> {
    let format = disk.content(&format!("{directory}/FORMAT"));
    String::from_utf8(format.ok_or("there is no FORMAT")?).map_err(|error| error.to_string())
}

/// Makes the store look as the version before left it.
fn make_older(disk: &Disk) -> Result<(), String> {
    let newest = format_of(disk, OLDER)?;
    let older = newest.replace(FORMATS[1], FORMATS[0]);
    disk.set_content(&format!("{OLDER}/FORMAT"), older.into_bytes());
    Ok(())
}

fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 12;
    options.log.reserve_segments = 0;
    options
}
