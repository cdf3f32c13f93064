//! The limits of attempts by where they go: how many run at a time, and how many start in a second.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::TimerName;

/// Names a flow: attempts that share limits, such as those to one receiver. Any text; clones share it.
///
/// ```
/// use countwheel_durable::Flow;
///
/// assert_eq!(Flow::new("example.com:443").as_str(), "example.com:443");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(Arc<str>);

impl Flow {
    /// The flow of that name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(name.as_ref().into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// How many attempts of a flow start in a time: a token bucket. The generic cell rate algorithm (ITU-T I.371) keeps
/// one time a flow for it.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::FlowRate;
///
/// let rate = FlowRate::new(100, Duration::from_secs(1), 10);
/// assert_eq!((rate.interval(), rate.burst()), (Duration::from_millis(10), 10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRate {
    interval: Duration,
    burst: u32,
    /// Of a part of a rate: the time in which its whole burst comes back, which all parts of the rate have in common.
    fill: Option<Duration>,
}

impl FlowRate {
    /// So many starts in `per`, and `burst` of them, at least 1, at once after a pause. The interval between two
    /// starts is whole microseconds, rounded up: the rate is never exceeded.
    #[must_use]
    pub fn new(starts: u32, per: Duration, burst: u32) -> Self {
        let micros = per.as_micros().div_ceil(u128::from(starts.max(1)));
        Self {
            interval: Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)),
            burst: burst.max(1),
            fill: None,
        }
    }

    /// A part of a rate that several processes divide among them: so many starts of its burst, and as many in `fill`,
    /// the time in which the burst comes back. None at all for 0. A flow that is given a larger or smaller part of the
    /// same rate goes on, and begins no new burst.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::FlowRate;
    ///
    /// // 100 in a second and 10 at once, of which this process has 2.
    /// let part = FlowRate::part(Duration::from_millis(100), 2);
    /// assert_eq!((part.interval(), part.burst()), (Duration::from_millis(50), 2));
    /// ```
    #[must_use]
    pub fn part(fill: Duration, starts: u32) -> Self {
        let whole = Self::new(starts, fill, starts);
        Self {
            burst: starts,
            fill: Some(fill),
            ..whole
        }
    }

    /// Whether both are parts of one rate.
    pub(crate) fn is_part_as(&self, other: &Self) -> bool {
        self.fill.is_some() && self.fill == other.fill
    }

    /// From one start to the next.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// How many starts follow at once after a pause.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// When the next start is allowed if the virtual scheduling time is `next`.
    pub(crate) fn allowed(&self, next: Timestamp) -> Timestamp {
        next.saturating_sub(self.interval.saturating_mul(self.burst.saturating_sub(1)))
    }
}

/// The limits of a flow, as they are now.
///
/// ```
/// use countwheel_durable::FlowLimits;
///
/// let two = FlowLimits { at_once: Some(2), ..FlowLimits::default() };
/// assert!(!two.shared && two.rate.is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowLimits {
    /// So many attempts run at a time: 0 holds all of them back. `None`: as many as there are places.
    pub at_once: Option<u32>,
    /// So many start in a time.
    pub rate: Option<FlowRate>,
    /// Whether the flow leaves places for others, as a queue does: by itself it gets
    /// [`queue_share_percent`](crate::Config::queue_share_percent) of the places that a queue by itself gets, and one
    /// at least. So a receiver that hangs takes no place that others need, whatever else limits it.
    pub shared: bool,
}

/// What attempts of a flow use of its limits in this process: see [`Timers::flows_used`](crate::Timers::flows_used).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowUse {
    /// So many run now.
    pub running: u32,
    /// So many ran at the same time at the most since somebody asked last.
    pub most: u32,
    /// So many were started since then.
    pub started: u32,
    /// Whether timers wait for the flow.
    pub waits: bool,
    /// When all of its burst is there again, if nothing more starts; 0 if it is there, or if there is no rate.
    pub fills_in: Duration,
}

/// The flows of one timer's attempts, and how urgent they are.
///
/// ```
/// use countwheel_durable::{Flow, Route};
///
/// let route = Route::from(Flow::new("example.com:443"));
/// assert_eq!((route.flows.len(), route.priority), (1, 0));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// An attempt starts when each of these flows has room for it. None: only the limits of its queue and of the
    /// process hold.
    pub flows: Vec<Flow>,
    /// Of the timers that wait for the same flow, the one with the lowest number starts first, then the one that was
    /// due first.
    pub priority: u32,
    /// The flow out of which the attempt is leased, if it is: it starts when [`Flows::lease`] grants a lease of that
    /// flow. A leased attempt takes no place of [`max_in_flight`](crate::Config::max_in_flight) and none of its queue's
    /// share, and its [`Completion`](crate::Completion) says nothing: it ends by
    /// [`Request::Settle`](crate::Request::Settle), or with its lease. See [`Attempt::lease`](crate::Attempt::lease).
    pub lease: Option<Flow>,
}

impl From<Flow> for Route {
    fn from(flow: Flow) -> Self {
        Self {
            flows: vec![flow],
            ..Self::default()
        }
    }
}

impl Route {
    /// All flows in which an attempt needs room: that of its lease comes first.
    pub(crate) fn into_flows(self) -> Vec<Flow> {
        let mut flows = self.flows;
        if let Some(lease) = self.lease {
            flows.insert(0, lease);
        }
        flows
    }
}

/// Says which flows there are, and their limits: set as [`Config::flows`](crate::Config::flows).
///
/// A timer that is due and whose flow has no room waits for it beside the others: it delays no timer of another flow,
/// also in the same queue. The time counts as [held](crate::Attempt::held). What waits is kept in memory as far as there
/// is room for it, and is read again from the store when its turn comes.
///
/// Both functions are called on the schedulers' threads, for each timer that comes due: they must not wait.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_time::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Config, Flow, FlowLimits, Flows, Route, TimerName, Timers, pooled};
///
/// /// The payload is the receiver's name, and each receiver gets two at a time.
/// #[derive(Debug)]
/// struct ByReceiver;
///
/// impl Flows for ByReceiver {
///     fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
///         Flow::new(String::from_utf8_lossy(payload)).into()
///     }
///
///     fn limits(&self, _: &Flow) -> FlowLimits {
///         FlowLimits { at_once: Some(2), ..FlowLimits::default() }
///     }
/// }
///
/// let config = Config { flows: Some(Arc::new(ByReceiver)), ..Config::default() };
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), pooled(|_| ()), clock, config)?;
/// timers.set("orders/1", Duration::from_secs(5), "warehouse")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Flows: fmt::Debug + Send + Sync {
    /// The flows of a timer's next attempt. They may be others each time.
    fn route(&self, name: &TimerName, payload: &[u8]) -> Route;

    /// The limits of a flow. After a change of them, [`Timers::flows_changed`](crate::Timers::flows_changed) has those
    /// looked at again that wait.
    fn limits(&self, flow: &Flow) -> FlowLimits;

    /// Grants one lease of a [flow of leases](Route::lease), and says how long it lasts: from then on the grant is used
    /// up. `None`: nobody asks for one now. After a new grant, [`Timers::flow_changed`](crate::Timers::flow_changed)
    /// has those looked at again that wait. Called with a lock held: it must not call the timers.
    fn lease(&self, _flow: &Flow) -> Option<Duration> {
        None
    }
}
