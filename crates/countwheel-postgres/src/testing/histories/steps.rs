//! What is asked of both servers, and how it is drawn.
//!
//! A step names owners, turns and fences by what is there when its time comes. So a step still means
//! something where others before it are left out.

use std::fmt::Debug;
use std::iter;

use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Before, Change, ClockNote, Fence, Filter, Shard};
use countwheel_durable::{
    DueClock, Record, Revision, Setting, SettingName, SettingsVersion, State, StateKind, TimerName,
    Wake,
};
use countwheel_time::{Random, Timestamp};

use crate::bits::Bits;
use crate::commit::{Held, Turn};
use crate::front::{Low, Lows};
use crate::hash::NameHash;
use crate::session::{Beside, Entry, Failure, Reach, Session};

#[derive(Clone, Debug)]
pub(super) enum Step {
    Turn(Vec<Part>),
    /// A statement of turns is sent again, that many before the last.
    Again(usize),
    Became {
        shard: Shard,
        token: Token,
        seq: Seq,
    },
    Take {
        shard: Shard,
        /// That of the shard without one.
        after: Option<u64>,
        token: u8,
        node: u8,
    },
    LastTurn(Shard),
    Owner(Shard),
    Kinds {
        shard: Shard,
        names: Vec<usize>,
    },
    Prune {
        shard: Shard,
        seq: Seq,
    },
    Names {
        shard: Shard,
        names: Vec<usize>,
        bytes: usize,
    },
    Due {
        shard: Shard,
        clock: DueClock,
        from: (u64, u64),
        /// Some that are named, from a position on.
        beside: Option<(Vec<usize>, (u64, u64))>,
        until: u64,
        limit: usize,
    },
    First {
        shard: Shard,
        clock: DueClock,
        from: (u64, u64),
        limit: usize,
    },
    Places {
        shard: Shard,
        names: Vec<usize>,
    },
    List {
        shard: Shard,
        filter: Box<Filter>,
        from: (u64, u64),
        until: u64,
    },
    /// Without what is done and kept until before that time.
    Counts(Shard, u64),
    Settings(u64),
    NoteLosses {
        shard: Shard,
        first: i64,
        count: i64,
    },
    Losses,
    Ping,
}

/// What a statement makes of one shard.
#[derive(Clone, Debug)]
pub(super) struct Part {
    shard: Shard,
    token: Token,
    seq: Seq,
    revision: u64,
    note: Option<u8>,
    timeline: i32,
    lows: [(bool, u64, Vec<usize>); 2],
    /// None make an empty turn.
    changes: Option<Vec<Changed>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    Owners,
    Drawn(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Seq {
    /// So many after the one that comes next.
    Next(i64),
    Exactly(i64),
}

/// A change. Names, records and values are numbered.
#[derive(Clone, Debug)]
pub(super) enum Changed {
    Put {
        name: usize,
        record: usize,
        revision: u64,
        at: u64,
        payload: usize,
        is_narrow: bool,
    },
    Remove(usize),
    Given(u64),
    Clock(u8),
    Setting {
        name: usize,
        value: Option<usize>,
    },
}

const NAMES: [(&str, &str); 12] = [
    ("a", "k"),
    ("a", "K"),
    ("a", "k1"),
    ("a", "é"),
    ("a", "\u{10ffff}"),
    ("a", "%_\\"),
    ("b:x", "k"),
    ("b:x", "z"),
    ("b:x", "Z"),
    ("B", "k"),
    ("ns/a", "k"),
    ("ns/a", "'\"@"),
];
const QUEUES: [&str; 5] = ["a", "b:x", "B", "ns/a", "nobody"];
const PREFIXES: [&str; 6] = ["", "k", "K", "é", "%", "kk"];
const SETTINGS: [&str; 3] = ["limits", "é", "x"];
/// The last is long enough to be stored apart from its row.
const LENGTHS: [usize; 5] = [0, 1, 20, 300, 9_000];
const BYTES: [usize; 6] = [0, 1, 20, 330, 9_000, usize::MAX];
const LIMITS: [usize; 6] = [0, 1, 2, 5, 100, usize::MAX];
/// Around what is different where a number is signed.
const NUMBERS: [u64; 9] = [
    0,
    1,
    2,
    1_000_000,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    u64::MAX - 1,
    u64::MAX,
];
const SEQS: [i64; 5] = [-1, 0, 1, i64::MAX - 1, i64::MAX];
/// Turns are made in the first alone.
const TIMELINES: [i32; 8] = [1, 1, 1, 1, 1, 2, i32::MAX, -1];
const TOKENS: u64 = 4;
/// One more than there are.
const SHARDS: u16 = 4;
/// Those that are asked most.
const BUSY: u16 = 2;

fn name(number: usize) -> TimerName {
    let (queue, key) = NAMES[number];
    TimerName::from_text(queue, key).expect("a good name")
}

fn bits(number: u8) -> Bits {
    // Both ends as well.
    Bits([number.wrapping_mul(85); 16])
}

fn wake((at, revision): (u64, u64)) -> Wake {
    Wake {
        at: Timestamp::from_micros(at),
        revision: Revision(revision),
    }
}

fn clock_note(number: u8) -> ClockNote {
    ClockNote::of_bytes(&[number; ClockNote::BYTES])
}

struct Draws<'a> {
    random: &'a mut Random,
    records: usize,
    /// No revision is drawn twice: the order of two that are the same is nobody's.
    given: u64,
}

impl Draws<'_> {
    fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.random.below(bound)).unwrap_or(0)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64)].clone()
    }

    fn shard(&mut self) -> Shard {
        // Mostly one of the first, so that they have much to do with each other.
        let bound = if self.one_in(8) { SHARDS } else { BUSY };
        let shard = self.random.below(bound.into());
        Shard(u16::try_from(shard).unwrap_or(0))
    }

    fn small(&mut self, bound: u64) -> u8 {
        u8::try_from(self.random.below(bound)).unwrap_or(0)
    }

    fn token(&mut self) -> Token {
        match self.one_in(6) {
            true => Token::Drawn(self.small(TOKENS)),
            false => Token::Owners,
        }
    }

    fn seq(&mut self) -> Seq {
        match self.below(12) {
            0 => Seq::Exactly(self.of(&SEQS)),
            1 => Seq::Next(1),
            2 => Seq::Next(-1 - i64::from(self.small(3))),
            _ => Seq::Next(0),
        }
    }

    fn revision(&mut self) -> u64 {
        self.given += 1;
        match self.below(8) {
            0 => u64::MAX - self.given,
            1 => (1 << 63) - self.given,
            2 => (1 << 63) + self.given,
            _ => self.given,
        }
    }

    fn position(&mut self) -> (u64, u64) {
        match self.one_in(2) {
            true => (0, 0),
            false => (self.of(&NUMBERS), self.of(&NUMBERS)),
        }
    }

    fn until(&mut self) -> u64 {
        match self.one_in(2) {
            true => u64::MAX,
            false => self.of(&NUMBERS),
        }
    }

    fn names(&mut self) -> Vec<usize> {
        let count = self.below(6);
        let names = iter::repeat_with(|| self.below(NAMES.len() as u64));
        names.take(count).collect()
    }

    fn changed(&mut self) -> Changed {
        match self.below(16) {
            0..=2 => Changed::Remove(self.below(NAMES.len() as u64)),
            3 => Changed::Given(self.revision()),
            4 => Changed::Clock(self.small(256)),
            5 | 6 => Changed::Setting {
                name: self.below(SETTINGS.len() as u64),
                value: (!self.one_in(3)).then(|| self.of(&LENGTHS)),
            },
            _ => Changed::Put {
                name: self.below(NAMES.len() as u64),
                record: self.below(self.records as u64),
                revision: self.revision(),
                at: self.of(&NUMBERS),
                payload: self.of(&LENGTHS),
                is_narrow: self.one_in(3),
            },
        }
    }

    fn part(&mut self, shard: Shard) -> Part {
        let count = self.below(7);
        let changes: Vec<_> = iter::repeat_with(|| self.changed()).take(count).collect();
        Part {
            shard,
            token: self.token(),
            seq: self.seq(),
            revision: self.revision(),
            note: self.one_in(3).then(|| self.small(256)),
            timeline: self.of(&TIMELINES),
            lows: DueClock::ALL.map(|_| (self.one_in(3), self.of(&NUMBERS), self.names())),
            changes: (count > 0).then_some(changes),
        }
    }

    fn turn(&mut self) -> Step {
        let mut shards = vec![self.shard()];
        while self.one_in(3) {
            let shard = self.shard();
            if !shards.contains(&shard) {
                shards.push(shard);
            }
        }
        Step::Turn(shards.into_iter().map(|shard| self.part(shard)).collect())
    }

    fn filter(&mut self) -> Box<Filter> {
        let queue = self.of(&QUEUES);
        let name = TimerName::from_text(queue, "k").expect("a good name");
        let mut filter = Filter::queue(name.queue);
        filter.state = self.one_in(3).then(|| self.of(&StateKind::ALL));
        filter.prefix = self.one_in(3).then(|| self.of(&PREFIXES).to_owned());
        filter.limit = self.of(&LIMITS);
        filter.scan_limit = self.of(&LIMITS);
        Box::new(filter)
    }

    fn step(&mut self) -> Step {
        let shard = self.shard();
        match self.below(34) {
            0..=11 => self.turn(),
            12 | 13 => Step::Again(self.below(3)),
            14 | 15 => Step::Take {
                shard,
                after: self.one_in(4).then(|| self.of(&NUMBERS)),
                token: self.small(TOKENS),
                node: self.small(TOKENS),
            },
            16 | 17 => Step::Became {
                shard,
                token: self.token(),
                seq: self.seq(),
            },
            18 => Step::LastTurn(shard),
            19 => Step::Owner(shard),
            20 => Step::Kinds {
                shard,
                names: self.names(),
            },
            21 => Step::Prune {
                shard,
                seq: match self.one_in(10) {
                    true => Seq::Exactly(self.of(&SEQS)),
                    false => Seq::Next(-1 - i64::from(self.small(4))),
                },
            },
            22 | 23 => Step::Names {
                shard,
                names: self.names(),
                bytes: self.of(&BYTES),
            },
            24 | 25 => Step::Due {
                shard,
                clock: self.of(&DueClock::ALL),
                from: self.position(),
                beside: self.one_in(2).then(|| (self.names(), self.position())),
                until: self.until(),
                limit: self.of(&LIMITS),
            },
            26 | 27 => Step::List {
                shard,
                filter: self.filter(),
                from: self.position(),
                until: self.until(),
            },
            28 => Step::Counts(shard, self.of(&NUMBERS)),
            29 => Step::Settings(self.of(&[0, 1, 3, 9, u64::MAX])),
            30 => Step::NoteLosses {
                shard,
                first: self.of(&[-1, 0, 7]),
                count: self.of(&[1, 2, 70]),
            },
            31 => Step::First {
                shard,
                clock: self.of(&DueClock::ALL),
                from: self.position(),
                limit: self.of(&LIMITS),
            },
            32 => Step::Places {
                shard,
                names: self.names(),
            },
            _ => self.of(&[Step::Losses, Step::Ping]),
        }
    }
}

/// Steps drawn at random, after a taking of each shard that is asked most.
pub(super) fn history(random: &mut Random, least: u64) -> Vec<Step> {
    let count = least + random.below(least);
    let mut draws = Draws {
        random,
        records: varied_records().len(),
        given: 0,
    };
    let takings = (0..BUSY).map(|shard| Step::Take {
        shard: Shard(shard),
        after: None,
        token: 1,
        node: 1,
    });
    let steps = iter::repeat_with(|| draws.step());
    let steps = steps.take(usize::try_from(count).unwrap_or(0));
    takings.chain(steps).collect()
}

/// Questions whose answers are all that can be read.
pub(super) fn everything() -> Vec<Step> {
    let mut steps = vec![Step::Settings(0), Step::Losses];
    for shard in (0..SHARDS).map(Shard) {
        steps.extend([
            Step::Owner(shard),
            Step::LastTurn(shard),
            Step::Counts(shard, 0),
        ]);
        let names = (0..NAMES.len()).collect();
        steps.push(Step::Names {
            shard,
            names,
            bytes: usize::MAX,
        });
        for clock in DueClock::ALL {
            steps.push(Step::Due {
                shard,
                clock,
                from: (0, 0),
                beside: None,
                until: u64::MAX,
                limit: usize::MAX,
            });
        }
        for queue in QUEUES {
            let name = TimerName::from_text(queue, "k").expect("a good name");
            steps.push(Step::List {
                shard,
                filter: Box::new(Filter::queue(name.queue)),
                from: (0, 0),
                until: u64::MAX,
            });
        }
        // Whose turns the last ones are.
        for back in 0..if shard.0 < BUSY { 5 } else { 0 } {
            for token in (0..TOKENS).filter_map(|token| u8::try_from(token).ok()) {
                steps.push(Step::Became {
                    shard,
                    token: Token::Drawn(token),
                    seq: Seq::Next(-back),
                });
            }
        }
    }
    steps
}

/// Where a shard stands before a step.
#[derive(Clone, Copy)]
struct Seen {
    fence: Fence,
    token: Option<Bits>,
    next: i64,
}

impl Seen {
    fn of(observer: &mut dyn Session, shard: Shard) -> Result<Self, Failure> {
        let owner = observer.owner(shard)?;
        let last = observer.last_turn(shard)?;
        Ok(Self {
            fence: owner.map_or(Fence(0), |owner| owner.fence),
            token: owner.and_then(|owner| owner.token),
            next: last.map_or(0, |last| last.seq).saturating_add(1),
        })
    }

    fn token(&self, token: Token) -> Bits {
        match token {
            Token::Owners => self.token.unwrap_or(bits(0)),
            Token::Drawn(number) => bits(number),
        }
    }

    fn seq(&self, seq: Seq) -> i64 {
        match seq {
            // No server is asked for the turn before the first of all numbers.
            Seq::Next(by) => self.next.saturating_add(by),
            Seq::Exactly(seq) => seq,
        }
    }
}

/// What one statement makes of a shard, as it is sent.
#[derive(Clone)]
struct SentPart {
    shard: Shard,
    after: Held,
    lows: Lows,
    changes: Option<Vec<Change>>,
}

/// What both servers are asked, so that they are asked the same.
pub(super) struct Asking {
    records: Vec<Record>,
    hash: NameHash,
    sent: Vec<Vec<SentPart>>,
}

/// An answer as it is compared, and how many turns are among it.
pub(super) struct Answered {
    pub(super) text: String,
    pub(super) made: usize,
}

impl Answered {
    fn of<T: Debug>(answer: Result<T, Failure>) -> Self {
        let text = match answer {
            Ok(answer) => format!("{answer:?}"),
            Err(Failure::Refused(refusal)) => format!("refused with {}", refusal.code),
            Err(failure) => format!("no answer: {}", failure.reason()),
        };
        Self { text, made: 0 }
    }
}

impl Asking {
    pub(super) fn new(hash: NameHash) -> Self {
        Self {
            records: varied_records(),
            hash,
            sent: Vec::new(),
        }
    }

    fn change(&self, changed: &Changed) -> Change {
        match *changed {
            Changed::Put {
                name: number,
                record,
                revision,
                at,
                payload,
                is_narrow,
            } => {
                let mut record = self.records[record].clone();
                record.name = name(number);
                record.revision = Revision(revision);
                record.due = Timestamp::from_micros(at);
                if let State::Done { keep_until, .. } = &mut record.state {
                    *keep_until = Timestamp::from_micros(at);
                }
                record.payload = vec![u8::try_from(revision % 251).unwrap_or(0); payload];
                let before = match is_narrow {
                    true => Before::SamePayload(StateKind::Pending),
                    false => Before::Unknown,
                };
                Change::Put {
                    record: Box::new(record),
                    before,
                }
            }
            Changed::Remove(number) => Change::remove(name(number)),
            Changed::Given(revision) => Change::Given(Revision(revision)),
            Changed::Clock(note) => Change::Clock(clock_note(note)),
            Changed::Setting { name, value } => Change::Setting(Setting {
                name: SettingName::new(SETTINGS[name]).expect("a good name"),
                value: value.map(|length| vec![u8::try_from(length % 251).unwrap_or(0); length]),
            }),
        }
    }

    fn sent(&self, part: &Part, seen: Seen) -> SentPart {
        let changes = part.changes.as_ref();
        SentPart {
            shard: part.shard,
            after: Held {
                token: seen.token(part.token),
                fence: seen.fence,
                seq: seen.seq(part.seq),
                revision: Revision(part.revision),
                clock: part.note.map(clock_note),
                timeline: part.timeline,
                made_by: None,
            },
            lows: Lows::new(DueClock::ALL.map(|clock| {
                let (is_first, at, names) = &part.lows[clock as usize];
                let mark = match is_first {
                    true => Wake::default(),
                    false => wake((*at, *at)),
                };
                let named = names.iter().map(|number| self.hash.of(&name(*number)));
                Low {
                    mark,
                    named: named.collect(),
                }
            })),
            changes: changes.map(|all| all.iter().map(|it| self.change(it)).collect()),
        }
    }

    /// Asks both servers for a step.
    pub(super) fn ask(
        &mut self,
        step: &Step,
        observer: &mut dyn Session,
        sessions: [&mut Box<dyn Session>; 2],
    ) -> Result<[Answered; 2], Failure> {
        let statement = match step {
            Step::Turn(parts) => {
                let sent = parts.iter().map(|part| {
                    let seen = Seen::of(&mut *observer, part.shard)?;
                    Ok(self.sent(part, seen))
                });
                Some(sent.collect::<Result<Vec<_>, Failure>>()?)
            }
            Step::Again(ago) => {
                let last = self.sent.len().checked_sub(1 + ago);
                Some(last.map_or_else(Vec::new, |at| self.sent[at].clone()))
            }
            _ => None,
        };
        if let Some(statement) = statement {
            let answers = sessions.map(|session| self.turns(&mut **session, &statement));
            self.sent.push(statement);
            return Ok(answers);
        }
        let seen = Seen::of(observer, step.shard())?;
        Ok(sessions.map(|session| self.question(&mut **session, step, seen)))
    }

    fn turns(&self, session: &mut dyn Session, parts: &[SentPart]) -> Answered {
        let turns: Vec<_> = parts
            .iter()
            .map(|part| {
                let changes = part.changes.as_ref()?;
                Some(Turn::of(part.shard, changes, &self.hash))
            })
            .collect();
        let entries: Vec<_> = parts
            .iter()
            .zip(&turns)
            .map(|(part, turn)| Entry {
                shard: part.shard,
                turn: turn.as_ref(),
                after: part.after,
                lows: part.lows.clone(),
            })
            .collect();
        let mut made = session.turn(&entries);
        let mut count = 0;
        if let Ok(made) = &mut made {
            made.shards.sort_unstable();
            count = made.shards.len();
        }
        Answered {
            made: count,
            ..Answered::of(made)
        }
    }

    /// Where the seam leaves the order open, answers are sorted.
    fn question(&self, session: &mut dyn Session, step: &Step, seen: Seen) -> Answered {
        let hashes = |names: &[usize]| -> Vec<_> {
            let names = names.iter().map(|number| self.hash.of(&name(*number)));
            names.collect()
        };
        let position = |(at, revision)| (Timestamp::from_micros(at), Revision(revision));
        match step {
            Step::Became { shard, token, seq } => {
                Answered::of(session.became(*shard, seen.token(*token), seen.seq(*seq)))
            }
            Step::Take {
                shard,
                after,
                token,
                node,
            } => {
                let after = after.map_or(seen.fence, Fence);
                Answered::of(session.take(*shard, after, bits(*token), bits(*node)))
            }
            Step::LastTurn(shard) => Answered::of(session.last_turn(*shard)),
            Step::Owner(shard) => Answered::of(session.owner(*shard)),
            Step::Kinds { shard, names } => {
                let kinds = session.kinds(*shard, &hashes(names));
                Answered::of(kinds.map(sorted))
            }
            Step::Prune { shard, seq } => Answered::of(session.prune(*shard, seen.seq(*seq))),
            Step::Names {
                shard,
                names,
                bytes,
            } => Answered::of(session.names(*shard, &hashes(names), Reach::ALL, *bytes)),
            Step::Due {
                shard,
                clock,
                from,
                beside,
                until,
                limit,
            } => {
                let until = Timestamp::from_micros(*until);
                let beside = beside.as_ref();
                let beside = beside.map(|(names, from)| (hashes(names), position(*from)));
                let beside = beside
                    .as_ref()
                    .map(|(names, from)| Beside { names, from: *from });
                let from = position(*from);
                Answered::of(session.due(*shard, *clock, from, beside, until, *limit))
            }
            Step::First {
                shard,
                clock,
                from,
                limit,
            } => Answered::of(session.first(*shard, *clock, wake(*from), *limit)),
            Step::Places { shard, names } => {
                let places = session.places(*shard, &hashes(names));
                Answered::of(places.map(sorted))
            }
            Step::List {
                shard,
                filter,
                from,
                until,
            } => {
                let until = Timestamp::from_micros(*until);
                Answered::of(session.list(*shard, filter, position(*from), until))
            }
            Step::Counts(shard, from) => {
                let counts = session.counts(*shard, Timestamp::from_micros(*from));
                Answered::of(counts.map(sorted))
            }
            Step::Settings(after) => {
                let settings = session.settings(SettingsVersion(*after));
                Answered::of(settings.map(|settings| {
                    let settings = settings?;
                    let values = settings.iter();
                    let values = values.map(|(name, it)| (name.clone(), it.version, &it.value));
                    Some(format!(
                        "{:?}",
                        (settings.version(), values.collect::<Vec<_>>())
                    ))
                }))
            }
            Step::NoteLosses {
                shard,
                first,
                count,
            } => {
                let mut noted = (0..*count).map(|by| session.note_loss(*shard, first + by));
                Answered::of(noted.try_for_each(|noted| noted))
            }
            Step::Losses => Answered::of(session.losses()),
            Step::Ping | Step::Turn(_) | Step::Again(_) => Answered::of(session.ping()),
        }
    }
}

fn sorted<T: Debug>(mut all: Vec<T>) -> Vec<T> {
    all.sort_by_key(|it| format!("{it:?}"));
    all
}

impl Step {
    fn shard(&self) -> Shard {
        match self {
            Self::Became { shard, .. }
            | Self::Take { shard, .. }
            | Self::LastTurn(shard)
            | Self::Owner(shard)
            | Self::Kinds { shard, .. }
            | Self::Prune { shard, .. }
            | Self::Names { shard, .. }
            | Self::Due { shard, .. }
            | Self::First { shard, .. }
            | Self::Places { shard, .. }
            | Self::List { shard, .. }
            | Self::Counts(shard, _)
            | Self::NoteLosses { shard, .. } => *shard,
            Self::Turn(_) | Self::Again(_) | Self::Settings(_) | Self::Losses | Self::Ping => {
                Shard::ONLY
            }
        }
    }

    /// Whether it may change something of a shard.
    pub(super) fn writes(&self) -> bool {
        use Step::{Again, Prune, Take, Turn};
        matches!(self, Turn(_) | Again(_) | Take { .. } | Prune { .. })
    }

    /// How many turns it asks for, where that is known.
    pub(super) fn turns(&self) -> usize {
        match self {
            Self::Turn(parts) => parts.len(),
            _ => 0,
        }
    }
}
