//! Schedulers that wait for places: drawn from a seed, step by step, with wake-ups that come late.

use std::sync::atomic::AtomicBool;

use countwheel_time::Random;

use super::*;

const PLACES: usize = 6;

/// A scheduler, as far as places go.
struct Scheduler {
    member: Member,
    places: Places,
    due: Vec<QueueName>,
    running: Vec<QueueName>,
    woken: Arc<AtomicBool>,
    /// Places given back by anybody since it has something due and got no place.
    passed_over: u64,
}

struct World {
    budget: Budget,
    all: Vec<Scheduler>,
    random: Random,
    wakes: u64,
}

impl World {
    fn new(seed: u64, percent: u8) -> Self {
        let config = Config {
            max_in_flight: PLACES,
            queue_share_percent: percent,
            ..Config::default()
        };
        let budget = Budget::new(&config);
        let mut random = Random::new(seed);
        let all = (0..2 + random.below(6)).map(|_| {
            let (member, woken) = (budget.join(), Arc::new(AtomicBool::new(false)));
            let wakes = Arc::clone(&woken);
            member.on_room(Arc::new(move || wakes.store(true, Ordering::Relaxed)));
            Scheduler {
                places: member.places(),
                member,
                due: Vec::new(),
                running: Vec::new(),
                woken,
                passed_over: 0,
            }
        });
        Self {
            all: all.collect(),
            budget,
            random,
            wakes: 0,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        usize::try_from(self.random.below(below as u64)).unwrap_or(0)
    }

    /// As the end of a scheduler's turn.
    fn look(&mut self, at: usize) {
        loop {
            let it = &mut self.all[at];
            it.member.looks();
            if it.places.free() == 0 {
                let lacks = (!it.due.is_empty()).then_some(Lacks::Place);
                return it.member.waits(lacks);
            }
            if !it.due.iter().any(|queue| it.places.may(queue)) {
                let lacks = (!it.due.is_empty()).then_some(Lacks::Share);
                return it.member.waits(lacks);
            }
            self.start(at);
        }
    }

    fn start(&mut self, at: usize) {
        let it = &mut self.all[at];
        let mut next = 0;
        while next < it.due.len() && it.places.free() > 0 {
            if it.places.may(&it.due[next])
                && it
                    .places
                    .take(&it.due[next], &[], None, Timestamp::EPOCH)
                    .is_ok()
            {
                it.running.push(it.due.remove(next));
                it.passed_over = 0;
            } else {
                next += 1;
            }
        }
        it.member.has_started();
    }

    /// Some of its attempts end, and it starts others.
    fn turn(&mut self, at: usize) {
        for _ in 0..1 + self.draw(2) {
            if self.all[at].running.is_empty() {
                break;
            }
            let which = self.draw(self.all[at].running.len());
            let it = &mut self.all[at];
            let ended = it.running.swap_remove(which);
            it.places.give_back(&ended, &[]);
            for other in &mut self.all {
                other.passed_over += u64::from(!other.due.is_empty());
            }
        }
        self.start(at);
        self.look(at);
    }

    fn wake(&mut self) -> bool {
        let woken = (0..self.all.len()).filter(|at| self.all[*at].woken.load(Ordering::Relaxed));
        let woken: Vec<_> = woken.collect();
        if woken.is_empty() {
            return false;
        }
        let at = woken[self.draw(woken.len())];
        self.all[at].woken.store(false, Ordering::Relaxed);
        self.wakes += 1;
        self.look(at);
        true
    }

    /// Where nobody is to be woken, nobody could start anything.
    fn nobody_sleeps_in_vain(&mut self) {
        while self.wake() {}
        let state = self.budget.0.state.lock();
        assert_eq!((state.promised, state.freed), (0, 0));
        let running: usize = self.all.iter().map(|it| it.running.len()).sum();
        assert_eq!(state.in_flight, running);
        drop(state);
        assert!(running <= PLACES);
        for it in &self.all {
            let may = it.due.iter().any(|queue| it.places.may(queue));
            assert!(running == PLACES || !may, "{:?} of {running} run", it.due);
        }
    }
}

/// Returns how many were woken, and how many attempts ran.
fn live(seed: u64) -> (u64, u64) {
    let percent = [100, 75, 40][usize::try_from(seed % 3).unwrap_or(0)];
    let mut world = World::new(seed, percent);
    let queues = ["a", "b", "c"].map(|name| QueueName::new(name).unwrap());
    let mut ran = 0;
    for step in 0..600 {
        let at = world.draw(world.all.len());
        match world.draw(10) {
            0..4 if world.all[at].due.len() < 20 => {
                let queue = queues[world.draw(queues.len())].clone();
                world.all[at].due.push(queue);
                world.look(at);
            }
            4..8 => {
                ran += 1;
                world.turn(at);
            }
            8 => _ = world.wake(),
            _ => world.nobody_sleeps_in_vain(),
        }
        if step == 400 && world.draw(3) == 0 {
            // It ends; what runs of it is given back.
            let it = world.all.swap_remove(at);
            drop(it.member);
            it.running
                .iter()
                .for_each(|queue| it.places.give_back(queue, &[]));
            it.places.wake_waiting();
        }
    }
    world.nobody_sleeps_in_vain();
    (world.wakes, ran)
}

fn nobody_sleeps_beside_a_place() {
    let (mut wakes, mut ran) = (0, 0);
    for seed in 0..2_000 {
        let (of_seed, turns) = live(seed);
        (wakes, ran) = (wakes + of_seed, ran + turns);
    }
    assert!(wakes > ran / 10, "{wakes} {ran}");
    assert!(wakes < ran, "{wakes} wake-ups in {ran} turns");
}

/// Each takes its places again, since more is always due. None waits for long all the same.
fn everybody_has_a_turn() {
    let mut world = World::new(7, 100);
    let queue = QueueName::new("a").unwrap();
    for at in 0..world.all.len() {
        world.all[at].due = vec![queue.clone(); 10_000];
        world.look(at);
    }
    for _ in 0..2_000 {
        let at = world.draw(world.all.len());
        world.turn(at);
        while world.wake() {}
        let most = world.all.iter().map(|it| it.passed_over).max();
        let bound = 4 * PLACES as u64 + 2 * world.all.len() as u64;
        assert!(
            most.is_some_and(|most| most <= bound),
            "{most:?} of {bound}"
        );
    }
}

#[test]
fn where_a_place_is_free_nobody_waits_for_one() {
    nobody_sleeps_beside_a_place();
}

#[test]
fn nobody_sees_all_places_go_to_others_for_long() {
    everybody_has_a_turn();
}

#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_with_waiting_is_found() {
    use crate::PlantedBug;

    for bug in PlantedBug::OF_WAITING {
        crate::plant(Some(*bug));
        let checks = [nobody_sleeps_beside_a_place, everybody_has_a_turn];
        let mut found = checks
            .iter()
            .map(|check| std::panic::catch_unwind(check).is_err());
        let is_found = found.any(|it| it);
        crate::plant(None);
        assert!(is_found, "{bug:?}");
    }
}

/// The parts of a rate that a process has of it.
#[derive(Debug)]
struct Part(AtomicU64);

impl Flows for Part {
    fn route(&self, _: &crate::TimerName, _: &[u8]) -> crate::Route {
        crate::Route::default()
    }

    fn limits(&self, _: &Flow) -> FlowLimits {
        let starts = u32::try_from(self.0.load(Ordering::Relaxed)).unwrap();
        FlowLimits {
            rate: Some(crate::FlowRate::part(FILL, starts)),
            ..FlowLimits::default()
        }
    }
}

const FILL: Duration = Duration::from_secs(4);

#[test]
fn another_part_of_a_rate_begins_no_burst_and_what_was_used_is_told() {
    let budget = Budget::new(&Config::default());
    let member = budget.join();
    let (mut places, queue, flow) = (
        member.places(),
        QueueName::new("q").unwrap(),
        Flow::new("rated"),
    );
    let part = Part(AtomicU64::new(2));
    let zero = Timestamp::from_micros(1_000_000_000);
    places.count_from(zero);
    let second = Duration::from_secs(1);
    let take = |seconds: u32| {
        let flows = std::slice::from_ref(&flow);
        places.take(&queue, flows, Some(&part), zero + second * seconds)
    };
    let is_to_wait = |taken, seconds: u32| {
        let expected = Lacking::Flow(0, May::At(zero + second * seconds));
        assert_eq!(taken, Err(expected));
    };
    let has = |starts| {
        part.0.store(starts, Ordering::Relaxed);
        budget.limits_of_flows_changed(std::slice::from_ref(&flow));
    };
    let used = |seconds: u64| {
        let now = Instant::from_nanos(seconds * 1_000_000_000);
        budget.flows_used(std::slice::from_ref(&flow), now)[0]
    };
    assert_eq!((take(10), take(10)), (Ok(()), Ok(())));
    is_to_wait(take(10), 12);
    let now = used(10);
    assert_eq!((now.running, now.most, now.started), (2, 2, 2));
    assert_eq!((now.waits, now.fills_in), (true, FILL));
    // Two more: these start at once, and those that were used do not.
    has(4);
    assert_eq!((take(10), take(10)), (Ok(()), Ok(())));
    is_to_wait(take(10), 11);
    // One is left: it was used.
    has(1);
    is_to_wait(take(10), 14);
    // None is left. What was used is to be seen until there are some again: whoever gives them has waited.
    has(0);
    assert_eq!(take(11), Err(Lacking::Flow(0, May::Later)));
    assert_eq!(used(11).fills_in, 3 * second);
    has(1);
    assert_eq!(take(11), Ok(()));
    is_to_wait(take(11), 15);
    for _ in 0..5 {
        places.give_back(&queue, std::slice::from_ref(&flow));
    }
    let before = used(11);
    assert_eq!((before.running, before.most, before.started), (0, 5, 1));
    assert_eq!((used(11).most, used(11).started), (0, 0));
}

/// Rates that change.
#[derive(Default, Debug)]
struct Changing(Mutex<FlowLimits>);

impl Flows for Changing {
    fn route(&self, _: &crate::TimerName, _: &[u8]) -> crate::Route {
        crate::Route::default()
    }

    fn limits(&self, _: &Flow) -> FlowLimits {
        *self.0.lock()
    }
}

#[test]
fn a_bucket_keeps_its_level_when_its_rate_changes() {
    let budget = Budget::new(&Config::default());
    let member = budget.join();
    let (places, queue) = (member.places(), QueueName::new("q").unwrap());
    let flow = Flow::new("rated");
    let rules = Changing::default();
    let second = Duration::from_secs(1);
    let turn_to = |rate: Option<(u32, u32)>| {
        let rate = rate.map(|(seconds, burst)| crate::FlowRate::new(1, second * seconds, burst));
        // A flow that is closed has no rate.
        let at_once = rate.is_none().then_some(0);
        *rules.0.lock() = FlowLimits {
            at_once,
            rate,
            ..FlowLimits::default()
        };
    };
    // How many start at once, and when the next one may.
    let starts = |seconds: u32| {
        let flows = std::slice::from_ref(&flow);
        let mut started = 0;
        loop {
            let at = Timestamp::EPOCH + second * seconds;
            match places.take(&queue, flows, Some(&rules), at) {
                Ok(()) => started += 1,
                Err(Lacking::Flow(0, May::At(at))) => {
                    let at = at.saturating_since(Timestamp::EPOCH).as_secs();
                    return (started, Some(at));
                }
                Err(_) => return (started, None),
            }
        }
    };
    turn_to(Some((10, 5)));
    assert_eq!(starts(1_000), (5, Some(1_010)));
    // A shorter interval, and half of the next start is there.
    turn_to(Some((4, 5)));
    assert_eq!(starts(1_005), (0, Some(1_007)));
    turn_to(Some((4, 50)));
    assert_eq!(starts(1_007), (1, Some(1_011)));
    // Of two that are there, one is left with the smaller burst, and none comes back with the larger one.
    turn_to(Some((4, 1)));
    assert_eq!(starts(1_015), (1, Some(1_019)));
    turn_to(Some((4, 50)));
    assert_eq!(starts(1_015), (0, Some(1_019)));
    // A closed bucket fills on.
    turn_to(None);
    assert_eq!(starts(1_015), (0, None));
    turn_to(Some((4, 50)));
    assert_eq!(starts(1_019), (1, Some(1_023)));
    // A full one has no more starts at once because its burst is larger; they come at the rate.
    turn_to(Some((4, 2)));
    assert_eq!(starts(1_023), (1, Some(1_027)));
    turn_to(Some((4, 9)));
    assert_eq!(starts(1_047), (6, Some(1_051)));
}
