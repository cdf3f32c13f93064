//! The store: who owns what in this process, and how a commit becomes certain.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countwheel_durable::store::{
    Before, Change, ClockNote, Commit, DuePage, DueScan, Fence, Filter, Found, Lease, Ownership,
    Page, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{
    Record, Revision, Settings, SettingsVersion, Shards, StateKind, TimerName,
};
use countwheel_time::{Clock, SystemClock};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio_postgres::Row;
use tokio_postgres::error::{DbError, SqlState};

use crate::bits::Bits;
use crate::commit::{Batch, Counts, Held, Named, Turn, Writes};
use crate::hash::NameHash;
use crate::link::{Link, LinkError, Params, Sql};
use crate::read::{Ask, Reads, is_passing, unanswered};
use crate::schema::{self, Cluster, SchemaName};
use crate::{PostgresError, PostgresOptions, body, checks, number};

/// So many changes one statement makes at the most, but for one turn that has more.
const CHANGES_MAX: usize = 256;
/// So many bytes of payloads one statement has at the most, but for one turn that has more.
const BYTES_MAX: usize = 4 << 20;
/// After so many turns those before the last [`TURNS_KEPT`] are deleted.
const PRUNED_EVERY: i64 = 1_000;
const TURNS_KEPT: i64 = 64;
/// How far revisions go on where the server may have forgotten some that were given.
const REVISIONS_LEFT_OUT: u64 = 1 << 20;
/// Between two tries of a commit.
const PAUSE: Duration = Duration::from_millis(50);

/// Keeps timers in the tables of a PostgreSQL.
///
/// Each shard has one owner, whose token every commit names in the statement that writes: the server
/// refuses everybody else's. A commit whose answer is lost is sent again, and the row of its turn says
/// whether it was done.
pub struct PostgresStore {
    node: Bits,
    cluster: Cluster,
    writes: Writes,
    reads: Reads,
    lanes: Vec<Mutex<Link>>,
    readers: Readers,
    owned: RwLock<HashMap<Shard, Arc<Owned>>>,
    resolve_within: Duration,
    clock: SystemClock,
}

/// A shard of this process.
struct Owned {
    /// Held during a commit.
    held: Mutex<Held>,
    counts: Mutex<Counts>,
}

struct Readers {
    links: Vec<Mutex<Link>>,
    next: AtomicUsize,
}

impl Ask for Readers {
    fn ask(&self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.links.len();
        let (front, back) = self.links.split_at(first);
        let free = back.iter().chain(front).find_map(Mutex::try_lock);
        let mut link = free.unwrap_or_else(|| self.links[first].lock());
        ask(&mut link, sql, params)
    }
}

/// Asks again on a new connection if the first was closed meanwhile.
fn ask(link: &mut Link, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
    let mut asked = link.query(sql, params);
    if matches!(asked, Err(LinkError::Broken(_))) {
        asked = link.query(sql, params);
    }
    asked.map(|answer| answer.rows).map_err(unanswered)
}

/// One connection that somebody holds already.
struct OneLink<'a>(Mutex<&'a mut Link>);

impl Ask for OneLink<'_> {
    fn ask(&self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        ask(&mut self.0.lock(), sql, params)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("node", &self.node)
            .field("shards", &self.cluster.shards)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Makes the tables of a cluster of `shards`, in one transaction. The number of shards is for good.
    ///
    /// # Errors
    /// [`PostgresError::Exists`] if the schema has a cluster; any other if the database cannot hold one.
    pub fn make(options: &PostgresOptions, shards: Shards) -> Result<(), PostgresError> {
        let (schema, config) = parsed(options)?;
        let mut link = link(&config, options)?;
        checks::check(&mut link, options.accept_loss)?;
        schema::make(&mut link, &schema, shards)
    }

    /// Opens the store of the cluster in the schema.
    ///
    /// # Errors
    /// [`PostgresError`] says in one line why not. Nothing was changed.
    pub fn open(options: &PostgresOptions) -> Result<Self, PostgresError> {
        Self::open_planted(options, &|right| right)
    }

    /// The same with a mistake in the statements that write.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    pub fn open_with(
        options: &PostgresOptions,
        mistake: crate::testing::Mistake,
    ) -> Result<Self, PostgresError> {
        Self::open_planted(options, &|right| mistake.planted(&right))
    }

    fn open_planted(
        options: &PostgresOptions,
        planted: &dyn Fn(String) -> String,
    ) -> Result<Self, PostgresError> {
        let (schema, config) = parsed(options)?;
        let links = |count: usize| -> Result<Vec<_>, PostgresError> {
            let links = (0..count.max(1)).map(|_| Ok(Mutex::new(link(&config, options)?)));
            links.collect()
        };
        let mut lanes = links(options.lanes)?;
        let mut readers = links(options.readers)?;
        let (one, other) = (lanes[0].get_mut(), readers[0].get_mut());
        checks::check(one, options.accept_loss)?;
        checks::check_pooler(one, other)?;
        let cluster = schema::find(one, &schema)?;
        let node = match options.node {
            Some(node) => Bits(node.to_be_bytes()),
            None => Bits::random().map_err(|error| system(&error))?,
        };
        Ok(Self {
            node,
            cluster,
            writes: Writes::of(&schema, planted),
            reads: Reads::of(&schema),
            lanes,
            readers: Readers {
                links: readers,
                next: AtomicUsize::new(0),
            },
            owned: RwLock::default(),
            resolve_within: options.resolve_within,
            clock: SystemClock::new(),
        })
    }

    /// Into how many shards the cluster is divided.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.cluster.shards
    }

    fn lane_of(&self, shard: Shard) -> usize {
        usize::from(shard.0) % self.lanes.len()
    }

    fn link_of(&self, shard: Shard) -> MutexGuard<'_, Link> {
        self.lanes[self.lane_of(shard)].lock()
    }

    /// Reads where the shard stands, of which this node has the token.
    fn found(
        &self,
        link: &mut Link,
        shard: Shard,
        token: Bits,
        fence: i64,
    ) -> Result<Held, StoreError> {
        let rows = ask(link, &self.writes.last_turn, &[&shard.0.cast_signed()])?;
        let row = rows.first().ok_or_else(|| no_such(shard))?;
        let last = Revision(number::read(row.get(1)));
        let (then, timeline): (Option<i32>, i32) = (row.get(3), row.get(4));
        let clock: Option<&[u8]> = row.get(2);
        let clock = clock.and_then(|bytes| Some(ClockNote::of_bytes(bytes.first_chunk()?)));
        let may_have_forgotten = then.is_some_and(|then| then != timeline);
        let left_out = if may_have_forgotten {
            REVISIONS_LEFT_OUT
        } else {
            0
        };
        Ok(Held {
            token,
            fence: Fence(fence.cast_unsigned()),
            seq: row.get(0),
            revision: Revision(last.0.saturating_add(left_out)),
            clock,
            timeline,
        })
    }

    /// Takes the shard into this process.
    fn own(&self, link: &mut Link, shard: Shard, held: Held) -> Result<Arc<Owned>, StoreError> {
        let counts = self.reads.counts(&OneLink(Mutex::new(link)), shard)?;
        let counts = counts.into_iter().map(|it| (it.queue, it.by_state));
        let owned = Arc::new(Owned {
            held: Mutex::new(held),
            counts: Mutex::new(Counts(counts.collect())),
        });
        self.owned.write().insert(shard, Arc::clone(&owned));
        Ok(owned)
    }

    /// The shard if the lease is that under which this process has it.
    fn owner(&self, link: &mut Link, lease: Lease) -> Result<Arc<Owned>, StoreError> {
        let known = self.owned.read().get(&lease.shard).cloned();
        if let Some(owned) = known {
            let current = owned.held.lock().fence;
            return match current == lease.fence {
                true => Ok(owned),
                false => Err(fenced(lease, current)),
            };
        }
        // Of the time before this store was opened, under the same number of a node.
        let rows = ask(link, &self.writes.owner, &[&lease.shard.0.cast_signed()])?;
        let Some(row) = rows.first() else {
            return Err(fenced(lease, Fence(0)));
        };
        let fence: i64 = row.get(0);
        let (token, node): (Option<Bits>, Option<Bits>) = (row.get(1), row.get(2));
        match token {
            Some(token)
                if node == Some(self.node) && Fence(fence.cast_unsigned()) == lease.fence =>
            {
                let held = self.found(link, lease.shard, token, fence)?;
                self.own(link, lease.shard, held)
            }
            _ => Err(fenced(lease, Fence(fence.cast_unsigned()))),
        }
    }

    /// Whether nobody has taken the shard since.
    fn still_owns(&self, link: &mut Link, lease: Lease, token: Bits) -> Result<(), StoreError> {
        let rows = ask(link, &self.writes.owner, &[&lease.shard.0.cast_signed()])?;
        let row = rows.first().ok_or_else(|| no_such(lease.shard))?;
        match row.get::<_, Option<Bits>>(1) == Some(token) {
            true => Ok(()),
            false => Err(fenced(lease, Fence(row.get::<_, i64>(0).cast_unsigned()))),
        }
    }

    /// In which states the names of a turn are before it.
    fn states_before(&self, turn: &Turn<'_>) -> Result<Vec<Option<StateKind>>, StoreError> {
        let looked =
            |named: &&Named<'_>| matches!(named.before, Before::Unknown | Before::Unreadable);
        let hashes: Vec<_> = turn.names.iter().filter(looked).map(|it| it.hash).collect();
        let mut found = HashMap::new();
        if !hashes.is_empty() {
            let shard = turn.shard.0.cast_signed();
            for row in self.readers.ask(&self.writes.states, &[&shard, &hashes])? {
                found.insert(row.get::<_, Bits>(0), body::kind_of(row.get(1)));
            }
        }
        let before = turn.names.iter().map(|named| match named.before {
            Before::Absent => None,
            Before::Present(kind) | Before::SamePayload(kind) => Some(kind),
            Before::Unknown | Before::Unreadable => found.get(&named.hash).copied().flatten(),
        });
        Ok(before.collect())
    }

    /// Makes commits of several shards on the lane of the first.
    fn commit_together(&self, commits: &mut [Wanted<'_>]) {
        let Some(first) = commits.first() else {
            return;
        };
        let mut link = self.link_of(first.lease.shard);
        // In one order, so two threads that hold some wait for each other in no circle.
        commits.sort_by_key(|wanted| wanted.lease.shard);
        let mut owned = Vec::new();
        for wanted in commits.iter_mut() {
            let ready = self.owner(&mut link, wanted.lease).and_then(|owned| {
                let before = self.states_before(&wanted.turn)?;
                Ok((owned, before))
            });
            match ready {
                Ok((it, before)) => {
                    wanted.before = before;
                    if wanted.turn.is_empty() {
                        let token = it.held.lock().token;
                        wanted.result = Some(self.still_owns(&mut link, wanted.lease, token));
                    }
                    owned.push(it);
                }
                Err(error) => {
                    wanted.result = Some(Err(error));
                    owned.push(Arc::new(Owned::default()));
                }
            }
        }
        let mut open: Vec<Open<'_, '_>> = commits
            .iter_mut()
            .zip(&owned)
            .filter(|(wanted, _)| wanted.result.is_none())
            .map(|(wanted, owned)| Open {
                held: owned.held.lock(),
                owned,
                wanted,
            })
            .collect();
        // A later change of a setting is a later one.
        open.sort_by_key(|it| it.wanted.at);
        let mut tried = Tried::default();
        self.write(&mut link, &mut open, &mut tried);
        for it in &mut open {
            let shard = it.wanted.lease.shard;
            match &it.wanted.result {
                Some(Ok(())) => {
                    let counted = &it.wanted.before;
                    it.owned.counts.lock().change(&it.wanted.turn, counted);
                    if it.held.seq % PRUNED_EVERY == 0 {
                        let kept = it.held.seq - TURNS_KEPT;
                        // The next time is as good.
                        let _ = link.query(&self.writes.prune, &[&shard.0.cast_signed(), &kept]);
                    }
                }
                Some(Err(StoreError::Fenced { .. } | StoreError::Lost { .. })) => {
                    let mut all = self.owned.write();
                    if all
                        .get(&shard)
                        .is_some_and(|now| Arc::ptr_eq(now, it.owned))
                    {
                        all.remove(&shard);
                    }
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Writes the turns until each has its result.
    fn write(&self, link: &mut Link, open: &mut [Open<'_, '_>], tried: &mut Tried) {
        let began = self.clock.now();
        loop {
            let mut left: Vec<&mut Open<'_, '_>> = open
                .iter_mut()
                .filter(|it| it.wanted.result.is_none())
                .collect();
            if left.is_empty() {
                return;
            }
            let sent = match batch(&left) {
                Ok(batch) => batch.with(&self.writes, |sql, params| link.query(sql, params)),
                Err(error) => {
                    // A turn that cannot be written keeps out none of the others.
                    for it in &mut left {
                        let reason = format!("a record cannot be written: {error}");
                        it.wanted.result = Some(Err(StoreError::Failed { reason }));
                    }
                    return;
                }
            };
            let is_late = self.clock.now().saturating_since(began) >= self.resolve_within;
            match sent {
                Ok(answer) => {
                    let uncertain = answer.warnings.iter().any(may_be_unreplicated);
                    for row in &answer.rows {
                        let shard = Shard(row.get::<_, i16>(0).cast_unsigned());
                        if let Some(it) = left.iter_mut().find(|it| it.wanted.lease.shard == shard)
                        {
                            it.done();
                        }
                    }
                    if uncertain && !self.confirm(link, &mut left) {
                        tried.is_uncertain = true;
                    }
                    for it in &mut left {
                        if it.wanted.result.is_none() {
                            self.resolve(link, it, is_late);
                        }
                    }
                }
                Err(LinkError::Away(reason)) if !tried.is_uncertain => {
                    for it in &mut left {
                        let reason = reason.clone();
                        it.wanted.result = Some(Err(StoreError::Unavailable { reason }));
                    }
                }
                Err(LinkError::Away(reason) | LinkError::Broken(reason)) => {
                    let is_first = !tried.is_uncertain;
                    tried.is_uncertain = true;
                    if is_late {
                        for it in &mut left {
                            it.wanted.result = Some(Err(lost(it.wanted.lease.shard, &reason)));
                        }
                    } else if !is_first {
                        link.pause(PAUSE);
                    }
                }
                Err(LinkError::Refused(refused)) => {
                    if left.len() > 1 {
                        // One that is refused keeps none of the others out.
                        drop(left);
                        for it in open.iter_mut() {
                            let mut own = *tried;
                            self.write(link, std::slice::from_mut(it), &mut own);
                        }
                        return;
                    }
                    let it = &mut *left[0];
                    if tried.is_uncertain {
                        // An earlier sending may still run: take its place, or learn that it was done.
                        self.take_place(link, it);
                        if it.wanted.result.is_some() {
                            continue;
                        }
                    }
                    if *refused.code() == SqlState::DISK_FULL {
                        let reason = refused.message().to_owned();
                        it.wanted.result = Some(Err(StoreError::Full { reason }));
                    } else if is_passing(&refused) && !is_late {
                        link.pause(PAUSE);
                    } else if is_passing(&refused) {
                        let reason = refused.message().to_owned();
                        it.wanted.result = Some(Err(StoreError::Unavailable { reason }));
                    } else {
                        let reason = refused.to_string();
                        it.wanted.result = Some(Err(StoreError::Failed { reason }));
                    }
                }
            }
        }
    }

    /// Asks what became of a turn that the statement did not insert.
    fn resolve(&self, link: &mut Link, it: &mut Open<'_, '_>, is_late: bool) {
        let lease = it.wanted.lease;
        let shard = lease.shard;
        let seq = it.held.seq + 1;
        let params: Params<'_> = &[&shard.0.cast_signed(), &it.held.token, &seq];
        let rows = match ask(link, &self.writes.became, params) {
            Ok(rows) => rows,
            Err(error) => {
                if is_late {
                    it.wanted.result = Some(Err(lost(shard, &error.to_string())));
                } else {
                    link.pause(PAUSE);
                }
                return;
            }
        };
        let Some(row) = rows.first() else {
            it.wanted.result = Some(Err(fenced(lease, Fence(0))));
            return;
        };
        let (is_ours, fence): (Option<bool>, i64) = (row.get(0), row.get(1));
        let (writes, before_is_there): (Option<i32>, bool) = (row.get(2), row.get(3));
        if writes == Some(it.wanted.turn.writes()) {
            it.done();
        } else if writes.is_some() {
            // Another turn of ours took its place: nothing was done.
            it.held.seq += 1;
        } else if is_ours != Some(true) {
            it.wanted.result = Some(Err(fenced(lease, Fence(fence.cast_unsigned()))));
        } else if !before_is_there {
            tracing::error!(
                shard = shard.0,
                turn = it.held.seq,
                "the database lost acknowledged commits"
            );
            let reason = format!(
                "the database lost acknowledged commits: turn {} is missing",
                it.held.seq
            );
            it.wanted.result = Some(Err(lost(shard, &reason)));
        }
        // Else it can be sent again.
    }

    /// Puts an empty turn where one stands that may still come.
    fn take_place(&self, link: &mut Link, it: &mut Open<'_, '_>) {
        let shard = it.wanted.lease.shard;
        let after = Held {
            seq: it.held.seq + 1,
            ..*it.held
        };
        let mut batch = Batch::default();
        batch.add_empty(shard, &after);
        let sent = batch.with(&self.writes, |sql, params| link.query(sql, params));
        if sent.is_ok_and(|answer| !answer.rows.is_empty()) {
            it.held.seq += 1;
            return;
        }
        self.resolve(link, it, false);
    }

    /// Commits an empty turn after those that the standby may not have: that one proves it.
    fn confirm(&self, link: &mut Link, open: &mut [&mut Open<'_, '_>]) -> bool {
        let mut batch = Batch::default();
        let mut any = false;
        for it in open.iter_mut().filter(|it| it.wanted.result.is_some()) {
            let after = Held {
                seq: it.held.seq + 1,
                ..*it.held
            };
            batch.add_empty(it.wanted.lease.shard, &after);
            any = true;
        }
        if !any {
            return true;
        }
        let sent = batch.with(&self.writes, |sql, params| link.query(sql, params));
        match sent {
            Ok(answer) if !answer.warnings.iter().any(may_be_unreplicated) => {
                for row in &answer.rows {
                    let shard = Shard(row.get::<_, i16>(0).cast_unsigned());
                    for it in open.iter_mut() {
                        if it.wanted.lease.shard == shard {
                            it.held.seq += 1;
                        }
                    }
                }
                true
            }
            _ => {
                for it in open.iter_mut().filter(|it| it.wanted.result.is_some()) {
                    let reason = "the standby may not have the last commit";
                    it.wanted.result = Some(Err(lost(it.wanted.lease.shard, reason)));
                }
                false
            }
        }
    }
}

/// A commit that is asked for, and its result.
struct Wanted<'a> {
    /// Its place among all that are asked for.
    at: usize,
    lease: Lease,
    turn: Turn<'a>,
    before: Vec<Option<StateKind>>,
    result: Option<Result<(), StoreError>>,
}

impl<'a> Wanted<'a> {
    fn new(at: usize, commit: &Commit<'a>, hash: &NameHash) -> Self {
        Self {
            at,
            lease: commit.lease,
            turn: Turn::of(commit.lease.shard, commit.changes, hash),
            before: Vec::new(),
            result: None,
        }
    }

    /// Whether one statement makes this one, too. The second of one shard waits for the first.
    fn fits(&self, together: &[Self]) -> bool {
        let sum = |of: fn(&Self) -> usize| together.iter().map(of).sum::<usize>() + of(self);
        together.is_empty()
            || (sum(|it| it.turn.names.len()) <= CHANGES_MAX
                && sum(|it| it.turn.bytes) <= BYTES_MAX
                && together.iter().all(|it| it.lease.shard != self.lease.shard))
    }
}

/// The same while its shard is held.
struct Open<'a, 'b> {
    held: MutexGuard<'a, Held>,
    owned: &'a Arc<Owned>,
    wanted: &'a mut Wanted<'b>,
}

impl Open<'_, '_> {
    /// The turn is there.
    fn done(&mut self) {
        *self.held = self.wanted.turn.after(&self.held);
        self.wanted.result = Some(Ok(()));
    }
}

/// What is known of the sendings before.
#[derive(Clone, Copy, Default)]
struct Tried {
    /// One of them may have been done, or may still be.
    is_uncertain: bool,
}

fn batch<'b>(open: &[&mut Open<'_, 'b>]) -> Result<Batch<'b>, postcard::Error> {
    let mut batch = Batch::default();
    for it in open {
        batch.add(&it.wanted.turn, &it.wanted.turn.after(&it.held))?;
    }
    Ok(batch)
}

impl Default for Owned {
    fn default() -> Self {
        Self {
            held: Mutex::new(Held {
                token: Bits([0; 16]),
                fence: Fence(0),
                seq: 0,
                revision: Revision(0),
                clock: None,
                timeline: 0,
            }),
            counts: Mutex::default(),
        }
    }
}

impl Store for PostgresStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        if shard.is_reserved() {
            return Err(StoreError::Reserved { shard });
        }
        let mut link = self.link_of(shard);
        let token = Bits::random().map_err(|error| StoreError::Unavailable {
            reason: error.to_string(),
        })?;
        let params: Params<'_> = &[&shard.0.cast_signed(), &token, &self.node];
        let rows = ask(&mut link, &self.writes.take, params)?;
        let row = rows.first().ok_or_else(|| no_such(shard))?;
        // A snapshot of its own: it has what the owner before has committed last.
        let held = self.found(&mut link, shard, token, row.get(0))?;
        self.own(&mut link, shard, held)?;
        Ok(Ownership {
            lease: Lease {
                shard,
                fence: held.fence,
            },
            store_id: shard.id(self.cluster.id),
            last_revision: held.revision,
            clock: held.clock,
            forgets_done: false,
        })
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let results = self.commit_all(&[Commit { lease, changes }]);
        results
            .into_iter()
            .next()
            .unwrap_or(Err(StoreError::Poisoned))
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        let mut results = Vec::new();
        results.resize_with(commits.len(), || Err(StoreError::Poisoned));
        let mut left = commits
            .iter()
            .enumerate()
            .map(|(at, commit)| Wanted::new(at, commit, &self.cluster.hash))
            .peekable();
        while left.peek().is_some() {
            let mut together: Vec<Wanted<'_>> = Vec::new();
            while let Some(next) = left.next_if(|next| next.fits(&together)) {
                together.push(next);
            }
            self.commit_together(&mut together);
            for wanted in together {
                if let Some(result) = wanted.result {
                    results[wanted.at] = result;
                }
            }
        }
        results
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let hash = self.cluster.hash.of(name);
        self.reads.get(&self.readers, shard, hash, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let hash = &self.cluster.hash;
        self.reads
            .get_many(&self.readers, shard, hash, names, bytes)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.reads.due(&self.readers, shard, scan, scan.after)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.reads.list(&self.readers, shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let Some(owned) = self.owned.read().get(&shard).cloned() else {
            return self.reads.counts(&self.readers, shard);
        };
        let counts = owned.counts.lock();
        let queues = counts.0.iter().map(|(queue, by_state)| QueueCounts {
            queue: queue.clone(),
            by_state: *by_state,
        });
        Ok(queues.collect())
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.reads.settings(&self.readers, after)
    }
}

fn fenced(lease: Lease, current: Fence) -> StoreError {
    StoreError::Fenced {
        shard: lease.shard,
        ours: lease.fence,
        current,
    }
}

fn lost(shard: Shard, reason: &str) -> StoreError {
    StoreError::Lost {
        shard,
        reason: reason.to_owned(),
    }
}

fn no_such(shard: Shard) -> StoreError {
    lost(shard, "the cluster has no such shard")
}

/// Whether the server warns that the standby may not have the commit.
fn may_be_unreplicated(warning: &DbError) -> bool {
    *warning.code() == SqlState::WARNING
}

fn system(error: &dyn fmt::Display) -> PostgresError {
    PostgresError::System {
        reason: error.to_string(),
    }
}

/// The options, checked.
fn parsed(
    options: &PostgresOptions,
) -> Result<(SchemaName, Arc<tokio_postgres::Config>), PostgresError> {
    let schema = SchemaName::new(&options.schema)?;
    if let Some((scheme, _)) = options.url.split_once("://")
        && !matches!(scheme, "postgres" | "postgresql")
    {
        let problem = format!("it begins with {scheme}://");
        return Err(PostgresError::Url { problem });
    }
    let mut config: tokio_postgres::Config =
        options
            .url
            .parse()
            .map_err(|error: tokio_postgres::Error| {
                let source = std::error::Error::source(&error);
                let problem = source.map_or_else(|| error.to_string(), ToString::to_string);
                PostgresError::Url { problem }
            })?;
    if config.get_application_name().is_none() {
        config.application_name("countwheel");
    }
    config.connect_timeout(options.exchange_within);
    config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::Any);
    Ok((schema, Arc::new(config)))
}

fn link(
    config: &Arc<tokio_postgres::Config>,
    options: &PostgresOptions,
) -> Result<Link, PostgresError> {
    Link::new(Arc::clone(config), options.exchange_within).map_err(|error| system(&error))
}
