//! Limits by where attempts go. `sim flows` has the worlds, these are the sentences.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::MemoryStore;
use countwheel_durable::{
    Attempt, Config, DueClock, Flow, FlowLimits, FlowRate, Flows, Record, Route, TimerName,
};

use super::window::{NOON, Run, fill, record};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The payload names the flow; each has the limits that stand here, or only its share.
#[derive(Debug, Default)]
struct Named(Mutex<BTreeMap<Flow, FlowLimits>>);

impl Named {
    fn limit(&self, flow: &str, limits: FlowLimits) {
        self.0.lock().unwrap().insert(Flow::new(flow), limits);
    }
}

impl Flows for Named {
    fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
        Flow::new(String::from_utf8_lossy(payload)).into()
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        let known = self.0.lock().unwrap();
        known.get(flow).copied().unwrap_or(FlowLimits {
            shared: true,
            ..FlowLimits::default()
        })
    }
}

fn of_flow(flow: &str, revision: u64, due: Duration) -> Record {
    let key = format!("{flow}-{revision}");
    Record {
        payload: flow.as_bytes().to_vec(),
        ..record(revision, "all", &key, NOON + due, DueClock::Wall)
    }
}

fn flow_of(attempt: &Attempt) -> String {
    String::from_utf8(attempt.payload.clone()).unwrap()
}

/// How long after their deadlines the attempts of each flow started, whatever held them.
#[derive(Default)]
struct Delays(RefCell<BTreeMap<String, Vec<Duration>>>);

impl Delays {
    fn note(&self, attempt: &Attempt) {
        let delay = attempt.started.saturating_since(attempt.due);
        let mut delays = self.0.borrow_mut();
        delays.entry(flow_of(attempt)).or_default().push(delay);
    }

    fn of(&self, flow: &str) -> Vec<Duration> {
        self.0.borrow().get(flow).cloned().unwrap_or_default()
    }
}

#[test]
fn receivers_that_hang_delay_no_other_of_their_queue() {
    let store = MemoryStore::new(7);
    let hanging = (0..3_000).map(|i| {
        let due = SECOND + MILLISECOND * u32::try_from(i).unwrap();
        of_flow(&format!("hanging-{}", i % 3), 1 + i, due)
    });
    let others = (0..970).map(|i| {
        let due = SECOND + MILLISECOND * u32::try_from(3 * i).unwrap();
        of_flow(&format!("other-{}", i % 97), 10_000 + i, due)
    });
    fill(&store, hanging.chain(others));
    let config = Config {
        max_in_flight: 64,
        flows: Some(Arc::new(Named::default())),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(10 * SECOND, |attempt| {
        delays.note(attempt);
        let hangs = flow_of(attempt).starts_with("hanging");
        (!hangs).then_some(4 * MILLISECOND)
    });
    for other in 0..97 {
        let delays = delays.of(&format!("other-{other}"));
        assert_eq!(delays, [Duration::ZERO; 10], "other-{other}");
    }
    // Three times what is left of the three quarters that a queue has: 3/10 of 48.
    let hung: Vec<_> = (0..3)
        .map(|i| delays.of(&format!("hanging-{i}")).len())
        .collect();
    assert!(hung.iter().all(|n| (13..=15).contains(n)), "{hung:?}");
}

#[test]
fn what_waits_for_a_flow_is_held_and_not_late() {
    let store = MemoryStore::new(7);
    fill(&store, (0..20).map(|i| of_flow("slow", 1 + i, SECOND)));
    let rules = Arc::new(Named::default());
    let one = FlowLimits {
        at_once: Some(1),
        ..FlowLimits::default()
    };
    rules.limit("slow", one);
    let config = Config {
        flows: Some(rules),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        assert_eq!(attempt.lateness(), Duration::ZERO);
        Some(SECOND)
    });
    let expected: Vec<_> = (0..20).map(|i| SECOND * i).collect();
    assert_eq!(delays.of("slow"), expected);
}

#[test]
fn a_flow_keeps_to_its_rate_and_to_its_burst() {
    let store = MemoryStore::new(7);
    fill(&store, (0..30).map(|i| of_flow("rated", 1 + i, SECOND)));
    let rules = Arc::new(Named::default());
    let ten = FlowLimits {
        rate: Some(FlowRate::new(10, SECOND, 5)),
        ..FlowLimits::default()
    };
    rules.limit("rated", ten);
    let config = Config {
        flows: Some(rules),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    let after_burst = (1..=25).map(|i| 100 * MILLISECOND * i);
    let expected: Vec<_> = [Duration::ZERO; 5].into_iter().chain(after_burst).collect();
    assert_eq!(delays.of("rated"), expected);
}

/// The memory for what waits has room for some twenty.
#[test]
fn a_closed_flow_fits_into_memory_and_comes_whole_when_it_opens() {
    let store = MemoryStore::new(7);
    let closed = (0..20_000).map(|i| of_flow("closed", 1 + i, SECOND));
    let others = (0..500).map(|i| {
        let due = 30 * SECOND + 5 * MILLISECOND * u32::try_from(i).unwrap();
        of_flow("other", 50_000 + i, due)
    });
    fill(&store, closed.chain(others));
    let rules = Arc::new(Named::default());
    let none = FlowLimits {
        at_once: Some(0),
        ..FlowLimits::default()
    };
    rules.limit("closed", none);
    let flows: Arc<dyn Flows> = Arc::<Named>::clone(&rules);
    let config = Config {
        window_bytes: 128 << 10,
        max_in_flight: 16,
        flows: Some(flows),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    assert_eq!(delays.of("closed"), []);
    assert_eq!(delays.of("other"), [Duration::ZERO; 500]);
    let parked = run.engine.stats().parked;
    assert!((1..100).contains(&parked), "{parked} in memory");
    let scanned = run.engine.stats().scanned;
    // It goes on by itself once it has room: nobody has to be told where it stands.
    rules.limit("closed", FlowLimits::default());
    run.engine.flows_changed();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    assert_eq!(delays.of("closed").len(), 20_000);
    run.assert_all_once("all", 20_500);
    let scanned = run.engine.stats().scanned - scanned;
    assert!(scanned < 200_000, "{scanned} entries for 20,000 timers");
}
