//! Durable timers in a directory, opened in one call.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use countwheel_durable::{Attempt, Clock, Config, Handler, Outcome, SystemClock, Timers};

use crate::{DiskOptions, DiskStore, StoreError};

/// Opens the durable timers in `directory`, which is made if it is not there, and calls `handler` on a
/// pool of threads for each attempt. [`Opening`] has every choice that this one makes.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let directory = tempfile::tempdir()?;
/// let (close, closed) = mpsc::channel();
/// let timers = countwheel_disk::open(directory.path(), move |attempt| {
///     close.send(attempt.name.key.to_string())
/// })?;
/// timers.set("unpaid/order-42", Duration::from_millis(20), "close it")?;
/// // From here on a power cut does not lose it.
/// assert_eq!(closed.recv()?, "order-42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The handler returns `()`, a `Result` or an [`Outcome`]. An error fails the attempt, and the timer's
/// retry policy decides what follows.
///
/// # Errors
/// As [`DiskStore::open`] and [`Timers::open`].
pub fn open<F, R>(directory: impl AsRef<Path>, handler: F) -> Result<Timers, StoreError>
where
    F: Fn(&Attempt) -> R + Send + Sync + 'static,
    R: Into<Outcome> + 'static,
{
    Opening::new(directory).start(handler)
}

/// How durable timers in a directory are opened.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_disk::Opening;
/// use countwheel_durable::{Config, ManualClock, attempt_channel};
///
/// let directory = tempfile::tempdir()?;
/// let clock = Arc::new(ManualClock::new());
/// let (handler, attempts) = attempt_channel();
/// let timers = Opening::new(directory.path())
///     .clock(Arc::clone(&clock))
///     .config(Config { max_in_flight: 16, ..Config::default() })
///     .start(handler)?;
/// timers.set(("unpaid", "order-42"), Duration::from_secs(1_800), "close it")?;
/// clock.advance(Duration::from_secs(1_800));
/// let attempt = attempts.recv().expect("the timers run");
/// assert_eq!(attempt.name.to_string(), "unpaid/order-42");
/// attempt.complete(());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an opening opens nothing before it is started"]
pub struct Opening {
    directory: PathBuf,
    options: DiskOptions,
    config: Config,
    clock: Arc<dyn Clock>,
}

impl Opening {
    /// An opening with the default options, the system's clock, and a random id for a store that is made.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        Self {
            directory: directory.as_ref().to_owned(),
            options: DiskOptions::default(),
            config: Config::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// The options of the store.
    pub fn options(mut self, options: DiskOptions) -> Self {
        self.options = options;
        self
    }

    /// The limits of the scheduler. A [`seed`](Config::seed) of 0 stands for a random one.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// The clock, such as a [`ManualClock`](countwheel_durable::ManualClock) in a test.
    pub fn clock(mut self, clock: Arc<impl Clock + 'static>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store and starts the scheduler. The random numbers come from the system.
    ///
    /// A [`Handler`] of any kind is taken, so the argument of a closure needs its type here,
    /// `|attempt: &Attempt|`, unless the closure is within [`pooled`](countwheel_durable::pooled),
    /// [`inline`](countwheel_durable::inline) or another of the functions that make a handler.
    ///
    /// # Errors
    /// As [`DiskStore::open`] and [`Timers::open`].
    pub fn start(self, handler: impl Handler) -> Result<Timers, StoreError> {
        let Self {
            directory,
            options,
            mut config,
            clock,
        } = self;
        if config.seed == 0 {
            config.seed = random()?;
        }
        let store = DiskStore::open(&directory, random()?, options)?;
        Timers::open(store, handler, clock, config)
    }
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening")
            .field("directory", &self.directory)
            .field("options", &self.options)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn random() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::Failed {
        reason: format!("the system gave no random number: {error}"),
    })
}
