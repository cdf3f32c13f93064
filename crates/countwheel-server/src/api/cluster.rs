//! The nodes of a cluster and their shards: `/v1/cluster` and below.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_cluster::RegistryError;
use countwheel_durable::Timers;
use countwheel_durable::store::{Durability, Shard};
use countwheel_postgres::PostgresServer;
use serde::Serialize;
use serde_json::{Value, json};

use super::described::requests;
use super::json::{self, Field, Kind};
use super::problem::{Code, Problem};
use super::request::{Honoured, Query, json_body, optional_json_body, precondition, text_segment};
use super::{App, answer};
use crate::cluster::seen::{NodeLine, NodeState, Seen, ShardLine, ShardState};
use crate::cluster::wish::{self, Move, Refusal};
use crate::cluster::{Cluster, EventLine, Offset};
use crate::time::format_time;

/// `GET /v1/cluster`: what there is at a glance, and what happened.
#[derive(Serialize)]
struct Glance {
    node: String,
    as_of: String,
    nodes: NodeCounts,
    shards: ShardCounts,
    lease_left_ms: u64,
    clock_offset_ms: i64,
    database: Database,
    events: Vec<EventBody>,
}

#[derive(Serialize, Default)]
struct NodeCounts {
    live: usize,
    draining: usize,
    over: usize,
}

#[derive(Serialize)]
struct ShardCounts {
    owned: usize,
    taking: usize,
    handing_over: usize,
    overdue: usize,
    free: usize,
}

#[derive(Serialize, Default)]
struct Database {
    reachable: bool,
    server: Option<String>,
    sync: Option<Vec<String>>,
    durability: Option<&'static str>,
    oldest_snapshot_ms: Option<u64>,
}

/// What happened to a shard or to this node.
#[derive(Serialize)]
struct EventBody {
    at: String,
    event: &'static str,
    shard: Option<u16>,
    detail: String,
}

impl EventBody {
    fn of(event: &EventLine) -> Self {
        Self {
            at: format_time(event.at),
            event: event.kind,
            shard: event.shard.map(|shard| shard.0),
            detail: event.detail.clone(),
        }
    }
}

#[derive(Serialize)]
struct Nodes {
    as_of: String,
    nodes: Vec<NodeBody>,
}

#[derive(Serialize)]
struct NodeBody {
    node: String,
    id: String,
    state: &'static str,
    here: bool,
    lease_left_ms: u64,
    shards: usize,
    weight: u16,
    api: String,
    peers: Option<String>,
    version: String,
    zones: String,
}

impl From<NodeLine> for NodeBody {
    fn from(line: NodeLine) -> Self {
        let node = line.member.node;
        Self {
            node: node.name,
            id: node.id.to_string(),
            state: line.state.as_str(),
            here: line.is_here,
            lease_left_ms: millis(line.lease_left),
            shards: line.shards,
            weight: node.weight,
            api: node.api,
            peers: node.peers,
            version: node.version,
            zones: node.zones,
        }
    }
}

#[derive(Serialize)]
struct Shards {
    as_of: String,
    shards: Vec<ShardBody>,
}

#[derive(Serialize)]
struct ShardBody {
    shard: u16,
    state: &'static str,
    owner: Option<String>,
    wanted: Option<String>,
    fence: u64,
    since: String,
    pending: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overdue: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late_p99_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commits: Option<u64>,
}

impl From<ShardLine> for ShardBody {
    fn from(line: ShardLine) -> Self {
        let stats = line.stats.as_ref();
        let late = |quantile| stats.map(|it| it.lateness.quantile(quantile));
        Self {
            shard: line.shard.0,
            state: line.state.as_str(),
            owner: line.owner,
            wanted: line.wanted,
            fence: line.fence.0,
            since: format_time(line.since),
            pending: line.pending,
            overdue: stats.map(|it| it.overdue.count),
            in_flight: stats.map(|it| it.in_flight),
            late_p99_us: late(0.99).map(|late| u64::try_from(late.as_micros()).unwrap_or(u64::MAX)),
            commits: stats.map(|it| it.commits),
        }
    }
}

/// The answer to a drain and to its end.
#[derive(Serialize)]
struct Marked {
    node: String,
    state: &'static str,
    shards: usize,
}

#[derive(Serialize)]
struct Moved {
    shard: u16,
    owner: Option<String>,
    wanted: Option<String>,
}

#[derive(Serialize)]
struct Rebalanced {
    dry_run: bool,
    moves: Vec<MoveBody>,
}

#[derive(Serialize)]
struct MoveBody {
    shard: u16,
    from: Option<String>,
    to: String,
}

impl From<Move> for MoveBody {
    fn from(it: Move) -> Self {
        Self {
            shard: it.shard.0,
            from: it.from,
            to: it.to,
        }
    }
}

pub(super) async fn glance(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let cluster = cluster(&app)?;
    app.read(move |timers| {
        let seen = cluster.seen(timers);
        let glance = Glance {
            database: Database::of(timers, cluster.database()),
            ..glance_of(&seen, cluster.clock_offset(), &cluster.events())
        };
        Ok(answer(StatusCode::OK, &glance))
    })
    .await
}

impl Database {
    /// Asks it whether it is there. Blocks.
    fn of(timers: &Timers, server: Option<&PostgresServer>) -> Self {
        Self {
            reachable: timers.reach().is_ok(),
            server: server.map(PostgresServer::name),
            sync: server.and_then(PostgresServer::standbys),
            durability: timers.durability().map(Durability::as_str),
            oldest_snapshot_ms: timers.oldest_snapshot().map(millis),
        }
    }
}

/// All but the database.
fn glance_of(seen: &Seen, offset: Offset, events: &[EventLine]) -> Glance {
    Glance {
        node: seen.name.clone(),
        as_of: format_time(seen.view.now),
        nodes: node_counts(seen),
        shards: shard_counts(seen),
        lease_left_ms: millis(seen.lease_left()),
        clock_offset_ms: offset.millis(),
        database: Database::default(),
        events: events.iter().map(EventBody::of).collect(),
    }
}

fn node_counts(seen: &Seen) -> NodeCounts {
    let mut counts = NodeCounts::default();
    for node in seen.nodes() {
        *match node.state {
            NodeState::Live => &mut counts.live,
            NodeState::Draining => &mut counts.draining,
            NodeState::Over => &mut counts.over,
        } += 1;
    }
    counts
}

fn shard_counts(seen: &Seen) -> ShardCounts {
    let states = seen.states();
    let of = |state| states.get(&state).copied().unwrap_or_default();
    ShardCounts {
        owned: of(ShardState::Owned),
        taking: of(ShardState::Taking),
        handing_over: of(ShardState::HandingOver),
        overdue: of(ShardState::Overdue),
        free: of(ShardState::Free),
    }
}

pub(super) async fn nodes(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let seen = cluster(&app)?.seen(&app.timers);
    let body = Nodes {
        as_of: format_time(seen.view.now),
        nodes: seen.nodes().into_iter().map(NodeBody::from).collect(),
    };
    Ok(answer(StatusCode::OK, &body))
}

pub(super) async fn shards(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let cluster = cluster(&app)?;
    app.read(move |timers| {
        let seen = cluster.seen(timers);
        let lines = cluster.shards(&seen, timers);
        let body = Shards {
            as_of: format_time(seen.view.now),
            shards: lines.into_iter().map(ShardBody::from).collect(),
        };
        Ok(answer(StatusCode::OK, &body))
    })
    .await
}

pub(super) async fn drain(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    mark(&app, request, true).await
}

pub(super) async fn undrain(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    mark(&app, request, false).await
}

/// Of the node that the path names.
async fn mark(app: &App, request: Request<Body>, is_draining: bool) -> Result<Response, Problem> {
    const NAME: usize = 4; // /v1/cluster/nodes/{name}/…
    let name = text_segment(request.uri(), NAME)
        .ok_or_else(|| Problem::malformed("the name of the node is not UTF-8"))?
        .into_owned();
    without_body(app, request).await?;
    let cluster = cluster(app)?;
    let entry = app.operation(json!({ "node": name }));
    app.read(move |timers| {
        let seen = cluster.look(timers).map_err(Problem::from)?;
        match is_draining {
            true => wish::may_drain(&seen, &name)?,
            false => wish::may_undrain(&seen, &name)?,
        }
        entry.begins(timers)?;
        let marked = cluster.registry().mark_draining(&name, is_draining);
        marked.map_err(|error| Problem::from(Refusal::from(error)))?;
        let seen = cluster.look(timers).map_err(Problem::from)?;
        let mut nodes = seen.nodes().into_iter();
        let node = nodes.find(|node| node.member.node.name == name);
        let body = Marked {
            state: node.as_ref().map_or("gone", |node| node.state.as_str()),
            shards: node.map_or(0, |node| node.shards),
            node: name,
        };
        Ok(answer(StatusCode::ACCEPTED, &body))
    })
    .await
}

pub(super) async fn shift(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    const SHARD: usize = 4; // /v1/cluster/shards/{shard}/move
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let shard = text_segment(request.uri(), SHARD).and_then(|text| {
        let shard = text.parse::<u16>().ok()?;
        // One shard has one path.
        (shard.to_string() == text).then_some(shard)
    });
    let shard = Shard(shard.ok_or_else(no_such_shard)?);
    let body = json_body(&app, request).await?;
    let mut object = Field::root(json::parse(&body)?).object_of(&requests::MOVE_SHARD)?;
    let node = object.require("node")?;
    let name = match node.kind() {
        Kind::Null => None,
        Kind::Text(name) => Some(name.into_owned()),
        _ => return Err(node.malformed("must be the name of a node, or null")),
    };
    object.finish()?;
    let cluster = cluster(&app)?;
    let entry = app.operation(json!({ "shard": shard.0, "node": name }));
    app.read(move |timers| {
        let seen = cluster.look(timers).map_err(Problem::from)?;
        wish::may_want(&seen, shard, name.as_deref())?;
        entry.begins(timers)?;
        let wanted = cluster.registry().want(Some(shard), name.as_deref());
        wanted.map_err(|error| Problem::from(Refusal::from(error)))?;
        let mut lines = seen.shards().into_iter();
        let line = lines.find(|line| line.shard == shard);
        let body = Moved {
            shard: shard.0,
            owner: line.and_then(|line| line.owner),
            wanted: name,
        };
        Ok(answer(StatusCode::ACCEPTED, &body))
    })
    .await
}

pub(super) async fn rebalance(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let mut dry_run = false;
    if let Some(body) = optional_json_body(&app, request).await? {
        let mut object = Field::root(json::parse(&body)?).object_of(&requests::REBALANCE)?;
        if let Some(field) = object.take("dry_run") {
            dry_run = field.truth()?;
        }
        object.finish()?;
    }
    let cluster = cluster(&app)?;
    let entry = app.operation(Value::Null);
    app.read(move |timers| {
        let seen = cluster.look(timers).map_err(Problem::from)?;
        if !dry_run {
            entry.begins(timers)?;
            let ended = cluster.registry().want(None, None);
            ended.map_err(|error| Problem::from(Refusal::from(error)))?;
        }
        let moves = cluster.rebalanced(&seen);
        let body = Rebalanced {
            dry_run,
            moves: moves.into_iter().map(MoveBody::from).collect(),
        };
        let status = match dry_run {
            true => StatusCode::OK,
            false => StatusCode::ACCEPTED,
        };
        Ok(answer(status, &body))
    })
    .await
}

fn cluster(app: &App) -> Result<Arc<Cluster>, Problem> {
    app.cluster().cloned().ok_or_else(|| {
        let detail = "this service has its timers in a directory: only services on a database are nodes \
                      of a cluster (serve --store)";
        Problem::new(Code::NoCluster, detail)
    })
}

/// Refuses all but nothing and `{}`.
async fn without_body(app: &App, request: Request<Body>) -> Result<(), Problem> {
    Query::of(request.uri(), &[])?;
    without_condition(request.headers())?;
    if let Some(body) = optional_json_body(app, request).await? {
        Field::root(json::parse(&body)?)
            .object_of(&requests::NOTHING)?
            .finish()?;
    }
    Ok(())
}

fn without_condition(headers: &HeaderMap) -> Result<(), Problem> {
    precondition(headers, Honoured::Nothing).map(drop)
}

fn no_such_shard() -> Problem {
    Problem::new(Code::NotFound, "a shard is a number")
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code =
            match &refusal {
                Refusal::UnknownNode { .. }
                | Refusal::Registry(RegistryError::NoSuchNode { .. }) => Code::UnknownNode,
                Refusal::UnknownShard { .. }
                | Refusal::Registry(RegistryError::NoSuchShard { .. }) => Code::NotFound,
                Refusal::NodeDraining { .. } => Code::NodeDraining,
                Refusal::LastNode { .. } => Code::LastNode,
                Refusal::Registry(RegistryError::Unavailable { .. }) => Code::StoreUnavailable,
                Refusal::Registry(_) => Code::Unavailable,
            };
        Self::new(code, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::{Attempt, Config, Outcome, Stats};
    use countwheel_time::{Clock, SystemClock};
    use http_body_util::BodyExt;
    use tower_service::Service;

    use super::*;
    use crate::cluster::seen::tests::{NOW, seen};

    /// What stands in the fences of the contract under the headings of the cluster.
    fn examples() -> Vec<Value> {
        let text = include_str!("../../../../docs/api.md");
        let (_, text) = text.split_once("\n## Cluster: ").expect("it is there");
        let (text, _) = text
            .split_once("\n## Move all timers")
            .expect("more follows");
        let fences = text.split("```json\n").skip(1);
        let json = fences.filter_map(|rest| rest.split("```").next());
        json.map(|json| serde_json::from_str(json).expect("an example is JSON"))
            .collect()
    }

    /// Every name in it with the kinds of its values, `null` aside.
    fn names(value: &Value, path: &str, all: &mut BTreeMap<String, &'static str>) {
        let kind = match value {
            Value::Null => return,
            Value::Bool(_) => "truth",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(elements) => {
                for element in elements {
                    names(element, &format!("{path}/*"), all);
                }
                "array"
            }
            Value::Object(members) => {
                for (name, value) in members {
                    names(value, &format!("{path}/{name}"), all);
                }
                "object"
            }
        };
        all.insert(path.to_owned(), kind);
    }

    fn shape(value: &Value) -> BTreeMap<String, &'static str> {
        let mut all = BTreeMap::new();
        names(value, "", &mut all);
        all
    }

    fn value(body: &impl Serialize) -> Value {
        serde_json::to_value(body).expect("it is written")
    }

    fn glance() -> Glance {
        let event = EventLine {
            at: NOW,
            kind: "takeover",
            shard: Some(Shard(3)),
            detail: "the lease of c was over".to_owned(),
        };
        let seen = seen();
        Glance {
            database: Database {
                reachable: true,
                server: Some("postgres-15".to_owned()),
                sync: Some(vec!["standby1".to_owned()]),
                durability: Some("standby"),
                oldest_snapshot_ms: Some(0),
            },
            ..glance_of(&seen, Offset { micros: -3_000 }, &[event])
        }
    }

    async fn ask(app: &Arc<App>, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header("host", "localhost");
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(Body::from(body.to_owned()))
            .expect("a request");
        let answer = super::super::router(Arc::clone(app)).call(request).await;
        let answer = answer.expect("it never fails");
        let status = answer.status().as_u16();
        let bytes = answer
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    fn app(cluster: Option<Arc<Cluster>>) -> Arc<App> {
        let (store, clock) = (MemoryStore::new(1), Arc::new(SystemClock::new()));
        let handler = |_: &Attempt| Outcome::done();
        let shards = countwheel_durable::Shards::new(8).expect("from 1 to 1024");
        let clock: Arc<dyn Clock> = clock;
        let (known, config) = (Arc::clone(&clock), Config::default());
        let timers = Timers::open_divided(store, shards, [Shard(0)], handler, known, config);
        let timers = timers.expect("it is in memory");
        Arc::new(App::new(timers, clock, None, false).with_cluster(cluster))
    }

    #[tokio::test]
    async fn wishes_are_refused_with_their_reason_or_done() {
        let app = app(Some(crate::cluster::tests::cluster().1));
        for (path, body, status, code) in [
            ("nodes/a/drain", "", 409, "last_node"),
            ("nodes/z/drain", "", 404, "unknown_node"),
            ("nodes/%FF/drain", "", 400, "malformed"),
            ("nodes/b/drain", r#"{"x":1}"#, 400, "malformed"),
            ("shards/0/move", r#"{"node":"b"}"#, 409, "node_draining"),
            ("shards/0/move", r#"{"node":"c"}"#, 404, "unknown_node"),
            ("shards/8/move", r#"{"node":"a"}"#, 404, "not_found"),
            ("shards/+0/move", r#"{"node":"a"}"#, 404, "not_found"),
            ("shards/00/move", r#"{"node":"a"}"#, 404, "not_found"),
            ("shards/x/move", r#"{"node":"a"}"#, 404, "not_found"),
            ("shards/0/move", r#"{"node":7}"#, 400, "malformed"),
            ("shards/0/move", "{}", 400, "malformed"),
            ("rebalance", r#"{"dry_run":1}"#, 400, "malformed"),
        ] {
            let (found, answer) = ask(&app, "POST", &format!("/v1/cluster/{path}"), body).await;
            assert_eq!(
                (found, &answer["code"]),
                (status, &json!(code)),
                "{path} {body}"
            );
        }
        let undrained = ask(&app, "POST", "/v1/cluster/nodes/b/undrain", "").await;
        let live = json!({"node": "b", "state": "live", "shards": 1});
        assert_eq!(undrained, (202, live));
        let moved = ask(&app, "POST", "/v1/cluster/shards/0/move", r#"{"node":"b"}"#).await;
        let wanted = json!({"shard": 0, "owner": "a", "wanted": "b"});
        assert_eq!(moved, (202, wanted));
        let drained = ask(&app, "POST", "/v1/cluster/nodes/a/drain", "{}").await;
        let draining = json!({"node": "a", "state": "draining", "shards": 3});
        assert_eq!(drained, (202, draining));
        // What was refused above has no entry, and what only asks has none.
        let (status, plan) =
            ask(&app, "POST", "/v1/cluster/rebalance", r#"{"dry_run":true}"#).await;
        assert_eq!((status, &plan["dry_run"]), (200, &json!(true)));
        assert_eq!(
            plan["moves"][0],
            json!({"shard": 2, "from": "b", "to": "a"})
        );
        let shards = ask(&app, "GET", "/v1/cluster/shards", "").await.1;
        assert_eq!(shards["shards"][0]["wanted"], "b");
        let (status, done) = ask(&app, "POST", "/v1/cluster/rebalance", "").await;
        assert_eq!((status, &done["dry_run"]), (202, &json!(false)));
        let shards = ask(&app, "GET", "/v1/cluster/shards", "").await.1;
        assert_eq!(shards["shards"][0]["wanted"], Value::Null);
        // Each entry of the audit log is in one.
        assert_eq!(shards["shards"][0]["commits"], 4);
        let log = ask(&app, "GET", "/v1/audit?order=oldest", "").await.1;
        let entries = log["items"].as_array().expect("a list").iter();
        let entries: Vec<_> = entries
            .map(|entry| (&entry["operation"], &entry["setting"], &entry["details"]))
            .collect();
        let expected = [
            ("undrainNode", json!({"node": "b"})),
            ("moveShard", json!({"shard": 0, "node": "b"})),
            ("drainNode", json!({"node": "a"})),
            ("rebalance", Value::Null),
        ];
        let expected =
            expected.map(|(it, details)| (json!(it), json!(format!("operation/{it}")), details));
        let expected: Vec<_> = expected.iter().map(|(a, b, c)| (a, b, c)).collect();
        assert_eq!(entries, expected);
        assert_eq!(ask(&app, "GET", "/v1/cluster", "").await.1["node"], "a");
        let nodes = ask(&app, "GET", "/v1/cluster/nodes", "").await.1;
        assert_eq!(nodes["nodes"][2]["state"], "over");
    }

    #[tokio::test]
    async fn a_node_is_ready_once_it_has_its_shards() {
        let cluster = crate::cluster::tests::cluster().1;
        let app = app(Some(Arc::clone(&cluster)));
        assert_eq!(ask(&app, "GET", "/readyz", "").await.0, 503);
        assert_eq!(ask(&app, "GET", "/healthz", "").await.0, 200);
        cluster.say_ready();
        assert_eq!(ask(&app, "GET", "/readyz", "").await.0, 200);
    }

    #[tokio::test]
    async fn a_service_with_a_directory_is_no_node() {
        let app = app(None);
        for path in [
            "/v1/cluster",
            "/v1/cluster/nodes",
            "/v1/cluster/shards",
            "/cluster",
        ] {
            let (status, answer) = ask(&app, "GET", path, "").await;
            assert_eq!(
                (status, &answer["code"]),
                (404, &json!("no_cluster")),
                "{path}"
            );
        }
        let (status, _) = ask(&app, "POST", "/v1/cluster/rebalance", "").await;
        assert_eq!(status, 404);
    }

    #[test]
    fn the_contract_has_every_field_of_every_answer() {
        let mut lines = seen().shards();
        for line in &mut lines {
            line.stats = Some(Stats::default());
            line.pending = Some(1);
        }
        let shards = lines.into_iter().map(ShardBody::from).collect();
        let nodes = seen().nodes().into_iter().map(NodeBody::from).collect();
        let as_of = format_time(NOW);
        let text = |text: &str| Some(text.to_owned());
        let moved = MoveBody {
            shard: 3,
            from: text("b"),
            to: "a".to_owned(),
        };
        let answers = [
            value(&glance()),
            value(&Nodes {
                as_of: as_of.clone(),
                nodes,
            }),
            value(&Shards { as_of, shards }),
            value(&Marked {
                node: "b".to_owned(),
                state: "draining",
                shards: 21,
            }),
            value(&Moved {
                shard: 3,
                owner: text("a"),
                wanted: text("b"),
            }),
            value(&Rebalanced {
                dry_run: true,
                moves: vec![moved],
            }),
        ];
        let mut written = examples();
        // What is null in an example is a text in another shard.
        written[2]["shards"][0]["wanted"] = json!("b");
        assert_eq!(written.len(), answers.len());
        for (answer, written) in answers.iter().zip(&written) {
            assert_eq!(shape(answer), shape(written));
        }
    }

    #[test]
    fn only_the_shards_of_this_node_say_what_its_schedulers_count() {
        let shards: Vec<_> = seen().shards().into_iter().map(ShardBody::from).collect();
        let shard = value(&shards[4]);
        let expected = json!({"shard": 4, "state": "free", "owner": null, "wanted": null,
            "fence": 14, "since": "2027-01-15T07:58:30.000000Z", "pending": null});
        assert_eq!(shard, expected);
        let glance = value(&glance());
        assert_eq!(
            glance["nodes"],
            json!({"live": 1, "draining": 1, "over": 1})
        );
        assert_eq!(
            glance["shards"],
            json!({"owned": 2, "taking": 1,
            "handing_over": 1, "overdue": 2, "free": 1})
        );
        assert_eq!(glance["clock_offset_ms"], -3);
    }
}
