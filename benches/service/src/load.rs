//! Timers that are set ahead, and how late they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use countwheel_time::{Clock as _, SystemClock, Timestamp};
use tokio::task::JoinSet;

use crate::service::{Service, Setter, Timer};
use crate::sink::Sink;

/// Connections that set timers ahead.
const CONNECTIONS: usize = 64;
/// Timers that are set first, to see how fast the sets are.
const TRIED: usize = 2_000;
/// Those are due so much later: never in a run.
const NEVER: Duration = Duration::from_secs(86_400);
/// How much slower the sets may become.
const SLOWER: f64 = 2.0;
/// Time between the last set and the first due time, if the sets do not become slower.
const REST: Duration = Duration::from_secs(3);

/// Timers spread evenly over a time.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    /// Zero for timers that are all due at once.
    pub(crate) per_second: f64,
}

impl Spread {
    pub(crate) fn over(per_second: f64, seconds: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some ten thousands"
        )]
        let count = (per_second * seconds).round().max(1.0) as usize;
        Self { count, per_second }
    }

    pub(crate) fn at_once(count: usize) -> Self {
        Self {
            count,
            per_second: 0.0,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "some ten thousands")]
    fn after(self, number: usize) -> Duration {
        if self.per_second == 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(number as f64 / self.per_second)
    }
}

/// The due times of timers that were set, by number.
pub(crate) struct Dues {
    pub(crate) dues: Vec<Timestamp>,
    pub(crate) last: Timestamp,
}

/// Sets all timers before the first is due. Timer `n` goes to the port `n` modulo the number of ports.
///
/// A service whose delays are whole seconds gets each timer of a spread just so many seconds ahead, at the rate at
/// which the timers come due.
pub(crate) async fn set_ahead(
    service: &Service,
    spread: Spread,
    ports: &[u16],
) -> anyhow::Result<Dues> {
    let clock = SystemClock::new();
    // The workers of a peer start when all timers are due.
    let has_time = !service.delivers() && spread.per_second == 0.0;
    let is_paced = service.has_whole_seconds() && spread.per_second > 0.0;
    let lead = if is_paced {
        Duration::from_secs(spread.after(spread.count).as_secs() + 1) + REST
    } else if has_time {
        REST
    } else {
        let never = Spread::at_once(TRIED);
        let began = clock.now();
        let far = clock.timestamp() + NEVER;
        set_all(service, spread.count, never, far, ports, None).await?;
        let took = clock.now().saturating_since(began);
        #[expect(clippy::cast_precision_loss, reason = "some ten thousands")]
        let times = spread.count as f64 / TRIED as f64;
        took.mul_f64(times * SLOWER) + REST
    };
    let first = clock.timestamp() + lead;
    let paced = is_paced.then(|| lead.saturating_sub(Duration::from_secs(1)));
    let dues = set_all(service, 0, spread, first, ports, paced).await?;
    // A delay of whole seconds runs from the set, so no such set is too late.
    ensure!(
        has_time || is_paced || clock.timestamp() < first,
        "the sets took longer than {lead:?}"
    );
    let last = dues.iter().copied().max().unwrap_or(first);
    Ok(Dues { dues, last })
}

/// Sets timers from all connections, and returns their due times. Their numbers begin with `from`.
async fn set_all(
    service: &Service,
    from: usize,
    spread: Spread,
    first: Timestamp,
    ports: &[u16],
    paced: Option<Duration>,
) -> anyhow::Result<Vec<Timestamp>> {
    let mut setters = JoinSet::new();
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..CONNECTIONS.min(spread.count) {
        let some = Share {
            from,
            spread,
            first,
            ports: ports.to_vec(),
            paced,
        };
        setters.spawn(some.set(service.connect().await?, Arc::clone(&next)));
    }
    let mut dues = vec![first; spread.count];
    while let Some(set) = setters.join_next().await {
        for (number, due) in set?? {
            dues[number] = due;
        }
    }
    Ok(dues)
}

/// What one of several connections sets.
struct Share {
    from: usize,
    spread: Spread,
    first: Timestamp,
    ports: Vec<u16>,
    /// How long ahead each timer is set, if not as early as can be.
    paced: Option<Duration>,
}

impl Share {
    /// Sets the next timer until all are set, and returns the places and due times of those that it set.
    async fn set(
        self,
        mut setter: Setter,
        next: Arc<AtomicUsize>,
    ) -> anyhow::Result<Vec<(usize, Timestamp)>> {
        let clock = SystemClock::new();
        let mut set = Vec::new();
        let batch = setter.batch();
        loop {
            let from = next.fetch_add(batch, Ordering::Relaxed);
            let places = from..self.spread.count.min(from + batch);
            if places.is_empty() {
                return Ok(set);
            }
            let timers: Vec<Timer> = places.clone().map(|place| self.timer(place)).collect();
            if let (Some(ahead), Some(timer)) = (self.paced, timers.first()) {
                wait_until(clock, timer.due.saturating_sub(ahead)).await;
            }
            set.extend(places.zip(setter.set_many(&timers).await?));
        }
    }

    fn timer(&self, place: usize) -> Timer {
        Timer {
            number: self.from + place,
            due: self.first + self.spread.after(place),
            port: self.ports[place % self.ports.len()],
        }
    }
}

pub(crate) async fn wait_until(clock: SystemClock, until: Timestamp) {
    tokio::time::sleep(until.saturating_since(clock.timestamp())).await;
}

/// How late the timers arrived for the first time.
pub(crate) struct Lateness {
    pub(crate) micros: Vec<u64>,
    /// Timers that had not arrived when the wait ended. Each counts as late until then.
    pub(crate) missing: usize,
}

/// Compares what arrived with what was due, for the timers that `counts` takes.
pub(crate) fn lateness(sink: &Sink, dues: &Dues, counts: impl Fn(usize) -> bool) -> Lateness {
    let ended = SystemClock::new().timestamp();
    let mut first: Vec<Option<Timestamp>> = vec![None; dues.dues.len()];
    for arrival in sink.arrivals() {
        if let Some(known) = first.get_mut(arrival.number) {
            *known = Some(known.map_or(arrival.at, |known| known.min(arrival.at)));
        }
    }
    let counted = || (0..dues.dues.len()).filter(|&number| counts(number));
    let late = |number: usize| {
        let at = first[number].unwrap_or(ended);
        at.as_micros().saturating_sub(dues.dues[number].as_micros())
    };
    Lateness {
        micros: counted().map(late).collect(),
        missing: counted().filter(|&number| first[number].is_none()).count(),
    }
}

/// Deliveries a second from the first arrival to the last.
pub(crate) fn rate(sink: &Sink, count: usize) -> anyhow::Result<f64> {
    let arrivals = sink.arrivals();
    ensure!(
        arrivals.len() >= count,
        "{} of {count} arrived",
        arrivals.len()
    );
    let times = || arrivals.iter().map(|arrival| arrival.at);
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        bail!("nothing arrived");
    };
    let span = last.saturating_since(first).as_secs_f64();
    ensure!(span > 0.0, "too few arrived");
    #[expect(clippy::cast_precision_loss, reason = "some ten thousands")]
    let rate = arrivals.len() as f64 / span;
    Ok(rate)
}
