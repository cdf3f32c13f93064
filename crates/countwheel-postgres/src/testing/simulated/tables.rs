//! The tables, and what each commit took the place of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{Holding, Member, Node, NodeId, View};
use countwheel_durable::store::{Fence, Shard};
use countwheel_durable::{DueClock, Shards, StateKind};
use countwheel_time::{Clock, Timestamp};

use super::LostOfShard;
use super::statement::{TimerRow, TurnOf, TurnRow, Written};
use crate::bits::Bits;
use crate::body;
use crate::front::{Low, Lows};
use crate::planted::planted;
use crate::registry::{self, GONE_AFTER, LEASE_MAX, MARGIN};
use crate::ring::{Ring, Slots};
use crate::schema::LEFT_OUT;
use crate::session::{Refusal, Registered, SavedCounts, Wished};

/// So many commits can be lost at the most.
const UNDONE_MAX: usize = 64;

/// A row is in `timer`, or in a table of the ring.
pub(super) type RowKey = (Shard, Bits, Option<i16>);
/// An entry of the index of what is due: clock, wake, revision, hash.
type WakeKey = (Shard, i8, u64, u64, Bits);
/// An entry of the indexes of lists: queue, due, revision, the row.
type ListKey = (Shard, String, u64, u64, Bits, Option<i16>);

#[derive(Clone, Copy, Default)]
pub(super) struct ShardRow {
    pub(super) fence: Fence,
    pub(super) token: Option<Bits>,
    pub(super) node: Option<Bits>,
    /// In which history the fence was given.
    timeline: i32,
    since: Timestamp,
}

#[derive(Clone, Default)]
pub(super) struct SettingRows {
    pub(super) version: u64,
    /// In which history it was given.
    timeline: i32,
    pub(super) values: BTreeMap<String, (u64, Vec<u8>)>,
}

pub(super) struct Tables {
    shards: BTreeMap<Shard, ShardRow>,
    /// By name.
    nodes: BTreeMap<String, Member>,
    wanted: BTreeMap<Shard, String>,
    pub(super) turns: BTreeMap<(Shard, i64), TurnRow>,
    timers: BTreeMap<RowKey, Arc<TimerRow>>,
    ring: Ring,
    clock: Arc<dyn Clock>,
    pub(super) wakes: BTreeSet<WakeKey>,
    pub(super) lists: BTreeSet<ListKey>,
    pub(super) settings: Arc<SettingRows>,
    /// The latest version of the settings that was ever given.
    settings_given: u64,
    pub(super) saved: BTreeMap<Shard, SavedCounts>,
    pub(super) timeline: i32,
    /// The token of the owner of each number.
    tokens: BTreeMap<(Shard, Fence), Bits>,
    /// How many turns with changes each token has made, whatever its row says now.
    made: BTreeMap<Bits, u64>,
    /// Of each of the last commits, the rows before it.
    undo: VecDeque<Vec<Undo>>,
    /// How many of the last commits the standby does not have.
    pub(super) unreplicated: usize,
}

/// A row as it was before a commit.
enum Undo {
    Shard(Shard, ShardRow),
    Node(String, Option<Member>),
    Wanted(Shard, Option<String>),
    Turn((Shard, i64), Option<TurnRow>),
    /// A turn with changes was made under the token.
    Made(Bits),
    Timer(RowKey, Option<Arc<TimerRow>>),
    Settings(Arc<SettingRows>),
    Saved(Shard, Option<SavedCounts>),
}

impl Tables {
    pub(super) fn new(shards: Shards, ring: Ring, clock: Arc<dyn Clock>) -> Self {
        let all = || (0..shards.count()).map(Shard);
        let first = TurnRow {
            token: None,
            revision: 0,
            clock: None,
            timeline: Some(1),
            writes: 0,
            lows: None,
        };
        let first_owner = ShardRow {
            timeline: 1,
            ..ShardRow::default()
        };
        let settings = SettingRows {
            timeline: 1,
            ..SettingRows::default()
        };
        Self {
            shards: all().map(|shard| (shard, first_owner)).collect(),
            nodes: BTreeMap::new(),
            wanted: BTreeMap::new(),
            turns: all().map(|shard| ((shard, 0), first.clone())).collect(),
            timers: BTreeMap::new(),
            ring,
            clock,
            wakes: BTreeSet::new(),
            lists: BTreeSet::new(),
            settings: Arc::new(settings),
            settings_given: 0,
            saved: BTreeMap::new(),
            timeline: 1,
            tokens: BTreeMap::new(),
            made: BTreeMap::new(),
            undo: VecDeque::new(),
            unreplicated: 0,
        }
    }

    pub(super) fn shard(&self, shard: Shard) -> Option<&ShardRow> {
        self.shards.get(&shard)
    }

    pub(super) fn owner(&self, shard: Shard) -> ShardRow {
        self.shards.get(&shard).copied().unwrap_or_default()
    }

    pub(super) fn made(&self, shard: Shard, fence: Fence) -> u64 {
        let token = self.tokens.get(&(shard, fence));
        token
            .and_then(|token| self.made.get(token))
            .map_or(0, |made| *made)
    }

    pub(super) fn last_turn(&self, shard: Shard) -> Option<(i64, &TurnRow)> {
        let mut turns = self.turns.range((shard, i64::MIN)..=(shard, i64::MAX));
        turns.next_back().map(|((_, seq), row)| (*seq, row))
    }

    pub(super) fn row(&self, key: RowKey) -> Option<&TimerRow> {
        self.timers.get(&key).map(|row| &**row)
    }

    /// What there is under a name: in `timer`, else in one of these tables of the ring.
    pub(super) fn timer(&self, shard: Shard, hash: Bits, slots: Slots) -> Option<&TimerRow> {
        let rows = self.timers.range(all_of(shard, hash));
        let mut rows = rows.filter(|((.., slot), _)| slot.is_none_or(|slot| slots.has(slot)));
        rows.next().map(|(_, row)| &**row)
    }

    /// Whether a table of the ring has nothing.
    pub(super) fn is_empty(&self, slot: i16) -> bool {
        self.timers.keys().all(|(.., other)| *other != Some(slot))
    }

    /// Until when a record was kept at the most that nobody keeps any more.
    fn past(&self) -> u64 {
        let now = self.clock.timestamp();
        now.saturating_sub(self.ring.guard()).as_micros()
    }

    fn forget(&mut self, slot: i16, undo: &mut Vec<Undo>) {
        let past = self.past();
        let rows = self.timers.iter().filter(|((.., it), _)| *it == Some(slot));
        let rows: Vec<_> = rows
            .map(|(key, row)| (*key, row.wake.is_some_and(|wake| wake > past)))
            .collect();
        let is_mixed = rows.iter().any(|(_, is_kept)| *is_kept);
        for (key, is_kept) in rows {
            if !is_mixed || !is_kept || planted!(PostgresForgetsKept) {
                self.set(key, None, undo);
            }
        }
    }

    fn forget_outside(&mut self, shards: &[Shard], undo: &mut Vec<Undo>) {
        let (past, done) = (self.past(), body::letter(StateKind::Done));
        let rows = self.timers.iter().filter(|((shard, _, slot), row)| {
            shards.contains(shard)
                && slot.is_none()
                && row.state == done
                && row.wake.is_some_and(|wake| wake <= past)
        });
        let keys: Vec<_> = rows.map(|(key, _)| *key).collect();
        for key in keys {
            self.set(key, None, undo);
        }
    }

    /// The rows of a shard with hashes from the first to the last.
    pub(super) fn timers(
        &self,
        shard: Shard,
        first: Bits,
        last: Bits,
    ) -> impl Iterator<Item = &TimerRow> {
        let rows = self
            .timers
            .range((shard, first, None)..=(shard, last, Some(i16::MAX)));
        rows.map(|(_, row)| &**row)
    }

    /// Whether the turn may be made: its token is the shard's, the turn before it is there, and the
    /// server's history is that of its owner.
    pub(super) fn is_permitted(&self, turn: &TurnOf) -> bool {
        let is_owned = self.owner(turn.shard).token == turn.row.token
            || planted!(PostgresNoToken)
            || turn.has_passed;
        let has_before = self.turns.contains_key(&(turn.shard, turn.seq - 1));
        // A failover that loses a turn begins another history: each look finds what the other finds, and the
        // mistake is to have neither.
        let has_none = planted!(PostgresNoTurnBefore);
        let is_history = turn.row.timeline == Some(self.timeline)
            || planted!(PostgresPromotionPassed)
            || has_none;
        is_owned && is_history && (has_before || has_none)
    }

    /// What wakes before the low mark of the last turn by the clock, and is not named beside it.
    pub(super) fn before_mark(&self, shard: Shard, clock: DueClock) -> Option<&TimerRow> {
        let (_, row) = self.last_turn(shard)?;
        let lows = Lows::of_bytes(row.lows.as_deref());
        let Low { mark, named } = lows.by(clock);
        let letter = body::clock_letter(clock);
        let first = (shard, letter, 0, 0, Bits([0; 16]));
        let (at, revision) = (mark.at.as_micros(), mark.revision.0);
        let behind = (shard, letter, at, revision, Bits([0; 16]));
        let before = self.wakes.range(first..behind);
        let mut hashes = before.map(|(.., hash)| hash);
        let astray = hashes.find(|hash| !named.contains(hash))?;
        self.row((shard, *astray, None))
    }

    /// Does a statement that writes. Says the shards whose turns it made, or the fence it gave.
    pub(super) fn write(&mut self, written: &Written) -> Result<Done, Refusal> {
        let mut undo = Vec::new();
        let done = match written {
            Written::Turns(turns) => Done::Turns(self.turns(turns, &mut undo)?),
            Written::Take {
                shard,
                after,
                token,
                node,
            } => match self.owner(*shard).fence == *after || planted!(PostgresTakesLate) {
                true => Done::Take(self.take(*shard, *token, *node, &mut undo)),
                false => Done::Take(None),
            },
            Written::TakeOver {
                shard,
                after,
                token,
                node,
                looked,
            } => self.take_over((*shard, *after), *token, *node, *looked, &mut undo),
            Written::TakeAtOnce { takes, node, held } => {
                let mut taken = Vec::new();
                for (shard, after, token) in takes.iter().filter(|(it, ..)| !held.contains(it)) {
                    let after = match planted!(PostgresAtOnceLate) {
                        true => self.owner(*shard).fence,
                        false => *after,
                    };
                    let done = self.take_over((*shard, after), *token, *node, None, &mut undo);
                    if let Done::TakeOver(Ok(Some(_))) = done {
                        taken.push(*shard);
                    }
                }
                Done::TakenAtOnce(taken)
            }
            Written::Join { node, lease } => {
                let is_joined = self.join(node, *lease, &mut undo);
                let seen = self.registered(is_joined);
                self.cap(node.id, &mut undo);
                Done::Registered(Box::new(seen))
            }
            Written::Renew { node, lease } => {
                let member = self.member(*node).cloned();
                if let Some(mut member) = member.clone() {
                    member.expires = self.lease(*lease);
                    self.set_node(&member.node.name.clone(), Some(member), &mut undo);
                }
                let seen = self.registered(member.is_some());
                self.cap(*node, &mut undo);
                Done::Registered(Box::new(seen))
            }
            Written::Give { shard, of, to } => self.give(*shard, *of, *to, &mut undo),
            Written::Leave(node) => {
                self.leave(*node, &mut undo);
                Done::Nothing
            }
            Written::MarkDraining { name, is_draining } => {
                let member = self.nodes.get(name).cloned();
                if let Some(mut member) = member.clone() {
                    member.is_draining = *is_draining;
                    self.set_node(name, Some(member), &mut undo);
                }
                Done::Marked(member.is_some())
            }
            Written::Want { shard, node } => {
                Done::Wished(self.want(*shard, node.as_deref(), &mut undo))
            }
            Written::Prune { shard, seq } => {
                let old: Vec<_> = self
                    .turns
                    .range((*shard, i64::MIN)..(*shard, *seq))
                    .map(|(key, _)| *key)
                    .collect();
                for key in old {
                    undo.push(Undo::Turn(key, self.turns.remove(&key)));
                }
                Done::Nothing
            }
            Written::Forget(slot) => {
                self.forget(*slot, &mut undo);
                Done::Nothing
            }
            Written::ForgetOutside(shards) => {
                self.forget_outside(shards, &mut undo);
                Done::Nothing
            }
            Written::Counts(counts) => {
                for saved in counts {
                    let turn = self.turns.get(&(saved.shard, saved.seq));
                    if turn.is_some_and(|turn| turn.token == Some(saved.token)) {
                        let before = self.saved.insert(saved.shard, saved.clone());
                        undo.push(Undo::Saved(saved.shard, before));
                    }
                }
                Done::Nothing
            }
        };
        if let Written::Counts(_) = written {
            // They are lost with the turn that they are of.
            if let Some(last) = self.undo.back_mut() {
                last.append(&mut undo);
            }
        } else if !undo.is_empty() {
            self.undo.push_back(undo);
            if self.undo.len() > UNDONE_MAX {
                self.undo.pop_front();
            }
            // The standby has what is before as well.
            self.unreplicated = 0;
        }
        Ok(done)
    }

    fn turns(&mut self, turns: &[TurnOf], undo: &mut Vec<Undo>) -> Result<Vec<Shard>, Refusal> {
        let mut rows = BTreeSet::new();
        for turn in turns {
            let (put, narrow) = (turn.put.iter(), turn.narrow.iter());
            let hashes = put.chain(narrow).map(|(hash, _)| hash).chain(&turn.removed);
            for hash in hashes {
                if !rows.insert((turn.shard, *hash)) {
                    return Err(Refusal {
                        code: "21000".to_owned(),
                        message: "a statement cannot affect a row a second time".to_owned(),
                    });
                }
            }
        }
        let mut made = Vec::new();
        for turn in turns {
            let key = (turn.shard, turn.seq);
            let is_free = !self.turns.contains_key(&key) || planted!(PostgresReplacesTurn);
            let is_made = self.is_permitted(turn) && is_free;
            if is_made {
                undo.push(Undo::Turn(key, self.turns.insert(key, turn.row.clone())));
                if let Some(token) = turn.row.token.filter(|_| turn.row.writes > 0) {
                    *self.made.entry(token).or_default() += 1;
                    undo.push(Undo::Made(token));
                }
                made.push(turn.shard);
            }
            if is_made || planted!(PostgresNotJoined) {
                self.change(turn, undo);
            }
        }
        let changed = turns
            .iter()
            .filter(|turn| made.contains(&turn.shard) || planted!(PostgresSettingsNotJoined));
        let changed: Vec<_> = changed.flat_map(|turn| &turn.settings).collect();
        if !changed.is_empty() {
            undo.push(Undo::Settings(Arc::clone(&self.settings)));
            let settings = Arc::make_mut(&mut self.settings);
            if !planted!(PostgresSettingsGoBack) {
                settings.version += left_out(settings.timeline, self.timeline);
            }
            settings.timeline = self.timeline;
            assert!(
                settings.version >= self.settings_given,
                "a version of the settings is given twice"
            );
            for (name, value) in changed {
                settings.version += 1;
                match value {
                    Some(value) => {
                        let row = (settings.version, value.clone());
                        settings.values.insert(name.clone(), row);
                    }
                    None => drop(settings.values.remove(name)),
                }
            }
        }
        self.settings_given = self.settings_given.max(self.settings.version);
        Ok(made)
    }

    fn change(&mut self, turn: &TurnOf, undo: &mut Vec<Undo>) {
        for (hash, row) in &turn.put {
            let key = (turn.shard, *hash, None);
            self.set(key, Some(Arc::new(row.clone())), undo);
        }
        for (hash, row) in &turn.narrow {
            let key = (turn.shard, *hash, None);
            // An update of a row that is not there changes nothing.
            if let Some(before) = self.timers.get(&key) {
                let row = TimerRow {
                    queue: before.queue.clone(),
                    key: before.key.clone(),
                    payload: before.payload.clone(),
                    ..row.clone()
                };
                self.set(key, Some(Arc::new(row)), undo);
            }
        }
        for hash in &turn.replaced {
            let rows = self.timers.range(all_of(turn.shard, *hash));
            let keys: Vec<_> = rows.map(|(key, _)| *key).collect();
            for key in keys.into_iter().filter(|(.., slot)| slot.is_some()) {
                self.set(key, None, undo);
            }
        }
        for done in &turn.done {
            let mut row = done.row.clone();
            if done.is_bare {
                let Some(before) = self.timers.get(&(turn.shard, done.hash, None)) else {
                    continue;
                };
                if !planted!(PostgresDoneIsBare) {
                    row.payload.clone_from(&before.payload);
                }
            }
            let key = (turn.shard, done.hash, Some(done.slot));
            self.set(key, Some(Arc::new(row)), undo);
        }
        for hash in &turn.removed {
            if !planted!(PostgresKeepsRemoved) {
                self.set((turn.shard, *hash, None), None, undo);
            }
        }
    }

    /// Writes a row, or removes it, and keeps what it was.
    fn set(&mut self, key: RowKey, row: Option<Arc<TimerRow>>, undo: &mut Vec<Undo>) {
        undo.push(Undo::Timer(key, self.replace(key, row)));
    }

    fn replace(&mut self, key: RowKey, row: Option<Arc<TimerRow>>) -> Option<Arc<TimerRow>> {
        let before = self.timers.remove(&key);
        if let Some(before) = &before {
            if let Some(wake) = wake_key(key, before) {
                self.wakes.remove(&wake);
            }
            self.lists.remove(&list_key(key, before));
        }
        if let Some(row) = row {
            if let Some(wake) = wake_key(key, &row) {
                self.wakes.insert(wake);
            }
            self.lists.insert(list_key(key, &row));
            self.timers.insert(key, row);
        }
        before
    }

    fn take(
        &mut self,
        shard: Shard,
        token: Bits,
        node: Bits,
        undo: &mut Vec<Undo>,
    ) -> Option<Fence> {
        let row = self.shards.get_mut(&shard)?;
        undo.push(Undo::Shard(shard, *row));
        let left_out = match planted!(PostgresFenceTwice) {
            true => 0,
            false => left_out(row.timeline, self.timeline),
        };
        *row = ShardRow {
            fence: Fence(row.fence.0 + left_out + 1),
            token: Some(token),
            node: Some(node),
            timeline: self.timeline,
            since: self.clock.timestamp(),
        };
        let other = self.tokens.insert((shard, row.fence), token);
        assert!(other.is_none(), "a fence of {shard:?} is given twice");
        Some(row.fence)
    }

    pub(super) fn member(&self, node: NodeId) -> Option<&Member> {
        self.nodes.values().find(|member| member.node.id == node)
    }

    fn set_node(&mut self, name: &str, member: Option<Member>, undo: &mut Vec<Undo>) {
        let before = match member {
            Some(member) => self.nodes.insert(name.to_owned(), member),
            None => self.nodes.remove(name),
        };
        undo.push(Undo::Node(name.to_owned(), before));
    }

    /// When a lease ends that lasts so many microseconds from now, or ended so many before.
    fn lease(&self, lease: i64) -> Timestamp {
        let now = self.clock.timestamp().as_micros();
        Timestamp::from_micros(now.saturating_add_signed(lease))
    }

    /// No lease of another lasts longer from now than leases ever do.
    fn cap(&mut self, me: NodeId, undo: &mut Vec<Undo>) {
        let latest = self.clock.timestamp() + LEASE_MAX;
        let wrong = self.nodes.values().filter(|member| {
            member.node.id != me && member.expires > latest + Duration::from_secs(1)
        });
        let wrong: Vec<_> = wrong.cloned().collect();
        for member in wrong {
            let member = Member {
                expires: latest,
                ..member
            };
            self.set_node(&member.node.name.clone(), Some(member), undo);
        }
    }

    /// Whether the lease has been over for so long.
    fn is_over(&self, member: &Member, since: Duration) -> bool {
        member.expires < self.clock.timestamp().saturating_sub(since)
    }

    /// The owner of a shard, if its lease is over, and else its name: none if nobody has to be asked.
    pub(super) fn look_at_owner(
        &self,
        shard: Shard,
        node: NodeId,
    ) -> Result<Option<NodeId>, String> {
        let owner = self.owner(shard).node.map(registry::id);
        let member = owner.filter(|owner| *owner != node);
        match member.and_then(|owner| self.member(owner)) {
            Some(member) if !self.is_over(member, MARGIN) && !planted!(PostgresTakesLiving) => {
                Err(member.node.name.clone())
            }
            _ => Ok(owner),
        }
    }

    fn take_over(
        &mut self,
        (shard, after): (Shard, Fence),
        token: Bits,
        node: NodeId,
        looked: Option<Option<NodeId>>,
        undo: &mut Vec<Undo>,
    ) -> Done {
        let row = self.owner(shard);
        if row.fence != after {
            return Done::TakeOver(Ok(None));
        }
        match looked {
            Some(owner) if row.node.map(registry::id) != owner => Done::TakeOver(Ok(None)),
            Some(_) => Done::TakeOver(Ok(self.take(shard, token, registry::bits(node), undo))),
            None => match self.look_at_owner(shard, node) {
                Ok(_) => Done::TakeOver(Ok(self.take(shard, token, registry::bits(node), undo))),
                Err(name) => Done::TakeOver(Err(name)),
            },
        }
    }

    fn join(&mut self, node: &Node, lease: i64, undo: &mut Vec<Undo>) -> bool {
        let before = self.nodes.get(&node.name);
        let is_same = before.is_some_and(|before| before.node.id == node.id);
        if before.is_some_and(|before| !is_same && !self.is_over(before, MARGIN)) {
            return false;
        }
        let member = Member {
            node: node.clone(),
            expires: self.lease(lease),
            is_draining: is_same && before.is_some_and(|before| before.is_draining),
        };
        let owners: BTreeSet<_> = self.shards.values().filter_map(|row| row.node).collect();
        let gone = self.nodes.values().filter(|other| {
            other.node.name != node.name
                && self.is_over(other, GONE_AFTER)
                && !owners.contains(&registry::bits(other.node.id))
        });
        let gone: Vec<_> = gone.map(|other| other.node.name.clone()).collect();
        self.set_node(&node.name, Some(member), undo);
        for name in gone {
            self.set_node(&name, None, undo);
        }
        true
    }

    /// Everything, for a node that has joined or has not.
    pub(super) fn registered(&self, is_joined: bool) -> Registered {
        let holdings = self.shards.iter().map(|(shard, row)| Holding {
            shard: *shard,
            owner: row
                .node
                .map(registry::id)
                .filter(|owner| self.member(*owner).is_some()),
            fence: row.fence,
            since: row.since,
            wanted: self.wanted.get(shard).cloned(),
        });
        Registered {
            is_joined,
            view: View {
                now: self.clock.timestamp(),
                members: self.nodes.values().cloned().collect(),
                holdings: holdings.collect(),
            },
            tokens: self.shards.values().map(|row| row.token).collect(),
            unreplicated: false,
        }
    }

    fn give(
        &mut self,
        shard: Shard,
        (fence, token): (Fence, Option<Bits>),
        to: Option<NodeId>,
        undo: &mut Vec<Undo>,
    ) -> Done {
        let to = to.map(registry::bits);
        let row = self.owner(shard);
        let is_ours = (row.fence, row.token) == (fence, token);
        if is_ours {
            self.let_go(shard, to, planted!(PostgresGivenKeepsToken), undo);
        }
        let was_given = (row.fence, row.token, row.node) == (fence, None, to);
        Done::Given(self.shards.contains_key(&shard) && (is_ours || was_given))
    }

    fn let_go(&mut self, shard: Shard, to: Option<Bits>, keeps_token: bool, undo: &mut Vec<Undo>) {
        let since = self.clock.timestamp();
        if let Some(row) = self.shards.get_mut(&shard) {
            undo.push(Undo::Shard(shard, *row));
            *row = ShardRow {
                node: to,
                token: row.token.filter(|_| keeps_token),
                since,
                ..*row
            };
        }
    }

    fn leave(&mut self, node: NodeId, undo: &mut Vec<Undo>) {
        let Some(member) = self.member(node) else {
            return;
        };
        let name = member.node.name.clone();
        self.set_node(&name, None, undo);
        let is_its = |row: &ShardRow| row.node == Some(registry::bits(node));
        let shards = self.shards.iter().filter(|(_, row)| is_its(row));
        let shards: Vec<_> = shards.map(|(shard, _)| *shard).collect();
        for shard in shards {
            self.let_go(shard, None, planted!(PostgresLeftKeepsTokens), undo);
        }
    }

    fn want(&mut self, shard: Option<Shard>, node: Option<&str>, undo: &mut Vec<Undo>) -> Wished {
        if node.is_some_and(|node| !self.nodes.contains_key(node)) {
            return Wished::NoSuchNode;
        }
        if shard.is_some_and(|shard| !self.shards.contains_key(&shard)) {
            return Wished::NoSuchShard;
        }
        let all: Vec<_> = self.shards.keys().copied().collect();
        for each in all
            .into_iter()
            .filter(|each| shard.is_none_or(|it| it == *each))
        {
            let before = match node {
                Some(node) => self.wanted.insert(each, node.to_owned()),
                None => self.wanted.remove(&each),
            };
            undo.push(Undo::Wanted(each, before));
        }
        Wished::Noted
    }

    /// The standby goes on, without the last commits, or without those since the last taking.
    pub(super) fn fail_over(
        &mut self,
        lost: usize,
        spares_takings: bool,
    ) -> BTreeMap<Shard, LostOfShard> {
        self.timeline += 1;
        for _ in 0..std::mem::take(&mut self.unreplicated) {
            self.undo_one(&mut BTreeMap::new());
        }
        let mut of = BTreeMap::new();
        for _ in 0..lost {
            let last = self.undo.back().into_iter().flatten();
            let is_taking = last.into_iter().any(|row| matches!(row, Undo::Shard(..)));
            if spares_takings && is_taking {
                break;
            }
            self.undo_one(&mut of);
        }
        of
    }

    fn undo_one(&mut self, of: &mut BTreeMap<Shard, LostOfShard>) {
        let rows = self.undo.pop_back().unwrap_or_default();
        for row in rows.into_iter().rev() {
            match row {
                Undo::Shard(shard, row) => {
                    self.shards.insert(shard, row);
                    of.entry(shard).or_default().taken = true;
                }
                Undo::Node(name, Some(member)) => drop(self.nodes.insert(name, member)),
                Undo::Node(name, None) => drop(self.nodes.remove(&name)),
                Undo::Wanted(shard, Some(name)) => drop(self.wanted.insert(shard, name)),
                Undo::Wanted(shard, None) => drop(self.wanted.remove(&shard)),
                // A turn that is there again was pruned.
                Undo::Turn(key, Some(row)) => drop(self.turns.insert(key, row)),
                Undo::Turn(key, None) => {
                    self.turns.remove(&key);
                    of.entry(key.0).or_default().turns += 1;
                }
                Undo::Made(token) => {
                    if let Some(made) = self.made.get_mut(&token) {
                        *made -= 1;
                    }
                }
                Undo::Timer(key, row) => drop(self.replace(key, row)),
                Undo::Settings(settings) => self.settings = settings,
                Undo::Saved(shard, Some(saved)) => drop(self.saved.insert(shard, saved)),
                Undo::Saved(shard, None) => drop(self.saved.remove(&shard)),
            }
        }
    }
}

/// How far a number goes on that was given last in the history `then`.
fn left_out(then: i32, now: i32) -> u64 {
    LEFT_OUT * u64::from(then.abs_diff(now))
}

/// What a statement that writes comes to.
pub(super) enum Done {
    Turns(Vec<Shard>),
    Take(Option<Fence>),
    /// The fence; none if the shard has moved; the name of its owner if that one has a lease.
    TakeOver(Result<Option<Fence>, String>),
    TakenAtOnce(Vec<Shard>),
    Registered(Box<Registered>),
    Given(bool),
    /// Whether there was such a node.
    Marked(bool),
    Wished(Wished),
    Nothing,
}

/// All rows of a name.
fn all_of(shard: Shard, hash: Bits) -> std::ops::RangeInclusive<RowKey> {
    (shard, hash, None)..=(shard, hash, Some(i16::MAX))
}

fn wake_key((shard, hash, slot): RowKey, row: &TimerRow) -> Option<WakeKey> {
    if slot.is_some() {
        return None;
    }
    Some((shard, row.clock, row.wake?, row.revision, hash))
}

fn list_key((shard, hash, slot): RowKey, row: &TimerRow) -> ListKey {
    let queue = row.queue.clone();
    (shard, queue, row.due, row.revision, hash, slot)
}
