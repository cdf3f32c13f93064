//! One move, from its beginning to its end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::DiskStore;
use countwheel_durable::store::{ClockNote, Shard, Store};
use countwheel_durable::{SettingsVersion, TimerName};
use countwheel_postgres::{
    Arrival, ArrivalLane, MoveEnd, MoveState, PostgresError, PostgresOptions, Tried, shown_url,
};
use countwheel_time::Instant;
use tokio::runtime::Handle;

use super::copy::{Way, pour};
use super::forward::Forward;
use super::marker::{self, Marker};
use super::tap::Tapped;
use super::{MoveError, Moves, Phase, Progress, pause};
use crate::config::host_name;

/// How many connections write.
const LANES: usize = 3;
/// Requests are held once so few changes are left,
const LEFT_MAX: usize = 500;
/// or once the last of so many rounds was written.
const ROUNDS_MAX: usize = 100;
/// More than this is not copied while requests are held.
const HELD_MAX: usize = 20_000;
/// How often the target hears that the move goes on.
const BEAT: Duration = Duration::from_secs(1);
/// Between two looks at what nobody has to wait for.
const PAUSE: Duration = Duration::from_millis(100);
/// How long requests that are answered may take to end.
const WITHIN: Duration = Duration::from_millis(500);
/// So often it is looked whether nodes have the shards.
const TAKING_LOOKS: u32 = 200;
/// What there is to say of a move that is over until nodes work on all of it.
const NOT_TAKEN: &str =
    "the timers are in the database, and its nodes have not taken all shards yet";
/// How long it may take to hear from the target that it decides, while requests are held.
const DECIDING: Duration = Duration::from_secs(10);

/// A move under way.
pub(super) struct Mover {
    moves: Arc<Moves>,
    runtime: Handle,
    arrival: Arrival,
    lanes: Vec<ArrivalLane>,
    marker: Marker,
    began: Instant,
    beaten: Instant,
}

impl Mover {
    /// Asks the target whether it takes timers, and makes it ready for them.
    pub(super) fn begin(moves: Arc<Moves>, options: &PostgresOptions) -> Result<Self, MoveError> {
        let began = moves.clock.now();
        let troubles = moves.store.troubles().len();
        if troubles > 0 {
            return Err(MoveError::Damaged(troubles));
        }
        let store = shown_url(options)?;
        let place = std::path::absolute(&moves.directory)?;
        let place = format!("{} on {}", place.display(), host_name());
        let mut arrival = Arrival::begin(options, &place)?;
        let ready = (|| {
            if arrival.nodes()?.is_empty() && !arrival.no_node_started() {
                return Err(MoveError::NoNode);
            }
            let lanes = (0..LANES).map(|_| arrival.lane());
            Ok(lanes.collect::<Result<Vec<_>, _>>()?)
        })();
        let lanes = match ready {
            Ok(lanes) => lanes,
            Err(error) => {
                // What is left of it the next one removes.
                let _ = arrival.give_up();
                return Err(error);
            }
        };
        let marker = Marker {
            token: arrival.token().to_string(),
            schema: options.schema.clone(),
            store_ca: options.ca.clone(),
            store,
            way: marker::Way::Leaving,
        };
        let mover = Self {
            runtime: Handle::current(),
            arrival,
            lanes,
            marker,
            began,
            beaten: began,
            moves,
        };
        mover.note(|progress| {
            progress.target = Some(format!(
                "schema {} of {}",
                options.schema, mover.marker.store
            ));
        });
        Ok(mover)
    }

    /// Leaves the target as it is without a move that has not begun to copy. What is left of it the next one removes.
    pub(super) fn give_up(&mut self) {
        let _ = self.arrival.give_up();
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.moves.progress.lock();
        progress.took = self.moves.clock.now().saturating_since(self.began);
        change(&mut progress);
    }

    /// Moves, and sends requests to the nodes until the process ends; or gives up.
    pub(super) fn run(mut self) {
        let target = self.marker.store.clone();
        tracing::warn!(to = target, "a move of all timers has begun");
        let moved = self.copy().and_then(|()| self.hand_over());
        self.moves.store.close();
        match moved {
            Ok(forward) => {
                tracing::warn!(
                    to = target,
                    "all timers were moved: requests go to the nodes there"
                );
                self.follow_nodes(&forward);
            }
            Err(error) => {
                tracing::error!(%error, "the move is given up: the timers stay here");
                self.note(|progress| {
                    progress.phase = Phase::GivenUp;
                    progress.reason = Some(error.to_string());
                });
            }
        }
    }

    /// Copies all timers, and then what was changed meanwhile, until little is left.
    fn copy(&mut self) -> Result<(), MoveError> {
        let copied = self.copy_all();
        if copied.is_err() {
            let _ = self.arrival.give_up();
        }
        copied
    }

    fn copy_all(&mut self) -> Result<(), MoveError> {
        let store = self.moves.store.clone();
        let now = self.moves.clock.timestamp();
        let gaps = store.gaps();
        if gaps.lists || gaps.dues {
            return Err(MoveError::Damaged(1));
        }
        self.pour(|way| way.all(&store, now))?;
        self.note(|progress| progress.phase = Phase::Following);
        for round in 0.. {
            let left = store.noted();
            self.note(|progress| progress.left = left as u64);
            if left <= LEFT_MAX || round >= ROUNDS_MAX && left <= HELD_MAX {
                if !self.arrival.nodes()?.is_empty() {
                    return Ok(());
                }
                self.note(|progress| progress.reason = Some(MoveError::NoNode.to_string()));
                pause(PAUSE);
            }
            if round >= 100 * ROUNDS_MAX && left > HELD_MAX {
                return Err(MoveError::TooFast);
            }
            self.copy_changed(&store)?;
            if !self.arrival.beat()? {
                return Err(MoveError::GivenUp);
            }
        }
        Ok(())
    }

    fn copy_changed(&mut self, store: &Tapped<DiskStore>) -> Result<(), MoveError> {
        let names: HashSet<TimerName> = store.take().ok_or(MoveError::TooFast)?;
        let now = self.moves.clock.timestamp();
        self.pour(|way| way.named(store, names, now))
    }

    fn pour(
        &mut self,
        read: impl FnOnce(&mut Way<'_>) -> Result<(), MoveError>,
    ) -> Result<(), MoveError> {
        let Self {
            moves,
            arrival,
            lanes,
            began,
            beaten,
            ..
        } = self;
        let (before, shards) = (moves.progress.lock().copied, arrival.shards());
        let mut beat = |sent: u64| {
            let now = moves.clock.now();
            let mut progress = moves.progress.lock();
            progress.copied = before + sent;
            progress.took = now.saturating_since(*began);
            drop(progress);
            if now.saturating_since(*beaten) < BEAT {
                return Ok(());
            }
            *beaten = now;
            match arrival.beat()? {
                true => Ok(()),
                false => Err(MoveError::GivenUp),
            }
        };
        let sent = pour(lanes, shards, &mut beat, read)?;
        self.note(|progress| progress.copied = before + sent);
        Ok(())
    }

    /// Holds requests, ends the scheduler, and has the target decide. If it does not, the scheduler goes on.
    fn hand_over(&mut self) -> Result<Arc<Forward>, MoveError> {
        let moves = Arc::clone(&self.moves);
        let held = moves.clock.now();
        self.note(|progress| (progress.phase, progress.reason) = (Phase::Holding, None));
        moves.gate.close();
        self.runtime.block_on(moves.gate.emptied(WITHIN));
        let handed = moves
            .timers
            .hand_over_and(Shard::ONLY, moves.grace, |left| {
                self.note(|progress| progress.interrupted = left);
                self.finish()
            });
        let since = |moves: &Moves| moves.clock.now().saturating_since(held);
        match handed.unwrap_or(Err(MoveError::GivenUp)) {
            Ok(()) => {
                self.note(|progress| (progress.phase, progress.left) = (Phase::Taking, 0));
                let taken = self.wait_for_nodes();
                let forward = Arc::<Forward>::default();
                forward.set(self.arrival.nodes().unwrap_or_default());
                moves.gate.lead(Arc::clone(&forward));
                self.note(|progress| {
                    progress.phase = Phase::Moved;
                    progress.held = Some(since(&moves));
                    progress.reason = (!taken).then(|| NOT_TAKEN.to_owned());
                });
                Ok(forward)
            }
            Err(error) => {
                // From here on the target has nothing, or never hears the word that it waits for.
                if let Err(error) = moves.timers.take(Shard::ONLY) {
                    tracing::error!(%error, "the timers cannot go on: start the service again");
                }
                moves.gate.open();
                self.note(|progress| progress.held = Some(since(&moves)));
                Err(error)
            }
        }
    }

    /// Waits until nodes have the shards, but not for ever, and says whether they have. A request that waits here ends with this process; one
    /// that a node holds would be done after that.
    fn wait_for_nodes(&mut self) -> bool {
        for _ in 0..TAKING_LOOKS {
            if self.arrival.is_taken().unwrap_or(false) {
                return true;
            }
            pause(PAUSE / 2);
        }
        false
    }

    /// Nothing is changed here any more. Copies what is left, and has the target decide.
    fn finish(&mut self) -> Result<(), MoveError> {
        let ended = self.copy_rest();
        let end = match ended {
            Ok(end) => end,
            Err(error) => {
                let _ = self.arrival.give_up();
                return Err(error);
            }
        };
        // From here on a process that finds the directory asks the target.
        if let Err(error) = self.marker.write(&self.moves.directory) {
            self.settle()?;
            return Err(MoveError::Marker(error));
        }
        self.decide(&end)?;
        self.marker.way = marker::Way::Left;
        if let Err(error) = self.marker.write(&self.moves.directory) {
            tracing::error!(%error, "that the timers were moved is not written down: a start asks there");
        }
        Ok(())
    }

    fn copy_rest(&mut self) -> Result<MoveEnd, MoveError> {
        let store = self.moves.store.clone();
        self.copy_changed(&store)?;
        // Whoever wrote before writes no more.
        let owned = store.acquire(Shard::ONLY)?;
        let settings = store.settings(SettingsVersion::default())?;
        let clock = match owned.clock {
            Some(note) => Some(self.carried(note)?),
            None => None,
        };
        Ok(MoveEnd {
            revision: owned.last_revision,
            fence: owned.lease.fence,
            settings: settings.unwrap_or_default(),
            clock,
        })
    }

    /// The second line of time as it stands now, beside the clock of the database. That is read later: so the
    /// line is never ahead.
    fn carried(&mut self, note: ClockNote) -> Result<ClockNote, MoveError> {
        let boot = self.moves.clock.boot();
        let line = note.line + boot.saturating_since(note.boot);
        Ok(ClockNote {
            wall: self.arrival.now()?,
            boot_id: note.boot_id,
            boot,
            line,
        })
    }

    /// Returns once it is certain which side has the timers.
    fn decide(&mut self, end: &MoveEnd) -> Result<(), MoveError> {
        let began = self.moves.clock.now();
        loop {
            let why = match self.arrival.decide(end) {
                Ok(Tried::Done) => return Ok(()),
                Ok(Tried::Refused) => MoveError::GivenUp,
                Err(error) => error.into(),
            };
            match self.arrival.state() {
                Ok(MoveState::Decided) => return Ok(()),
                Ok(MoveState::GivenUp) => {
                    Marker::remove(&self.moves.directory).map_err(MoveError::Marker)?;
                    return Err(why);
                }
                Ok(MoveState::Moving) => {
                    let late = self.moves.clock.now().saturating_since(began) > DECIDING;
                    if late
                        || !matches!(why, MoveError::Database(PostgresError::Unreachable { .. }))
                    {
                        return match self.settle()? {
                            true => Ok(()),
                            false => Err(why),
                        };
                    }
                }
                // Another database answers, or an older state of it: nobody knows, and nothing goes on.
                Ok(MoveState::Unknown) | Err(_) => {
                    tracing::error!(%why, "whether the timers were moved is not known: asking again");
                    pause(PAUSE * 5);
                }
            }
            pause(PAUSE);
        }
    }

    /// Gives up for certain, unless the target has decided: says whether it has.
    fn settle(&mut self) -> Result<bool, MoveError> {
        loop {
            match self.arrival.give_up().and_then(|_| self.arrival.state()) {
                Ok(MoveState::Decided) => return Ok(true),
                Ok(MoveState::GivenUp) => break,
                Ok(state) => tracing::error!(?state, "the move cannot be given up"),
                Err(error) => tracing::error!(%error, "the move cannot be given up yet"),
            }
            pause(PAUSE * 5);
        }
        Marker::remove(&self.moves.directory).map_err(MoveError::Marker)?;
        Ok(false)
    }

    /// Keeps the way to the nodes right.
    fn follow_nodes(&mut self, forward: &Forward) {
        loop {
            pause(BEAT);
            if self.moves.progress.lock().reason.is_some()
                && self.arrival.is_taken().unwrap_or(false)
            {
                self.moves.progress.lock().reason = None;
            }
            match self.arrival.nodes() {
                Ok(nodes) => forward.set(nodes),
                Err(error) => tracing::debug!(%error, "the nodes are as they were known last"),
            }
        }
    }
}
