//! The limits of deliveries by where they go: each endpoint, and each host and port of a URL, is a flow, and so is a
//! queue with limits of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::Uri;
use countwheel_cluster::Lending;
use countwheel_durable::{Flow, FlowLimits, FlowRate, Flows, QueueName, Route, TimerName, Timers};

use super::blocked::Place;
use super::endpoint::{EndpointName, NoWay, Rate, Way};
use super::loans::Loans;
use super::queue::Mode;
use super::{Catalogue, Resources};
use crate::guard::{Targets, port_of_url};
use crate::job::{self, Extras, Job};
use crate::pull::{self, Desk, PULL};

/// What the names of flows begin with, by what the flow is.
const QUEUE: &str = "queue ";
const ENDPOINT: &str = "endpoint ";
const NOWHERE: &str = "nowhere ";
const REFUSED: &str = "refused ";
const SERIAL: &str = "serial ";
/// The flow of all attempts with a large payload, and what the names of those to one place begin with.
const LARGE: &str = "large";
const LARGE_TO: &str = "large to ";

/// Attempts whose payloads are longer have limits of their own: the request of an attempt is in memory.
const LARGE_FROM: usize = 2 << 20;
/// How many of them run at a time in a process.
pub(crate) const LARGE_AT_ONCE: u32 = 8;
/// How many of those go to one place, so that one that hangs leaves some to the others.
pub(crate) const LARGE_TO_ONE: u32 = 4;

/// The limits of all flows of a service.
#[derive(Debug)]
pub(crate) struct DeliveryLimits {
    catalogue: Arc<Catalogue>,
    targets: Targets,
    /// Whether deliveries leave by a proxy of the service, unless their endpoint names one.
    is_proxied: bool,
    part: Part,
    desk: Arc<Desk>,
    /// In a cluster whose nodes reach each other.
    loans: OnceLock<Arc<Loans>>,
}

/// Which part of each limit is this node's: as many shards as it owns, of all.
#[derive(Debug)]
struct Part {
    owned: AtomicU32,
    of: AtomicU32,
}

impl Part {
    /// The part of so many places: no two nodes have the same place. One at least, since a limit may be lower than
    /// the number of nodes.
    fn of_places(&self, places: u32) -> u32 {
        let (owned, of) = self.now();
        let part = u64::from(places) * u64::from(owned) / u64::from(of);
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    }

    /// The part of a rate: the interval from one start to the next is longer, and the burst smaller.
    fn of_rate(&self, rate: Rate) -> FlowRate {
        let (owned, of) = self.now();
        let interval = Duration::try_from_secs_f64(1.0 / rate.per_second).unwrap_or(Duration::MAX);
        let interval = interval.saturating_mul(of) / owned;
        FlowRate::new(1, interval, self.of_places(rate.burst))
    }

    fn now(&self) -> (u32, u32) {
        let of = self.of.load(Ordering::Relaxed).max(1);
        (self.owned.load(Ordering::Relaxed).clamp(1, of), of)
    }
}

/// Why the timers of a flow wait, however much room there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Closed(pub(crate) String);

impl DeliveryLimits {
    pub(crate) fn new(catalogue: Arc<Catalogue>, targets: Targets) -> Self {
        let part = Part {
            owned: AtomicU32::new(1),
            of: AtomicU32::new(1),
        };
        Self {
            catalogue,
            targets,
            is_proxied: false,
            part,
            desk: Arc::default(),
            loans: OnceLock::new(),
        }
    }

    /// The same where all deliveries whose endpoints name no proxy leave by one of the service, or not.
    pub(crate) fn proxied(self, is_proxied: bool) -> Self {
        Self { is_proxied, ..self }
    }

    /// Whether deliveries whose endpoints name no proxy leave by one.
    pub(crate) const fn is_proxied(&self) -> bool {
        self.is_proxied
    }

    /// Whether deliveries may go where a URL leads by itself, with no endpoint.
    fn check(&self, url: &Uri) -> Result<(), NoWay> {
        Way::default().check(url, &self.targets, self.is_proxied)
    }

    /// Where workers ask for leases.
    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// What is limited is borrowed from now on.
    pub(crate) fn borrow(&self, loans: Arc<Loans>) {
        // It is set once.
        self.loans.set(loans).unwrap_or_default();
    }

    /// Looks at which part of the limits is this node's, and has those looked at again that wait if it has changed.
    pub(crate) fn look_at_part(&self, timers: &Timers) {
        let owned = u32::try_from(timers.owned().len()).unwrap_or(u32::MAX);
        let of = u32::from(timers.shards().count());
        let before = self.part.owned.swap(owned, Ordering::Relaxed);
        let before = (before, self.part.of.swap(of, Ordering::Relaxed));
        if before != (owned, of) {
            timers.flows_changed();
        }
    }

    /// Why an attempt of this timer would not start, if something else than a lack of places is in the way.
    pub(crate) fn closed(&self, name: &TimerName, payload: &[u8]) -> Option<Closed> {
        let known = self.catalogue.known();
        let route = self.route_by(&known, name, payload);
        let flows = route.flows.iter();
        let why = |flow: &Flow| {
            let closed = self.why_closed(&known, flow);
            closed.or_else(|| self.why_looked_at(&known, flow))
        };
        flows.filter_map(why).next()
    }

    /// Why all but one attempt of a flow wait, if it is looked whether the others may start.
    fn why_looked_at(&self, known: &Resources, flow: &Flow) -> Option<Closed> {
        if let Some(place) = place_of_flow(known, flow)
            && let Some(why) = self.catalogue.blocked().why(&place)
        {
            return Some(Closed(format!("{place} is not called: {why}")));
        }
        let name = flow.as_str().strip_prefix(ENDPOINT)?;
        let name = EndpointName::new(name).ok()?;
        self.catalogue.breakers().why_probed(&name).map(Closed)
    }

    fn why_closed(&self, known: &Resources, flow: &Flow) -> Option<Closed> {
        let text = flow.as_str();
        if let Some(name) = text.strip_prefix(ENDPOINT) {
            let unusable = match known.usable(name) {
                Err(held) => Some(held.detail),
                Ok(endpoint) => {
                    let uri = crate::deliver::check_url(&endpoint.settings.url).ok();
                    let means = endpoint.means.as_ref().ok();
                    let refused = uri.zip(means).and_then(|(uri, means)| {
                        let checked = means.way.check(&uri, &self.targets, self.is_proxied);
                        checked.err()
                    });
                    refused.map(|refused| format!("the endpoint {name} is not called: {refused}"))
                }
            };
            let paused = || {
                let name = EndpointName::new(name).ok()?;
                self.catalogue.breakers().why_closed(&name)
            };
            return unusable.or_else(paused).map(Closed);
        }
        if text.strip_prefix(NOWHERE).is_some() {
            return Some(Closed("the queue has no endpoint".to_owned()));
        }
        let target = text.strip_prefix(REFUSED)?;
        let uri = target.parse::<Uri>().ok()?;
        let refused = self.check(&uri).err()?;
        Some(Closed(refused.to_string()))
    }

    fn route_by(&self, known: &Resources, name: &TimerName, payload: &[u8]) -> Route {
        // What cannot be read is settled by the attempt.
        let Some((place, extras)) = Job::glance(payload) else {
            return Route::default();
        };
        let queue = known
            .queue(&name.queue)
            .and_then(|entry| entry.what.as_deref());
        // Also where it has no limits now: a limit counts what runs when it is set.
        let mut flows = vec![Flow::new(format!("{QUEUE}{}", name.queue))];
        let of_queue = queue.and_then(|queue| queue.endpoint.as_deref());
        let is_pulled = queue.is_some_and(|queue| queue.mode == Mode::Pull);
        let own = match place {
            _ if is_pulled => None,
            job::Place::Url(url) => self.of_url(url),
            job::Place::Endpoint(named) => Some(match named.or(of_queue) {
                Some(endpoint) => Flow::new(format!("{ENDPOINT}{endpoint}")),
                None => Flow::new(format!("{NOWHERE}{}", name.queue)),
            }),
        };
        if payload.len() > LARGE_FROM && !is_pulled {
            let to = own.as_ref().map_or("", Flow::as_str);
            flows.extend([Flow::new(LARGE), Flow::new(format!("{LARGE_TO}{to}"))]);
        }
        flows.extend(own);
        let Extras {
            serial_key,
            priority,
            ..
        } = extras;
        flows.extend(serial_key.map(|key| Flow::new(format!("{SERIAL}{} {key}", name.queue))));
        let of_queue = queue.and_then(|queue| queue.priority);
        let priority = priority.or(of_queue).unwrap_or_default();
        Route {
            flows,
            priority,
            lease: is_pulled.then(|| pull::flow_of(&name.queue)),
        }
    }

    /// The flow of a URL; `None` if it is none, which the attempt settles.
    fn of_url(&self, url: &str) -> Option<Flow> {
        let uri = crate::deliver::check_url(url).ok()?;
        let (host, port) = (uri.host()?.to_ascii_lowercase(), port_of_url(&uri));
        if self.check(&uri).is_err() {
            let scheme = uri.scheme_str()?;
            return Some(Flow::new(format!("{REFUSED}{scheme}://{host}:{port}/")));
        }
        Some(Flow::new(format!("{host}:{port}")))
    }
}

/// The host and the port to which a flow leads, if it leads to one.
fn place_of_flow(known: &Resources, flow: &Flow) -> Option<Place> {
    let text = flow.as_str();
    if let Some(name) = text.strip_prefix(ENDPOINT) {
        let name = EndpointName::new(name).ok()?;
        let endpoint = known.endpoint(&name)?.what.as_ref()?;
        let url = crate::deliver::check_url(&endpoint.settings.url).ok()?;
        return Place::of(&url, endpoint.means.as_ref().ok()?.way.number);
    }
    let is_of_url = ![QUEUE, NOWHERE, REFUSED, SERIAL]
        .iter()
        .any(|kind| text.starts_with(kind));
    is_of_url.then(|| Place::on_the_way_of_all(text))
}

impl Flows for DeliveryLimits {
    fn route(&self, name: &TimerName, payload: &[u8]) -> Route {
        self.route_by(&self.catalogue.known(), name, payload)
    }

    fn lease(&self, flow: &Flow) -> Option<Duration> {
        let queue = flow.as_str().strip_prefix(PULL)?;
        self.desk.grant(&QueueName::from_text(queue).ok()?)
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        let known = self.catalogue.known();
        if self.why_closed(&known, flow).is_some() {
            return FlowLimits {
                at_once: Some(0),
                ..FlowLimits::default()
            };
        }
        let looks = place_of_flow(&known, flow).and_then(|place| {
            let blocked = self.catalogue.blocked();
            blocked.at_once(&place, self.catalogue.now())
        });
        let text = flow.as_str();
        if let Some(queue) = text.strip_prefix(PULL) {
            let asks = QueueName::from_text(queue).is_ok_and(|queue| self.desk.asks(&queue));
            return FlowLimits {
                at_once: (!asks).then_some(0),
                ..FlowLimits::default()
            };
        }
        if text.starts_with(SERIAL) {
            return FlowLimits {
                at_once: Some(1),
                ..FlowLimits::default()
            };
        }
        let of_process = match text {
            LARGE => Some(LARGE_AT_ONCE),
            _ => text.starts_with(LARGE_TO).then_some(LARGE_TO_ONE),
        };
        if of_process.is_some() {
            return FlowLimits {
                at_once: of_process,
                ..FlowLimits::default()
            };
        }
        let whole = Whole::in_known(&self.catalogue, &known, flow);
        let loans = self.loans.get();
        let lent = |lending| loans.and_then(|loans| loans.count(flow, lending));
        let at_once = whole.places.map(|places| {
            let lent = lent(Lending::Places);
            lent.map_or_else(|| self.part.of_places(places), |lent| lent.min(places))
        });
        let rate = whole.rate.map(|rate| match lent(Lending::Starts) {
            Some(lent) => FlowRate::part(rate.fill(), lent.min(rate.burst)),
            None => self.part.of_rate(rate),
        });
        match looks {
            Some(looks) => FlowLimits {
                at_once: Some(looks),
                rate,
                shared: false,
            },
            None => FlowLimits {
                at_once,
                rate,
                shared: whole.shared,
            },
        }
    }
}

/// The limits of a flow on all nodes together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Whole {
    places: Option<u32>,
    rate: Option<Rate>,
    shared: bool,
}

impl Whole {
    pub(crate) fn of(catalogue: &Catalogue, flow: &Flow) -> Self {
        Self::in_known(catalogue, &catalogue.known(), flow)
    }

    fn in_known(catalogue: &Catalogue, known: &Resources, flow: &Flow) -> Self {
        let (text, ceilings) = (flow.as_str(), catalogue.ceilings());
        if let Some(queue) = text.strip_prefix(QUEUE) {
            let queue = QueueName::from_text(queue).ok();
            let entry = queue.and_then(|queue| known.queue(&queue));
            let queue = entry.and_then(|entry| entry.what.as_deref());
            return Self {
                places: queue.and_then(|queue| ceilings.concurrency_of(queue.concurrency)),
                rate: queue.and_then(|queue| queue.rate),
                shared: false,
            };
        }
        let name = text.strip_prefix(ENDPOINT);
        let name = name.and_then(|name| EndpointName::new(name).ok());
        let probes = name
            .as_ref()
            .and_then(|name| catalogue.breakers().at_once(name));
        let entry = name.and_then(|name| known.endpoint(&name));
        let endpoint = entry.and_then(|entry| entry.what.as_deref());
        let places = endpoint.and_then(|it| ceilings.concurrency_of(it.settings.concurrency));
        Self {
            places: probes.or(places),
            rate: endpoint.and_then(|it| it.settings.rate),
            shared: probes.is_none(),
        }
    }

    /// How many there are to lend.
    pub(crate) fn of_lending(self, lending: Lending) -> Option<u32> {
        match lending {
            Lending::Places => self.places,
            Lending::Starts => self.rate.map(|rate| rate.burst),
        }
    }
}

impl Rate {
    /// The time in which the whole burst comes back.
    fn fill(self) -> Duration {
        let seconds = f64::from(self.burst) / self.per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(owned: u32, of: u32) -> Part {
        Part {
            owned: AtomicU32::new(owned),
            of: AtomicU32::new(of),
        }
    }

    #[test]
    fn the_parts_of_nodes_are_no_more_than_the_limit_but_for_one_each() {
        for places in [1, 2, 7, 64, 1_000_000] {
            let nodes = [part(21, 64), part(21, 64), part(22, 64)];
            let sum: u32 = nodes.iter().map(|node| node.of_places(places)).sum();
            assert!(sum <= places.max(3), "{sum} of {places}");
        }
        assert_eq!(part(64, 64).of_places(7), 7);
        // A node that owns nothing has no timers, and a part that nobody asks for.
        assert_eq!(part(0, 64).of_places(64), 1);
    }

    #[test]
    fn a_part_of_a_rate_has_longer_intervals() {
        let rate = Rate {
            per_second: 100.0,
            burst: 10,
        };
        let whole = part(64, 64).of_rate(rate);
        assert_eq!(
            (whole.interval(), whole.burst()),
            (Duration::from_millis(10), 10)
        );
        let half = part(32, 64).of_rate(rate);
        assert_eq!(
            (half.interval(), half.burst()),
            (Duration::from_millis(20), 5)
        );
        let slow = Rate {
            per_second: 0.001,
            burst: 1,
        };
        let interval = part(1, 1).of_rate(slow).interval();
        assert_eq!(interval, Duration::from_secs(1_000));
    }
}
