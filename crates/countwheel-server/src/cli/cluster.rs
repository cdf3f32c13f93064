//! `countwheel cluster status`, `nodes`, `shards`, `drain`, `undrain`, `move` and `rebalance`.

use std::time::Duration;

use countwheel_time::Timestamp;

use super::connection::Connection;
use super::follow::line;
use super::table::Table;
use super::text::{count, moment, span};
use super::{Exit, Failure, Terminal};
use crate::client::{Answer, ClusterGlance, NodeMarked};

/// What is asked of the nodes of a cluster.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Cluster {
    /// Show a cluster at a glance, and what happened to its shards
    Status(Asked),
    /// Show the nodes
    Nodes(Asked),
    /// Show the shards, and whose they are
    Shards(Asked),
    /// Drain a node: it gives all its shards to others, and gets none
    Drain(OfNode),
    /// Let a node have shards again
    Undrain(OfNode),
    /// Ask for a shard to go to a node, and to stay there while that lives
    Move(Move),
    /// End what `move` has asked for: each shard goes where the nodes' weights have it
    Rebalance(Rebalance),
}

/// A question about all.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    #[command(flatten)]
    connection: Connection,
}

/// What is asked about one node.
#[derive(Clone, Debug, clap::Args)]
pub struct OfNode {
    /// The node's name
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    connection: Connection,
}

/// `countwheel cluster move`.
#[derive(Clone, Debug, clap::Args)]
pub struct Move {
    /// The shard's number
    #[arg(value_name = "SHARD")]
    shard: u16,
    /// The node's name
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    connection: Connection,
}

/// `countwheel cluster rebalance`.
#[derive(Clone, Debug, clap::Args)]
pub struct Rebalance {
    /// Only say which shards would move
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What is written where there is nothing.
const NONE: &str = "-";

impl Cluster {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Status(Asked { connection }) => {
                let answer = connection.client()?.cluster().await?;
                if !as_json(connection, &answer, terminal)? {
                    status(&answer.value, terminal)?;
                }
            }
            Self::Nodes(Asked { connection }) => nodes(connection, terminal).await?,
            Self::Shards(Asked { connection }) => shards(connection, terminal).await?,
            Self::Drain(OfNode { node, connection }) => {
                let answer = connection.client()?.drain_node(node).await?;
                marked("draining", connection, &answer, terminal)?;
            }
            Self::Undrain(OfNode { node, connection }) => {
                let answer = connection.client()?.undrain_node(node).await?;
                marked("undrained", connection, &answer, terminal)?;
            }
            Self::Move(Move {
                shard,
                node,
                connection,
            }) => shift(*shard, node, connection, terminal).await?,
            Self::Rebalance(Rebalance {
                dry_run,
                connection,
            }) => rebalance(*dry_run, connection, terminal).await?,
        }
        Ok(Exit::Done)
    }
}

/// Prints the server's JSON if that is wanted. Says whether it was.
fn as_json<T>(
    connection: &Connection,
    answer: &Answer<T>,
    terminal: &mut Terminal<'_>,
) -> Result<bool, Failure> {
    if connection.json {
        writeln!(terminal.out, "{}", answer.json())?;
    }
    Ok(connection.json)
}

fn status(cluster: &ClusterGlance, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let (nodes, shards) = (cluster.nodes, cluster.shards);
    let out = &mut *terminal.out;
    let node = &cluster.node;
    let lease = millis(cluster.lease_left_ms);
    let offset = cluster.clock_offset_ms;
    writeln!(out, "node      {node}, lease {lease}, clock {offset:+} ms")?;
    let (live, draining, over) = (nodes.live, nodes.draining, nodes.over);
    writeln!(
        out,
        "nodes     {live} live, {draining} draining, {over} over"
    )?;
    writeln!(
        out,
        "shards    {} of {} owned, {} taking, {} handing over, {} overdue, {} free",
        shards.owned,
        shards.all(),
        shards.taking,
        shards.handing_over,
        shards.overdue,
        shards.free,
    )?;
    let database = &cluster.database;
    let reachable = if database.reachable {
        "answers"
    } else {
        "is away"
    };
    let durability = database.durability.as_deref().unwrap_or("unknown");
    let snapshot = database.oldest_snapshot_ms.filter(|age| *age > 0);
    let snapshot = snapshot.map_or_else(|| NONE.to_owned(), millis);
    let server = database.server.as_deref().unwrap_or("it");
    let sync = match &database.sync {
        None => "unknown".to_owned(),
        Some(standbys) if standbys.is_empty() => "none".to_owned(),
        Some(standbys) => standbys.join(" "),
    };
    writeln!(
        out,
        "database  {server} {reachable}, durability {durability}, standby {sync}, oldest snapshot {snapshot}"
    )?;
    if cluster.events.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(["AT", "EVENT", "SHARD>", "DETAIL"]);
    for event in &cluster.events {
        let shard = event
            .shard
            .map_or_else(|| NONE.to_owned(), |shard| shard.to_string());
        table.push([
            moment(event.at),
            event.event.clone(),
            shard,
            event.detail.clone(),
        ]);
    }
    table.write(out)?;
    Ok(())
}

async fn nodes(connection: &Connection, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let answer = connection.client()?.cluster_nodes().await?;
    if as_json(connection, &answer, terminal)? {
        return Ok(());
    }
    let mut table = Table::new([
        "NODE", "STATE", "LEASE>", "SHARDS>", "VERSION", "API", "PEERS",
    ]);
    for node in &answer.value.nodes {
        table.push([
            node.node.clone(),
            node.state.clone(),
            millis(node.lease_left_ms),
            node.shards.to_string(),
            node.version.clone(),
            node.api.clone(),
            node.peers.clone().unwrap_or_else(|| NONE.to_owned()),
        ]);
    }
    table.write(terminal.out)?;
    Ok(())
}

async fn shards(connection: &Connection, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let answer = connection.client()?.cluster_shards().await?;
    if as_json(connection, &answer, terminal)? {
        return Ok(());
    }
    let number = |number: Option<u64>| number.map_or_else(|| NONE.to_owned(), |n| n.to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    let since = |at: Option<Timestamp>| at.map_or_else(|| NONE.to_owned(), moment);
    let mut table = Table::new([
        "SHARD>", "OWNER", "STATE", "WANTED", "FENCE>", "PENDING>", "OVERDUE>", "SINCE",
    ]);
    for shard in &answer.value.shards {
        table.push([
            shard.shard.to_string(),
            text(&shard.owner),
            shard.state.clone(),
            text(&shard.wanted),
            shard.fence.to_string(),
            number(shard.pending),
            number(shard.overdue),
            since(shard.since),
        ]);
    }
    table.write(terminal.out)?;
    Ok(())
}

fn marked(
    word: &str,
    connection: &Connection,
    answer: &Answer<NodeMarked>,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    if as_json(connection, answer, terminal)? {
        return Ok(());
    }
    let marked = &answer.value;
    let shards = count(marked.shards as u64, "shard", "shards");
    let words = format!("{}  {shards}", marked.node);
    writeln!(terminal.out, "{}", line(word, &words))?;
    Ok(())
}

async fn shift(
    shard: u16,
    node: &str,
    connection: &Connection,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let answer = connection.client()?.move_shard(shard, Some(node)).await?;
    if as_json(connection, &answer, terminal)? {
        return Ok(());
    }
    let from = answer.value.owner.as_deref().unwrap_or(NONE);
    let words = format!("shard {shard}  {from} -> {node}");
    writeln!(terminal.out, "{}", line("wanted", &words))?;
    Ok(())
}

async fn rebalance(
    dry_run: bool,
    connection: &Connection,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let answer = connection.client()?.rebalance(dry_run).await?;
    if as_json(connection, &answer, terminal)? {
        return Ok(());
    }
    let moves = &answer.value.moves;
    if moves.is_empty() {
        writeln!(terminal.out, "every shard is where it is to be")?;
        return Ok(());
    }
    let mut table = Table::new(["SHARD>", "FROM", "TO"]);
    for it in moves {
        let from = it.from.clone().unwrap_or_else(|| NONE.to_owned());
        table.push([it.shard.to_string(), from, it.to.clone()]);
    }
    table.write(terminal.out)?;
    let word = if dry_run { "would move" } else { "move" };
    let shards = count(moves.len() as u64, "shard", "shards");
    writeln!(terminal.out, "{shards} {word}")?;
    Ok(())
}

fn millis(millis: u64) -> String {
    span(Duration::from_millis(millis))
}
