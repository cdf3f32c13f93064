//! Any order of calls and times, against a plain list of what should be.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel::{Instant, Layout, ManualHost, Stop};
use countwheel_patterns::{
    OwnId, RegisterError, RequestChannel, RequestError, RequestId, RequestStats, Requests, Response,
};

use crate::support::{MS, Random, layouts, manual, ns};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Completed(u64),
    Failed,
    TimedOut { sent: bool },
    Cancelled,
    Closed,
    Stopped,
}

struct Known {
    response: Option<Response<u64>>,
    own: Option<OwnId>,
    channel: Option<usize>,
    deadline: Instant,
    sent: bool,
    end: Option<End>,
}

struct World {
    host: ManualHost,
    requests: Requests<u64>,
    channels: Vec<(RequestChannel<u64>, Option<Instant>)>,
    known: BTreeMap<RequestId, Known>,
    capacity: u64,
    stopped: bool,
    expected: RequestStats,
    random: Random,
}

impl World {
    fn new(seed: u64, layout: Layout) -> Self {
        let mut random = Random(seed);
        let host = manual(MS, layout);
        let capacity = 5 + random.below(40);
        let builder = Requests::<u64>::builder(host.timer().clone()).max_in_flight(capacity);
        let requests = builder.build();
        let channels = (0..3).map(|_| (requests.channel(), None)).collect();
        Self {
            host,
            requests,
            channels,
            known: BTreeMap::new(),
            capacity,
            stopped: false,
            expected: RequestStats::default(),
            random,
        }
    }

    fn now(&self) -> Instant {
        self.host.timer().now()
    }

    fn in_flight(&self) -> u64 {
        self.known.values().filter(|one| one.end.is_none()).count() as u64
    }

    fn span(&mut self) -> Duration {
        match self.random.below(6) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            _ => ns(self.random.below(40_000_000)),
        }
    }

    fn some(&mut self) -> Option<RequestId> {
        let count = self.known.len() as u64;
        let at = usize::try_from(self.random.below(count.max(1))).unwrap();
        self.known.keys().nth(at).copied()
    }

    fn register(&mut self) {
        let limit = self.span();
        let own = (self.random.below(2) == 0).then(|| OwnId(self.random.below(8)));
        let channel = self.random.below(6);
        let channel = usize::try_from(channel).ok().filter(|&one| one < 3);
        let registered = match (channel, own) {
            (None, None) => self.requests.register(limit),
            (None, Some(own)) => self.requests.register_as(own, limit),
            (Some(channel), None) => self.channels[channel].0.register(limit),
            (Some(channel), Some(own)) => self.channels[channel].0.register_as(own, limit),
        };
        let is_taken = own.is_some_and(|own| {
            let mut known = self.known.values();
            known.any(|one| one.end.is_none() && one.own == Some(own))
        });
        let is_full = self.in_flight() >= self.capacity;
        let is_closed = channel.is_some_and(|channel| self.channels[channel].1.is_some());
        match registered {
            Ok(response) => {
                assert!(!self.stopped && !is_full && !is_taken && !is_closed);
                self.expected.registered += 1;
                let known = Known {
                    own,
                    channel,
                    deadline: self.now() + limit,
                    sent: false,
                    end: None,
                    response: None,
                };
                assert_eq!(response.deadline(), known.deadline);
                let id = response.id();
                let response = Some(response);
                let before = self.known.insert(id, Known { response, ..known });
                assert!(before.is_none(), "an id was given twice");
            }
            Err(error) => {
                self.expected.refused += 1;
                match error {
                    RegisterError::Stopped => assert!(self.stopped),
                    RegisterError::Full => assert!(is_full),
                    RegisterError::Duplicate(_) => assert!(is_taken),
                    RegisterError::ChannelClosed => assert!(is_closed),
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        let known = self.known.get_mut(&id).unwrap();
        assert_eq!(known.end, None);
        known.end = Some(end);
        let stats = &mut self.expected;
        match end {
            End::Completed(_) => stats.completed += 1,
            End::Failed => stats.failed += 1,
            End::TimedOut { sent: true } => stats.timed_out_sent += 1,
            End::TimedOut { sent: false } => stats.timed_out_unsent += 1,
            End::Cancelled => stats.cancelled += 1,
            End::Closed => stats.closed += 1,
            End::Stopped => stats.stopped += 1,
        }
    }

    fn end_where(&mut self, end: End, is: impl Fn(&Known) -> bool) {
        let found: Vec<_> = (self.known.iter())
            .filter(|(_, one)| one.end.is_none() && is(one))
            .map(|(id, one)| (*id, one.sent))
            .collect();
        for (id, sent) in found {
            let end = match end {
                End::TimedOut { .. } => End::TimedOut { sent },
                other => other,
            };
            self.end(id, end);
        }
    }

    /// Ends one request by its id, or by its own number if it has one.
    fn end_by_id(&mut self) {
        let Some(id) = self.some() else { return };
        let is_open = self.known[&id].end.is_none();
        // A number may have been taken again, so it is used only for what is in flight.
        let own = self.known[&id].own.filter(|_| is_open);
        let by_own = self.random.below(2) == 0;
        let value = self.random.next();
        let kind = self.random.below(4);
        let done = match (kind, own.filter(|_| by_own)) {
            (0, None) => self.requests.complete(id, value).is_ok(),
            (0, Some(own)) => self.requests.complete(own, value).is_ok(),
            (1, None) => self.requests.fail(id, "no").is_ok(),
            (1, Some(own)) => self.requests.fail(own, "no").is_ok(),
            (2, None) => self.requests.cancel(id),
            (2, Some(own)) => self.requests.cancel(own),
            (_, None) => self.requests.mark_sent(id),
            (_, Some(own)) => self.requests.mark_sent(own),
        };
        // What was sent at its deadline was not sent in time, whether or not it has ended yet.
        let in_time = kind < 3 || self.known[&id].deadline > self.now();
        assert_eq!(done, is_open && in_time);
        match kind {
            0 | 1 if !done => self.expected.late += 1,
            _ if !done => {}
            0 => self.end(id, End::Completed(value)),
            1 => self.end(id, End::Failed),
            2 => self.end(id, End::Cancelled),
            _ => self.known.get_mut(&id).unwrap().sent = true,
        }
    }

    fn drop_response(&mut self) {
        let Some(id) = self.some() else { return };
        let known = self.known.get_mut(&id).unwrap();
        let was_there = known.response.take().is_some();
        if was_there && known.end.is_none() {
            self.end(id, End::Cancelled);
        }
    }

    fn close_channel(&mut self) {
        let channel = usize::try_from(self.random.below(3)).unwrap();
        let grace = self.span();
        let end = self.now() + grace;
        drop(self.channels[channel].0.close(grace));
        let sooner = self.channels[channel].1.map_or(end, |known| known.min(end));
        self.channels[channel].1 = Some(sooner);
        if grace.is_zero() {
            self.end_where(End::Closed, |one| one.channel == Some(channel));
        }
    }

    /// Moves time by a step that is not a whole number of ticks. What is due within one tick
    /// may end in either way.
    fn advance(&mut self, step: Duration) {
        self.host.advance(step);
        let now = self.now();
        let settled: Vec<_> = (self.known.iter())
            .filter(|(_, one)| one.end.is_none())
            .filter_map(|(id, one)| {
                let response = one.response.as_ref();
                let ended = match response {
                    Some(response) => response.is_ended(),
                    None => unreachable!("what was dropped has ended"),
                };
                let grace = one.channel.and_then(|channel| self.channels[channel].1);
                let due = grace.map_or(one.deadline, |grace| grace.min(one.deadline));
                assert!(!ended || due <= now, "never early");
                let tick_after = due + MS;
                assert!(ended || now < tick_after, "less than a tick late");
                ended.then_some(*id)
            })
            .collect();
        for id in settled {
            let one = &self.known[&id];
            let grace = one.channel.and_then(|channel| self.channels[channel].1);
            let by_grace = grace.is_some_and(|grace| grace <= now);
            let by_deadline = one.deadline <= now;
            let response = self.known.get_mut(&id).unwrap().response.take().unwrap();
            let sent = self.known[&id].sent;
            let end = match response.wait() {
                Err(RequestError::ChannelClosed) if by_grace => End::Closed,
                Err(RequestError::TimedOut { sent: told, .. }) if by_deadline && told == sent => {
                    End::TimedOut { sent }
                }
                other => panic!("{other:?}"),
            };
            self.end(id, end);
        }
    }

    fn stop(&mut self) {
        self.advance(Duration::ZERO); // what is due times out, whoever stops
        if self.random.below(2) == 0 {
            let open = self.in_flight();
            assert_eq!(self.requests.stop(), open);
        } else {
            drop(self.host.timer().close(Stop::Drop));
        }
        self.stopped = true;
        self.end_where(End::Stopped, |_| true);
    }

    fn check(&self) {
        let mut expected = self.expected;
        expected.in_flight = self.in_flight();
        assert_eq!(self.requests.stats(), expected);
        for (number, (channel, closed)) in self.channels.iter().enumerate() {
            let on_it = (self.known.values())
                .filter(|one| one.end.is_none() && one.channel == Some(number));
            assert_eq!(channel.in_flight(), on_it.count() as u64);
            assert_eq!(
                channel.is_closed(),
                closed.is_some() || self.requests.is_stopped()
            );
        }
        for one in self.known.values() {
            if let Some(response) = &one.response {
                assert_eq!(response.is_ended(), one.end.is_some());
            }
        }
    }

    /// Everybody asks for what he got.
    fn ask_all(&mut self) {
        for one in self.known.values_mut() {
            let Some(response) = one.response.take() else {
                continue;
            };
            let end = match response.wait() {
                Ok(value) => End::Completed(value),
                Err(RequestError::Failed(_)) => End::Failed,
                Err(RequestError::TimedOut { sent, .. }) => End::TimedOut { sent },
                Err(RequestError::Cancelled) => End::Cancelled,
                Err(RequestError::ChannelClosed) => End::Closed,
                Err(RequestError::Stopped) => End::Stopped,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(Some(end), one.end);
        }
    }
}

#[test]
fn in_any_order_each_request_ends_once_and_as_it_should() {
    for seed in 0..400 {
        let layout = layouts()[usize::from(seed % 2 == 0)];
        let mut world = World::new(seed, layout);
        let steps = 50 + world.random.below(100);
        for _ in 0..steps {
            match world.random.below(40) {
                0..=14 => world.register(),
                15..=26 => world.end_by_id(),
                27..=30 => world.drop_response(),
                31 => world.close_channel(),
                32 if world.random.below(4) == 0 && !world.stopped => world.stop(),
                _ => {
                    let step = ns(world.random.below(6_000_000));
                    world.advance(step);
                }
            }
            world.check();
        }
        if !world.stopped {
            world.stop();
        }
        world.check();
        world.ask_all();
        let stats = world.requests.stats();
        let ends = stats.completed
            + stats.failed
            + stats.timed_out_unsent
            + stats.timed_out_sent
            + stats.cancelled
            + stats.closed
            + stats.stopped;
        assert_eq!(stats.registered, ends, "seed {seed}");
    }
}
