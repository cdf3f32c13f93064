//! A watch that reports connections without a read or a write for too long.

mod events;
mod limits;
mod until;
mod watched;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::limits::Limits;
use super::activity::{
    ActivityShard, After, Cell, Live, Options, Policy, Table, WatchError, next_multiple,
};
use countwheel::building::returns;
use countwheel::{Resolution, Timer};

pub use self::events::IdleEvents;
pub use self::limits::{IdleEvent, IdleKind, IdleLimits};
pub use self::until::UntilIdle;
pub use self::watched::{Reading, Watched};

/// Says when connections, or whatever has activity, have been idle for too long: by the
/// million, at the price of one store for each activity.
///
/// [`watch`](Self::watch) returns a handle, [`Watched`]. Whoever reads or writes tells it so,
/// which writes down the time and does nothing else. Each connection has one entry in a wheel:
/// when it comes up, the connection is looked at; if something has happened meanwhile, the entry
/// goes back for the rest, and otherwise the handler gets an [`IdleEvent`]. So what a connection
/// costs does not depend on its traffic, and a table in which nothing can be due sleeps.
///
/// The events are those of Netty's `IdleStateHandler`: reader, writer or all idle, again at each
/// multiple of the limit until something happens, and the first of a row says that it is the
/// first. Events that were missed in a stall are not made up for: the next one says how long it
/// has been.
///
/// # When
///
/// Never before the limit has passed since the last activity, and less than one tick of the table
/// (10 milliseconds unless told otherwise) and one of the timer later, in which the handler's
/// task is queued on the timer's executor. Just before the handler is called, the
/// connection is looked at once more: who was closed or has had traffic while the executor was
/// busy gets no event. An executor that is full delays events and loses none.
///
/// The handler gets the events of one connection one after another, and those of different
/// connections possibly at the same time. Up to 256 connections share a task, so a
/// handler that blocks makes others late. A handler that panics is counted
/// in [`IdleStats::panicked`], and the connection is watched as before.
///
/// # What it costs
///
/// A connection takes about 150 bytes with a value of eight, that is the cell with its times and
/// limits and the entry in the wheel ([`memory_bytes`](Self::memory_bytes) says it exactly), and
/// the processor is asked once for each limit's length.
///
/// Clones are the same table. When the last is dropped, nothing is watched any more, although
/// the handles may live on. A handler that captures handles therefore does no harm, but one that
/// captures a clone of the table keeps it alive for ever.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{IdleKind, IdleLimits, IdleWatch};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, events) = mpsc::channel();
/// let idle = IdleWatch::new(host.timer().clone(), move |name: &&str, event| {
///     sender.send((*name, event.kind, event.first)).unwrap();
/// });
/// let minute = Duration::from_secs(60);
/// let ada = idle.watch("Ada", IdleLimits::NONE.reader(minute))?;
/// let bob = idle.watch("Bob", IdleLimits::NONE.all(minute))?;
///
/// host.advance(minute / 2);
/// bob.wrote();
/// host.advance(minute / 2);
/// assert_eq!(events.try_iter().collect::<Vec<_>>(), [("Ada", IdleKind::Reader, true)]);
/// host.advance(minute / 2);
/// assert_eq!(events.try_recv(), Ok(("Bob", IdleKind::All, true)));
/// host.advance(minute / 2);
/// assert_eq!(events.try_recv(), Ok(("Ada", IdleKind::Reader, false)));
///
/// drop((ada, bob)); // closed
/// assert!(idle.is_empty());
/// # Ok::<(), countwheel_patterns::WatchError<&str>>(())
/// ```
pub struct IdleWatch<C: Send + Sync + 'static> {
    table: Table<Idle<C>>,
    idle: Arc<Idle<C>>,
}

type Handler<C> = Box<dyn Fn(&C, IdleEvent) + Send + Sync>;

/// What is common to all connections.
struct Idle<C> {
    handler: Handler<C>,
    events: [AtomicU64; 3],
}

/// A connection and its limits.
struct Connection<C> {
    limits: Limits,
    value: C,
}

/// What an [`IdleWatch`] has done so far: `watched` equals `closed + open` whenever no call is
/// under way.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{IdleLimits, IdleWatch};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u32, _event| {});
/// let limits = IdleLimits::NONE.writer(Duration::from_secs(60));
/// let (one, two) = (idle.watch(1, limits).unwrap(), idle.watch(2, limits).unwrap());
/// drop(one);
/// for _ in 0..1_000_000 {
///     two.wrote();
/// }
/// let stats = idle.stats();
/// assert_eq!((stats.watched, stats.closed, stats.open), (2, 1, 1));
/// assert_eq!(stats.looks, 0, "traffic moves nothing");
///
/// host.advance(Duration::from_secs(61));
/// assert_eq!((idle.stats().writer_idle, idle.stats().looks), (1, 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct IdleStats {
    /// Connections that were taken on.
    pub watched: u64,
    /// Those whose handle was dropped.
    pub closed: u64,
    /// Those that have one still.
    pub open: u64,
    /// Events about reading that were given to the handler.
    pub reader_idle: u64,
    /// Events about writing.
    pub writer_idle: u64,
    /// Events about both.
    pub all_idle: u64,
    /// How often the handler panicked.
    pub panicked: u64,
    /// How often an entry came up in the wheel and its connection was looked at.
    pub looks: u64,
    /// How often a connection had traffic between that look and the one by which the handler
    /// would have been called.
    pub overtaken: u64,
    /// How often this process did not run when it should have, if the table
    /// [compensates](IdleWatchBuilder::compensate_stalls) for that.
    pub stalls: u64,
    /// How long in all: this time counts as idle for nobody.
    pub stalled: Duration,
}

impl<C: Send + Sync + 'static> IdleWatch<C> {
    /// Watches connections by `timer`, and calls `handler` on its executor.
    #[must_use]
    pub fn new(timer: Timer, handler: impl Fn(&C, IdleEvent) + Send + Sync + 'static) -> Self {
        IdleWatch::builder(timer).build(handler)
    }

    /// Takes on a connection. It is watched until the handle is dropped, and counts as having
    /// been active now.
    ///
    /// O(1): reads the clock, allocates once, takes one lock of several.
    ///
    /// # Errors
    /// [`WatchError::Closed`] if the table or its timer has stopped, [`WatchError::NoThread`] if
    /// the timer's thread could not be started. Both give the connection back.
    pub fn watch(&self, connection: C, limits: IdleLimits) -> Result<Watched<C>, WatchError<C>> {
        let connection = Connection {
            limits: Limits::new(limits),
            value: connection,
        };
        let (shard, cell) = self
            .table
            .watch(connection)
            .map_err(|error| error.map(|connection| connection.value))?;
        Ok(Watched::new(shard, cell))
    }

    /// How many connections are watched.
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
    pub fn stats(&self) -> IdleStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let hub = self.table.hub();
        let [reader_idle, writer_idle, all_idle] =
            [0, 1, 2].map(|kind: usize| load(&self.idle.events[kind]));
        IdleStats {
            watched: load(&hub.counts.watched),
            closed: load(&hub.counts.closed),
            open: self.len(),
            reader_idle,
            writer_idle,
            all_idle,
            panicked: load(&hub.counts.panicked),
            looks: load(&hub.counts.looks),
            overtaken: load(&hub.counts.overtaken),
            stalls: hub.stalls.count(),
            stalled: hub.stalls.stalled(),
        }
    }

    /// How much memory the table takes on the heap, in bytes: what the connections own not
    /// included, nor what the allocator adds.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{IdleLimits, IdleWatch};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u64, _event| {});
    /// let limits = IdleLimits::NONE.reader(Duration::from_secs(60));
    /// let handles: Vec<_> = (0..10_000).map(|number| idle.watch(number, limits)).collect();
    /// assert!(idle.memory_bytes() / handles.len() < 200);
    /// ```
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Ends all watching, as dropping the last clone does. The handles stay, and do nothing.
    pub fn stop(&self) {
        self.table.stop();
    }
}

impl IdleWatch<()> {
    /// A table with other options.
    pub fn builder(timer: Timer) -> IdleWatchBuilder {
        IdleWatchBuilder {
            timer,
            options: Options::default(),
        }
    }
}

impl<C: Send + Sync + 'static> Clone for IdleWatch<C> {
    fn clone(&self) -> Self {
        Self {
            table: self.table.clone(),
            idle: Arc::clone(&self.idle),
        }
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for IdleWatch<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleWatch")
            .field("open", &self.len())
            .finish_non_exhaustive()
    }
}

/// The options of an [`IdleWatch`].
///
/// ```
/// use countwheel::{ManualHost, Resolution};
/// use countwheel_patterns::{IdleLimits, IdleWatch};
/// use std::num::NonZeroUsize;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, idle_for) = mpsc::channel();
/// let idle = IdleWatch::builder(host.timer().clone())
///     .tick(Resolution::MILLISECOND)
///     .shards(NonZeroUsize::MIN)
///     .compensate_stalls(Duration::from_secs(1))
///     .build(move |_connection: &u32, event| sender.send(event.idle_for).unwrap());
/// let minute = Duration::from_secs(60);
/// let _connection = idle.watch(1, IdleLimits::NONE.reader(minute)).unwrap();
///
/// host.clock().advance(minute); // the machine was asleep, and with it everybody who reads
/// host.run_due();
/// assert!(idle_for.try_recv().is_err());
/// host.advance(minute);
/// assert_eq!(idle_for.try_recv(), Ok(minute));
/// assert_eq!(idle.stats().stalled, minute - Duration::from_secs(1));
/// ```
#[derive(Debug)]
#[must_use]
pub struct IdleWatchBuilder {
    timer: Timer,
    options: Options,
}

impl IdleWatchBuilder {
    /// How late an event may be: 10 milliseconds unless told otherwise. A coarser tick wakes the
    /// timer's host less often where there are many connections.
    pub fn tick(mut self, tick: Resolution) -> Self {
        self.options.tick = tick;
        self
    }

    /// How many wheels share the connections, each behind a lock of its own: the number of
    /// processors unless told otherwise.
    pub fn shards(mut self, shards: NonZeroUsize) -> Self {
        self.options.shards = Some(shards);
        self
    }

    /// Looks every `period` whether this process still runs, and takes the time in which it did
    /// not for nobody's idleness. Not done unless asked for.
    ///
    /// A stall is noticed if two looks are more than two periods apart, and is counted without one
    /// period. At least two ticks of the timer: shorter ones are taken for that.
    /// The price is that the timer's host wakes once every `period` while anything is watched.
    pub fn compensate_stalls(mut self, period: Duration) -> Self {
        self.options.stall_period = (!period.is_zero()).then_some(period);
        self
    }

    /// The table, whose events go to `handler`.
    #[must_use]
    pub fn build<C: Send + Sync + 'static>(
        self,
        handler: impl Fn(&C, IdleEvent) + Send + Sync + 'static,
    ) -> IdleWatch<C> {
        self.with(Box::new(handler))
    }

    /// A table whose events are taken by who has the second part, when that is ready to: in async
    /// code, without a handler. `room` events wait for it; what comes while there is none is
    /// [missed](IdleEvents::missed), and comes again at the next multiple of its limit.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{IdleKind, IdleLimits, IdleWatch};
    /// use std::num::NonZeroUsize;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let room = NonZeroUsize::new(1_000).unwrap();
    /// let (idle, mut events) = IdleWatch::builder(Timer::new()).build_events(room);
    /// let ada = idle.watch("Ada", IdleLimits::NONE.reader(Duration::from_millis(20)))?;
    /// let (name, event) = events.take().await.unwrap();
    /// assert_eq!((name, event.kind), ("Ada", IdleKind::Reader));
    /// drop((ada, idle));
    /// while events.take().await.is_some() {}
    /// # Ok::<(), countwheel_patterns::WatchError<&str>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn build_events<C: Clone + Send + Sync + 'static>(
        self,
        room: NonZeroUsize,
    ) -> (IdleWatch<C>, IdleEvents<C>) {
        let (reporter, events) = events::channel(room);
        let table = self.build(move |connection: &C, event| reporter.report(connection, event));
        (table, events)
    }

    fn with<C: Send + Sync + 'static>(self, handler: Handler<C>) -> IdleWatch<C> {
        let idle = Arc::new(Idle {
            handler,
            events: Default::default(),
        });
        IdleWatch {
            table: Table::new(self.timer, self.options, Arc::clone(&idle)),
            idle,
        }
    }
}

/// When what `kind` is about last happened.
fn last<D>(cell: &Cell<D>, kind: IdleKind, now: Live) -> Live {
    let read = || {
        if cell.is_reading() {
            now
        } else {
            cell.last_read()
        }
    };
    match kind {
        IdleKind::Reader => read(),
        IdleKind::Writer => cell.last_write(),
        IdleKind::All => read().max(cell.last_write()),
    }
}

impl<C: Send + Sync + 'static> Policy for Idle<C> {
    type Data = Connection<C>;

    fn next(&self, cell: &Cell<Connection<C>>, now: Live) -> Live {
        let limits = cell.data.limits.each();
        let next =
            limits.map(|(kind, limit)| next_multiple(last(cell, kind, now), limit, cell.told()));
        next.min().unwrap_or(Live::NEVER)
    }

    fn act(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        cell: &Arc<Cell<Connection<C>>>,
        now: Live,
    ) -> After {
        let told = cell.told();
        cell.set_told(now);
        for (kind, limit) in cell.data.limits.each() {
            let last = last(cell, kind, now);
            if next_multiple(last, limit, told) > now || cell.is_ended() {
                continue;
            }
            let event = IdleEvent {
                kind,
                first: told.since(last) < limit,
                idle_for: Duration::from_nanos(now.since(last)),
            };
            self.events[kind as usize].fetch_add(1, Ordering::Relaxed);
            if !returns(|| (self.handler)(&cell.data.value, event)) {
                shard.hub().counts.panicked.fetch_add(1, Ordering::Relaxed);
            }
        }
        After::File
    }
}
