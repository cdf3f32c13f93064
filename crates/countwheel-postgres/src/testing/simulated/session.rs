//! A connection to the simulated server, and what goes wrong on it.

use std::time::Duration;

use countwheel_cluster::{Node, NodeId};
use countwheel_durable::store::{Fence, Filter, Shard};
use countwheel_durable::{
    DueClock, QueueName, Revision, SettingName, SettingValue, Settings, SettingsVersion, StateKind,
    Wake,
};
use countwheel_time::Timestamp;

use super::statement::{TimerRow, TurnOf, Written};
use super::tables::{Done, Tables};
use super::{IN_VAIN_MAX, Simulated, SimulatedFaults, SimulatedPostgres};
use crate::bits::Bits;
use crate::body;
use crate::front::Lows;
use crate::planted::planted;
use crate::ring::{Ring, Slots};
use crate::session::{
    Became, Beside, Counted, DueRow, Entry, Failure, Given, Kind, LastTurn, ListRows, Made,
    OwnerRow, Reach, RecordRow, Refusal, Registered, SavedCounts, Session, Take, Taken,
    TakenAtOnce, TakenOver, Wished,
};

/// How long a client waits for an answer before it gives the statement up.
const WAITS: Duration = Duration::from_secs(WAITS_SECONDS);
/// Whole ones, as what is slow takes: clocks that drift by whole millionths show whole microseconds then,
/// and who predicts them needs no allowance.
const WAITS_SECONDS: u64 = 5;

/// So many losses are said at the most, as by the real statement.
const LOSSES_MAX: usize = 64;

pub(super) struct SimulatedSession {
    server: SimulatedPostgres,
    /// The server's history when the connection was opened.
    timeline: i32,
}

/// What becomes of a statement.
enum Way {
    Done,
    Away,
    RequestLost,
    AnswerLost,
    /// It is done before so many other statements.
    Late(u64),
    Refused(Refusal),
}

impl Simulated {
    /// True once in `times`, never if it is zero.
    fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.random.below(times) == 0
    }

    /// Another statement is on its way: what is late may come before it, unless the server hangs.
    fn go_on(&mut self) {
        if self.hangs_for > 0 {
            return;
        }
        let mut at = 0;
        while at < self.late.len() {
            if self.late[at].0 == 0 {
                let (_, written) = self.late.remove(at);
                self.come(&written);
            } else {
                self.late[at].0 -= 1;
                at += 1;
            }
        }
    }

    /// A statement that nobody waits for any more is done, or refused.
    pub(super) fn come(&mut self, written: &Written) {
        let _nobody_hears = self.tables.write(written);
    }

    /// What becomes of the next statement.
    fn way(&mut self, writes: bool) -> Way {
        let way = self.draw_way(writes);
        let struck = &mut self.struck;
        match &way {
            Way::Done => {}
            Way::Away => struck.away += 1,
            Way::RequestLost => struck.request_lost += 1,
            Way::AnswerLost => struck.answer_lost += 1,
            Way::Late(_) if self.hangs_for > 0 => struck.hangs += 1,
            Way::Late(_) => struck.late += 1,
            Way::Refused(refusal) if refusal.is_full() => struck.full += 1,
            Way::Refused(_) => struck.refused += 1,
        }
        way
    }

    fn draw_way(&mut self, writes: bool) -> Way {
        let faults = self.faults;
        if self.hangs_for == 0 && self.one_in(faults.hangs) {
            self.hangs_for = 2 + self.random.below(12);
        }
        if self.hangs_for > 1 {
            self.hangs_for -= 1;
            return Way::Late(self.random.below(4));
        }
        self.hangs_for = 0;
        if self.one_in(faults.full) {
            self.full_for = 1 + self.random.below(12);
        }
        if self.one_in(faults.away) {
            return Way::Away;
        }
        if self.one_in(faults.request_lost) {
            return Way::RequestLost;
        }
        if self.one_in(faults.late) {
            let reach = [1, 4, 40, 400][usize::try_from(self.random.below(4)).unwrap_or(0)];
            return Way::Late(self.random.below(reach));
        }
        self.full_for = self.full_for.saturating_sub(1);
        if writes && self.full_for > 0 {
            return Way::Refused(Refusal {
                code: "53100".to_owned(),
                message: "could not extend file".to_owned(),
            });
        }
        if self.one_in(faults.refused) {
            let codes = ["40001", "40P01", "55P03", "57014"];
            let code = codes[usize::try_from(self.random.below(4)).unwrap_or(0)];
            return Way::Refused(Refusal {
                code: code.to_owned(),
                message: "not now".to_owned(),
            });
        }
        match self.one_in(faults.answer_lost) {
            true => Way::AnswerLost,
            false => Way::Done,
        }
    }
}

impl SimulatedSession {
    pub(super) fn new(server: SimulatedPostgres) -> Self {
        Self {
            server,
            timeline: 1,
        }
    }

    fn ring(&self) -> Ring {
        self.server.shared.cluster.ring
    }

    /// The way of the next statement. A connection to a server that is no more ends.
    fn way(&mut self, simulated: &mut Simulated, writes: bool) -> Way {
        if self.server.is_observer {
            return Way::Done;
        }
        simulated.go_on();
        self.delay(simulated);
        let timeline = simulated.tables.timeline;
        let is_old = std::mem::replace(&mut self.timeline, timeline) != timeline;
        let may_fail = simulated.faults != SimulatedFaults::default();
        if is_old && may_fail && simulated.one_in(2) {
            simulated.struck.request_lost += 1;
            return Way::RequestLost;
        }
        simulated.way(writes)
    }

    /// A statement, or an answer, is on its way for longer, at times.
    fn delay(&self, simulated: &mut Simulated) {
        if !self.server.is_observer && simulated.one_in(simulated.faults.slow) {
            simulated.struck.slow += 1;
            let seconds = 1 + simulated.random.below(WAITS_SECONDS / 2);
            (self.server.shared.pass)(Duration::from_secs(seconds));
        }
    }

    /// A statement that reads.
    fn read_once<T>(&mut self, read: &impl Fn(&Tables) -> T) -> Result<T, Failure> {
        let server = self.server.clone();
        let mut simulated = server.shared.simulated.lock();
        let way = self.way(&mut simulated, false);
        match way {
            Way::Done => {
                let found = read(&simulated.tables);
                self.delay(&mut simulated);
                Ok(found)
            }
            Way::Away => Err(away()),
            Way::Late(_) => {
                drop(simulated);
                self.pause(WAITS);
                Err(broken())
            }
            Way::RequestLost | Way::AnswerLost => Err(broken()),
            Way::Refused(refusal) => Err(Failure::Refused(refusal)),
        }
    }

    /// The same as the real session does it: what may be done twice is asked again.
    fn read<T>(&mut self, read: impl Fn(&Tables) -> T) -> Result<T, Failure> {
        match self.read_once(&read) {
            Err(Failure::Broken(_)) => self.read_once(&read),
            read => read,
        }
    }

    /// A statement that writes, and whether the server warns of it.
    fn write(&mut self, mut written: Written) -> Result<(Done, bool), Failure> {
        let server = self.server.clone();
        let mut simulated = server.shared.simulated.lock();
        let way = self.way(&mut simulated, true);
        match way {
            Way::Away => Err(away()),
            Way::RequestLost => Err(broken()),
            Way::Late(before) => {
                match &mut written {
                    Written::Turns(turns) if planted!(PostgresNoLock) => {
                        for turn in turns {
                            turn.has_passed = simulated.tables.is_permitted(turn);
                        }
                    }
                    Written::TakeOver {
                        shard,
                        node,
                        looked,
                        ..
                    } if planted!(PostgresOwnerUnlocked) => {
                        *looked = simulated.tables.look_at_owner(*shard, *node).ok();
                    }
                    _ => {}
                }
                simulated.late.push((before, written));
                drop(simulated);
                self.pause(WAITS);
                Err(broken())
            }
            Way::Refused(refusal) => Err(Failure::Refused(refusal)),
            Way::Done | Way::AnswerLost => {
                let tail = simulated.tables.unreplicated;
                let done = simulated.tables.write(&written).map_err(Failure::Refused)?;
                let mut is_warned = false;
                let is_made = match &done {
                    Done::Take(fence) => fence.is_some(),
                    Done::TakeOver(taken) => matches!(taken, Ok(Some(_))),
                    Done::Turns(shards) | Done::TakenAtOnce(shards) => !shards.is_empty(),
                    Done::Registered(seen) => seen.is_joined,
                    Done::Given(is_given) => *is_given,
                    Done::Marked(_) | Done::Wished(_) | Done::Nothing => false,
                };
                let odds = simulated.faults.unreplicated;
                if is_made && simulated.one_in(odds) {
                    is_warned = true;
                    simulated.struck.unreplicated += 1;
                    simulated.tables.unreplicated = tail + 1;
                }
                if let Done::Turns(shards) = &done {
                    simulated.in_vain = if shards.is_empty() {
                        simulated.in_vain + 1
                    } else {
                        0
                    };
                    assert!(
                        simulated.in_vain < IN_VAIN_MAX,
                        "a turn is asked for without an end"
                    );
                }
                self.delay(&mut simulated);
                match way {
                    Way::AnswerLost => Err(broken()),
                    _ => Ok((done, is_warned)),
                }
            }
        }
    }
}

impl SimulatedSession {
    /// The same as the real session does it: what may be done twice is asked again.
    fn write_again(&mut self, written: Written) -> Result<(Done, bool), Failure> {
        match self.write(written.clone()) {
            Err(Failure::Broken(_)) => self.write(written),
            done => done,
        }
    }

    fn register(&mut self, written: Written) -> Result<Registered, Failure> {
        match self.write_again(written)? {
            (Done::Registered(seen), unreplicated) => Ok(Registered {
                unreplicated,
                ..*seen
            }),
            _ => Err(away()),
        }
    }
}

fn away() -> Failure {
    Failure::Away("the simulated server is away".to_owned())
}

fn broken() -> Failure {
    Failure::Broken("the simulated connection broke".to_owned())
}

fn wake(at: u64, revision: u64) -> Wake {
    Wake {
        at: Timestamp::from_micros(at),
        revision: Revision(revision),
    }
}

fn record(row: &TimerRow) -> RecordRow {
    RecordRow {
        queue: row.queue.clone(),
        key: row.key.clone(),
        revision: Revision(row.revision),
        due: Timestamp::from_micros(row.due),
        state: row.state,
        body: row.body.clone(),
        payload: row.payload.clone(),
    }
}

fn kind_of(row: &TimerRow, ring: Ring) -> Option<Kind> {
    let keep_until = Timestamp::from_micros(row.wake.unwrap_or_default());
    Some(Kind::of(body::kind_of(row.state)?, keep_until, ring))
}

const LAST: Bits = Bits([255; 16]);
const FIRST: Bits = Bits([0; 16]);

impl Session for SimulatedSession {
    fn turn(&mut self, entries: &[Entry<'_, '_>]) -> Result<Made, Failure> {
        let ring = self.ring();
        let turns: Result<_, _> = entries.iter().map(|it| TurnOf::of(it, ring)).collect();
        match self.write(Written::Turns(turns?))? {
            (Done::Turns(shards), unreplicated) => Ok(Made {
                shards,
                unreplicated,
            }),
            _ => Ok(Made::default()),
        }
    }

    fn became(&mut self, shard: Shard, token: Bits, seq: i64) -> Result<Option<Became>, Failure> {
        self.read(|tables| {
            let owner = tables.shard(shard)?;
            let turn = tables.turns.get(&(shard, seq));
            Some(Became {
                is_ours: owner.token == Some(token),
                fence: owner.fence,
                writes: turn
                    .filter(|row| row.token == Some(token))
                    .map(|row| row.writes),
                has_before: tables.turns.contains_key(&(shard, seq - 1)),
                timeline: tables.timeline,
            })
        })
    }

    fn take(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: Bits,
    ) -> Result<Option<Taken>, Failure> {
        let take = Written::Take {
            shard,
            after,
            token,
            node,
        };
        match self.write_again(take)? {
            (Done::Take(fence), unreplicated) => Ok(fence.map(|fence| Taken {
                fence,
                unreplicated,
            })),
            _ => Ok(None),
        }
    }

    fn take_over(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
    ) -> Result<TakenOver, Failure> {
        let take = Written::TakeOver {
            shard,
            after,
            token,
            node,
            looked: None,
        };
        Ok(match self.write_again(take)? {
            (Done::TakeOver(Ok(Some(fence))), unreplicated) => TakenOver::Taken(Taken {
                fence,
                unreplicated,
            }),
            (Done::TakeOver(Err(name)), _) => TakenOver::Held(name),
            _ => TakenOver::Moved,
        })
    }

    fn take_at_once(&mut self, takes: &[Take], node: NodeId) -> Result<TakenAtOnce, Failure> {
        let held = {
            let mut simulated = self.server.shared.simulated.lock();
            let odds = simulated.faults.refused.div_ceil(4);
            let takes = takes.iter().map(|(shard, ..)| *shard);
            takes.filter(|_| simulated.one_in(odds)).collect()
        };
        let takes = takes.to_vec();
        let take = Written::TakeAtOnce { takes, node, held };
        match self.write_again(take)? {
            (Done::TakenAtOnce(shards), unreplicated) => Ok(TakenAtOnce {
                shards,
                unreplicated,
            }),
            _ => Err(away()),
        }
    }

    fn join(&mut self, node: &Node, lease: i64) -> Result<Registered, Failure> {
        let node = node.clone();
        self.register(Written::Join { node, lease })
    }

    fn renew(&mut self, node: NodeId, lease: i64) -> Result<Registered, Failure> {
        self.register(Written::Renew { node, lease })
    }

    fn view(&mut self, node: NodeId) -> Result<Registered, Failure> {
        self.read(|tables| tables.registered(tables.member(node).is_some()))
    }

    fn give(
        &mut self,
        shard: Shard,
        of: (Fence, Option<Bits>),
        to: Option<NodeId>,
    ) -> Result<Given, Failure> {
        let give = Written::Give { shard, of, to };
        let (done, unreplicated) = match self.write(give.clone()) {
            Err(Failure::Broken(_)) => match planted!(PostgresGivenByHalf) {
                true => self.write(give),
                false => self.write(give).map_err(Failure::again),
            },
            given => given,
        }?;
        Ok(Given {
            is_given: matches!(done, Done::Given(true)),
            unreplicated,
        })
    }

    fn leave(&mut self, node: NodeId) -> Result<(), Failure> {
        self.write_again(Written::Leave(node)).map(drop)
    }

    fn mark_draining(&mut self, name: &str, is_draining: bool) -> Result<bool, Failure> {
        let name = name.to_owned();
        let (done, _) = self.write_again(Written::MarkDraining { name, is_draining })?;
        Ok(matches!(done, Done::Marked(true)))
    }

    fn want(&mut self, shard: Option<Shard>, node: Option<&str>) -> Result<Wished, Failure> {
        let node = node.map(str::to_owned);
        match self.write_again(Written::Want { shard, node })? {
            (Done::Wished(wished), _) => Ok(wished),
            _ => Err(away()),
        }
    }

    fn last_turn(&mut self, shard: Shard) -> Result<Option<LastTurn>, Failure> {
        self.read(|tables| {
            let (seq, row) = tables.last_turn(shard)?;
            Some(LastTurn {
                seq,
                token: row.token,
                lows: Lows::of_bytes(row.lows.as_deref()),
                revision: Revision(row.revision),
                clock: row.clock,
                timeline: row.timeline,
                timeline_now: tables.timeline,
            })
        })
    }

    fn owner(&mut self, shard: Shard) -> Result<Option<OwnerRow>, Failure> {
        self.read(|tables| {
            let row = tables.shard(shard)?;
            Some(OwnerRow {
                fence: row.fence,
                token: row.token,
                node: row.node,
            })
        })
    }

    fn kinds(&mut self, shard: Shard, names: &[Bits]) -> Result<Vec<(Bits, Kind)>, Failure> {
        let ring = self.ring();
        self.read(|tables| {
            let kind = |hash: &Bits| {
                let row = tables.timer(shard, *hash, Slots::ALL)?;
                Some((*hash, kind_of(row, ring)?))
            };
            names.iter().filter_map(kind).collect()
        })
    }

    fn prune(&mut self, shard: Shard, seq: i64) -> Result<(), Failure> {
        self.write(Written::Prune { shard, seq }).map(drop)
    }

    fn names(
        &mut self,
        shard: Shard,
        names: &[Bits],
        reach: Reach,
        bytes: usize,
    ) -> Result<Vec<Option<RecordRow>>, Failure> {
        self.read(|tables| {
            let slots = match tables.owner(shard).token == Some(reach.token) {
                true => reach.slots,
                false => Slots::ALL,
            };
            let mut before = 0;
            let found = names.iter().map_while(|hash| {
                let row = tables.timer(shard, *hash, slots);
                let fits = before <= bytes;
                before += row.map_or(0, |row| row.payload.len());
                fits.then(|| row.map(record))
            });
            found.collect()
        })
    }

    fn due(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: (Timestamp, Revision),
        beside: Option<Beside<'_>>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueRow>, Failure> {
        let clock = body::clock_letter(clock);
        let first = (shard, clock, from.0.as_micros(), from.1.0, FIRST);
        let last = (shard, clock, until.as_micros(), u64::MAX, LAST);
        self.read(|tables| {
            let named = beside.iter().flat_map(|beside| {
                let named = move |(at, revision, _, row): &(u64, u64, Bits, &TimerRow)| {
                    let place = (Timestamp::from_micros(*at), Revision(*revision));
                    row.clock == clock && beside.from <= place && place < from && *at <= last.2
                };
                let places = beside.names.iter().filter_map(|hash| {
                    let row = tables.row((shard, *hash, None))?;
                    Some((row.wake?, row.revision, *hash, row))
                });
                places.filter(named)
            });
            let mut rows: Vec<_> = named.collect();
            rows.sort_unstable_by_key(|(at, revision, ..)| (*at, *revision));
            if first <= last {
                let entries = tables.wakes.range(first..=last);
                rows.extend(entries.filter_map(|(_, _, at, revision, hash)| {
                    Some((*at, *revision, *hash, tables.row((shard, *hash, None))?))
                }));
            }
            let rows = rows.into_iter();
            let rows = rows.filter(|(.., row)| row.state != body::letter(StateKind::Done));
            let rows = rows.take(limit);
            rows.map(|(at, revision, hash, row)| DueRow {
                hash,
                wake: wake(at, revision),
                state: row.state,
                queue: row.queue.clone(),
                key: row.key.clone(),
            })
            .collect()
        })
    }

    fn first(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: Wake,
        limit: usize,
    ) -> Result<Vec<(Wake, Bits)>, Failure> {
        let clock = body::clock_letter(clock);
        let from = (shard, clock, from.at.as_micros(), from.revision.0, FIRST);
        let last = (shard, clock, u64::MAX, u64::MAX, LAST);
        self.read(|tables| {
            let entries = tables.wakes.range(from..=last);
            let entries = entries.filter(|(.., hash)| {
                let row = tables.row((shard, *hash, None));
                row.is_some_and(|row| row.state != body::letter(StateKind::Done))
            });
            let places = entries.map(|(_, _, at, revision, hash)| (wake(*at, *revision), *hash));
            places.take(limit).collect()
        })
    }

    fn places(
        &mut self,
        shard: Shard,
        names: &[Bits],
    ) -> Result<Vec<(Bits, DueClock, Wake)>, Failure> {
        self.read(|tables| {
            let place = |hash: &Bits| {
                let row = tables.row((shard, *hash, None))?;
                if row.state == body::letter(StateKind::Done) {
                    return None;
                }
                let mut clocks = DueClock::ALL.into_iter();
                let clock = clocks.find(|clock| body::clock_letter(*clock) == row.clock)?;
                Some((*hash, clock, wake(row.wake?, row.revision)))
            };
            names.iter().filter_map(place).collect()
        })
    }

    fn list(
        &mut self,
        shard: Shard,
        filter: &Filter,
        from: (Timestamp, Revision),
        until: Timestamp,
    ) -> Result<ListRows, Failure> {
        let queue = filter.queue.as_str();
        let first = (
            shard,
            queue.to_owned(),
            from.0.as_micros(),
            from.1.0,
            FIRST,
            None,
        );
        let until = until.as_micros();
        let last = (
            shard,
            queue.to_owned(),
            until,
            u64::MAX,
            LAST,
            Some(i16::MAX),
        );
        self.read(|tables| {
            let mut page = ListRows::default();
            if first > last {
                return page;
            }
            let most = filter.scan_limit.max(1);
            let seen: Vec<_> = tables
                .lists
                .range(first.clone()..=last.clone())
                .take(most.saturating_add(1))
                .collect();
            if seen.len() > most {
                let (_, _, due, revision, ..) = seen[most - 1];
                page.seen_to = Some((Timestamp::from_micros(*due), Revision(*revision)));
            }
            let state = filter.state.map(body::letter);
            let rows = seen
                .iter()
                .take(most)
                .filter_map(|(.., hash, slot)| tables.row((shard, *hash, *slot)));
            let wanted = rows.filter(|row| {
                let prefix = filter.prefix.as_deref().unwrap_or_default();
                state.is_none_or(|state| state == row.state) && row.key.starts_with(prefix)
            });
            let mut before = 0;
            for (nth, row) in wanted.enumerate() {
                let has_room = nth < filter.limit && before < Filter::PAGE_MAX_BYTES;
                page.records.push(has_room.then(|| record(row)));
                if !has_room {
                    break;
                }
                before += row.payload.len();
            }
            page
        })
    }

    fn counts(
        &mut self,
        shard: Shard,
        kept_from: Timestamp,
    ) -> Result<Vec<(QueueName, StateKind, u64)>, Failure> {
        self.read(|tables| {
            let mut counts = std::collections::BTreeMap::new();
            for row in tables.timers(shard, FIRST, LAST) {
                let is_kept = row.wake.is_some_and(|wake| wake >= kept_from.as_micros());
                if row.state != body::letter(StateKind::Done) || is_kept {
                    *counts.entry((row.queue.as_str(), row.state)).or_default() += 1;
                }
            }
            let counts = counts.into_iter().filter_map(|((queue, state), count)| {
                let queue = QueueName::from_text(queue).ok()?;
                Some((queue, body::kind_of(state)?, count))
            });
            counts.collect()
        })
    }

    fn count(
        &mut self,
        shard: Shard,
        (first, last): (Bits, Bits),
        limit: usize,
    ) -> Result<Counted, Failure> {
        let ring = self.ring();
        self.read(|tables| {
            let mut counts = std::collections::BTreeMap::new();
            for row in tables.timers(shard, first, last).take(limit) {
                if let Some(kind) = kind_of(row, ring) {
                    *counts.entry((row.queue.as_str(), kind)).or_default() += 1;
                }
            }
            let counts = counts.into_iter().filter_map(|((queue, kind), count)| {
                Some((QueueName::from_text(queue).ok()?, kind, count))
            });
            Counted {
                seq: tables.last_turn(shard).map_or(0, |(seq, _)| seq),
                by_kind: counts.collect(),
            }
        })
    }

    fn saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure> {
        self.read(|tables| {
            let saved = tables.saved.get(&shard)?;
            let (last, row) = tables.last_turn(shard)?;
            let is_last = (saved.seq, Some(saved.token)) == (last, row.token);
            (is_last || planted!(PostgresSavedIsOld)).then(|| saved.counts.clone())
        })
    }

    fn last_saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure> {
        self.read(|tables| {
            let saved = tables.saved.get(&shard);
            saved.map(|saved| saved.counts.clone())
        })
    }

    fn save_counts(&mut self, counts: &[SavedCounts]) -> Result<(), Failure> {
        self.write(Written::Counts(counts.to_vec())).map(drop)
    }

    fn forget(&mut self, slice: u64) -> Result<bool, Failure> {
        let slot = Ring::slot(slice);
        if self.read(|tables| tables.is_empty(slot))? {
            return Ok(true);
        }
        self.write(Written::Forget(slot))?;
        self.read(|tables| tables.is_empty(slot))
    }

    fn forget_outside(&mut self, shards: &[Shard]) -> Result<(), Failure> {
        let forget = Written::ForgetOutside(shards.to_vec());
        self.write(forget).map(drop)
    }

    fn settings(&mut self, after: SettingsVersion) -> Result<Option<Settings>, Failure> {
        self.read(|tables| {
            let rows = &tables.settings;
            if rows.version == after.0 {
                return None;
            }
            let values = rows.values.iter().filter_map(|(name, (version, value))| {
                let version = SettingsVersion(*version);
                let value = value.clone();
                Some((
                    SettingName::new(name).ok()?,
                    SettingValue { version, value },
                ))
            });
            Some(Settings::new(SettingsVersion(rows.version), values))
        })
    }

    fn note_loss(&mut self, shard: Shard, seq: i64) -> Result<(), Failure> {
        let mut simulated = self.server.shared.simulated.lock();
        simulated.losses.insert((shard, seq));
        Ok(())
    }

    fn losses(&mut self) -> Result<Vec<(Shard, i64)>, Failure> {
        let simulated = self.server.shared.simulated.lock();
        Ok(simulated.losses.iter().take(LOSSES_MAX).copied().collect())
    }

    fn ping(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn pause(&mut self, pause: Duration) {
        let server = &self.server.shared;
        {
            let mut simulated = server.simulated.lock();
            simulated.in_vain = 0;
            if !self.server.is_observer {
                simulated.go_on();
            }
        }
        (server.pass)(pause);
    }
}
