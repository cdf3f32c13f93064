//! Heartbeats: the rows of section 2.4, defect 31, and what CLK-8 asks for.

use std::future::{pending, ready};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel::{Clock, Layout, ManualClock, ManualHost, Resolution, Timer, Timestamp};
use countwheel_patterns::{
    Dead, HeartbeatConfig, HeartbeatConfigError, Heartbeats, Peer, Recovery, WatchError,
};

use super::support::{Desk, HOUR, Journal, MS, Presence, Random, SECOND, manual, ticks_of};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    Heartbeat,
    Recover(Dead),
}

/// What a peer does when it is called.
#[derive(Clone, Default)]
struct Line(Arc<State>);

#[derive(Default)]
struct State {
    said: Mutex<Vec<(u64, Said)>>,
    clock: Mutex<Option<ManualClock>>,
    is_lost: AtomicBool,
    panics: AtomicBool,
    hangs: AtomicBool,
    answers: Mutex<Vec<Recovery>>,
    presence: Presence,
}

impl Line {
    fn on(host: &ManualHost) -> Self {
        let line = Self::default();
        *line.0.clock.lock().unwrap() = Some(host.clock().clone());
        line
    }

    fn say(&self, said: Said) {
        let now = self.0.clock.lock().unwrap().as_ref().unwrap().now();
        let seconds = now.as_nanos() / 1_000_000_000;
        self.0.said.lock().unwrap().push((seconds, said));
        assert!(!self.0.panics.load(Ordering::Relaxed), "on purpose");
    }

    fn take(&self) -> Vec<(u64, Said)> {
        std::mem::take(&mut self.0.said.lock().unwrap())
    }

    fn answer(&self, answers: &[Recovery]) {
        self.0.answers.lock().unwrap().extend(answers.iter().rev());
    }

    fn lose(&self, lost: bool) {
        self.0.is_lost.store(lost, Ordering::Relaxed);
    }
}

impl Peer for Line {
    fn send_heartbeat(&self) {
        self.say(Beat);
    }

    fn is_connected(&self) -> bool {
        !self.0.is_lost.load(Ordering::Relaxed)
    }

    async fn recover(&self, dead: Dead) -> Recovery {
        self.say(Recover(dead));
        let _presence = self.0.presence.clone();
        if self.0.hangs.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        ready(()).await;
        let answer = self.0.answers.lock().unwrap().pop();
        answer.unwrap_or(Recovery::Failed)
    }
}

fn simulated(config: HeartbeatConfig) -> (ManualHost, Heartbeats<Line>, Line) {
    let host = manual(MS, Layout::Hierarchical);
    let config = config.tick(Resolution::MILLISECOND);
    let heartbeats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let line = Line::on(&host);
    (host, heartbeats, line)
}

fn adds_up(heartbeats: &Heartbeats<Line>) {
    let stats = heartbeats.stats();
    let ended = stats.closed + stats.given_up;
    assert!(stats.watched >= stats.open + stats.closed, "{stats:?}");
    assert!(stats.watched <= stats.open + ended, "{stats:?}");
    let ended = stats.restored + stats.failed + stats.given_up;
    assert!(stats.recoveries >= ended, "{stats:?}");
}

use Dead::{NotConnected, ReadIdle, WriteIdle};
use Said::{Heartbeat as Beat, Recover};

#[test]
fn timeouts_of_less_than_two_heartbeats_are_refused() {
    // 2.4 defaults: 60 s, 180 s; less than twice -> refused; here by a type.
    let dubbo = HeartbeatConfig::dubbo();
    assert_eq!(dubbo, HeartbeatConfig::new(MINUTE).idle_timeout(3 * MINUTE));
    assert_eq!(dubbo.idle_timeout(2 * MINUTE).check(), Ok(()));
    let refused = |config: HeartbeatConfig| {
        let host = ManualHost::new();
        Heartbeats::<Line>::new(host.timer().clone(), config).unwrap_err()
    };
    let timeout = 2 * MINUTE - MS;
    let heartbeat = MINUTE;
    let too_short = HeartbeatConfigError::TimeoutTooShort { timeout, heartbeat };
    assert_eq!(refused(dubbo.idle_timeout(timeout)), too_short);
    assert_eq!(
        refused(HeartbeatConfig::dubbo_server().write_timeout(timeout)),
        too_short
    );
    let heartbeat = Duration::ZERO;
    let none = refused(HeartbeatConfig::new(heartbeat));
    assert_eq!(none, HeartbeatConfigError::HeartbeatTooShort { heartbeat });
    assert!(none.to_string().contains("at least a millisecond"));
}

#[test]
fn a_heartbeat_is_sent_when_nothing_was_read_or_nothing_written() {
    // 2.4 Heartbeat: now - lastRead > heartbeat or now - lastWrite > heartbeat; lag none
    // instead of a third.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connection = heartbeats.watch(line.clone()).unwrap();
    for _ in 0..20 {
        host.advance(MINUTE / 2);
        connection.touch();
    }
    assert_eq!(line.take(), [], "traffic in both directions");
    for _ in 0..2 {
        host.advance(MINUTE / 2);
        connection.read();
    }
    assert_eq!(line.take(), [(660, Beat)], "nothing written");
    for _ in 0..2 {
        connection.wrote();
        host.advance(MINUTE / 2);
    }
    // Read at 660, written at 690: the read side is due at 720.
    assert_eq!(line.take(), [(720, Beat)]);
    connection.touch();
    let wake_ups = heartbeats.stats().looks;
    host.advance(MINUTE);
    assert_eq!(line.take(), [(780, Beat)]);
    assert!(
        heartbeats.stats().looks - wake_ups <= 2,
        "and no checks between"
    );
    assert_eq!(heartbeats.stats().heartbeats, 3);
}

#[test]
fn who_is_silent_is_reconnected_and_again_after_a_pause() {
    // 2.4 Reconnect: lastRead idle > idle timeout -> reconnect; at least 60 s between.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connection = heartbeats.watch(line.clone()).unwrap();
    line.answer(&[Recovery::Failed, Recovery::Failed, Recovery::Restored]);
    host.advance(6 * MINUTE - MS);
    let dead = |minutes| Recover(ReadIdle(minutes * MINUTE));
    let expected = [
        (60, Beat),
        (120, Beat),
        (180, dead(3)),
        (240, dead(4)),
        (300, dead(5)),
    ];
    assert_eq!(line.take(), expected);
    host.advance(MS);
    assert_eq!(line.take(), [(360, Beat)], "as of a new connection");
    let stats = heartbeats.stats();
    assert_eq!((stats.recoveries, stats.failed, stats.restored), (3, 2, 1));
    connection.read();
    assert!(!connection.is_recovering());
    adds_up(&heartbeats);
}

#[test]
fn who_is_not_connected_is_reconnected() {
    // 2.4 Reconnect: not connected -> reconnect().
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connection = heartbeats.watch(line.clone()).unwrap();
    host.advance(MINUTE / 2);
    line.lose(true);
    connection.check_now();
    line.answer(&[Recovery::Failed, Recovery::Failed]);
    host.run_due();
    assert_eq!(
        line.take(),
        [(30, Recover(NotConnected))],
        "at once, if told"
    );
    connection.check_now();
    host.run_due();
    assert_eq!(line.take(), [], "but not without the pause");
    host.advance(MINUTE);
    assert_eq!(line.take(), [(90, Recover(NotConnected))]);
    line.lose(false); // it came back by itself
    connection.touch();
    host.advance(2 * MINUTE);
    assert_eq!(line.take(), [(150, Beat), (210, Beat)]);

    // Not told: noticed when the next heartbeat would be due.
    connection.touch();
    line.lose(true);
    host.advance(MINUTE);
    assert_eq!(line.take(), [(270, Recover(NotConnected))]);
}

#[test]
fn a_server_closes_who_has_not_been_read_from_or_written_to() {
    // 2.4 Close (server): lastRead or lastWrite older than close timeout -> close.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo_server());
    line.answer(&[Recovery::Closed, Recovery::Closed]);
    let (reads, writes) = (
        heartbeats.watch(line.clone()).unwrap(),
        heartbeats.watch(line.clone()).unwrap(),
    );
    let both = heartbeats.watch(line.clone()).unwrap();
    for _ in 0..6 {
        host.advance(MINUTE - MS);
        reads.read();
        writes.wrote();
        both.touch();
        host.advance(MS);
    }
    let said = line.take();
    assert_eq!(said.len(), 2);
    assert!(said.contains(&(180, Recover(WriteIdle(3 * MINUTE)))));
    assert!(said.contains(&(180, Recover(ReadIdle(3 * MINUTE)))));
    let stats = heartbeats.stats();
    assert_eq!((stats.open, stats.given_up, stats.closed), (1, 2, 0));
    drop((reads, writes, both));
    let stats = heartbeats.stats();
    assert_eq!((stats.open, stats.given_up, stats.closed), (0, 2, 1));
    host.advance(HOUR);
    assert_eq!(line.take(), []);
}

#[test]
fn a_peer_that_panics_is_looked_after_as_before() {
    // Defect 31: a throw from the channel provider stops heartbeats for ever.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connection = heartbeats.watch(line.clone()).unwrap();
    line.0.panics.store(true, Ordering::Relaxed);
    host.advance(2 * MINUTE + MINUTE / 2);
    assert_eq!(line.take(), [(60, Beat), (120, Beat)]);
    assert_eq!(heartbeats.stats().panicked, 2);
    host.advance(2 * MINUTE);
    let said: Vec<_> = line.take().iter().map(|said| said.0).collect();
    assert_eq!(said, [180, 240], "recoveries that panic have failed");
    assert_eq!(heartbeats.stats().failed, 2);
    line.0.panics.store(false, Ordering::Relaxed);
    connection.touch();
    host.advance(MINUTE);
    assert_eq!(line.take(), [(330, Beat)]);

    struct Bad;
    impl Peer for Bad {
        fn send_heartbeat(&self) {}
        fn is_connected(&self) -> bool {
            panic!("on purpose")
        }
        async fn recover(&self, _dead: Dead) -> Recovery {
            panic!("on purpose")
        }
    }
    let config = HeartbeatConfig::dubbo();
    let heartbeats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let _bad = heartbeats.watch(Bad).unwrap();
    host.advance(10 * MINUTE);
    let stats = heartbeats.stats();
    assert_eq!(
        (stats.heartbeats, stats.failed, stats.recovering),
        (2, 8, 0)
    );
}

#[test]
fn a_slow_recovery_holds_up_nobody_and_is_alone() {
    // 2.4: reconnect() blocks the shared wheel thread; never two at a time.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let slow = Line::on(&host);
    slow.0.hangs.store(true, Ordering::Relaxed);
    let stuck = heartbeats.watch(slow.clone()).unwrap();
    let connection = heartbeats.watch(line.clone()).unwrap();
    for _ in 0..60 {
        host.advance(MINUTE);
        connection.touch();
        stuck.check_now();
    }
    assert_eq!(line.take().len(), 60);
    let said = slow.take();
    assert_eq!(said[2..], [(180, Recover(ReadIdle(3 * MINUTE)))]);
    assert!(stuck.is_recovering() && heartbeats.stats().recovering == 1);

    assert!(!slow.0.presence.is_over());
    drop(stuck);
    assert!(
        slow.0.presence.is_over(),
        "nobody wants it back: cancel frees at once"
    );
    assert_eq!(Arc::strong_count(&slow.0), 1);
    assert_eq!(
        (heartbeats.stats().recovering, heartbeats.stats().failed),
        (0, 1)
    );
    adds_up(&heartbeats);
}

#[test]
fn a_recovery_that_the_executor_has_no_room_for_comes_later() {
    let desk = Desk::with_room(0);
    let mut host = ticks_of(MS, Layout::Hierarchical)
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let config = HeartbeatConfig::dubbo();
    let heartbeats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let line = Line::on(&host);
    line.answer(&[Recovery::Restored]);
    let _connection = heartbeats.watch(line.clone()).unwrap();
    host.advance(10 * MINUTE);
    desk.set_room(usize::MAX);
    for _ in 0..5 {
        host.advance(MS);
        desk.run_all();
    }
    let said: Vec<_> = line.take().into_iter().map(|said| said.1).collect();
    // All that time the executor did not run, but the host did: that is no stall.
    assert!(matches!(said[..], [Recover(ReadIdle(_))]), "{said:?}");
    assert_eq!(heartbeats.stats().restored, 1);
}

#[test]
fn other_times_take_effect_at_once() {
    // 2.4 reset(url): the client ignores it.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let _connection = heartbeats.watch(line.clone()).unwrap();
    host.advance(50 * SECOND);
    heartbeats
        .set_config(HeartbeatConfig::new(20 * SECOND))
        .unwrap();
    host.advance(10 * SECOND);
    let at_once = [(50, Beat), (60, Recover(ReadIdle(MINUTE)))];
    assert_eq!(line.take(), at_once);
    heartbeats
        .set_config(HeartbeatConfig::new(HOUR).recovery_pause(HOUR))
        .unwrap();
    host.advance(59 * MINUTE);
    assert_eq!(line.take(), [(3600, Beat)]);
    let refused = heartbeats.set_config(HeartbeatConfig::new(HOUR).idle_timeout(HOUR));
    assert!(refused.is_err());
}

#[test]
fn the_wall_clock_may_do_what_it_likes() {
    // CLK-8: the stamps are wall-clock times in Dubbo.
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let _connection = heartbeats.watch(line.clone()).unwrap();
    for micros in [0, u64::MAX / 2, 1] {
        host.clock().set_timestamp(Timestamp::from_micros(micros));
        host.advance(MINUTE / 2);
    }
    assert_eq!(line.take(), [(60, Beat)]);
}

#[test]
fn a_stall_makes_nobody_dead() {
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connections: Vec<_> = (0..500)
        .map(|_| heartbeats.watch(line.clone()).unwrap())
        .collect();
    host.advance(MINUTE / 2);
    host.clock().advance(HOUR);
    host.run_due();
    host.advance(SECOND);
    assert_eq!(line.take(), [], "they sent, but nobody was there to read");
    let stats = heartbeats.stats();
    assert_eq!((stats.stalls, stats.stalled), (1, HOUR - SECOND));
    for connection in &connections[1..] {
        connection.touch();
    }
    host.advance(150 * SECOND);
    let recovered = line.take();
    let dead = |said: &(u64, Said)| matches!(said.1, Recover(_));
    let dead: Vec<_> = recovered.into_iter().filter(dead).collect();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].1, Recover(ReadIdle(3 * MINUTE)));

    // Not asked for, not done.
    let config = HeartbeatConfig::dubbo().stall_period(Duration::ZERO);
    let (mut host, heartbeats, line) = simulated(config);
    let _connection = heartbeats.watch(line.clone()).unwrap();
    host.clock().advance(HOUR);
    host.run_due();
    assert_eq!(line.take(), [(3600, Recover(ReadIdle(HOUR)))]);
    host.advance(SECOND);
    assert_eq!(heartbeats.stats().stalls, 0);
}

#[test]
fn jitter_spreads_what_began_together() {
    let config = HeartbeatConfig::dubbo().jitter_percent(20);
    let (mut host, heartbeats, line) = simulated(config);
    let _connections: Vec<_> = (0..200)
        .map(|_| heartbeats.watch(line.clone()).unwrap())
        .collect();
    host.advance(MINUTE);
    let mut seconds: Vec<_> = line.take().iter().map(|said| said.0).collect();
    assert_eq!(seconds.len(), 200);
    assert!(seconds.iter().all(|second| (48..=60).contains(second)));
    seconds.dedup();
    assert!(seconds.len() > 8, "{seconds:?}");
}

#[test]
fn when_the_timer_stops_it_is_all_over() {
    let (mut host, heartbeats, line) = simulated(HeartbeatConfig::dubbo());
    let connection = heartbeats.watch(line.clone()).unwrap();
    line.lose(true);
    line.0.hangs.store(true, Ordering::Relaxed);
    connection.check_now();
    host.run_due();
    assert!(connection.is_recovering());
    host.timer().stop();
    let refused = heartbeats.watch(line.clone()).unwrap_err();
    assert!(matches!(refused, WatchError::Closed(_)));
    connection.check_now();
    drop(connection);
    assert!(line.0.presence.is_over());
    let stats = heartbeats.stats();
    assert_eq!((stats.open, stats.closed, stats.recovering), (0, 1, 0));
    assert!(format!("{refused:?} {refused} {heartbeats:?}").contains("stopped"));
}

#[test]
fn a_peer_takes_what_is_said() {
    let host = manual(MS, Layout::Hierarchical);
    struct Small(u64);
    impl Peer for Small {
        fn send_heartbeat(&self) {
            assert!(self.0 < u64::MAX);
        }
        async fn recover(&self, _dead: Dead) -> Recovery {
            Recovery::Failed
        }
    }
    let config = HeartbeatConfig::dubbo();
    let heartbeats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let empty = heartbeats.memory_bytes();
    let peers: Vec<_> = (0..100_000)
        .map(|number| heartbeats.watch(Small(number)).unwrap())
        .collect();
    let each = (heartbeats.memory_bytes() - empty) / peers.len();
    assert!(each <= 160, "{each} bytes");
}

/// One peer, as anybody would write it down, in whole milliseconds.
struct Plain {
    last: [u64; 2],
    lost: bool,
    called: bool,
    looked: u64,
    pause_until: u64,
    answers: Random,
}

#[test]
fn any_interleaving_is_as_a_plain_model_says() {
    const BEAT: u64 = 10;
    const TIMEOUTS: [u64; 2] = [30, 45];
    const PAUSE: u64 = 17;
    let millis = Duration::from_millis;
    let config = HeartbeatConfig::new(millis(BEAT))
        .write_timeout(millis(TIMEOUTS[1]))
        .recovery_pause(millis(PAUSE))
        .stall_period(Duration::ZERO)
        .tick(Resolution::MILLISECOND);

    struct Answering {
        log: Journal<(u64, Option<Dead>)>,
        lost: AtomicBool,
        id: u64,
        answers: Mutex<Random>,
    }
    fn answer(random: &mut Random) -> Recovery {
        [Recovery::Failed, Recovery::Restored][usize::try_from(random.below(2)).unwrap()]
    }
    impl Peer for Answering {
        fn send_heartbeat(&self) {
            self.log.write((self.id, None));
        }
        fn is_connected(&self) -> bool {
            !self.lost.load(Ordering::Relaxed)
        }
        async fn recover(&self, dead: Dead) -> Recovery {
            self.log.write((self.id, Some(dead)));
            let answer = answer(&mut self.answers.lock().unwrap());
            if answer == Recovery::Restored {
                self.lost.store(false, Ordering::Relaxed);
            }
            answer
        }
    }

    let beats = AtomicU64::new(0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut host = manual(MS, Layout::Hierarchical);
        let heartbeats = Heartbeats::new(host.timer().clone(), config).unwrap();
        let log = Journal::new();
        let mut now = 0;
        let mut peers = Vec::new();
        for _ in 0..30 {
            if peers.len() < 4 && random.below(4) == 0 {
                let seed = random.next();
                let peer = Answering {
                    log: log.clone(),
                    lost: AtomicBool::new(false),
                    id: seed,
                    answers: Mutex::new(Random(seed)),
                };
                let plain = Plain {
                    last: [now; 2],
                    lost: false,
                    called: false,
                    looked: now,
                    pause_until: 0,
                    answers: Random(seed),
                };
                peers.push((plain, heartbeats.watch(peer).unwrap()));
            }
            let count = peers.len() as u64;
            if count > 0 {
                let chosen = usize::try_from(random.below(count)).unwrap();
                let (plain, handle) = &mut peers[chosen];
                match random.below(8) {
                    0 => {
                        plain.last[0] = now;
                        handle.read();
                    }
                    1 => {
                        plain.last[1] = now;
                        handle.wrote();
                    }
                    2 => {
                        plain.last = [now; 2];
                        handle.touch();
                    }
                    3 => {
                        plain.lost = !plain.lost;
                        plain.called = true;
                        handle.peer().lost.store(plain.lost, Ordering::Relaxed);
                        handle.check_now();
                    }
                    4 => drop(peers.swap_remove(chosen)),
                    _ => {}
                }
            }
            let span = random.below(25);
            host.run_due();
            host.advance(millis(span));
            let mut expected = Vec::new();
            for at in now..=now + span {
                for (plain, handle) in &mut peers {
                    let idle = plain.last.map(|last| at - last);
                    let dead = if plain.lost {
                        Some(NotConnected)
                    } else if idle[0] >= TIMEOUTS[0] {
                        Some(ReadIdle(millis(idle[0])))
                    } else {
                        (idle[1] >= TIMEOUTS[1]).then(|| WriteIdle(millis(idle[1])))
                    };
                    let multiples = |at: u64| plain.last.map(|last| at.saturating_sub(last) / BEAT);
                    let (said, is_said) = (multiples(plain.looked), multiples(at));
                    let beats = (0..2).any(|side| is_said[side] > said[side]);
                    // Who is known to be lost is not looked at during the pause.
                    let is_due = dead.is_some() && at >= plain.pause_until;
                    if is_due || !plain.lost || std::mem::take(&mut plain.called) {
                        plain.looked = at;
                    }
                    if is_due {
                        expected.push((handle.peer().id, dead));
                        if answer(&mut plain.answers) == Recovery::Restored {
                            plain.last = [at; 2];
                            plain.pause_until = 0;
                            plain.lost = false;
                        } else {
                            plain.pause_until = at + PAUSE;
                        }
                    } else if beats && !plain.lost {
                        expected.push((handle.peer().id, None));
                    }
                }
            }
            now += span;
            let mut seen = log.take();
            seen.sort_by_key(|said| said.0);
            expected.sort_by_key(|said| said.0);
            assert_eq!(seen, expected, "seed {seed}");
            beats.fetch_add(seen.len() as u64, Ordering::Relaxed);
        }
        let stats = heartbeats.stats();
        assert_eq!(stats.watched, stats.open + stats.closed);
        assert_eq!(stats.recoveries, stats.restored + stats.failed);
    }
    assert!(beats.load(Ordering::Relaxed) > 10_000);
}

#[test]
fn a_peer_that_says_restored_and_is_not_connected_is_no_hot_loop() {
    struct Liar(Arc<AtomicUsize>);
    impl Peer for Liar {
        fn send_heartbeat(&self) {}
        fn is_connected(&self) -> bool {
            false
        }
        async fn recover(&self, _dead: Dead) -> Recovery {
            if self.0.fetch_add(1, Ordering::SeqCst) > 5_000 {
                Recovery::Closed
            } else {
                Recovery::Restored
            }
        }
    }
    let mut host = ManualHost::new();
    let beats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let peer = beats.watch(Liar(Arc::clone(&tries))).unwrap();
    peer.check_now();
    host.run_due();
    assert!(
        tries.load(Ordering::SeqCst) < 10,
        "{} attempts in no time",
        tries.load(Ordering::SeqCst)
    );
}

struct Quiet;
impl Peer for Quiet {
    fn send_heartbeat(&self) {}
    async fn recover(&self, _dead: Dead) -> Recovery {
        Recovery::Restored
    }
}

#[test]
fn a_stall_makes_no_quick_peer_dead() {
    let mut host = ManualHost::new();
    let config = HeartbeatConfig::new(100 * MS);
    assert_eq!(config.check(), Ok(()));
    let beats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let peer = beats.watch(Quiet).unwrap();
    for _ in 0..20 {
        host.advance(50 * MS);
        peer.touch();
    }
    host.clock().advance(10 * SECOND); // this process does not run
    host.run_due();
    assert_eq!(beats.stats().recoveries, 0);
}

#[test]
fn a_coarse_timer_does_not_slow_time_down() {
    let tick = Resolution::new(5 * SECOND).unwrap();
    let mut host = Timer::builder().resolution(tick).manual(ManualClock::new());
    let beats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
    let _peer = beats.watch(Quiet).unwrap();
    host.advance(200 * SECOND);
    let stats = beats.stats();
    assert_eq!((stats.recoveries, stats.stalls), (1, 0), "{stats:?}");
}
