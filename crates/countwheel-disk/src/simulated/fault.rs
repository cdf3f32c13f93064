//! The faults of a call, and the list of calls made.

use std::fmt;
use std::io;
use std::sync::Arc;

/// A call to the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// The names of a directory.
    List,
    /// A new file, empty or of a length.
    Create,
    /// A file that is there.
    Open,
    /// Another name for a file.
    Rename,
    /// A name less.
    Remove,
    /// Which files there are becomes durable.
    SyncDirectory,
    /// How long a file is.
    Length,
    /// Bytes out of a file.
    Read,
    /// Bytes into a file.
    Write,
    /// What a file holds becomes durable.
    Sync,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::List,
        Self::Create,
        Self::Open,
        Self::Rename,
        Self::Remove,
        Self::SyncDirectory,
        Self::Length,
        Self::Read,
        Self::Write,
        Self::Sync,
    ];

    /// Whether it can fail for lack of room.
    pub(super) fn takes_room(self) -> bool {
        self.changes() && self != Self::Remove
    }

    /// Whether it can change what is there after a loss of power.
    #[must_use]
    pub fn changes(self) -> bool {
        !matches!(self, Self::List | Self::Open | Self::Length | Self::Read)
    }
}

/// Some of the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Calls {
    /// Every call.
    All,
    /// Those that can change what is there after a loss of power.
    Changing,
    /// Those of one kind.
    Only(Operation),
}

impl Calls {
    /// Whether such a call is one of them.
    #[must_use]
    pub fn contains(self, operation: Operation) -> bool {
        match self {
            Self::All => true,
            Self::Changing => operation.changes(),
            Self::Only(only) => only == operation,
        }
    }
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// With EIO, and nothing was done. A sync that fails so is a sync that failed: see
    /// [`Disk`](super::Disk).
    Io,
    /// With ENOSPC, and nothing was done; a new file may be there, too short. What takes no room,
    /// such as a read, fails with EIO.
    NoSpace,
    /// The same, after a first part of a write was done, and not all of it: a disk that copies on
    /// writing, and gives what is left of it away piece by piece. Each write that fails so does a
    /// part.
    NoSpaceShort,
    /// With EIO, after a first part of it was done.
    Short,
    /// With EIO, after any part of it was done: any sectors of a write, the whole of a change
    /// of names or nothing.
    Torn,
    /// It panics. For the seams that promise to catch that.
    Panic,
}

/// A call that fails, or all calls from one on.
///
/// ```
/// use countwheel_disk::simulated::{Calls, Disk, Failure, Fault, Operation};
///
/// let disk = Disk::default();
/// disk.fail(Fault {
///     calls: Calls::Only(Operation::Sync),
///     after: 1,
///     lasts: false,
///     failure: Failure::Io,
/// });
/// let file = disk.files("").begin("table")?;
/// file.sync()?;
/// assert!(file.sync().is_err());
/// file.sync()?; // and yet nothing that the sync before was for has to be there
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which calls it counts, and fails.
    pub calls: Calls,
    /// How many of them go well before one fails.
    pub after: u64,
    /// Whether all of them fail from then on.
    pub lasts: bool,
    /// How.
    pub failure: Failure,
}

impl Fault {
    /// The power goes at the call that follows `after` others, counting those that change
    /// something: of that one anything may be done, of those that follow nothing is. Until
    /// [`Disk::cut`](super::Disk::cut) the disk can still be read.
    ///
    /// ```
    /// use countwheel_disk::simulated::{Disk, Fault};
    ///
    /// let disk = Disk::default();
    /// disk.fail(Fault::power(1));
    /// let files = disk.files("log");
    /// files.begin("first")?;
    /// assert!(files.sync().is_err());
    /// disk.cut(7);
    /// assert!(disk.files("log").list()?.len() <= 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub const fn power(after: u64) -> Self {
        Self {
            calls: Calls::Changing,
            after,
            lasts: true,
            failure: Failure::Torn,
        }
    }

    /// One call fails, whatever it is: the one that follows `after` others.
    #[must_use]
    pub const fn once(after: u64, failure: Failure) -> Self {
        Self {
            calls: Calls::All,
            after,
            lasts: false,
            failure,
        }
    }
}

/// A fault that waits for its call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Armed {
    pub(super) fault: Fault,
    pub(super) left: u64,
    pub(super) struck: bool,
}

/// What a call that fails comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strike {
    pub(super) failure: Failure,
    /// It failed before, too: nothing more is done.
    pub(super) again: bool,
}

impl Armed {
    /// Whether this call, which it counts, fails.
    pub(super) fn strikes(&mut self) -> Option<Strike> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        if self.struck && !self.fault.lasts {
            return None;
        }
        let again = std::mem::replace(&mut self.struck, true);
        Some(Strike {
            failure: self.fault.failure,
            again,
        })
    }
}

impl Failure {
    /// Whether it is that there is no room.
    pub(super) fn is_full(self) -> bool {
        matches!(self, Self::NoSpace | Self::NoSpaceShort)
    }

    pub(super) fn error(self) -> io::Error {
        match self {
            Self::NoSpace | Self::NoSpaceShort => no_space(),
            // EIO
            Self::Io | Self::Short | Self::Torn | Self::Panic => io::Error::from_raw_os_error(5),
        }
    }
}

pub(super) fn no_space() -> io::Error {
    io::Error::from_raw_os_error(28) // ENOSPC
}

/// A call that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// How many there were before it.
    pub number: u64,
    /// What it was.
    pub operation: Operation,
    /// The file or the directory.
    pub path: Arc<str>,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// How it failed, if a fault made it fail.
    pub failure: Option<Failure>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "call {}: {:?} {}",
            self.number, self.operation, self.path
        )?;
        if self.length > 0 {
            write!(f, " at {}, {} bytes", self.offset, self.length)?;
        }
        match self.failure {
            Some(failure) => write!(f, ": fails, {failure:?}"),
            None => Ok(()),
        }
    }
}
