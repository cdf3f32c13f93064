//! Compares what was asked, answered and seen with what arrived. No clock, no connection:
//! the same evidence, the same verdict.
//!
//! Each key's operations were asked one after the other. One that brought no answer may
//! have been carried out or not; the next look at the timer decides. Everything else has to
//! be exactly as it was acknowledged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;

pub(crate) use countwheel_durable::StateKind;
use countwheel_durable::store::Shard;
use countwheel_durable::{Config, Shards, TimerName};

/// So many faults are told at the most, and of one timer so many events and arrivals, the last.
const TOLD_MAX: usize = 5;
const STORY_MAX: usize = 8;

/// All that is known of a run. Times are microseconds since 1970, on one clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// What was asked of each key, in that order.
    pub(crate) histories: BTreeMap<String, Vec<Event>>,
    /// What the receiver got, in the order of arrival.
    pub(crate) arrivals: Vec<Arrival>,
    /// Whatever was due before this had all the time it needed.
    pub(crate) settled_us: u64,
    /// How far the clock by which delays go may be from the wall clock.
    pub(crate) apart_us: u64,
    /// When the server was killed.
    pub(crate) kills_us: Vec<u64>,
    /// How far the clock of the server may be behind that of its machine: the clock of a cluster is, by the time
    /// for which answers of the database were under way.
    pub(crate) behind_us: u64,
    /// How long after the end of its connection a request may still be carried out: what a service has sent on to
    /// another one when it is killed is under way.
    pub(crate) under_way_us: u64,
    /// Into how many shards the store is divided, each of which gives revisions for itself; none if it
    /// is not.
    pub(crate) shards: Option<Shards>,
}

/// Something asked of a timer.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) sent_us: u64,
    /// When the answer was there, or when it was clear that none would come.
    pub(crate) answered_us: u64,
    pub(crate) what: What,
}

impl Event {
    fn is_unanswered(&self) -> bool {
        match &self.what {
            What::Set { answer, .. } => matches!(answer, Answer::Unknown),
            What::Move { answer, .. } => matches!(answer, Answer::Unknown),
            What::Remove { answer } => matches!(answer, Answer::Unknown),
            What::Look(_) => false,
        }
    }

    fn doubt(&self, of: DoubtOf) -> Doubt {
        let sent_us = self.sent_us;
        Doubt { sent_us, of }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Set {
        asked: Asked,
        body_bytes: Option<u64>,
        answer: Answer<Made>,
    },
    Move {
        asked: Asked,
        answer: Answer<Moved>,
    },
    Remove {
        answer: Answer<Was>,
    },
    /// What was there, if anything.
    Look(Option<Sight>),
}

/// The deadline asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    At(u64),
    In(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Answer<T> {
    Yes(T),
    /// The timer's state forbids it; `None`: there is no such timer.
    No(Option<StateKind>),
    /// Anything but what the contract foresees.
    Odd(String),
    /// None came.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) due_us: u64,
    pub(crate) replaced: Option<StateKind>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) revision: u64,
    pub(crate) due_us: u64,
}

/// What a removed timer was doing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Was {
    pub(crate) state: StateKind,
    pub(crate) attempt: Option<u64>,
}

/// A timer as the server shows it.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) due_us: u64,
    pub(crate) state: StateKind,
    pub(crate) attempt: u64,
    pub(crate) body_bytes: u64,
}

/// A delivery.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at_us: u64,
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) attempt: u64,
    pub(crate) due_us: u64,
    pub(crate) late_us: u64,
    pub(crate) held_us: u64,
    /// `None` if the body was cut off.
    pub(crate) body_bytes: Option<u64>,
}

impl Arrival {
    /// When it was handed over, by its own account.
    fn started_us(&self) -> u64 {
        self.due_us + self.held_us + self.late_us
    }
}

/// A promise that was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Fault {
    /// What was acknowledged is not there, or was never delivered for its last deadline.
    Lost,
    /// Delivered before its deadline, or for one that a move had put off.
    Early,
    /// Delivered, or there again, after it was removed or replaced.
    AfterRemove,
    /// Delivered twice, and the number of the attempt does not tell.
    Unmarked,
    /// Delivered under an id that nobody was told.
    Stranger,
    /// Partly one operation's, partly another's.
    Half,
    /// A revision given twice, or lower than one before.
    Revision,
    /// An answer that the timer's state does not explain.
    Answer,
}

/// Who broke a promise, and how.
#[derive(Debug)]
pub(crate) struct Accusation {
    pub(crate) fault: Fault,
    /// Of whose timer; empty if it is of several.
    key: String,
    what: String,
}

/// What the evidence comes to.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) faults: Vec<Accusation>,
    /// All that is known of the first key that is accused, line by line.
    story: Vec<String>,
    pub(crate) sets: u64,
    pub(crate) moves: u64,
    pub(crate) moves_too_late: u64,
    pub(crate) removes: u64,
    /// Removes, of those above, that came while an attempt ran.
    pub(crate) removes_while_delivering: u64,
    pub(crate) removes_too_late: u64,
    /// Operations without an answer.
    pub(crate) unanswered: u64,
    /// Timers that were delivered at least once.
    pub(crate) delivered: u64,
    /// Arrivals of a timer that had arrived before, under a higher number.
    pub(crate) duplicates: u64,
    /// Timers of which so many attempts in a row were interrupted that there were no more.
    pub(crate) given_up: u64,
}

impl Verdict {
    pub(crate) fn count(&self, fault: Fault) -> usize {
        self.faults.iter().filter(|one| one.fault == fault).count()
    }

    /// Fails if there are faults, and says what it takes to understand them.
    #[track_caller]
    pub(crate) fn demand_innocence(&self) {
        assert!(self.faults.is_empty(), "{}", self.charge());
    }

    /// How many faults there are of each kind, the first of each, and the story of one timer. Not
    /// all of them: often the end of what a run printed is all that is left of it.
    fn charge(&self) -> String {
        let mut of_kind: BTreeMap<Fault, usize> = BTreeMap::new();
        let mut told: Vec<(usize, &Accusation)> = Vec::new();
        for one in &self.faults {
            let before = of_kind.entry(one.fault).or_default();
            told.push((*before, one));
            *before += 1;
        }
        told.sort_by_key(|(before, _)| *before);
        let told = told.iter().take(TOLD_MAX).map(|(_, one)| {
            let Accusation { fault, key, what } = one;
            format!("{fault:?} {key}: {what}")
        });
        let mut lines = vec![format!("{} faults: {of_kind:?}", self.faults.len())];
        lines.extend(told);
        lines.extend(self.story.iter().cloned());
        lines.join("\n  ")
    }

    fn accuse(&mut self, fault: Fault, key: &str, what: String) {
        let key = key.to_owned();
        self.faults.push(Accusation { fault, key, what });
    }

    /// Keeps of the evidence what explains the first fault.
    fn remember(&mut self, evidence: &Evidence) {
        let Some(Accusation { key, .. }) = self.faults.first() else {
            return;
        };
        let events = evidence.histories.get(key).map_or(&[][..], Vec::as_slice);
        let last = &events[events.len().saturating_sub(STORY_MAX)..];
        let arrivals = evidence.arrivals.iter().filter(|one| one.key == *key);
        let arrivals: Vec<_> = arrivals.collect();
        let arrived = &arrivals[arrivals.len().saturating_sub(STORY_MAX)..];
        self.story = last.iter().map(|one| format!("{one:?}")).collect();
        self.story
            .extend(arrived.iter().map(|one| format!("{one:?}")));
    }
}

/// What one set made, from then until it was removed or replaced.
#[derive(Debug)]
struct Life {
    key: String,
    id: String,
    revision: u64,
    due_us: u64,
    body_bytes: Option<u64>,
    /// Where moves without an answer may have taken it: from, to.
    perhaps: Vec<(u64, u64)>,
    /// Times that were asked for and had passed by then, which deliveries name as they are, and from
    /// when on it was due instead.
    passed: Vec<(u64, u64)>,
    done: bool,
    given_up: bool,
    end: Option<End>,
    /// When the end was known: no attempt starts later.
    ended_us: u64,
}

#[derive(Debug)]
enum End {
    /// It was pending: nothing was delivered, nothing may be.
    Pending,
    /// An attempt ran: that one may arrive.
    Delivering(Option<u64>),
    /// It had been delivered.
    Done,
    /// Nobody knows what it was doing.
    Unknown,
}

impl From<Was> for End {
    fn from(was: Was) -> Self {
        match was.state {
            StateKind::Pending => Self::Pending,
            StateKind::Delivering => Self::Delivering(was.attempt),
            StateKind::Done => Self::Done,
            StateKind::Dead => Self::Unknown,
        }
    }
}

/// An operation without an answer.
#[derive(Debug)]
struct Doubt {
    sent_us: u64,
    of: DoubtOf,
}

#[derive(Debug)]
enum DoubtOf {
    Set {
        asked: Asked,
        due_us: (u64, u64),
        body_bytes: Option<u64>,
    },
    Move {
        asked: Asked,
        due_us: (u64, u64),
    },
    Remove,
}

/// Fails if more was asked of a timer in doubt before a look: of which timer an answer is cannot be known then.
/// Whoever asks again until there is an answer knows it.
pub(crate) fn demand_looks(histories: &BTreeMap<String, Vec<Event>>) {
    for (key, history) in histories {
        for pair in history.windows(2) {
            let is_look = matches!(pair[1].what, What::Look(_));
            assert!(
                is_look || !pair[0].is_unanswered(),
                "{key}: asked before a look"
            );
        }
    }
}

/// Judges a run.
pub(crate) fn judge(evidence: &Evidence) -> Verdict {
    let mut trial = Trial {
        apart_us: evidence.apart_us,
        kills_us: evidence.kills_us.clone(),
        behind_us: evidence.behind_us,
        under_way_us: evidence.under_way_us,
        ..Trial::default()
    };
    let shards = evidence.shards.unwrap_or(Shards::ONE);
    for (key, history) in &evidence.histories {
        let name = TimerName::new("default", key).expect("a key that was taken");
        trial.shard = Some(shards.of(&name));
        trial.follow(key, history);
    }
    for asked in mem::take(&mut trial.revisions).into_values() {
        trial.compare_revisions(asked);
    }
    trial.compare_arrivals(&evidence.arrivals, evidence.settled_us);
    trial.verdict.remember(evidence);
    trial.verdict
}

#[derive(Default)]
struct Trial {
    apart_us: u64,
    kills_us: Vec<u64>,
    behind_us: u64,
    under_way_us: u64,
    verdict: Verdict,
    lives: Vec<Life>,
    /// That of the timer which is followed.
    shard: Option<Shard>,
    /// Of each shard: when a revision was asked for, when it was known, and which it was.
    revisions: BTreeMap<Option<Shard>, Vec<(u64, u64, u64)>>,
}

impl Trial {
    fn follow(&mut self, key: &str, history: &[Event]) {
        let mut current: Option<usize> = None;
        let mut doubts = Vec::new();
        let (apart_us, behind_us) = (self.apart_us, self.behind_us);
        let under_way_us = self.under_way_us;
        for event in history {
            let sent_us = event.sent_us - behind_us.min(event.sent_us);
            let within = |asked: Asked, until_us: u64| match asked {
                Asked::At(at) => (at.max(sent_us), at.max(until_us)),
                Asked::In(span) => (
                    sent_us + span - apart_us.min(span),
                    until_us + span + apart_us,
                ),
            };
            let window = |asked: Asked| within(asked, event.answered_us);
            let unanswered = |asked: Asked| within(asked, event.answered_us + under_way_us);
            match &event.what {
                What::Set {
                    asked,
                    body_bytes,
                    answer,
                } => match answer {
                    Answer::Yes(made) => {
                        self.verdict.sets += 1;
                        self.within(key, made.due_us, window(*asked), *asked);
                        self.given(event.sent_us, event, made.revision);
                        let was = made.replaced.map(|state| Was {
                            state,
                            attempt: None,
                        });
                        self.end(key, &mut current, was, event.answered_us);
                        doubts.clear();
                        current = Some(self.begin(key, made, *asked, *body_bytes));
                    }
                    Answer::Unknown => {
                        self.verdict.unanswered += 1;
                        let due_us = unanswered(*asked);
                        let body_bytes = *body_bytes;
                        let of = DoubtOf::Set {
                            asked: *asked,
                            due_us,
                            body_bytes,
                        };
                        doubts.push(event.doubt(of));
                    }
                    odd => self.accuse(Fault::Answer, key, &format!("set: {odd:?}")),
                },
                What::Move { asked, answer } => match answer {
                    Answer::Yes(moved) => {
                        self.verdict.moves += 1;
                        self.within(key, moved.due_us, window(*asked), *asked);
                        self.given(event.sent_us, event, moved.revision);
                        doubts.clear();
                        match current.map(|life| &mut self.lives[life]) {
                            Some(life) => {
                                life.revision = moved.revision;
                                life.due_us = moved.due_us;
                                life.perhaps.clear();
                                life.passed = passed(*asked, moved.due_us).into_iter().collect();
                            }
                            None => self.accuse(Fault::AfterRemove, key, "moved what is not there"),
                        }
                    }
                    Answer::No(state) => {
                        self.verdict.moves_too_late += 1;
                        self.excused(key, current, *state, event.answered_us);
                    }
                    Answer::Unknown => {
                        self.verdict.unanswered += 1;
                        let due_us = unanswered(*asked);
                        if let Some(life) = current {
                            self.lives[life].perhaps.push(due_us);
                            let passed = passed(*asked, due_us.0);
                            self.lives[life].passed.extend(passed);
                        }
                        let asked = *asked;
                        doubts.push(event.doubt(DoubtOf::Move { asked, due_us }));
                    }
                    Answer::Odd(odd) => self.accuse(Fault::Answer, key, &format!("move: {odd}")),
                },
                What::Remove { answer } => match answer {
                    Answer::Yes(was) => {
                        self.verdict.removes += 1;
                        self.verdict.removes_while_delivering +=
                            u64::from(was.state == StateKind::Delivering);
                        if was.state == StateKind::Done {
                            self.accuse(Fault::Answer, key, "removed what was done");
                        }
                        self.end(key, &mut current, Some(*was), event.answered_us);
                        doubts.clear();
                    }
                    Answer::No(state) => {
                        self.verdict.removes_too_late += 1;
                        self.excused(key, current, *state, event.answered_us);
                    }
                    Answer::Unknown => {
                        self.verdict.unanswered += 1;
                        doubts.push(event.doubt(DoubtOf::Remove));
                    }
                    Answer::Odd(odd) => self.accuse(Fault::Answer, key, &format!("remove: {odd}")),
                },
                What::Look(sight) => {
                    self.resolve(key, event, &mut current, &doubts, sight.as_ref());
                    doubts.clear();
                    self.recognise(key, current, sight.as_ref(), event.answered_us);
                }
            }
        }
    }

    /// A deadline is the one that was asked for, or the moment at which it was.
    fn within(&mut self, key: &str, due_us: u64, (from, to): (u64, u64), asked: Asked) {
        if !(from..=to).contains(&due_us) {
            let what = format!("due {due_us} where {asked:?} was asked, {from} to {to}");
            self.accuse(Fault::Answer, key, &what);
        }
    }

    /// A refusal for the timer's state has to be possible.
    fn excused(&mut self, key: &str, life: Option<usize>, state: Option<StateKind>, now_us: u64) {
        let due = life.is_some_and(|life| self.lives[life].may_be_due(now_us));
        match (state, life) {
            (None, None) => {}
            (None, Some(_)) => self.accuse(Fault::Lost, key, "refused as not there"),
            (Some(StateKind::Done), Some(life)) if due => {
                self.lives[life].done = true;
            }
            (Some(StateKind::Delivering | StateKind::Dead), Some(_)) if due => {}
            (state, _) => self.accuse(Fault::Answer, key, &format!("refused as {state:?}")),
        }
    }

    fn begin(&mut self, key: &str, made: &Made, asked: Asked, body_bytes: Option<u64>) -> usize {
        self.lives.push(Life {
            key: key.to_owned(),
            id: made.id.clone(),
            revision: made.revision,
            due_us: made.due_us,
            body_bytes,
            perhaps: Vec::new(),
            passed: passed(asked, made.due_us).into_iter().collect(),
            done: false,
            given_up: false,
            end: None,
            ended_us: u64::MAX,
        });
        self.lives.len() - 1
    }

    /// The current timer is removed or replaced, as an answer said.
    fn end(&mut self, key: &str, current: &mut Option<usize>, was: Option<Was>, now_us: u64) {
        match (current.take(), was) {
            (None, None) => {}
            (Some(_), None) => self.accuse(Fault::Lost, key, "a set found nothing to replace"),
            (None, Some(was)) => {
                self.accuse(Fault::AfterRemove, key, &format!("there again: {was:?}"));
            }
            (Some(life), Some(was)) => {
                let life = &mut self.lives[life];
                let done = was.state == StateKind::Done;
                let wrong = if was.state == StateKind::Pending {
                    life.done
                } else {
                    !life.may_be_due(now_us) || (life.done && !done)
                };
                life.done |= done;
                let since_due = life.due_us..=now_us;
                let kills = self.kills_us.iter().filter(|at| since_due.contains(at));
                // It may have been tried, and wait since two kills in a row have interrupted it.
                let was_tried = was.state == StateKind::Pending && kills.count() >= 2;
                life.end = Some(if was_tried { End::Unknown } else { was.into() });
                life.ended_us = now_us;
                if wrong {
                    self.accuse(Fault::Answer, key, &format!("ended as {was:?}"));
                }
            }
        }
    }

    /// Decides what became of the operations without an answer.
    fn resolve(
        &mut self,
        key: &str,
        event: &Event,
        current: &mut Option<usize>,
        doubts: &[Doubt],
        sight: Option<&Sight>,
    ) {
        let between = |(from, to): (u64, u64), due: u64| (from..=to).contains(&due);
        let same = |life: &Life, sight: &Sight| life.id == sight.id;
        for doubt in doubts {
            match (&doubt.of, sight) {
                (
                    DoubtOf::Set {
                        asked,
                        due_us,
                        body_bytes,
                    },
                    Some(sight),
                ) if current.is_none_or(|life| !same(&self.lives[life], sight)) => {
                    if !between(*due_us, sight.due_us)
                        || body_bytes.is_some_and(|bytes| bytes != sight.body_bytes)
                    {
                        let what = format!("set {doubt:?} without an answer, made {sight:?}");
                        self.accuse(Fault::Half, key, &what);
                    }
                    if let Some(old) = *current {
                        self.lives[old].end = Some(End::Unknown);
                        self.lives[old].ended_us = event.answered_us;
                    }
                    self.given(doubt.sent_us, event, sight.revision);
                    let made = Made {
                        id: sight.id.clone(),
                        revision: sight.revision,
                        due_us: sight.due_us,
                        replaced: None,
                    };
                    *current = Some(self.begin(key, &made, *asked, *body_bytes));
                }
                (DoubtOf::Move { asked, due_us }, Some(sight)) => {
                    let Some(life) = current.map(|life| &mut self.lives[life]) else {
                        continue;
                    };
                    if !same(life, sight) || life.revision == sight.revision {
                        continue;
                    }
                    let half = !between(*due_us, sight.due_us);
                    life.revision = life.revision.max(sight.revision);
                    life.due_us = sight.due_us;
                    // It may have been done long after it was asked.
                    life.passed.extend(passed(*asked, sight.due_us));
                    if half {
                        let what = format!("move {doubt:?} without an answer, made {sight:?}");
                        self.accuse(Fault::Half, key, &what);
                    }
                    self.given(doubt.sent_us, event, sight.revision);
                }
                (DoubtOf::Remove, None) => {
                    if let Some(life) = current.take() {
                        self.lives[life].end = Some(End::Unknown);
                        self.lives[life].ended_us = event.answered_us;
                    }
                }
                _ => {}
            }
        }
        if let Some(life) = *current
            && sight.is_some()
        {
            self.lives[life].perhaps.clear();
        }
    }

    /// What is seen is what was acknowledged.
    fn recognise(&mut self, key: &str, life: Option<usize>, sight: Option<&Sight>, now_us: u64) {
        let (life, sight) = match (life, sight) {
            (None, None) => return,
            (None, Some(sight)) => {
                return self.accuse(Fault::AfterRemove, key, &format!("there again: {sight:?}"));
            }
            (Some(life), None) => {
                let what = format!("not there: {:?}", self.lives[life]);
                return self.accuse(Fault::Lost, key, &what);
            }
            (Some(life), Some(sight)) => (&mut self.lives[life], sight),
        };
        let bytes = life
            .body_bytes
            .is_none_or(|bytes| bytes == sight.body_bytes);
        let state = match sight.state {
            // Once two kills in a row have interrupted it, it waits until the server has lived for
            // a while.
            StateKind::Pending => {
                let since_due = life.due_us..=now_us;
                let kills = self.kills_us.iter().filter(|at| since_due.contains(at));
                let may_wait = sight.attempt >= 2 && kills.count() >= 2;
                (sight.attempt == 0 || may_wait) && !life.done
            }
            StateKind::Delivering => life.may_be_due(now_us) && !life.done,
            StateKind::Done => life.may_be_due(now_us),
            // The receiver takes everything, so only interruptions lead there: so many in a row
            // that each attempt was the last thing of a process that was killed.
            StateKind::Dead => {
                let since_due = life.due_us..=now_us;
                let kills = self.kills_us.iter().filter(|at| since_due.contains(at));
                let most = u64::from(Config::default().max_interruptions);
                sight.attempt >= most && kills.count() as u64 >= most && !life.done
            }
        };
        life.done |= sight.state == StateKind::Done;
        if sight.state == StateKind::Dead && state && !life.given_up {
            life.given_up = true;
            self.verdict.given_up += 1;
        }
        let fault = if life.id != sight.id || life.due_us != sight.due_us {
            Fault::Lost
        } else if life.revision != sight.revision {
            Fault::Revision
        } else if !bytes {
            Fault::Half
        } else if !state {
            Fault::Answer
        } else {
            return;
        };
        let what = format!("seen {sight:?}, acknowledged {life:?}");
        self.accuse(fault, key, &what);
    }

    /// A revision was given between `sent_us` and the answer to `event`.
    fn given(&mut self, sent_us: u64, event: &Event, revision: u64) {
        let of_shard = self.revisions.entry(self.shard).or_default();
        of_shard.push((sent_us, event.answered_us, revision));
    }

    /// Each revision is given once, and a later request gets a higher one.
    fn compare_revisions(&mut self, mut asked: Vec<(u64, u64, u64)>) {
        let mut once = HashSet::new();
        for (_, _, revision) in &asked {
            if !once.insert(*revision) {
                let what = format!("revision {revision} was given twice");
                self.verdict.accuse(Fault::Revision, "", what);
            }
        }
        let mut known = asked.clone();
        asked.sort_unstable();
        known.sort_unstable_by_key(|(_, answered_us, _)| *answered_us);
        let mut known = known.into_iter().peekable();
        let mut highest = 0;
        for (sent_us, _, revision) in asked {
            while let Some((_, _, before)) = known.next_if(|(_, at, _)| *at < sent_us) {
                highest = highest.max(before);
            }
            if revision < highest {
                let what = format!("revision {revision} was given after {highest}");
                self.verdict.accuse(Fault::Revision, "", what);
            }
        }
    }

    fn compare_arrivals(&mut self, arrivals: &[Arrival], settled_us: u64) {
        let mut of_id: HashMap<&str, Vec<&Arrival>> = HashMap::new();
        for arrival in arrivals {
            of_id.entry(&arrival.id).or_default().push(arrival);
        }
        for life in mem::take(&mut self.lives) {
            let arrived = of_id.remove(life.id.as_str()).unwrap_or_default();
            self.compare(&life, &arrived, settled_us);
        }
        for arrival in of_id.into_values().flatten() {
            let what = format!("nobody was told of {arrival:?}");
            self.verdict.accuse(Fault::Stranger, &arrival.key, what);
        }
    }

    fn compare(&mut self, life: &Life, arrived: &[&Arrival], settled_us: u64) {
        let mut highest = 0;
        // In the order in which they say that they started, which none can put after its arrival.
        // Who is kept waiting may read what a killed server sent after what the next one did.
        let mut arrived: Vec<_> = arrived.iter().map(|one| life.resolved(one)).collect();
        arrived.sort_by_key(Arrival::started_us);
        for arrival in &arrived {
            if let Some(fault) = life.fault_of(arrival) {
                let what = format!("{arrival:?} of {life:?}");
                self.verdict.accuse(fault, &life.key, what);
            }
            if arrival.attempt <= highest {
                let what = format!("{arrival:?} after attempt {highest}");
                self.verdict.accuse(Fault::Unmarked, &life.key, what);
            } else if highest > 0 {
                self.verdict.duplicates += 1;
            }
            highest = highest.max(arrival.attempt);
        }
        self.verdict.delivered += u64::from(highest > 0);
        let was_due = life.end.is_none() && life.latest_us() < settled_us && !life.given_up;
        let complete = arrived.iter().any(|one| one.body_bytes.is_some());
        if (was_due || life.done) && !complete {
            let what = format!("never delivered: {life:?}");
            self.verdict.accuse(Fault::Lost, &life.key, what);
        }
    }

    fn accuse(&mut self, fault: Fault, key: &str, what: &str) {
        self.verdict.accuse(fault, key, what.to_owned());
    }
}

/// A time that had passed when it was asked for, and when it was due instead.
fn passed(asked: Asked, due_us: u64) -> Option<(u64, u64)> {
    match asked {
        Asked::At(at) if at < due_us => Some((at, due_us)),
        Asked::At(_) | Asked::In(_) => None,
    }
}

impl Life {
    /// The arrival, with when it was due in place of a time that had passed.
    fn resolved(&self, arrival: &Arrival) -> Arrival {
        let mut passed = self.passed.iter();
        let passed = passed.find(|(at, _)| *at == arrival.due_us);
        let is_first = arrival.due_us < self.due_us || !self.perhaps.is_empty();
        Arrival {
            due_us: passed
                .filter(|_| is_first)
                .map_or(arrival.due_us, |(_, due)| *due),
            ..arrival.clone()
        }
    }

    /// Whether it can have been due by then.
    fn may_be_due(&self, now_us: u64) -> bool {
        let perhaps = self.perhaps.iter().map(|(from, _)| *from);
        perhaps.chain([self.due_us]).any(|due| due <= now_us)
    }

    /// The latest deadline that it can have.
    fn latest_us(&self) -> u64 {
        let perhaps = self.perhaps.iter().map(|(_, to)| *to);
        perhaps.fold(self.due_us, u64::max)
    }

    /// What is wrong with an arrival, but for its number.
    fn fault_of(&self, arrival: &Arrival) -> Option<Fault> {
        let due = arrival.due_us;
        let mut perhaps = self.perhaps.iter();
        let own_due = due == self.due_us || perhaps.any(|(from, to)| (*from..=*to).contains(&due));
        let started_us = arrival.started_us();
        let foreign = match self.end {
            // What was claimed by then may have been handed over later.
            Some(End::Delivering(attempt)) => attempt.is_some_and(|last| arrival.attempt > last),
            _ if started_us > self.ended_us => true,
            Some(End::Pending) => true,
            _ => false,
        };
        let body = self.body_bytes.zip(arrival.body_bytes);
        if foreign {
            Some(Fault::AfterRemove)
        } else if arrival.at_us < started_us || (!own_due && due < self.due_us) {
            // The first: it claims to have started after it arrived.
            Some(Fault::Early)
        } else if !own_due {
            Some(Fault::Lost)
        } else if arrival.key != self.key || body.is_some_and(|(one, other)| one != other) {
            Some(Fault::Half)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: u64 = 1_000;
    const SETTLED: u64 = 10_000;

    fn event(at: u64, what: What) -> Event {
        Event {
            sent_us: at,
            answered_us: at + 5,
            what,
        }
    }

    fn id(revision: u64) -> String {
        format!("tmr-{revision}")
    }

    fn set_with(answer: Answer<Made>) -> What {
        What::Set {
            asked: Asked::At(DUE),
            body_bytes: Some(7),
            answer,
        }
    }

    fn made(revision: u64, replaced: Option<StateKind>) -> Answer<Made> {
        Answer::Yes(Made {
            id: id(revision),
            revision,
            due_us: DUE,
            replaced,
        })
    }

    fn set(revision: u64) -> What {
        set_with(made(revision, None))
    }

    fn moved(revision: u64, due_us: u64) -> What {
        What::Move {
            asked: Asked::At(due_us),
            answer: Answer::Yes(Moved { revision, due_us }),
        }
    }

    fn remove(state: StateKind, attempt: Option<u64>) -> What {
        What::Remove {
            answer: Answer::Yes(Was { state, attempt }),
        }
    }

    fn sight(revision: u64, due_us: u64, state: StateKind) -> Sight {
        Sight {
            id: id(1),
            revision,
            due_us,
            state,
            attempt: u64::from(state != StateKind::Pending),
            body_bytes: 7,
        }
    }

    fn arrival(attempt: u64, due_us: u64) -> Arrival {
        Arrival {
            at_us: due_us + 40,
            key: "a".to_owned(),
            id: id(1),
            attempt,
            due_us,
            late_us: 30,
            held_us: 0,
            body_bytes: Some(7),
        }
    }

    /// The faults of a timer with this history, one event after the other, and arrivals.
    fn faults(history: Vec<What>, arrivals: Vec<Arrival>) -> Vec<Fault> {
        faults_apart(0, history, arrivals)
    }

    fn faults_apart(apart_us: u64, history: Vec<What>, arrivals: Vec<Arrival>) -> Vec<Fault> {
        let times = (100..).step_by(10);
        let events = times.zip(history).map(|(at, what)| event(at, what));
        let evidence = Evidence {
            histories: [("a".to_owned(), events.collect())].into(),
            arrivals,
            settled_us: SETTLED,
            apart_us,
            kills_us: Vec::new(),
            behind_us: 0,
            under_way_us: 0,
            shards: None,
        };
        let verdict = judge(&evidence);
        verdict.faults.into_iter().map(|one| one.fault).collect()
    }

    #[test]
    fn what_went_as_it_should_is_no_fault() {
        use StateKind::{Delivering, Pending};
        let once = || vec![arrival(1, DUE)];
        assert_eq!(faults(vec![set(1)], once()), []);
        assert_eq!(
            faults(vec![set(1), moved(2, 3_000)], vec![arrival(1, 3_000)]),
            []
        );
        assert_eq!(faults(vec![set(1), remove(Pending, None)], vec![]), []);
        let after_its_time = vec![
            set(1),
            What::Look(Some(sight(1, DUE, Pending))),
            set_with(made(2, Some(Pending))),
        ];
        let second = Arrival {
            id: id(2),
            ..arrival(1, DUE)
        };
        assert_eq!(faults(after_its_time, vec![second]), []);
        let events = vec![
            event(100, set(1)),
            event(2_000, remove(Delivering, Some(2))),
        ];
        let evidence = Evidence {
            histories: [("a".to_owned(), events)].into(),
            arrivals: vec![arrival(1, DUE), arrival(2, DUE)],
            settled_us: SETTLED,
            apart_us: 0,
            kills_us: Vec::new(),
            behind_us: 0,
            under_way_us: 0,
            shards: None,
        };
        let verdict = judge(&evidence);
        verdict.demand_innocence();
        assert_eq!(verdict.duplicates, 1);
        assert_eq!(verdict.removes_while_delivering, 1);
    }

    #[test]
    #[should_panic(expected = "asked before a look")]
    fn what_is_asked_of_a_key_in_doubt_cannot_be_judged() {
        let history = [set(1), set_with(Answer::Unknown), moved(2, DUE)];
        let history = history.map(|what| event(100, what)).into();
        demand_looks(&[("a".to_owned(), history)].into());
    }

    #[test]
    fn an_operation_without_an_answer_may_be_either_way() {
        let unknown = || What::Move {
            asked: Asked::At(3_000),
            answer: Answer::Unknown,
        };
        for due in [DUE, 3_000] {
            let history = vec![set(1), unknown()];
            assert_eq!(faults(history, vec![arrival(1, due)]), []);
        }
        let look = What::Look(Some(sight(2, 3_000, StateKind::Pending)));
        let history = vec![set(1), unknown(), look];
        assert_eq!(faults(history.clone(), vec![arrival(1, 3_000)]), []);
        assert_eq!(faults(history, vec![arrival(1, DUE)]), [Fault::Early]);

        let set_unknown = || set_with(Answer::Unknown);
        assert_eq!(faults(vec![set_unknown(), What::Look(None)], vec![]), []);
        let there = What::Look(Some(sight(1, DUE, StateKind::Pending)));
        let history = vec![set_unknown(), there];
        assert_eq!(faults(history, vec![arrival(1, DUE)]), []);

        let remove = What::Remove {
            answer: Answer::Unknown,
        };
        let history = vec![set(1), remove, What::Look(None)];
        assert_eq!(faults(history.clone(), vec![]), []);
        // Whenever it was removed, it was before the look.
        assert_eq!(faults(history, vec![arrival(1, DUE)]), [Fault::AfterRemove]);
    }

    #[test]
    fn an_acknowledged_timer_that_is_not_there_is_lost() {
        let history = vec![set(1), What::Look(None)];
        assert_eq!(faults(history, vec![arrival(1, DUE)]), [Fault::Lost]);
        let no = What::Move {
            asked: Asked::At(DUE),
            answer: Answer::No(None),
        };
        let history = vec![set(1), no];
        assert_eq!(faults(history, vec![arrival(1, DUE)]), [Fault::Lost]);
    }

    #[test]
    fn an_acknowledged_timer_that_never_arrives_is_lost() {
        assert_eq!(faults(vec![set(1)], vec![]), [Fault::Lost]);
        let cut = Arrival {
            body_bytes: None,
            ..arrival(1, DUE)
        };
        assert_eq!(faults(vec![set(1)], vec![cut]), [Fault::Lost]);
    }

    #[test]
    fn an_acknowledged_move_that_is_forgotten_is_seen() {
        let history = |sight| vec![set(1), moved(2, 3_000), What::Look(Some(sight))];
        let forgotten = sight(1, DUE, StateKind::Pending);
        assert_eq!(
            faults(history(forgotten), vec![arrival(1, 3_000)]),
            [Fault::Lost]
        );
        let brought_forward = vec![set(1), moved(2, 500)];
        assert_eq!(
            faults(brought_forward, vec![arrival(1, DUE)]),
            [Fault::Lost]
        );
    }

    #[test]
    fn an_early_arrival_is_seen() {
        let early = Arrival {
            at_us: DUE - 1,
            late_us: 0,
            held_us: 0,
            ..arrival(1, DUE)
        };
        assert_eq!(faults(vec![set(1)], vec![early]), [Fault::Early]);
        let before_it_started = Arrival {
            at_us: DUE + 29,
            ..arrival(1, DUE)
        };
        assert_eq!(
            faults(vec![set(1)], vec![before_it_started]),
            [Fault::Early]
        );
        let put_off = vec![set(1), moved(2, 3_000)];
        let both = vec![arrival(1, DUE), arrival(2, 3_000)];
        assert_eq!(faults(put_off, both), [Fault::Early]);
    }

    #[test]
    fn an_arrival_after_the_remove_is_seen() {
        let removed = vec![set(1), remove(StateKind::Pending, None)];
        assert_eq!(faults(removed, vec![arrival(1, DUE)]), [Fault::AfterRemove]);
        let replaced = vec![set(1), set_with(made(2, Some(StateKind::Pending)))];
        let second = Arrival {
            id: id(2),
            ..arrival(1, DUE)
        };
        assert_eq!(
            faults(replaced, vec![arrival(1, DUE), second]),
            [Fault::AfterRemove]
        );
        let back = vec![
            set(1),
            remove(StateKind::Pending, None),
            What::Look(Some(sight(1, DUE, StateKind::Pending))),
        ];
        assert_eq!(faults(back, vec![]), [Fault::AfterRemove]);
    }

    #[test]
    fn a_duplicate_without_a_number_of_its_own_is_seen() {
        let twice = |attempt| vec![arrival(2, DUE), arrival(attempt, DUE)];
        assert_eq!(faults(vec![set(1)], twice(3)), []);
        assert_eq!(faults(vec![set(1)], twice(2)), [Fault::Unmarked]);
        assert_eq!(faults(vec![set(1)], twice(1)), [Fault::Unmarked]);
    }

    #[test]
    fn what_started_first_may_be_read_last() {
        let late = |attempt, late_us| Arrival {
            at_us: DUE + 100,
            late_us,
            ..arrival(attempt, DUE)
        };
        let faults = |arrivals| faults(vec![set(1)], arrivals);
        assert_eq!(faults(vec![late(2, 60), late(1, 30)]), []);
        // By its own account, the lower number started later.
        for arrivals in [[late(1, 60), late(2, 30)], [late(2, 30), late(1, 60)]] {
            assert_eq!(faults(arrivals.into()), [Fault::Unmarked]);
        }
        assert_eq!(
            faults(vec![late(2, 60), late(2, 30)]),
            [Fault::Unmarked],
            "the same number twice"
        );
    }

    #[test]
    fn a_timer_is_given_up_after_as_many_kills_as_that_takes() {
        use Fault::{Answer, Lost};
        let faults = |attempt, kills: u64, first_us| {
            let dead = Sight {
                attempt,
                ..sight(1, DUE, StateKind::Dead)
            };
            let evidence = Evidence {
                histories: [(
                    "a".to_owned(),
                    vec![event(100, set(1)), event(2_000, What::Look(Some(dead)))],
                )]
                .into(),
                settled_us: SETTLED,
                kills_us: (0..kills).map(|kill| first_us + kill).collect(),
                behind_us: 0,
                shards: None,
                ..Evidence::default()
            };
            let faults = judge(&evidence).faults.into_iter();
            faults.map(|one| one.fault).collect::<Vec<_>>()
        };
        assert_eq!(faults(10, 10, DUE), []);
        assert_eq!(faults(9, 10, DUE), [Answer, Lost]);
        assert_eq!(faults(10, 9, DUE), [Answer, Lost]);
        assert_eq!(faults(10, 10, DUE - 1), [Answer, Lost]);
    }

    #[test]
    fn a_charge_is_short_and_names_each_kind() {
        let evidence = Evidence {
            histories: (0..50)
                .map(|key| (key.to_string(), vec![event(100, set(key))]))
                .collect(),
            arrivals: vec![arrival(1, DUE), arrival(1, DUE)],
            settled_us: SETTLED,
            ..Evidence::default()
        };
        let charge = judge(&evidence).charge();
        let lines: Vec<_> = charge.lines().collect();
        assert!(lines.len() <= 1 + TOLD_MAX + 2 * STORY_MAX, "{charge}");
        assert!(lines[0].contains("Lost: 49"), "{charge}");
        assert!(lines[0].contains("Unmarked: 1"), "{charge}");
        for kind in ["Lost", "Unmarked"] {
            let told = lines[1..=TOLD_MAX].iter();
            assert!(told.clone().any(|line| line.contains(kind)), "{charge}");
        }
        assert!(charge.contains("Event {"), "{charge}");
    }

    #[test]
    fn an_arrival_that_nobody_was_told_of_is_seen() {
        let stranger = Arrival {
            id: id(9),
            ..arrival(1, DUE)
        };
        let arrivals = vec![arrival(1, DUE), stranger];
        assert_eq!(faults(vec![set(1)], arrivals), [Fault::Stranger]);
    }

    #[test]
    fn an_acknowledged_deadline_is_the_one_asked_for() {
        let asked = |asked| What::Move {
            asked,
            answer: Answer::Yes(Moved {
                revision: 2,
                due_us: 500,
            }),
        };
        // It is asked between 110 and 115.
        for right in [Asked::At(500), Asked::In(390), Asked::In(385)] {
            assert_eq!(
                faults(vec![set(1), asked(right)], vec![arrival(1, 500)]),
                []
            );
        }
        for wrong in [Asked::At(501), Asked::In(384), Asked::In(391)] {
            let history = vec![set(1), asked(wrong)];
            assert_eq!(faults(history, vec![arrival(1, 500)]), [Fault::Answer]);
        }
    }

    #[test]
    fn clocks_that_lie_apart_excuse_delays_alone() {
        let judged = |asked| {
            let answer = Answer::Yes(Moved {
                revision: 2,
                due_us: 500,
            });
            let history = vec![set(1), What::Move { asked, answer }];
            faults_apart(20, history, vec![arrival(1, 500)])
        };
        for right in [Asked::At(500), Asked::In(365), Asked::In(410)] {
            assert_eq!(judged(right), [], "{right:?}");
        }
        for wrong in [Asked::At(501), Asked::In(364), Asked::In(411)] {
            assert_eq!(judged(wrong), [Fault::Answer], "{wrong:?}");
        }
    }

    #[test]
    fn half_an_operation_is_seen() {
        let torn = Arrival {
            body_bytes: Some(6),
            ..arrival(1, DUE)
        };
        assert_eq!(faults(vec![set(1)], vec![torn]), [Fault::Half]);
        let torn = Sight {
            body_bytes: 6,
            ..sight(1, DUE, StateKind::Pending)
        };
        let history = vec![set_with(Answer::Unknown), What::Look(Some(torn))];
        assert!(faults(history, vec![arrival(1, DUE)]).contains(&Fault::Half));
    }

    #[test]
    fn a_revision_that_comes_again_or_goes_back_is_seen() {
        for second in [1, 2] {
            let history = vec![set(2), moved(second, DUE)];
            let arrived = Arrival {
                id: id(2),
                ..arrival(1, DUE)
            };
            assert_eq!(faults(history, vec![arrived]), [Fault::Revision]);
        }
    }
}
