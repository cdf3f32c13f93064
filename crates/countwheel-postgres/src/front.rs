//! Where what wakes begins: so that a read of what is due passes over what is gone.
//!
//! The index of what wakes keeps the entries of rows that are gone until they are vacuumed, and no
//! vacuum removes what a snapshot may still see. A read from the start looks at all of them. So each turn
//! says its *low mark* by each clock: nothing that lives is before it, but for at most [`NAMED_MAX`]
//! timers that the turn names beside it. Without these names one timer whose attempt runs for hours
//! would keep the mark back.
//!
//! The owner of a shard knows the first of what lives, up to an end. What is read from the end on moves
//! it. Turns say absolutely where each changed timer is, so a page that was read while turns were made is
//! right again once it has what they changed, whichever of them it saw.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use countwheel_durable::{DueClock, Record, Revision, StateKind, Wake};
use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bits::Bits;
use crate::commit::Turn;
use crate::planted::planted;

/// So many are named beside a mark at the most.
const NAMED_MAX: usize = 64;
/// The version of saved marks, their first byte.
const VERSION: u8 = 1;

/// How much a front knows, and for how little it names a timer beside its mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// So many timers are known at the most, by each clock.
    pub(crate) known: usize,
    /// What is behind a gap where fewer have gone is not worth names.
    pub(crate) gap: u32,
}

impl Sizes {
    pub(crate) const USUAL: Self = Self {
        known: 1_024,
        gap: 64,
    };
}

/// The low mark of a shard by one clock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Low {
    /// Nothing that lives is before it but what is named.
    pub(crate) mark: Wake,
    pub(crate) named: Vec<Bits>,
}

/// The low marks of a shard by both clocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lows([Low; DueClock::ALL.len()]);

#[derive(Serialize, Deserialize)]
struct SavedLow {
    /// None behind all that may ever wake.
    mark: Option<(u64, u64)>,
    named: Vec<[u8; 16]>,
}

impl Lows {
    #[cfg(feature = "testing")]
    pub(crate) fn new(lows: [Low; DueClock::ALL.len()]) -> Self {
        Self(lows)
    }

    pub(crate) fn by(&self, clock: DueClock) -> &Low {
        &self.0[clock as usize]
    }

    /// All that are named beside them.
    pub(crate) fn named(&self) -> Vec<Bits> {
        self.0.iter().flat_map(|low| &low.named).copied().collect()
    }

    /// As a turn's row has them; `None` if they say nothing.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        if *self == Self::default() {
            return None;
        }
        let saved = self.0.each_ref().map(|low| SavedLow {
            mark: (low.mark != Wake::MAX).then_some((low.mark.at.as_micros(), low.mark.revision.0)),
            named: low.named.iter().map(|hash| hash.0).collect(),
        });
        postcard::to_extend(&saved, vec![VERSION]).ok()
    }

    /// From a turn's row. One that has none, or those of another program, begins at the start.
    pub(crate) fn of_bytes(bytes: Option<&[u8]>) -> Self {
        let Some((&VERSION, content)) = bytes.and_then(<[u8]>::split_first) else {
            return Self::default();
        };
        let Ok(saved) = postcard::from_bytes::<[SavedLow; 2]>(content) else {
            return Self::default();
        };
        Self(saved.map(|low| Low {
            mark: low.mark.map_or(Wake::MAX, |(at, revision)| Wake {
                at: Timestamp::from_micros(at),
                revision: Revision(revision),
            }),
            named: low.named.into_iter().map(Bits).collect(),
        }))
    }
}

/// Where a read of what is due begins, and whether it may be believed afterwards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beginning {
    pub(crate) low: Low,
    /// If that of the front is another afterwards, it may not.
    pub(crate) lowered: u64,
}

/// A page that the front wants to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) clock: DueClock,
    /// From this position on.
    pub(crate) from: Wake,
    pub(crate) limit: usize,
}

/// The first of what lives in a shard, by both clocks.
pub(crate) struct Fronts {
    fronts: [Front; DueClock::ALL.len()],
    sizes: Sizes,
    /// How often a commit began that puts something before a mark.
    pub(crate) lowered: u64,
}

impl Fronts {
    /// After a turn with these marks, whose named timers are at these places.
    pub(crate) fn new(lows: &Lows, places: &[(Bits, DueClock, Wake)], sizes: Sizes) -> Self {
        let fronts = DueClock::ALL.map(|clock| {
            let low = lows.by(clock);
            let mut front = Front::new(low.mark);
            for (hash, by, place) in places {
                if *by == clock && low.named.contains(hash) && *place < low.mark {
                    front.insert(*place, *hash, sizes.known);
                }
            }
            if !low.named.is_empty() {
                // The mark was worth the names beside it.
                front.gone_at_end.count = u32::MAX;
            }
            front
        });
        Self {
            fronts,
            sizes,
            lowered: 0,
        }
    }

    /// The marks as they are.
    pub(crate) fn lows(&self) -> Lows {
        let fronts = self.fronts.each_ref();
        Lows(fronts.map(|front| front.low(&Moved::default(), self.sizes.gap)))
    }

    /// The marks as they are after a turn.
    pub(crate) fn lows_after(&self, turn: &Turn<'_>) -> Lows {
        Lows(DueClock::ALL.map(|clock| {
            let front = &self.fronts[clock as usize];
            let mut moved = front.moved(clock, turn);
            if planted!(PostgresMarkPassesPut) {
                moved.to.clear();
            }
            let mut low = front.low(&moved, self.sizes.gap);
            if planted!(PostgresForgetsNamed) {
                low.named.clear();
            }
            low
        }))
    }

    /// A commit of the turn is sent, and may be done at any time from now on.
    pub(crate) fn begin(&mut self, turn: &Turn<'_>) {
        for clock in DueClock::ALL {
            let front = &mut self.fronts[clock as usize];
            let places = turn.names.iter();
            front.under_way = places.filter_map(|it| place_by(clock, it.record)).min();
            let mark = front.low(&Moved::default(), self.sizes.gap).mark;
            if front.under_way.is_some_and(|first| first < mark) {
                self.lowered += 1;
            }
        }
    }

    /// The turn is made.
    pub(crate) fn made(&mut self, turn: &Turn<'_>) {
        for clock in DueClock::ALL {
            let front = &mut self.fronts[clock as usize];
            let moved = front.moved(clock, turn);
            front.go(moved, self.sizes.known);
            if let Some(since) = &mut front.since {
                let places = turn.names.iter();
                since.extend(places.map(|it| (it.hash, place_by(clock, it.record))));
            }
        }
    }

    /// No commit is under way any more.
    pub(crate) fn end(&mut self) {
        for front in &mut self.fronts {
            front.under_way = None;
        }
    }

    /// Where a read of what wakes by the clock may begin.
    pub(crate) fn beginning(&self, clock: DueClock) -> Beginning {
        let front = &self.fronts[clock as usize];
        let mut low = front.low(&Moved::default(), self.sizes.gap);
        low.mark = front.under_way.map_or(low.mark, |at| at.min(low.mark));
        Beginning {
            low,
            lowered: self.lowered,
        }
    }

    /// Whether it knows so little that a page should be read.
    pub(crate) fn is_low(&self) -> bool {
        let least = self.sizes.known / 4;
        let mut fronts = self.fronts.iter();
        fronts.any(|front| front.is_low(least))
    }

    /// The page that should be read next, and be handed to [`learn`](Self::learn). What turns change
    /// from now on is added to it.
    pub(crate) fn want(&mut self) -> Option<Wanted> {
        let least = self.sizes.known / 4;
        let clock = DueClock::ALL
            .into_iter()
            .find(|clock| self.fronts[*clock as usize].is_low(least))?;
        let front = &mut self.fronts[clock as usize];
        front.since = Some(HashMap::new());
        Some(Wanted {
            clock,
            from: front.end,
            limit: self.sizes.known - front.known.len(),
        })
    }

    /// Learns a page that was read; `None` if it could not be read.
    pub(crate) fn learn(&mut self, wanted: Wanted, page: Option<Vec<(Wake, Bits)>>) {
        let known = self.sizes.known;
        let front = &mut self.fronts[wanted.clock as usize];
        let since = front.since.take();
        if let (Some(page), Some(since)) = (page, since)
            && front.end == wanted.from
        {
            let is_last = page.len() < wanted.limit;
            front.go_on(page, &since, is_last, known);
        }
    }
}

/// Where a timer wakes by the clock after a change. What is done leaves the table, and wakes nobody.
fn place_by(clock: DueClock, record: Option<&Record>) -> Option<Wake> {
    let record = record.filter(|record| record.wake_clock() == clock)?;
    record
        .wake()
        .filter(|_| record.state.kind() != StateKind::Done)
}

/// The next position.
fn behind(wake: Wake) -> Wake {
    match wake.revision.0.checked_add(1) {
        Some(next) => Wake {
            revision: Revision(next),
            ..wake
        },
        None => Wake {
            at: Timestamp::from_micros(wake.at.as_micros().saturating_add(1)),
            revision: Revision(0),
        },
    }
}

/// What a turn changes of a front.
#[derive(Default)]
struct Moved {
    /// From where known timers go.
    from: Vec<Wake>,
    /// Where timers come, before the end.
    to: Vec<(Wake, Bits)>,
}

/// A timer that lives.
#[derive(Clone, Copy)]
struct Known {
    hash: Bits,
    gone: Gone,
}

/// What has gone between two timers that live.
#[derive(Clone, Copy, Default)]
struct Gone {
    count: u32,
    last: Wake,
}

/// The first of what lives by one clock: all of it up to an end.
struct Front {
    known: BTreeMap<Wake, Known>,
    places: HashMap<Bits, Wake>,
    /// Nothing is known from here on.
    end: Wake,
    /// What has gone between the last known one and the end.
    gone_at_end: Gone,
    /// Where the first timer comes that a commit puts which is under way.
    under_way: Option<Wake>,
    /// Where turns have put timers since a page is read; `None` if none is.
    since: Option<HashMap<Bits, Option<Wake>>>,
}

impl Front {
    fn new(end: Wake) -> Self {
        Self {
            known: BTreeMap::new(),
            places: HashMap::new(),
            end,
            gone_at_end: Gone::default(),
            under_way: None,
            since: None,
        }
    }

    fn is_low(&self, least: usize) -> bool {
        self.known.len() <= least && self.end < Wake::MAX && self.since.is_none()
    }

    /// The first that are there once that has changed, and how many have gone before each. The end is like
    /// one of them without a name.
    fn first(&self, moved: &Moved) -> Vec<(Wake, Option<Bits>, u32)> {
        let mut first = Vec::new();
        let mut gone = 0_u32;
        for (place, known) in &self.known {
            gone = gone.saturating_add(known.gone.count);
            if moved.from.binary_search(place).is_ok() {
                gone = gone.saturating_add(1);
                continue;
            }
            first.push((*place, Some(known.hash), mem::take(&mut gone)));
            if first.len() > NAMED_MAX {
                break;
            }
        }
        if first.len() <= NAMED_MAX {
            first.push((self.end, None, gone.saturating_add(self.gone_at_end.count)));
        }
        first.extend(
            moved
                .to
                .iter()
                .map(|(place, hash)| (*place, Some(*hash), 0)),
        );
        first.sort_unstable_by_key(|(place, ..)| *place);
        first.truncate(NAMED_MAX + 1);
        first
    }

    /// The mark once that has changed: the first that lives, or the one behind the last gap for which it is
    /// worth it to name all before.
    fn low(&self, moved: &Moved, gap: u32) -> Low {
        let first = self.first(moved);
        let worth = first.iter().rposition(|(.., gone)| *gone >= gap);
        let (before, rest) = first.split_at(worth.unwrap_or(0));
        Low {
            mark: rest.first().map_or(self.end, |(mark, ..)| *mark),
            named: before.iter().filter_map(|(_, hash, _)| *hash).collect(),
        }
    }

    fn moved(&self, clock: DueClock, turn: &Turn<'_>) -> Moved {
        let mut moved = Moved::default();
        for named in &turn.names {
            let from = self.places.get(&named.hash).copied();
            let to = place_by(clock, named.record).filter(|place| *place < self.end);
            if from != to {
                moved.from.extend(from);
                moved.to.extend(to.map(|place| (place, named.hash)));
            }
        }
        moved.from.sort_unstable();
        moved.to.sort_unstable();
        moved
    }

    fn go(&mut self, moved: Moved, most: usize) {
        for place in moved.from {
            self.remove(place);
        }
        for (place, hash) in moved.to {
            self.insert(place, hash, most);
        }
    }

    fn remove(&mut self, place: Wake) {
        let Some(known) = self.known.remove(&place) else {
            return;
        };
        self.places.remove(&known.hash);
        let gone = self.gone_behind(place);
        gone.count = gone
            .count
            .saturating_add(known.gone.count)
            .saturating_add(1);
        gone.last = gone.last.max(place);
    }

    /// What has gone before the first that is known from this place on.
    fn gone_behind(&mut self, place: Wake) -> &mut Gone {
        let next = self.known.range_mut(place..).next();
        next.map_or(&mut self.gone_at_end, |(_, next)| &mut next.gone)
    }

    /// Knows one more, and gives up the last if those are too many.
    fn insert(&mut self, place: Wake, hash: Bits, most: usize) {
        if place >= self.end {
            return;
        }
        if let Some(before) = self.places.insert(hash, place) {
            self.known.remove(&before);
        }
        let behind = self.gone_behind(place);
        let gone = match behind.last <= place {
            true => mem::take(behind),
            false => Gone::default(),
        };
        self.known.insert(place, Known { hash, gone });
        if self.known.len() > most
            && let Some((place, last)) = self.known.pop_last()
        {
            self.places.remove(&last.hash);
            self.gone_at_end = last.gone;
            if !planted!(PostgresEndStays) {
                self.end = place;
            }
        }
    }

    /// Knows what a page has, and what turns have changed since.
    fn go_on(
        &mut self,
        page: Vec<(Wake, Bits)>,
        since: &HashMap<Bits, Option<Wake>>,
        is_last: bool,
        most: usize,
    ) {
        let from = self.end;
        self.end = match page.last() {
            Some((last, _)) if !is_last => behind(*last),
            _ => Wake::MAX,
        };
        for (place, hash) in page {
            if !since.contains_key(&hash) || planted!(PostgresFrontIsOld) {
                self.insert(place, hash, most);
            }
        }
        for (hash, place) in since {
            if let Some(place) = place.filter(|place| *place >= from)
                && !planted!(PostgresFrontIsOld)
            {
                self.insert(place, *hash, most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::store::{Before, Change, Shard};
    use countwheel_durable::{State, TimerName};
    use countwheel_time::Random;

    use super::*;
    use crate::hash::{KEY_BYTES, NameHash};

    type Live = BTreeMap<Bits, Record>;

    fn record(key: u64, clock: DueClock, at: u64, revision: u64) -> Record {
        let mut record = varied_records().swap_remove(0);
        record.name = TimerName::new("q", key.to_string()).unwrap();
        (record.state, record.clock) = (State::Pending, clock);
        record.due = Timestamp::from_micros(at);
        record.revision = Revision(revision);
        record
    }

    fn put(record: &Record) -> Change {
        let record = Box::new(record.clone());
        let before = Before::Unknown;
        Change::Put { record, before }
    }

    fn hash() -> NameHash {
        NameHash::new(&[7; KEY_BYTES])
    }

    fn do_to(live: &mut Live, turn: &Turn<'_>) {
        for named in &turn.names {
            match named.record {
                Some(record) => drop(live.insert(named.hash, record.clone())),
                None => drop(live.remove(&named.hash)),
            }
        }
    }

    fn places(live: &Live, clock: DueClock) -> Vec<(Wake, Bits)> {
        let places = live
            .iter()
            .filter_map(|(hash, record)| Some((place_by(clock, Some(record))?, *hash)));
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        places
    }

    fn page(live: &Live, wanted: Wanted) -> Vec<(Wake, Bits)> {
        let places = places(live, wanted.clock).into_iter();
        let behind = places.filter(|(place, _)| *place >= wanted.from);
        behind.take(wanted.limit).collect()
    }

    fn check(live: &Live, clock: DueClock, low: &Low) {
        assert!(low.named.len() <= NAMED_MAX);
        for (place, hash) in places(live, clock) {
            assert!(
                place >= low.mark || low.named.contains(&hash),
                "{place:?} is before {low:?}"
            );
        }
    }

    fn draw(random: &mut Random, live: &Live, revision: &mut u64) -> Vec<Change> {
        let changes = (0..1 + random.below(4)).map(|_| {
            *revision += 1;
            let clock = DueClock::ALL[usize::from(random.below(4) == 0)];
            let new = record(random.below(24), clock, random.below(40), *revision);
            let old = live.get(&hash().of(&new.name));
            match (random.below(4), old) {
                (0, Some(old)) => put(&Record {
                    state: State::Delivering,
                    ..old.clone()
                }),
                (1 | 2, _) => Change::remove(new.name),
                _ => put(&new),
            }
        });
        changes.collect()
    }

    /// Pages are read and learned at any moment, turns are refused, and the next owner begins with what the
    /// last turn says.
    #[test]
    fn nothing_that_lives_is_before_a_mark_and_not_named() {
        let sizes = Sizes { known: 6, gap: 2 };
        let (mut moved, mut named) = (0, 0);
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut fronts = Fronts::new(&Lows::default(), &[], sizes);
            let (mut live, mut revision, mut read) = (Live::new(), 0, None);
            for _ in 0..80 {
                let changes = draw(&mut random, &live, &mut revision);
                let turn = Turn::of(Shard::ONLY, &changes, &hash());
                let lows = fronts.lows_after(&turn);
                fronts.begin(&turn);
                let is_refused = random.below(6) == 0;
                // A page sees the turn or does not.
                for _ in 0..2 {
                    if read.is_none() && random.below(3) == 0 {
                        read = fronts.want().map(|wanted| (wanted, page(&live, wanted)));
                    }
                    if !is_refused {
                        do_to(&mut live, &turn);
                    }
                    for clock in DueClock::ALL {
                        check(&live, clock, &fronts.beginning(clock).low);
                    }
                    if random.below(3) == 0
                        && let Some((wanted, page)) = read.take()
                    {
                        fronts.learn(wanted, Some(page).filter(|_| random.below(9) > 0));
                    }
                }
                if !is_refused {
                    fronts.made(&turn);
                }
                fronts.end();
                for clock in DueClock::ALL {
                    if !is_refused {
                        check(&live, clock, lows.by(clock));
                    }
                    let low = fronts.beginning(clock).low;
                    check(&live, clock, &low);
                    moved += usize::from(low.mark > Wake::default());
                    named += low.named.len();
                }
                if random.below(10) == 0 && !is_refused {
                    let bytes = lows.to_bytes();
                    let lows = Lows::of_bytes(bytes.as_deref());
                    let all = DueClock::ALL.map(|clock| {
                        let places = places(&live, clock).into_iter();
                        places.map(move |(place, hash)| (hash, clock, place))
                    });
                    let places: Vec<_> = all.into_iter().flatten().collect();
                    fronts = Fronts::new(&lows, &places, sizes);
                    read = None;
                }
            }
        }
        assert!(moved > 2_000 && named > 200, "{moved} {named}");
    }

    #[test]
    fn one_that_stays_is_named_once_many_have_gone_behind_it() {
        let mut fronts = Fronts::new(&Lows::default(), &[], Sizes::USUAL);
        let wanted = fronts.want().unwrap();
        fronts.learn(wanted, Some(Vec::new()));
        let records: Vec<_> = (0..100)
            .map(|at| record(at, DueClock::Wall, at, 1))
            .collect();
        let stuck = hash().of(&records[0].name);
        let mut changes: Vec<_> = records.iter().map(put).collect();
        for gone in [0, 63, 64, 99] {
            let gone = &records[1..=gone];
            changes.extend(gone.iter().map(|it| Change::remove(it.name.clone())));
            let turn = Turn::of(Shard::ONLY, &changes, &hash());
            let lows = fronts.lows_after(&turn);
            fronts.made(&turn);
            assert_eq!(lows, fronts.lows());
            let low = lows.by(DueClock::Wall);
            if gone.len() < 64 {
                assert_eq!(
                    *low,
                    Low {
                        mark: records[0].wake().unwrap(),
                        named: Vec::new()
                    }
                );
            } else {
                let next = records.get(gone.len() + 1);
                let mark = next.map_or(Wake::MAX, |next| next.wake().unwrap());
                assert_eq!(
                    *low,
                    Low {
                        mark,
                        named: vec![stuck]
                    }
                );
            }
            changes.clear();
        }
    }

    #[test]
    fn marks_of_another_program_are_none() {
        assert_eq!(Lows::default().to_bytes(), None);
        let mut lows = Lows::default();
        lows.0[1] = Low {
            mark: Wake::MAX,
            named: vec![Bits([9; 16])],
        };
        let bytes = lows.to_bytes().unwrap();
        assert_eq!(Lows::of_bytes(Some(&bytes)), lows);
        for len in 0..bytes.len() {
            assert_eq!(Lows::of_bytes(Some(&bytes[..len])), Lows::default());
        }
        let other = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(Lows::of_bytes(Some(&other)), Lows::default());
    }
}
