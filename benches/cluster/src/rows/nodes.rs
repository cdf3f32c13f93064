//! Several nodes on one server: beside one, where slots are the limit, and what is forwarded.

use std::time::Duration;

use crate::Bench;
use crate::node::{Kind, Names};
use crate::nodes::{Done, Nodes, Setup};
use crate::rows::Row;
use crate::rows::rates::made;
use crate::samples::Goal;

/// So many attempts run that they are no limit.
const MANY: usize = 10_000;
/// Lives under way on all nodes together, and on each where slots are the limit: more than these can run.
const AHEAD: u64 = 10_000;
const AHEAD_OF_SLOTS: u64 = 2_000;
/// Where slots are the limit: attempts that a node runs at a time, and how long each takes.
const SLOTS: usize = 64;
const TAKE: Duration = Duration::from_millis(50);

/// As much of the same work on one, two and four nodes.
pub(crate) fn shared(bench: &mut Bench) -> anyhow::Result<()> {
    for (kind, name) in [(Kind::Sets, "sets"), (Kind::Lives, "lives")] {
        let setup = |nodes| Setup {
            nodes,
            max_in_flight: MANY,
            receivers_take: Duration::ZERO,
            ahead: AHEAD,
        };
        let goals = [Goal::AtLeast(0.85); 2];
        beside_one(bench, Row::Nodes, (kind, name), setup, goals)?;
    }
    Ok(())
}

/// The same where each node waits for its receivers.
pub(crate) fn slots(bench: &mut Bench) -> anyhow::Result<()> {
    let setup = |nodes| Setup {
        nodes,
        max_in_flight: SLOTS,
        receivers_take: TAKE,
        ahead: AHEAD_OF_SLOTS * nodes as u64,
    };
    let goals = [Goal::AtLeast(1.8), Goal::AtLeast(3.2)];
    beside_one(bench, Row::Slots, (Kind::Lives, "lives"), setup, goals)
}

fn beside_one(
    bench: &mut Bench,
    row: Row,
    (kind, name): (Kind, &str),
    setup: impl Fn(usize) -> Setup,
    goals: [Goal; 2],
) -> anyhow::Result<()> {
    let one = measured(bench, setup(1), kind, Names::Any)?;
    add(bench, row, &format!("{name}, 1 node"), one);
    for (nodes, goal) in [2, 4].into_iter().zip(goals) {
        let done = measured(bench, setup(nodes), kind, Names::Any)?;
        add(bench, row, &format!("{name}, {nodes} nodes"), done);
        let ratio = done.per_second / one.per_second;
        bench.add(row, format!("{name}: {nodes} nodes of 1"), goal, ratio);
        let ratio = done.per_processor_second / one.per_processor_second;
        let what = format!("{name}: {nodes} nodes of 1, for the same processor time");
        bench.add(row, what, Goal::None, ratio);
    }
    Ok(())
}

fn add(bench: &mut Bench, row: Row, what: &str, done: Done) {
    let (a_second, of_processor) = (done.per_second, done.per_processor_second);
    bench.add(row, format!("{what}: a second"), Goal::None, a_second);
    let of = format!("{what}: a second of a processor");
    bench.add(row, of, Goal::None, of_processor);
    if done.forwarded > 0.0 {
        let share = format!("{what}: share forwarded");
        bench.add(row, share, Goal::None, done.forwarded);
    }
}

/// Sets at two nodes, each asked about its own shards, and about those of the other.
pub(crate) fn forwarding(bench: &mut Bench) -> anyhow::Result<()> {
    let setup = Setup {
        nodes: 2,
        max_in_flight: MANY,
        receivers_take: Duration::ZERO,
        ahead: AHEAD,
    };
    let own = measured(bench, setup, Kind::Sets, Names::Own)?;
    let others = measured(bench, setup, Kind::Sets, Names::Others)?;
    let row = Row::Forwarding;
    add(bench, row, "sets, by the owner's own node", own);
    add(bench, row, "sets, through the other node", others);
    let ratio = others.per_second / own.per_second;
    bench.add(row, "through the other, of own", Goal::None, ratio);
    let ratio = others.per_processor_second / own.per_processor_second;
    let what = "through the other, of own, for the same processor time";
    bench.add(row, what, Goal::None, ratio);
    Ok(())
}

fn measured(bench: &Bench, setup: Setup, kind: Kind, names: Names) -> anyhow::Result<Done> {
    let options = made(bench)?;
    let mut nodes = Nodes::start(bench, &options, setup)?;
    nodes.rate(kind, names, bench.span())
}
