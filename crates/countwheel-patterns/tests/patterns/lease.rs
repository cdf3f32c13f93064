//! Leases: ELV-2, ELV-3 and defect 35, the leases of section 2.8, and the guards of 2.12.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use countwheel::{Layout, ManualClock, ManualHost, Overload, Pool, Resolution, Timer, Timestamp};
use countwheel_patterns::WatchError;
use countwheel_patterns::broker::{Lease, LeaseConfig, Leases};

use super::support::{Desk, HOUR, Journal, MS, Presence, Random, SECOND, manual, ticks_of};

const MINUTE: Duration = Duration::from_secs(60);

/// No limit, no second look, no stalls: the wheel alone.
fn bare(duration: Duration) -> LeaseConfig {
    LeaseConfig::new(duration)
        .percent_per_period(100, MINUTE)
        .second_look(Duration::ZERO)
        .stall_period(Duration::ZERO)
        .tick(Resolution::MILLISECOND)
}

fn simulated(config: LeaseConfig) -> (ManualHost, Leases<u64>, Journal<u64>) {
    let host = manual(MS, Layout::Hierarchical);
    let (leases, journal) = leases_on(host.timer(), config);
    (host, leases, journal)
}

fn leases_on(timer: &Timer, config: LeaseConfig) -> (Leases<u64>, Journal<u64>) {
    let journal = Journal::new();
    let log = journal.clone();
    let leases = Leases::new(timer.clone(), config, move |key: &u64| log.write(*key));
    (leases, journal)
}

fn grant(leases: &Leases<u64>, count: u64) -> Vec<Lease<u64>> {
    (0..count).map(|key| leases.grant(key).unwrap()).collect()
}

fn adds_up(leases: &Leases<u64>) {
    let stats = leases.stats();
    let ended = stats.released + stats.evicted;
    assert_eq!(stats.granted, stats.live + ended, "{stats:?}");
    assert!(stats.suspects <= stats.live, "{stats:?}");
}

#[test]
fn a_lease_lasts_for_its_duration_once() {
    // ELV-3, defect 35: renew stores now + duration, so real expiry = 2 x duration; wall clock.
    let (mut host, leases, evicted) = simulated(bare(90 * SECOND));
    let lease = leases.grant(1).unwrap();
    host.advance(60 * SECOND);
    assert!(lease.renew());
    host.clock().set_timestamp(Timestamp::MAX);
    host.advance(90 * SECOND - MS);
    assert!(evicted.take().is_empty());
    assert_eq!(lease.remaining(), MS);
    host.advance(MS);
    assert_eq!(evicted.take(), [1]);
    assert!(lease.is_evicted() && !lease.renew() && lease.remaining() > Duration::ZERO);
    adds_up(&leases);
}

#[test]
fn renewals_move_nothing_and_the_lease_goes_back_for_the_rest() {
    // 2.8 Lease, KEY-10: on fire re-arm with the remainder.
    let (mut host, leases, evicted) = simulated(bare(MINUTE));
    let lease = leases.grant(1).unwrap();
    host.advance(MINUTE / 2);
    let before = host.timer().stats();
    for _ in 0..500_000 {
        assert!(lease.renew());
        assert!(lease.renew_at(host.timer().now()));
    }
    assert_eq!((host.timer().stats(), leases.stats().looks), (before, 0));
    host.advance(MINUTE);
    assert_eq!((leases.stats().looks, evicted.take()), (2, vec![1]));
}

#[test]
fn leases_last_as_long_as_each_was_granted_for() {
    let (mut host, leases, evicted) = simulated(bare(MINUTE));
    let mut held = grant(&leases, 2);
    held.push(leases.grant_for(2, 2 * MINUTE).unwrap());
    held.push(leases.grant_for(3, Duration::MAX).unwrap());
    held[1].set_duration(3 * MINUTE);
    host.advance(MINUTE);
    assert_eq!(evicted.take(), [0]);
    host.advance(MINUTE);
    assert_eq!(evicted.take(), [2]);
    held[3].set_duration(MINUTE); // passed already
    host.run_due();
    assert_eq!(evicted.take(), [3]);
    host.advance(HOUR);
    assert_eq!(evicted.take(), [1]);
    assert_eq!(*held[1].key(), 1);
}

#[test]
fn the_second_look_saves_who_is_only_late() {
    // 2.8 HEAD eviction: double check before cancel.
    let config = bare(MINUTE).second_look(2 * SECOND);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 2);
    host.advance(MINUTE);
    host.advance(SECOND);
    assert_eq!(leases.stats().suspects, 2);
    assert!(held[0].renew());
    host.advance(SECOND);
    assert_eq!(evicted.take(), [1]);
    assert_eq!((leases.stats().spared, leases.stats().suspects), (1, 0));
    host.advance(MINUTE + SECOND - MS);
    assert!(evicted.take().is_empty());
    host.advance(MS);
    assert_eq!(
        evicted.take(),
        [0],
        "a minute after its renewal, and two seconds"
    );
    adds_up(&leases);
}

#[test]
fn nobody_is_looked_at_a_second_time_too_soon() {
    // One that runs out just before the others' second look has all of its own.
    let config = bare(MINUTE).second_look(2 * SECOND);
    let (mut host, leases, evicted) = simulated(config);
    let _early = leases.grant(0).unwrap();
    host.advance(SECOND);
    let _late = leases.grant(1).unwrap();
    host.advance(MINUTE + SECOND);
    assert_eq!(evicted.take(), [0]);
    host.advance(SECOND - MS);
    assert!(evicted.take().is_empty());
    host.advance(MS);
    assert_eq!(evicted.take(), [1]);
}

#[test]
fn at_most_a_share_is_evicted_in_a_period() {
    // ELV-2: at most 15 % of the registry per run of 60 s, in random order.
    let evictions = |seed| {
        let config = LeaseConfig::new(MINUTE)
            .tick(Resolution::MILLISECOND)
            .seed(seed);
        let (mut host, leases, evicted) = simulated(config);
        let _held = grant(&leases, 1_000);
        host.advance(MINUTE + SECOND + 2 * MS);
        let first = evicted.take();
        assert_eq!(first.len(), 150);
        assert_eq!(leases.stats().suspects, 850);
        host.advance(MINUTE - 3 * MS);
        assert!(evicted.take().is_empty());
        host.advance(3 * MS);
        assert_eq!(evicted.take().len(), 127, "15 % of 850");
        host.advance(MINUTE);
        assert_eq!(evicted.take().len(), 108);
        assert_eq!(leases.stats().held_back, 3);
        adds_up(&leases);
        host.advance(HOUR);
        assert_eq!(
            leases.stats().evicted,
            1_000,
            "one at least, until the last"
        );
        first
    };
    let first = evictions(1);
    assert_eq!(first, evictions(1), "the same seed");
    assert_ne!(first, evictions(2));
    let below = first.iter().filter(|&&key| key < 500).count();
    assert!((50..100).contains(&below), "{below}: not the first to come");
}

#[test]
fn who_renews_while_waiting_for_the_next_period_stays() {
    // ELV-2 and the race in it: evictions renewed meanwhile are dropped.
    let config = LeaseConfig::new(MINUTE).tick(Resolution::MILLISECOND);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 100);
    host.advance(MINUTE + 2 * SECOND);
    assert_eq!(evicted.take().len(), 15);
    for _ in 0..10 {
        let renewed = held.iter().filter(|lease| lease.renew()).count();
        assert_eq!(renewed, 85);
        host.advance(MINUTE / 2);
    }
    assert!(evicted.take().is_empty());
    assert_eq!(leases.stats().suspects, 0);
    host.advance(2 * MINUTE);
    assert_eq!(evicted.take().len(), 12 + 10);
}

#[test]
fn a_stall_counts_against_nobody() {
    // ELV-2: compensation = max(0, elapsed - period), added to each lease.
    let config = LeaseConfig::new(90 * SECOND).percent_per_period(100, MINUTE);
    let config = config.tick(Resolution::MILLISECOND);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 1_000);
    host.advance(30 * SECOND);
    host.clock().advance(HOUR);
    host.run_due();
    host.advance(SECOND);
    assert!(evicted.take().is_empty());
    let stats = leases.stats();
    assert_eq!((stats.stalls, stats.stalled), (1, HOUR - SECOND));
    assert_eq!(held[0].remaining(), 90 * SECOND - 30 * SECOND - 2 * SECOND);
    for lease in &held[1..] {
        lease.renew();
    }
    host.advance(59 * SECOND);
    assert_eq!(
        evicted.take(),
        [0],
        "58 s and the second look: it had its time"
    );
    host.advance(90 * SECOND);
    assert_eq!(evicted.take().len(), 999);

    // A stall that is noticed only when a lease runs out, and several of them.
    let _lease = leases.grant_for(5, MINUTE).unwrap();
    for _ in 0..3 {
        host.clock().advance(10 * MINUTE);
        host.run_due();
        host.advance(SECOND);
    }
    assert!(evicted.take().is_empty());
    host.advance(MINUTE);
    assert_eq!(evicted.take(), [5]);

    // Not asked for, not done.
    let (mut host, leases, evicted) = simulated(bare(MINUTE));
    let _held = grant(&leases, 3);
    host.clock().advance(HOUR);
    host.run_due();
    assert_eq!(evicted.take().len(), 3);
}

#[test]
fn a_registry_preserves_itself() {
    // ELV-2: skipped in self-preservation.
    let config = LeaseConfig::eureka().tick(Resolution::MILLISECOND);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 100);
    let renew = |host: &mut ManualHost, from: usize, minutes: u32| {
        for _ in 0..2 * minutes {
            assert!(held[from..].iter().all(Lease::renew));
            host.advance(MINUTE / 2);
        }
    };
    renew(&mut host, 16, 60);
    assert!(evicted.take().is_empty(), "16 of 100 are silent");
    assert!(leases.stats().preserved > 30);
    renew(&mut host, 10, 3);
    let mut gone = evicted.take();
    gone.sort_unstable();
    assert_eq!(
        gone,
        (0..10).collect::<Vec<_>>(),
        "ten are silent, and six came back"
    );
    adds_up(&leases);
}

#[test]
fn a_registry_that_has_just_started_evicts_nobody() {
    // 2.8 Lease: eviction enabled only 30 s after the server works.
    let config = bare(SECOND).resume_after(30 * SECOND);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 3);
    host.advance(30 * SECOND - MS);
    assert!(evicted.take().is_empty());
    held[1].renew();
    host.advance(MS);
    let mut gone = evicted.take();
    gone.sort_unstable();
    assert_eq!(gone, [0, 2]);
    host.advance(SECOND);
    assert_eq!(evicted.take(), [1]);
    assert_eq!(
        LeaseConfig::sofa(),
        LeaseConfig::new(15 * MINUTE).resume_after(30 * SECOND)
    );
}

#[test]
fn those_who_are_gathered_go_by_chance() {
    let config = LeaseConfig::new(MINUTE)
        .tick(Resolution::MILLISECOND)
        .gather(10 * SECOND)
        .seed(4);
    let (mut host, leases, evicted) = simulated(config);
    let mut held = Vec::new();
    for key in 0..100 {
        held.push(leases.grant(key).unwrap());
        host.advance(100 * MS);
    }
    host.advance(MINUTE + SECOND);
    let gone = evicted.take();
    assert_eq!(gone.len(), 15);
    assert!(gone.iter().any(|&key| key > 50), "{gone:?}");
}

#[test]
fn what_is_released_is_freed_at_once() {
    let mut host = manual(MS, Layout::Hierarchical);
    let config = LeaseConfig::new(MINUTE).percent_per_period(1, HOUR);
    let leases = Leases::new(host.timer().clone(), config, |_: &Presence| {});
    let presence = Presence::default();
    let lease = leases.grant(presence.clone()).unwrap();
    drop(lease);
    assert!(presence.is_over());
    let _others: Vec<_> = [(); 3]
        .map(|()| leases.grant(Presence::default()).unwrap())
        .into();
    let mut suspects: Vec<_> = [(); 9]
        .map(|()| leases.grant(presence.clone()).unwrap())
        .into();
    host.advance(2 * MINUTE);
    assert_eq!((leases.stats().suspects, leases.stats().evicted), (11, 1));
    suspects.clear();
    assert!(
        leases.stats().suspects <= 5,
        "most of them; the rest when it is their turn"
    );
    host.advance(HOUR);
    assert!(presence.is_over());
    assert_eq!(leases.stats().granted, 13);
}

#[test]
fn a_handler_that_panics_has_evicted() {
    let mut host = manual(MS, Layout::Hierarchical);
    let leases = Leases::new(host.timer().clone(), bare(MINUTE), |_: &u64| {
        panic!("on purpose")
    });
    let held = grant(&leases, 3);
    host.advance(MINUTE);
    let stats = leases.stats();
    assert_eq!((stats.evicted, stats.panicked, stats.live), (3, 3, 0));
    assert!(held.iter().all(Lease::is_evicted));
}

#[test]
fn an_executor_without_room_delays_and_one_that_drops_is_asked_again() {
    for drops in [false, true] {
        let desk = Desk::with_room(0);
        let overload = if drops {
            Overload::hand_back(drop)
        } else {
            Overload::default()
        };
        let mut host = ticks_of(MS, Layout::Hierarchical)
            .executor(Arc::clone(&desk))
            .overload(overload)
            .manual(ManualClock::new());
        let (leases, evicted) = leases_on(host.timer(), bare(MINUTE));
        let held = grant(&leases, 50);
        let work_off = |host: &mut ManualHost| {
            desk.set_room(usize::MAX);
            for _ in 0..500 {
                host.advance(MS);
                desk.run_all();
            }
        };
        host.advance(2 * MINUTE);
        assert!(evicted.take().is_empty());
        held[9].renew();
        work_off(&mut host);
        assert_eq!(evicted.take().len(), 49);
        host.advance(MINUTE);
        work_off(&mut host);
        assert_eq!(evicted.take(), [9]);
        adds_up(&leases);
    }
}

#[test]
fn when_the_timer_or_the_table_ends_nobody_is_evicted() {
    let config = LeaseConfig::new(MINUTE);
    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 100);
    host.advance(MINUTE + 2 * SECOND);
    assert_eq!(evicted.take().len(), 15);
    host.timer().stop();
    assert!(matches!(leases.grant(1), Err(WatchError::Closed(1))));
    assert_eq!(leases.stats().suspects, 0);
    assert!(!held.iter().any(Lease::renew) || leases.len() == 85);
    drop(held);
    adds_up(&leases);

    let (mut host, leases, evicted) = simulated(config);
    let held = grant(&leases, 100);
    host.advance(MINUTE + 2 * SECOND);
    assert_eq!(evicted.take().len(), 15);
    leases.clone().stop();
    host.advance(HOUR);
    assert_eq!((evicted.take(), leases.len()), (vec![], 85));
    drop(leases);
    assert_eq!(held.iter().filter(|lease| lease.renew()).count(), 85);
    let weak = host.timer().downgrade();
    drop((held, host));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_handler_may_grant_renew_and_release() {
    let mut host = manual(MS, Layout::Hierarchical);
    type Slot = Arc<Mutex<(Option<Leases<u64>>, Vec<Lease<u64>>)>>;
    let slot: Slot = Arc::default();
    let theirs = Arc::clone(&slot);
    let leases = Leases::new(host.timer().clone(), bare(MINUTE), move |key: &u64| {
        let mut slot = theirs.lock().unwrap();
        let again = slot.0.as_ref().unwrap().grant(*key + 10).unwrap();
        assert!(again.renew());
        slot.1.clear();
        slot.1.push(again);
    });
    slot.lock().unwrap().1 = grant(&leases, 2);
    slot.lock().unwrap().0 = Some(leases.clone());
    host.advance(3 * MINUTE);
    let stats = leases.stats();
    assert_eq!((stats.evicted, stats.released, stats.live), (3, 1, 1));
    assert_eq!(stats.panicked, 0);
    let (table, held) = std::mem::take(&mut *slot.lock().unwrap());
    drop((table, held));
    adds_up(&leases);
}

#[test]
fn without_limits_it_is_as_a_plain_model_says() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let second_look = random.below(5);
        let config = bare(MINUTE).second_look(Duration::from_millis(second_look));
        let (mut host, leases, evicted) = simulated(config);
        // By key: last renewal, duration, since when a suspect.
        let mut plain: BTreeMap<u64, (u64, u64, Option<u64>)> = BTreeMap::new();
        let mut held: BTreeMap<u64, Lease<u64>> = BTreeMap::new();
        let mut now = 0;
        for key in 0..60 {
            let chosen = random.below(key + 1);
            match random.below(6) {
                0..=2 => {
                    let duration = 1 + random.below(30);
                    let granted = leases.grant_for(key, Duration::from_millis(duration));
                    plain.insert(key, (now, duration, None));
                    held.insert(key, granted.unwrap());
                }
                3 => {
                    plain.remove(&chosen);
                    held.remove(&chosen);
                }
                _ => {
                    if let Some(lease) = held.get(&chosen) {
                        let there = plain.get_mut(&chosen);
                        assert_eq!(lease.renew(), there.is_some());
                        if let Some(there) = there {
                            there.0 = now;
                        }
                    }
                }
            }
            let span = random.below(12);
            host.run_due();
            host.advance(Duration::from_millis(span));
            let mut expected = Vec::new();
            for at in now..=now + span {
                plain.retain(|&key, (renewed, duration, suspect)| {
                    let is_out = at >= *renewed + *duration;
                    match *suspect {
                        None if is_out => *suspect = Some(at),
                        Some(since) if at >= since + second_look && !is_out => *suspect = None,
                        _ => {}
                    }
                    let gone = suspect.is_some_and(|since| at >= since + second_look);
                    if gone {
                        expected.push(key);
                    }
                    !gone
                });
            }
            now += span;
            let mut gone = evicted.take();
            gone.sort_unstable();
            expected.sort_unstable();
            assert_eq!(gone, expected, "seed {seed} at {now}");
            adds_up(&leases);
        }
    }
}

#[test]
fn with_all_limits_and_stalls_the_promises_hold() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let percent = u32::try_from(5 + random.below(60)).unwrap();
        let millis = Duration::from_millis;
        let mut config = LeaseConfig::new(millis(20))
            .percent_per_period(percent, millis(30))
            .second_look(millis(random.below(4)))
            .gather(millis(random.below(10)))
            .stall_period(millis(2))
            .resume_after(millis(random.below(50)))
            .tick(Resolution::MILLISECOND)
            .seed(seed);
        let preserves = random.below(3) == 0;
        if preserves {
            config = config.self_preservation(50);
        }
        let (mut host, leases, evicted) = simulated(config);
        let mut held: BTreeMap<u64, (u64, Lease<u64>)> = BTreeMap::new();
        let (mut now, mut key, mut period) = (0_u64, 0, Vec::new());
        for _ in 0..60 {
            for _ in 0..random.below(6) {
                held.insert(key, (now, leases.grant(key).unwrap()));
                key += 1;
            }
            let lucky = random.below(4);
            held.retain(|key, _| !(key + lucky).is_multiple_of(17) || !now.is_multiple_of(3));
            for (key, (renewed, lease)) in &mut held {
                if (key + lucky) % 4 < 2 && lease.renew() {
                    *renewed = now;
                }
            }
            let before = leases.len();
            let span = random.below(8);
            if random.below(5) == 0 {
                host.clock().advance(millis(10 * span));
                host.run_due();
                now += 10 * span;
            } else {
                host.advance(millis(span));
                now += span;
            }
            let gone = evicted.take();
            for key in &gone {
                let (renewed, lease) = &held[key];
                assert!(now - renewed >= 20, "seed {seed}: {key} was renewed lately");
                assert!(lease.is_evicted() && !lease.renew());
            }
            period.push((now, gone.len() as u64, before));
            adds_up(&leases);
        }
        // In any 30 ms no more than two periods' shares, each of what there was at most.
        for (at, ..) in &period {
            let within = |then: &&(u64, u64, u64)| (then.0..then.0 + 30).contains(at);
            let taken: u64 = period.iter().filter(within).map(|then| then.1).sum();
            let most = period.iter().map(|then| then.2).max().unwrap() + 6;
            let share = (most * u64::from(percent) / 100).max(1);
            assert!(taken <= 2 * share, "seed {seed}: {taken} of {most}");
        }
        // And those who are silent go in the end, unless the registry preserves itself.
        held.retain(|_, (_, lease)| !lease.is_evicted());
        let renew = held.len() / 2;
        for _ in 0..300 {
            for (_, lease) in held.values().take(renew) {
                assert!(lease.renew());
            }
            host.advance(millis(10));
        }
        let left = held.values().filter(|(_, lease)| !lease.is_evicted());
        assert!(left.count() == renew || preserves, "seed {seed}");
        adds_up(&leases);
        drop(held);
        assert!(leases.is_empty());
        adds_up(&leases);
    }
}

#[test]
fn a_lease_ends_once_whatever_the_threads_do() {
    // Renew, release and expiry at the same time.
    let timer = Timer::builder()
        .executor(Pool::new(2, 1_000).unwrap())
        .build();
    let (evicted, twice) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let ended: Arc<Vec<AtomicBool>> =
        Arc::new((0..20_000).map(|_| AtomicBool::new(false)).collect());
    let (count, again, marks) = (Arc::clone(&evicted), Arc::clone(&twice), Arc::clone(&ended));
    let leases = Leases::new(timer.clone(), bare(2 * MS), move |key: &usize| {
        count.fetch_add(1, Ordering::Relaxed);
        again.fetch_or(marks[*key].swap(true, Ordering::SeqCst), Ordering::SeqCst);
    });
    thread::scope(|scope| {
        for thread in 0..4 {
            let (leases, ended) = (&leases, &ended);
            scope.spawn(move || {
                let mut held = std::collections::VecDeque::new();
                for key in (thread * 5_000)..(thread + 1) * 5_000 {
                    held.push_back(leases.grant(key).unwrap());
                    for lease in held.iter().step_by(3) {
                        if !lease.renew() {
                            assert!(lease.is_evicted());
                        }
                    }
                    if held.len() > 20 {
                        let lease: Lease<usize> = held.pop_front().unwrap();
                        let key = *lease.key();
                        let evicted = lease.is_evicted();
                        drop(lease);
                        if !evicted && ended[key].load(Ordering::SeqCst) {
                            // Between the two lines: then it was evicted, and not released.
                            continue;
                        }
                    }
                }
            });
        }
    });
    let stats = leases.stats();
    assert!(!twice.load(Ordering::SeqCst));
    assert_eq!((stats.granted, stats.live), (20_000, 0));
    assert_eq!(stats.released + stats.evicted, 20_000);
    drop(leases);
    timer.stop();
    assert_eq!(evicted.load(Ordering::Relaxed), stats.evicted);
}

#[test]
fn who_renews_during_the_evictions_of_others_stays() {
    let mut host = manual(MS, Layout::Hierarchical);
    let held: Arc<Mutex<Vec<Lease<u64>>>> = Arc::default();
    let theirs = Arc::clone(&held);
    let leases = Leases::new(host.timer().clone(), bare(MINUTE).second_look(SECOND), {
        move |_: &u64| {
            let renewed = theirs.lock().unwrap();
            assert!(renewed.iter().filter(|lease| lease.renew()).count() > 0);
        }
    });
    *held.lock().unwrap() = grant(&leases, 20);
    host.advance(MINUTE + SECOND);
    let stats = leases.stats();
    assert_eq!((stats.evicted, stats.spared, stats.panicked), (1, 19, 0));
    held.lock().unwrap().clear();
}

#[test]
fn a_key_whose_destructor_panics_does_not_end_all_evictions() {
    struct Key(bool);
    impl Drop for Key {
        fn drop(&mut self) {
            assert!(!self.0 || thread::panicking(), "on purpose");
        }
    }
    let mut host = ManualHost::new();
    let config = LeaseConfig::new(10 * SECOND)
        .percent_per_period(100, SECOND)
        .second_look(5 * SECOND);
    let leases = Leases::new(host.timer().clone(), config, |_: &Key| {});
    let held: Vec<_> = (0..5).map(|_| leases.grant(Key(false)).unwrap()).collect();
    let bad = leases.grant(Key(true)).unwrap();
    host.advance(12 * SECOND);
    assert_eq!(leases.stats().suspects, 6);
    drop(bad); // freed by the run
    host.advance(60 * SECOND);
    let later = leases.grant(Key(false)).unwrap();
    host.advance(600 * SECOND);
    let stats = leases.stats();
    drop((held, later));
    assert_eq!(stats.evicted, 6, "{stats:?}");
}

#[test]
fn a_stall_in_the_second_look_counts_against_nobody() {
    let mut host = ManualHost::new();
    let config = LeaseConfig::new(10 * SECOND).second_look(30 * SECOND);
    let leases = Leases::new(host.timer().clone(), config, |_: &u32| {});
    let lease = leases.grant(1).unwrap();
    host.advance(11 * SECOND);
    assert_eq!(leases.stats().suspects, 1);
    host.clock().advance(HOUR); // the machine sleeps
    host.run_due();
    assert!(leases.stats().stalled > 3_000 * SECOND);
    assert!(!lease.is_evicted(), "29 s of its last chance are left");
}
