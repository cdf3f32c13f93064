//! Heartbeats, and the recovery of silent peers.

mod config;
mod recovery;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::recovery::Recoveries;
use countwheel_time::nanos;

use super::activity::{ActivityShard, After, Cell, Live, Policy, Table, WatchError, next_multiple};
use super::spawned::Spawned;
use countwheel::building::returns;
use countwheel::{Instant, Timer};
use countwheel_time::Random;
use countwheel_time::locks::lock;

pub use self::config::{HeartbeatConfig, HeartbeatConfigError};

/// A connection that has heartbeats, to its other side. See [`Heartbeats`].
pub trait Peer: Send + Sync + 'static {
    /// Sends a heartbeat: nothing has been read, or nothing written, for too long. Others
    /// wait meanwhile, so this only queues it. Whatever leaves by the connection, heartbeats
    /// included, is told to [`Heartbeat::wrote`], and any answer to [`Heartbeat::read`].
    fn send_heartbeat(&self);

    /// Whether there is a connection at all. Must not block.
    fn is_connected(&self) -> bool {
        true
    }

    /// The other side is dead: a client reconnects, a server closes. Runs as a task of its own on
    /// the timer's executor, never twice at a time for one peer, and is dropped if the handle is.
    /// A panic counts as [`Recovery::Failed`].
    fn recover(&self, dead: Dead) -> impl Future<Output = Recovery> + Send;
}

/// Why a peer is taken for dead. See [`Heartbeats`] for an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Dead {
    /// It said so itself: [`Peer::is_connected`].
    NotConnected,
    /// Nothing was read for this long.
    ReadIdle(Duration),
    /// Nothing was written for this long.
    WriteIdle(Duration),
}

/// How a recovery has ended. See [`Heartbeats`] for an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// There is a new connection: it has been read from and written to now. If the peer is
    /// [not connected](Peer::is_connected) all the same, this counts as [`Failed`](Self::Failed).
    Restored,
    /// Once more after the pause.
    Failed,
    /// Nothing more is to be done about this peer, ever.
    Closed,
}

/// Keeps connections alive that have no traffic, and notices when the other side is gone.
///
/// A heartbeat is sent only when nothing was read or nothing was written for the time of a
/// heartbeat, and again after each further one. A peer from which nothing is read for the idle
/// timeout, or that says it is not connected, is dead: [`Peer::recover`] is called, and after
/// each failure once more when the pause is over. These are Dubbo's rules, except that it
/// looks three times per heartbeat, and blocks its timer while it reconnects; here each thing is
/// done when it is due, less than a tick late (see [`HeartbeatConfig::tick`]), and on the
/// executor.
///
/// A peer that panics is counted, and looked after as before. The time in which this process
/// itself did not run makes nobody dead: see [`HeartbeatConfig::stall_period`]. What a
/// message costs is one store, as with [`IdleWatch`](super::IdleWatch), on which page
/// the bounds are.
///
/// Clones are the same table. When the last is dropped, nobody is looked after any more.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Dead, HeartbeatConfig, Heartbeats, Peer, Recovery};
/// use std::sync::mpsc::{Sender, channel};
/// use std::time::Duration;
///
/// struct Client(Sender<String>);
///
/// impl Peer for Client {
///     fn send_heartbeat(&self) {
///         self.0.send("heartbeat".to_owned()).unwrap();
///     }
///
///     async fn recover(&self, dead: Dead) -> Recovery {
///         assert_eq!(dead, Dead::ReadIdle(Duration::from_secs(180)));
///         self.0.send("reconnect".to_owned()).unwrap();
///         Recovery::Restored
///     }
/// }
///
/// let mut host = ManualHost::new();
/// let heartbeats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo())?;
/// let (sender, log) = channel();
/// let connection = heartbeats.watch(Client(sender))?;
/// let minute = Duration::from_secs(60);
///
/// for _ in 0..100 {
///     host.advance(minute / 2);
///     connection.touch(); // a request and its response
/// }
/// assert_eq!(log.try_iter().count(), 0, "traffic is as good as heartbeats");
/// host.advance(3 * minute);
/// let said: Vec<_> = log.try_iter().collect();
/// assert_eq!(said, ["heartbeat", "heartbeat", "reconnect"]);
///
/// let stats = heartbeats.stats();
/// assert_eq!((stats.heartbeats, stats.restored), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Heartbeats<P: Peer> {
    table: Table<Beats<P>>,
    beats: Arc<Beats<P>>,
}

/// What is common to all peers: the configuration, in nanoseconds, zero for what is disabled.
struct Beats<P: Peer> {
    heartbeat: AtomicU64,
    idle_timeout: AtomicU64,
    write_timeout: AtomicU64,
    pause: AtomicU64,
    jitter_percent: AtomicU32,
    sent: AtomicU64,
    recoveries: Recoveries,
    random: Mutex<Random>,
    peer: PhantomData<fn(P)>,
}

/// A peer, and how it is.
struct Patient<P> {
    peer: P,
    /// No attempt before, in live nanoseconds.
    no_attempt_before: AtomicU64,
    is_down: AtomicBool,
    is_recovering: AtomicBool,
    /// Its share of the jitter, of [`WHOLE`].
    share: u16,
    attempt: Mutex<Option<Spawned>>,
}

/// What [`Heartbeats`] have done so far: `watched` equals `open + closed + given_up`, and
/// `recoveries` equals `restored + failed + given_up + recovering`, whenever nothing is under
/// way.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Dead, HeartbeatConfig, Heartbeats, Peer, Recovery};
/// use std::time::Duration;
///
/// struct Session;
/// impl Peer for Session {
///     fn send_heartbeat(&self) {}
///     async fn recover(&self, _dead: Dead) -> Recovery {
///         Recovery::Closed
///     }
/// }
///
/// let mut host = ManualHost::new();
/// let server = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo_server()).unwrap();
/// let sessions = [server.watch(Session).unwrap(), server.watch(Session).unwrap()];
/// host.advance(Duration::from_secs(100));
/// sessions[0].touch();
/// host.advance(Duration::from_secs(100));
/// let stats = server.stats();
/// assert_eq!((stats.watched, stats.open, stats.given_up), (2, 1, 1));
/// assert_eq!((stats.recoveries, stats.recovering), (1, 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HeartbeatStats {
    /// Peers that were taken on.
    pub watched: u64,
    /// Those that are looked after.
    pub open: u64,
    /// Those whose handle was dropped.
    pub closed: u64,
    /// Those whose recovery ended with [`Recovery::Closed`].
    pub given_up: u64,
    /// Heartbeats that were sent.
    pub heartbeats: u64,
    /// Recoveries that were begun.
    pub recoveries: u64,
    /// Those that ended with [`Recovery::Restored`].
    pub restored: u64,
    /// Those that ended with [`Recovery::Failed`], panicked, or were dropped with their handle.
    pub failed: u64,
    /// Those that run.
    pub recovering: u64,
    /// How often [`Peer::send_heartbeat`] or [`Peer::is_connected`] panicked.
    pub panicked: u64,
    /// How often an entry came up in the wheel and its peer was looked at.
    pub looks: u64,
    /// How often this process did not run when it should have.
    pub stalls: u64,
    /// How long in all.
    pub stalled: Duration,
}

impl<P: Peer> Heartbeats<P> {
    /// Looks after peers by `timer`, and calls them on its executor.
    ///
    /// # Errors
    /// Those of [`HeartbeatConfig::check`].
    pub fn new(timer: Timer, config: HeartbeatConfig) -> Result<Self, HeartbeatConfigError> {
        config.check()?;
        let beats = Beats {
            heartbeat: AtomicU64::new(0),
            idle_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            jitter_percent: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            recoveries: Recoveries::default(),
            random: Mutex::new(Random::unseeded()),
            peer: PhantomData,
        };
        beats.set(&config);
        let beats = Arc::new(beats);
        Ok(Self {
            table: Table::new(timer, config.options(), Arc::clone(&beats)),
            beats,
        })
    }

    /// Looks after a peer until the handle is dropped. It counts as having been read from and
    /// written to now.
    ///
    /// # Errors
    /// [`WatchError::Closed`] if the table or its timer has stopped, [`WatchError::NoThread`] if
    /// the timer's thread could not be started. Both give the peer back.
    pub fn watch(&self, peer: P) -> Result<Heartbeat<P>, WatchError<P>> {
        let patient = self.beats.patient(peer);
        let member = self.table.watch(patient);
        let (shard, cell) = member.map_err(|error| error.map(|patient| patient.peer))?;
        Ok(Heartbeat { shard, cell })
    }

    /// Other times for all peers, from now on, and for the time since they were last heard of.
    /// O(peers): each is filed anew.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Dead, HeartbeatConfig, Heartbeats, Peer, Recovery};
    /// use std::time::Duration;
    ///
    /// struct Client;
    /// impl Peer for Client {
    ///     fn send_heartbeat(&self) {}
    ///     async fn recover(&self, _dead: Dead) -> Recovery {
    ///         Recovery::Failed
    ///     }
    /// }
    ///
    /// let mut host = ManualHost::new();
    /// let seconds = Duration::from_secs;
    /// let heartbeats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
    /// let _client = heartbeats.watch(Client).unwrap();
    /// host.advance(seconds(30));
    /// heartbeats.set_config(HeartbeatConfig::new(seconds(31))).unwrap();
    /// host.advance(seconds(2));
    /// assert_eq!(heartbeats.stats().heartbeats, 1);
    /// assert!(heartbeats.set_config(HeartbeatConfig::new(seconds(0))).is_err());
    /// ```
    ///
    /// # Errors
    /// Those of [`HeartbeatConfig::check`]; then all stays as it was.
    pub fn set_config(&self, config: HeartbeatConfig) -> Result<(), HeartbeatConfigError> {
        config.check()?;
        self.beats.set(&config);
        self.table.look_at_all_again();
        Ok(())
    }

    /// How many peers are looked after.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.members()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> HeartbeatStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (hub, recoveries) = (self.table.hub(), &self.beats.recoveries);
        let begun = load(&recoveries.begun);
        let [restored, failed, given_up] = [
            &recoveries.restored,
            &recoveries.failed,
            &recoveries.given_up,
        ]
        .map(load);
        HeartbeatStats {
            watched: load(&hub.counts.watched),
            open: self.len(),
            closed: load(&hub.counts.closed),
            given_up: load(&recoveries.closed),
            heartbeats: load(&self.beats.sent),
            recoveries: begun,
            restored,
            failed,
            recovering: begun.saturating_sub(restored + failed + given_up),
            panicked: load(&hub.counts.panicked),
            looks: load(&hub.counts.looks),
            stalls: hub.stalls.count(),
            stalled: hub.stalls.stalled(),
        }
    }

    /// How much memory the table takes on the heap, in bytes: what the peers own not included,
    /// nor what the allocator adds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Looks after nobody any more, as dropping the last clone does. Recoveries that run go on.
    pub fn stop(&self) {
        self.table.stop();
    }
}

impl<P: Peer> Clone for Heartbeats<P> {
    fn clone(&self) -> Self {
        Self {
            table: self.table.clone(),
            beats: Arc::clone(&self.beats),
        }
    }
}

impl<P: Peer> fmt::Debug for Heartbeats<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeats")
            .field("open", &self.len())
            .finish_non_exhaustive()
    }
}

const WHOLE: u16 = 1_000;

impl<P: Peer> Beats<P> {
    fn set(&self, config: &HeartbeatConfig) {
        let heartbeat = if config.sends {
            config.heartbeat
        } else {
            Duration::ZERO
        };
        let write_timeout = config.write_timeout.unwrap_or_default();
        let set = |time: &AtomicU64, span| time.store(nanos(span), Ordering::Relaxed);
        set(&self.heartbeat, heartbeat);
        set(&self.idle_timeout, config.idle_timeout);
        set(&self.write_timeout, write_timeout);
        set(&self.pause, config.recovery_pause);
        let percent = config.jitter_percent;
        self.jitter_percent.store(percent, Ordering::Relaxed);
    }

    fn patient(&self, peer: P) -> Patient<P> {
        let share = lock(&self.random).up_to(WHOLE.into());
        Patient {
            peer,
            no_attempt_before: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            is_recovering: AtomicBool::new(false),
            share: u16::try_from(share).unwrap_or(WHOLE),
            attempt: Mutex::new(None),
        }
    }

    /// This peer's part of the jitter of `span`.
    fn jitter(&self, patient: &Patient<P>, span: u64) -> u64 {
        let percent = self.jitter_percent.load(Ordering::Relaxed);
        let share = u128::from(span) * u128::from(percent) * u128::from(patient.share);
        u64::try_from(share / (100 * u128::from(WHOLE))).unwrap_or(u64::MAX)
    }

    fn next_heartbeat(&self, cell: &Cell<Patient<P>>, told: Live) -> Live {
        let limit = self.heartbeat.load(Ordering::Relaxed);
        if limit == 0 {
            return Live::NEVER;
        }
        let limit = (limit - self.jitter(&cell.data, limit)).max(1_000_000);
        let next = |last| next_multiple(last, limit, told);
        next(cell.last_read()).min(next(cell.last_write()))
    }

    /// When the peer is dead, if it is connected.
    fn dead_at(&self, cell: &Cell<Patient<P>>) -> Live {
        let read = self.idle_timeout.load(Ordering::Relaxed);
        let dead_at = cell.last_read().plus(read);
        match self.write_timeout.load(Ordering::Relaxed) {
            0 => dead_at,
            write => dead_at.min(cell.last_write().plus(write)),
        }
    }

    fn cause(&self, cell: &Cell<Patient<P>>, connected: bool, now: Live) -> Option<Dead> {
        if !connected {
            return Some(Dead::NotConnected);
        }
        if self.dead_at(cell) > now {
            return None;
        }
        let read = now.since(cell.last_read());
        Some(if read >= self.idle_timeout.load(Ordering::Relaxed) {
            Dead::ReadIdle(Duration::from_nanos(read))
        } else {
            Dead::WriteIdle(Duration::from_nanos(now.since(cell.last_write())))
        })
    }
}

impl<P: Peer> Policy for Beats<P> {
    type Data = Patient<P>;

    fn next(&self, cell: &Cell<Patient<P>>, _now: Live) -> Live {
        let patient = &cell.data;
        if patient.is_recovering.load(Ordering::Acquire) {
            return Live::NEVER; // whoever ends the recovery calls
        }
        let attempt = Live(patient.no_attempt_before.load(Ordering::Relaxed));
        if patient.is_down.load(Ordering::Relaxed) {
            return attempt;
        }
        let dead_at = self.dead_at(cell).max(attempt);
        dead_at.min(self.next_heartbeat(cell, cell.told()))
    }

    fn act(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        cell: &Arc<Cell<Patient<P>>>,
        now: Live,
    ) -> After {
        let patient = &cell.data;
        if patient.is_recovering.load(Ordering::Acquire) {
            return After::File;
        }
        let is_due = self.next_heartbeat(cell, cell.told()) <= now;
        cell.set_told(now);
        let panicked = || shard.hub().counts.panicked.fetch_add(1, Ordering::Relaxed);
        let mut connected = true;
        if !returns(|| connected = patient.peer.is_connected()) {
            panicked();
        }
        let may_attempt = now.0 >= patient.no_attempt_before.load(Ordering::Relaxed);
        match self.cause(cell, connected, now) {
            Some(dead) if may_attempt => self.recover(shard, cell, dead),
            _ => {
                patient.is_down.store(!connected, Ordering::Relaxed);
                if connected && is_due {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    if !returns(|| patient.peer.send_heartbeat()) {
                        panicked();
                    }
                }
            }
        }
        After::File
    }
}

/// A peer that is looked after, until this is dropped: then what is kept of it is freed, and a
/// recovery that runs is dropped.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Dead, HeartbeatConfig, Heartbeats, Peer, Recovery};
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// #[derive(Default)]
/// struct Client {
///     is_lost: AtomicBool,
/// }
/// impl Peer for Client {
///     fn send_heartbeat(&self) {}
///     fn is_connected(&self) -> bool {
///         !self.is_lost.load(Ordering::Relaxed)
///     }
///     async fn recover(&self, dead: Dead) -> Recovery {
///         assert_eq!(dead, Dead::NotConnected);
///         self.is_lost.store(false, Ordering::Relaxed);
///         Recovery::Restored
///     }
/// }
///
/// let mut host = ManualHost::new();
/// let heartbeats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
/// let client = heartbeats.watch(Client::default()).unwrap();
/// client.read();
/// client.wrote_at(host.timer().now()); // an event loop reads the clock once for many
///
/// // The transport has noticed something: no need to wait for silence.
/// client.peer().is_lost.store(true, Ordering::Relaxed);
/// client.check_now();
/// host.run_due();
/// assert!(client.peer().is_connected());
/// ```
#[must_use = "the peer is looked after until this is dropped"]
pub struct Heartbeat<P: Peer> {
    shard: Arc<ActivityShard<Beats<P>>>,
    cell: Arc<Cell<Patient<P>>>,
}

impl<P: Peer> Heartbeat<P> {
    /// Something was read now. One reading of the clock and one relaxed store.
    #[inline]
    pub fn read(&self) {
        self.cell.set_read(self.shard.live());
    }

    /// Something was written now.
    #[inline]
    pub fn wrote(&self) {
        self.cell.set_wrote(self.shard.live());
    }

    /// Both.
    #[inline]
    pub fn touch(&self) {
        self.touch_at(self.shard.timer().now());
    }

    /// Like [`read`](Self::read), without reading the clock: `now` is what the timer's clock has
    /// shown lately.
    #[inline]
    pub fn read_at(&self, now: Instant) {
        self.cell.set_read(self.shard.hub().stalls.live(now));
    }

    /// Like [`wrote`](Self::wrote), without reading the clock: see [`read_at`](Self::read_at).
    #[inline]
    pub fn wrote_at(&self, now: Instant) {
        self.cell.set_wrote(self.shard.hub().stalls.live(now));
    }

    /// Like [`touch`](Self::touch), without reading the clock: see [`read_at`](Self::read_at).
    #[inline]
    pub fn touch_at(&self, now: Instant) {
        let now = self.shard.hub().stalls.live(now);
        self.cell.set_read(now);
        self.cell.set_wrote(now);
    }

    /// Looks at the peer now rather than when its time comes: the transport has reported
    /// something. (A pause between attempts to recover is kept all the same.)
    pub fn check_now(&self) {
        self.shard.call(&self.cell);
    }

    /// Whether a recovery runs.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.cell.data.is_recovering.load(Ordering::Acquire)
    }

    /// What was given to [`watch`](Heartbeats::watch).
    #[must_use]
    pub fn peer(&self) -> &P {
        &self.cell.data.peer
    }
}

impl<P: Peer> Drop for Heartbeat<P> {
    fn drop(&mut self) {
        self.shard.close(&self.cell);
        recovery::abandon(&self.cell);
    }
}

impl<P: Peer> fmt::Debug for Heartbeat<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeat")
            .field("is_recovering", &self.is_recovering())
            .finish_non_exhaustive()
    }
}
