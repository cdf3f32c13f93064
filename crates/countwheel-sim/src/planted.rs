//! Bugs of the product, planted one at a time, and which stage has to find each.

use std::fmt;
use std::ops::RangeInclusive;
use std::panic::catch_unwind;

use countwheel_cluster::PlantedBug as InNodes;
use countwheel_disk::PlantedBug as InDisk;
use countwheel_durable::PlantedBug as InEngine;
use countwheel_peers::PlantedBug as InPeers;
use countwheel_postgres::PlantedBug as InPostgres;

use crate::audit;
use crate::failure::Failure;
use crate::flows;
use crate::gathers;
use crate::jobs;
use crate::leases;
use crate::loans;
use crate::machine::{Kind, Machine};
use crate::nodes;
use crate::panic_text;
use crate::receipts;
use crate::rot;
use crate::shards;
use crate::stepped::Stepped;
use crate::stores::{bytes, calls, makings, meanwhile, mixes, recipes, removed, scrub, starts};
use crate::streams;
use crate::world::{self, Options};

/// A mistake of the product: of the engine, of the store on a disk, of the store in a PostgreSQL, or of
/// the nodes of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Of the engine. The store on a disk makes the one of the same name with it.
    Engine(InEngine),
    /// Of the store on a disk.
    Disk(InDisk),
    /// Of the store in a PostgreSQL.
    Postgres(InPostgres),
    /// Of the nodes of a cluster.
    Nodes(InNodes),
    /// Of the ways between nodes.
    Peers(InPeers),
}

impl PlantedBug {
    /// All of them, each once.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_engine = InEngine::ALL.iter().copied();
        let of_engine = of_engine.filter(|bug| !InEngine::OF_WAITING.contains(bug));
        let of_engine = of_engine.filter(|bug| !InEngine::OF_PURGES.contains(bug));
        let of_engine = of_engine.map(Self::Engine);
        let of_disk = InDisk::ALL.iter().copied().map(Self::Disk);
        let is_new = |bug: &Self| Self::named_in(InEngine::ALL, &bug.name()).is_none();
        // The worlds of leases find theirs, in the crate of that store.
        let of_postgres = InPostgres::ALL.iter().copied();
        let of_postgres = of_postgres.filter(|bug| !InPostgres::OF_LEASES.contains(bug));
        let of_postgres = of_postgres.map(Self::Postgres);
        let of_engine = of_engine.chain(of_disk.filter(is_new));
        let of_nodes = IN_NODES.into_iter().chain(IN_LOANS).chain(IN_GATHERS);
        of_engine.chain(of_postgres).chain(of_nodes)
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|bug| bug.name() == name)
    }

    fn name(self) -> String {
        format!("{self:?}")
    }

    fn named_in<B: fmt::Debug + Copy>(all: &[B], name: &str) -> Option<B> {
        let mut all = all.iter().copied();
        all.find(|bug| format!("{bug:?}") == name)
    }
}

impl fmt::Debug for PlantedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(bug) => bug.fmt(f),
            Self::Disk(bug) => bug.fmt(f),
            Self::Postgres(bug) => bug.fmt(f),
            Self::Nodes(bug) => bug.fmt(f),
            Self::Peers(bug) => bug.fmt(f),
        }
    }
}

/// Makes `bug`, or none, on this thread from here on.
pub fn plant(bug: Option<PlantedBug>) {
    let name = bug.map(PlantedBug::name).unwrap_or_default();
    countwheel_durable::plant(PlantedBug::named_in(InEngine::ALL, &name));
    countwheel_disk::plant(PlantedBug::named_in(InDisk::ALL, &name));
    countwheel_postgres::plant(PlantedBug::named_in(InPostgres::ALL, &name));
    countwheel_cluster::plant(PlantedBug::named_in(InNodes::ALL, &name));
    countwheel_peers::plant(PlantedBug::named_in(InPeers::ALL, &name));
}

/// Those that show only where something cannot be read.
const IN_ROT: [PlantedBug; 8] = [
    PlantedBug::Disk(InDisk::IndexEndsReads),
    PlantedBug::Disk(InDisk::ListEndsAtDamage),
    PlantedBug::Disk(InDisk::MergeFailsStore),
    PlantedBug::Disk(InDisk::FlushForgetsUnreadable),
    PlantedBug::Engine(InEngine::ChangeReadsFirst),
    PlantedBug::Engine(InEngine::StepEndsAtDamage),
    PlantedBug::Engine(InEngine::GapNotReadAgain),
    PlantedBug::Engine(InEngine::OutcomesEndWithReads),
];

/// Those that show only where files are of two times.
const IN_MIXES: [PlantedBug; 2] = [
    PlantedBug::Disk(InDisk::OpeningBelievesShortLog),
    PlantedBug::Disk(InDisk::FlushHidesNothing),
];

/// Those that show only where shards change hands.
const IN_SHARDS: [PlantedBug; 7] = [
    PlantedBug::Engine(InEngine::BudgetForEach),
    PlantedBug::Engine(InEngine::OneIdForAllShards),
    PlantedBug::Engine(InEngine::StartsWithoutLease),
    PlantedBug::Engine(InEngine::AnswersWithoutLease),
    PlantedBug::Engine(InEngine::HandOverCounts),
    PlantedBug::Disk(InDisk::LogTogetherInOneShard),
    PlantedBug::Disk(InDisk::LogTogetherUnfenced),
];

/// Those of the nodes that a world of nodes finds. The sentences of their crate find all of them.
const IN_NODES: [PlantedBug; 8] = [
    PlantedBug::Nodes(InNodes::NodesTakeUnsteady),
    PlantedBug::Nodes(InNodes::NodesGapUnseen),
    PlantedBug::Nodes(InNodes::NodesStepUnseen),
    PlantedBug::Nodes(InNodes::NodesHandOverAll),
    PlantedBug::Nodes(InNodes::NodesMoveAgain),
    PlantedBug::Nodes(InNodes::NodesGiveToDraining),
    PlantedBug::Nodes(InNodes::NodesClockFromAsking),
    PlantedBug::Nodes(InNodes::NodesClockKeepsStep),
];

/// Those of the limits that nodes lend each other.
const IN_LOANS: [PlantedBug; 7] = [
    PlantedBug::Nodes(InNodes::LoansLendAtOnce),
    PlantedBug::Nodes(InNodes::LoansOldQuestion),
    PlantedBug::Nodes(InNodes::LoansStartAgain),
    PlantedBug::Nodes(InNodes::LoansNoTurns),
    PlantedBug::Nodes(InNodes::LoansForEver),
    PlantedBug::Nodes(InNodes::LoansOverlookRunning),
    PlantedBug::Nodes(InNodes::LoansFromAnswer),
];

/// Those of the calls for leases on all nodes.
const IN_GATHERS: [PlantedBug; 5] = [
    PlantedBug::Nodes(InNodes::OffersKeepRest),
    PlantedBug::Nodes(InNodes::OffersTakenLate),
    PlantedBug::Nodes(InNodes::OffersForgotten),
    PlantedBug::Nodes(InNodes::GatherOverMax),
    PlantedBug::Nodes(InNodes::GatherUnconfirmed),
];

/// Those of the events that nodes copy from each other.
const IN_STREAMS: [PlantedBug; 4] = [
    PlantedBug::Engine(InEngine::EventsTermSkipped),
    PlantedBug::Engine(InEngine::EventsHoleUnsaid),
    PlantedBug::Engine(InEngine::EventsCloseTooEarly),
    PlantedBug::Engine(InEngine::EventsResumeRefused),
];

/// Those that a world of nodes has to find beside the tests of their own crate.
pub const ALSO_IN_NODES: [PlantedBug; 5] = [
    PlantedBug::Peers(InPeers::PeersAnswerOldest),
    PlantedBug::Peers(InPeers::PeersSentTwice),
    PlantedBug::Peers(InPeers::PeersUnknownIsNotDone),
    PlantedBug::Peers(InPeers::PeersDeadlineIgnored),
    PlantedBug::Peers(InPeers::PeersOldFrames),
];

/// Those that a world of shards has to find beside their own stage, and on which store.
pub const ALSO_IN_SHARDS: [(PlantedBug, Option<Kind>); 4] = [
    (PlantedBug::Engine(InEngine::LineStartsAtWall), None),
    (PlantedBug::Engine(InEngine::ReadBelievedTwice), None),
    (PlantedBug::Disk(InDisk::LogIgnoresFence), Some(Kind::Log)),
    (
        PlantedBug::Disk(InDisk::LogIgnoresFence),
        Some(Kind::Tables),
    ),
];

/// A bug on this thread, until this goes.
#[must_use]
pub(crate) struct Planted(());

impl Planted {
    pub(crate) fn new(bug: Option<PlantedBug>) -> Self {
        plant(bug);
        Self(())
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        plant(None);
    }
}

/// The stage that has to find a bug, as `sim` has it: the stores alone, a log while it is flushed, a
/// start that has to be refused, files that are taken away while a store is open, files of two times, a store that is made, files made of changed
/// recipes, damaged files and their repair, shards that change hands, nodes that share them, timers that wait for
/// flows, attempts that are leased, sets that are repeated, the audit log, jobs, nodes that lend each other places, nodes
/// that lease for each other's workers, nodes that copy each other's events, or everything together.
#[must_use]
pub fn stage(bug: PlantedBug) -> &'static str {
    let name = format!("{bug:?}");
    if name.starts_with("Scrub") {
        return "scrub";
    }
    if name == "LogOverlooksRemoval" {
        return "removed";
    }
    if name.starts_with("LogFlushes") {
        return "meanwhile";
    }
    if name.starts_with("Reader") {
        return "recipes";
    }
    if IN_MIXES.contains(&bug) {
        return "mixes";
    }
    if name.starts_with("Opening") {
        return "starts";
    }
    if name.starts_with("Making") {
        return "makings";
    }
    if name.starts_with("Repair") {
        return "bytes";
    }
    if IN_ROT.contains(&bug) {
        return "rot";
    }
    if name.starts_with("Loans") {
        return "loans";
    }
    if IN_GATHERS.contains(&bug) {
        return "gathers";
    }
    if IN_STREAMS.contains(&bug) {
        return "streams";
    }
    if matches!(bug, PlantedBug::Nodes(_) | PlantedBug::Peers(_)) {
        return "nodes";
    }
    if name.starts_with("Flow") || ["PriorityIgnored", "SharePassedOn"].contains(&&*name) {
        return "flows";
    }
    let of_leases = [
        "LeaseLeaks",
        "LostUncounted",
        "LeaseNeverEnds",
        "OldTokenCounts",
        "ExtendForgotten",
        "ReleaseCounts",
        "LeasesForgotten",
        "LeaseRateByLine",
        "RulesLostOfTheSet",
    ];
    if of_leases.contains(&&*name) {
        return "leases";
    }
    if name.starts_with("Receipt") || name == "ReplayAnswersLater" {
        return "receipts";
    }
    if name.starts_with("Audit") || name == "SettingsUnchecked" {
        return "audit";
    }
    if name.starts_with("Job") {
        return "jobs";
    }
    if IN_SHARDS.contains(&bug) || matches!(bug, PlantedBug::Postgres(_)) {
        return "shards";
    }
    let of_a_store = ["Log", "Tables", "Manifest"];
    if of_a_store.iter().any(|part| name.starts_with(part)) {
        "calls"
    } else {
        "seeds"
    }
}

/// Looks for the bug with each of the seeds, and says the first of them that finds it and what is wrong
/// then. The seed that found it last, of `first-seeds.txt`, goes before the others: most runs of such a
/// search would else be those that find nothing.
pub fn search(
    bug: PlantedBug,
    mut seeds: RangeInclusive<u64>,
    find: impl Fn(u64) -> Option<String>,
) -> Option<(u64, String)> {
    let last = first_seed(bug).filter(|seed| seeds.contains(seed));
    let found = |seed| Some((seed, find(seed)?));
    last.and_then(found).or_else(|| seeds.find_map(found))
}

/// The seed that found the bug last, of worlds as they were then.
fn first_seed(bug: PlantedBug) -> Option<u64> {
    let name = bug.name();
    let lines = include_str!("../first-seeds.txt").lines();
    let mut lines = lines.filter_map(|line| line.split_once(' '));
    let (_, seed) = lines.find(|(of, _)| *of == name)?;
    Some(
        seed.parse()
            .expect("first-seeds.txt has a name and a seed in each line"),
    )
}

/// Runs one seed of its stage with the bug. What is wrong, if that is seen.
#[must_use]
pub fn find(bug: PlantedBug, seed: u64) -> Option<String> {
    // What is found by a panic is found.
    let found = catch_unwind(|| find_by_verdict(bug, seed));
    found.unwrap_or_else(|panic| Some(panic_text(&*panic)))
}

fn find_by_verdict(bug: PlantedBug, seed: u64) -> Option<String> {
    let _planted = Planted::new(Some(bug));
    match stage(bug) {
        "calls" => {
            let machine = || Machine::new(Kind::Tables, seed);
            calls::find_on(&machine, seed).err()
        }
        "bytes" => bytes::run(Kind::Tables, seed)
            .err()
            .map(|failure| failure.what),
        "rot" => rot::run(seed).err().map(|failure| failure.what),
        "meanwhile" => meanwhile::run(seed).err(),
        "recipes" => recipes::run(seed).err(),
        "starts" => starts::run(&Machine::new(Kind::Tables, seed), seed).err(),
        "removed" => removed::run(&Machine::new(Kind::Tables, seed), seed).err(),
        "mixes" => mixes::run(&Machine::new(Kind::Tables, seed), seed).err(),
        "makings" => makings::run(seed).err(),
        "scrub" => scrub::run(seed).err(),
        "shards" => find_in_shards(bug, seed, kind_of(bug)),
        "nodes" => find_in_nodes(bug, seed),
        "loans" => find_in_steps(bug, seed, loans::STEPS, loans::run),
        "gathers" => find_in_steps(bug, seed, gathers::STEPS, gathers::run),
        "streams" => find_in_steps(bug, seed, streams::STEPS, streams::run),
        "flows" => find_in_steps(bug, seed, flows::STEPS, flows::run),
        "jobs" => find_in_steps(bug, seed, jobs::STEPS, jobs::run),
        "leases" => find_in_steps(bug, seed, leases::STEPS, leases::run),
        "audit" => find_in_steps(bug, seed, audit::STEPS, audit::run),
        "receipts" => find_in_steps(bug, seed, receipts::STEPS, receipts::run),
        _ => {
            let options = Options {
                planted_bug: Some(bug),
                ..Options::default()
            };
            world::run(seed, &options).err().map(|failure| failure.what)
        }
    }
}

/// The same in a run of so many steps.
fn find_in_steps<R>(
    bug: PlantedBug,
    seed: u64,
    steps: u64,
    run: fn(u64, &Stepped) -> Result<R, Box<Failure>>,
) -> Option<String> {
    let options = Stepped {
        planted_bug: Some(bug),
        ..Stepped::of(steps)
    };
    run(seed, &options).err().map(|failure| failure.what)
}

/// The store that a mistake among shards is in, if it is drawn on another one.
#[must_use]
pub fn kind_of(bug: PlantedBug) -> Option<Kind> {
    matches!(bug, PlantedBug::Postgres(_)).then_some(Kind::Postgres)
}

/// Runs one seed of a world of shards with the bug, on a store of that kind. What is wrong, if that
/// is seen.
#[must_use]
pub fn find_in_shards(bug: PlantedBug, seed: u64, kind: Option<Kind>) -> Option<String> {
    let options = shards::Options {
        planted_bug: Some(bug),
        kind,
        ..shards::Options::default()
    };
    shards::run(seed, &options)
        .err()
        .map(|failure| failure.what)
}

/// Runs one seed of a world of nodes with the bug. What is wrong, if that is seen.
#[must_use]
pub fn find_in_nodes(bug: PlantedBug, seed: u64) -> Option<String> {
    let options = nodes::Options {
        planted_bug: Some(bug),
        ..nodes::Options::default()
    };
    nodes::run(seed, &options).err().map(|failure| failure.what)
}
