//! The handle of one connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Connection, Idle, IdleLimits, UntilIdle};
use crate::activity::{ActivityShard, Cell, Live};
use countwheel::Instant;

/// A connection that is watched by an [`IdleWatch`](super::IdleWatch), until this is dropped:
/// then what is kept of it is freed at once, and no event about it starts any more. (One whose
/// handler is running goes on.)
///
/// Whoever reads says [`read`](Self::read), whoever writes [`wrote`](Self::wrote), from any
/// thread. To share a handle, put it into an [`Arc`], or make the connection itself the owner
/// and give the table a [`Weak`](std::sync::Weak) of it: an `Arc` there would keep both for ever.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{IdleLimits, IdleWatch};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u32, _event| {});
/// let connection = idle.watch(7, IdleLimits::NONE.all(Duration::from_secs(5)))?;
/// host.advance(Duration::from_secs(3));
/// connection.wrote();
/// assert_eq!(connection.read_idle_for(), Duration::from_secs(3));
/// assert_eq!(connection.write_idle_for(), Duration::ZERO);
/// connection.touch();
/// assert_eq!(connection.read_idle_for(), Duration::ZERO);
/// assert_eq!(*connection.connection(), 7);
///
/// // An event loop that reads the clock once a turn need not read it for each message.
/// let now = host.timer().now();
/// connection.read_at(now);
/// connection.wrote_at(now);
/// connection.touch_at(now);
/// # Ok::<(), countwheel_patterns::WatchError<u32>>(())
/// ```
#[must_use = "the connection is watched until this is dropped"]
pub struct Watched<C: Send + Sync + 'static> {
    pub(super) shard: Arc<ActivityShard<Idle<C>>>,
    pub(super) cell: Arc<Cell<Connection<C>>>,
}

impl<C: Send + Sync + 'static> Watched<C> {
    pub(super) fn new(shard: Arc<ActivityShard<Idle<C>>>, cell: Arc<Cell<Connection<C>>>) -> Self {
        Self { shard, cell }
    }

    /// Something was read now. One reading of the clock and one relaxed store.
    #[inline]
    pub fn read(&self) {
        self.cell.set_read(self.shard.live());
    }

    /// Something was written now: all of a message, or some bytes of it that have left.
    #[inline]
    pub fn wrote(&self) {
        self.cell.set_wrote(self.shard.live());
    }

    /// Both.
    #[inline]
    pub fn touch(&self) {
        let now = self.shard.live();
        self.cell.set_read(now);
        self.cell.set_wrote(now);
    }

    /// Like [`read`](Self::read), without reading the clock: `now` is what the timer's clock has
    /// shown lately. The event comes as much earlier as that is old.
    #[inline]
    pub fn read_at(&self, now: Instant) {
        self.cell.set_read(self.live_at(now));
    }

    /// Like [`wrote`](Self::wrote), without reading the clock: see [`read_at`](Self::read_at).
    #[inline]
    pub fn wrote_at(&self, now: Instant) {
        self.cell.set_wrote(self.live_at(now));
    }

    /// Like [`touch`](Self::touch), without reading the clock: see [`read_at`](Self::read_at).
    #[inline]
    pub fn touch_at(&self, now: Instant) {
        let now = self.live_at(now);
        self.cell.set_read(now);
        self.cell.set_wrote(now);
    }

    #[inline]
    fn live_at(&self, now: Instant) -> Live {
        self.shard.hub().stalls.live(now)
    }

    /// A read has begun that may take longer than the limits: until the guard is dropped, the
    /// connection counts as read from, and at that moment it was.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{IdleLimits, IdleWatch};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u32, _event| {});
    /// let connection = idle.watch(7, IdleLimits::NONE.reader(Duration::from_secs(5))).unwrap();
    /// let reading = connection.reading();
    /// host.advance(Duration::from_secs(60));
    /// assert_eq!(idle.stats().reader_idle, 0);
    /// drop(reading);
    /// host.advance(Duration::from_secs(6));
    /// assert_eq!(idle.stats().reader_idle, 1);
    /// ```
    pub fn reading(&self) -> Reading<'_, C> {
        self.cell.begin_read();
        Reading { watched: self }
    }

    /// How long nothing has been read.
    #[must_use]
    pub fn read_idle_for(&self) -> Duration {
        let now = self.shard.live();
        let reading = self.cell.is_reading();
        let last = if reading { now } else { self.cell.last_read() };
        Duration::from_nanos(now.since(last))
    }

    /// How long nothing has been written.
    #[must_use]
    pub fn write_idle_for(&self) -> Duration {
        let now = self.shard.live();
        Duration::from_nanos(now.since(self.cell.last_write()))
    }

    /// Waits for the next event of this connection from now on, as the handler gets them: at the
    /// next multiple of one of its limits at which nothing has happened. Both get theirs. Awaited in
    /// a loop, it gives one event after another.
    ///
    /// The wait has an entry of its own in the timer, so it is as exact as the timer is, not as the
    /// table, and counts against [`max_pending`](countwheel::TimerBuilder::max_pending). Activity costs
    /// what it costs without anybody who waits. The future looks at the
    /// [limits](Self::set_limits) when it is polled; shorter ones are seen at the end of the wait that
    /// is under way. It goes on after the table has stopped.
    ///
    /// **Cancelling** is dropping.
    ///
    /// Its errors are those of [`Sleep`](countwheel::Sleep).
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{IdleKind, IdleLimits, IdleWatch};
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let idle = IdleWatch::new(Timer::new(), |_connection: &u32, _event| {});
    /// let limit = Duration::from_millis(5);
    /// let connection = idle.watch(7, IdleLimits::NONE.writer(limit)).unwrap();
    /// let event = connection.idle().await?;
    /// assert_eq!((event.kind, event.first), (IdleKind::Writer, true));
    /// assert!(event.idle_for >= limit);
    /// connection.wrote(); // a heartbeat
    /// # Ok::<(), countwheel::SleepError>(())
    /// # }).unwrap();
    /// ```
    pub fn idle(&self) -> UntilIdle<'_, C> {
        UntilIdle::new(self)
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> IdleLimits {
        self.cell.data.limits.get()
    }

    /// Other limits, from now on, for the time since the last activity: if that is longer
    /// already, the event comes at once. The next event of each kind is a first one.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{IdleLimits, IdleWatch};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u32, _event| {});
    /// let connection = idle.watch(7, IdleLimits::NONE).unwrap();
    /// host.advance(Duration::from_secs(60));
    /// connection.set_limits(IdleLimits::NONE.reader(Duration::from_secs(30)));
    /// assert_eq!(connection.limits().reader, Some(Duration::from_secs(30)));
    /// host.run_due();
    /// assert_eq!(idle.stats().reader_idle, 1);
    /// ```
    pub fn set_limits(&self, limits: IdleLimits) {
        if !self.cell.data.limits.set(limits) {
            return;
        }
        self.shard.begin_anew(&self.cell);
    }

    /// What was given to [`watch`](super::IdleWatch::watch).
    #[must_use]
    pub fn connection(&self) -> &C {
        &self.cell.data.value
    }
}

impl<C: Send + Sync + 'static> Drop for Watched<C> {
    fn drop(&mut self) {
        self.shard.close(&self.cell);
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for Watched<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("limits", &self.limits())
            .field("read_idle_for", &self.read_idle_for())
            .field("write_idle_for", &self.write_idle_for())
            .finish_non_exhaustive()
    }
}

/// A read in progress. See [`Watched::reading`].
#[must_use = "the read is over when this is dropped"]
pub struct Reading<'a, C: Send + Sync + 'static> {
    watched: &'a Watched<C>,
}

impl<C: Send + Sync + 'static> Drop for Reading<'_, C> {
    fn drop(&mut self) {
        self.watched.read();
        self.watched.cell.end_read();
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for Reading<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}
