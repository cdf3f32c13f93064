//! The page of a cluster: its nodes, whose each shard is, and what happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use countwheel_time::Timestamp;

use super::login::Viewer;
use super::text::{When, size, span};
use super::{Frame, answer};
use crate::api::App;
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::cluster::EventLine;
use crate::cluster::seen::{NodeLine, NodeState, Seen, ShardLine, ShardState};

/// So many nodes have a colour of their own; the others share the last.
const COLOURS: usize = 8;

/// What is written where there is nothing.
const NONE: &str = "–";

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<ClusterPage, Problem> {
    Query::of(uri, &[])?;
    let cluster = app
        .cluster()
        .cloned()
        .ok_or_else(|| Problem::new(Code::NoCluster, "this service is no node of a cluster"))?;
    let mut frame = Frame::of(app, viewer, app.clock.timestamp(), "/cluster", "Cluster");
    frame.is_live = true;
    app.read(move |timers| {
        let seen = cluster.seen(timers);
        Ok(ClusterPage::of(frame, &seen, &cluster.events()))
    })
    .await
}

#[derive(Template)]
#[template(path = "cluster.html")]
struct ClusterPage {
    frame: Frame,
    name: String,
    figures: Vec<Figure>,
    nodes: Vec<NodeRow>,
    cells: Vec<Cell>,
    events: Vec<EventRow>,
}

struct Figure {
    name: &'static str,
    value: String,
    class: &'static str,
}

struct NodeRow {
    name: String,
    is_here: bool,
    /// The class of its colour.
    colour: String,
    state: &'static str,
    class: &'static str,
    lease: String,
    shards: String,
    version: String,
    zones: String,
    api: String,
}

/// A shard of the grid.
struct Cell {
    shard: u16,
    colour: String,
    class: &'static str,
    /// Whose it is and how it stands, in words.
    says: String,
}

struct EventRow {
    at: When,
    event: &'static str,
    class: &'static str,
    shard: String,
    detail: String,
}

impl ClusterPage {
    fn of(frame: Frame, seen: &Seen, events: &[EventLine]) -> Self {
        let nodes = seen.nodes();
        let names = nodes.iter().map(|node| node.member.node.name.clone());
        let colours: BTreeMap<String, String> = names
            .enumerate()
            .map(|(index, name)| (name, format!("o{}", index.min(COLOURS - 1))))
            .collect();
        Self {
            name: seen.name.clone(),
            figures: figures(seen),
            cells: seen
                .shards()
                .iter()
                .map(|it| Cell::of(it, &colours))
                .collect(),
            nodes: nodes
                .into_iter()
                .map(|node| NodeRow::of(node, &colours))
                .collect(),
            events: events
                .iter()
                .map(|event| EventRow::of(event, seen.now))
                .collect(),
            frame,
        }
    }
}

/// How many shards are in each state; what is not as it should be is coloured.
fn figures(seen: &Seen) -> Vec<Figure> {
    let states = seen.states().into_iter();
    let figure = |(state, number): (ShardState, usize)| Figure {
        name: words(state),
        value: size(number),
        class: if number == 0 { "" } else { class_of(state) },
    };
    states.map(figure).collect()
}

fn words(state: ShardState) -> &'static str {
    match state {
        ShardState::HandingOver => "handing over",
        other => other.as_str(),
    }
}

fn class_of(state: ShardState) -> &'static str {
    match state {
        ShardState::Owned => "ok",
        ShardState::Taking | ShardState::HandingOver => "brass",
        ShardState::Overdue | ShardState::Free => "bad",
    }
}

impl NodeRow {
    fn of(line: NodeLine, colours: &BTreeMap<String, String>) -> Self {
        let node = line.member.node;
        let class = match line.state {
            NodeState::Live => "ok",
            NodeState::Draining => "brass",
            NodeState::Over => "bad",
        };
        Self {
            colour: colours.get(&node.name).cloned().unwrap_or_default(),
            name: node.name,
            is_here: line.is_here,
            state: line.state.as_str(),
            class,
            lease: span(line.lease_left),
            shards: size(line.shards),
            version: node.version,
            zones: node.zones,
            api: node.api,
        }
    }
}

impl Cell {
    fn of(line: &ShardLine, colours: &BTreeMap<String, String>) -> Self {
        let owner = line.owner.as_deref();
        let colour = owner.and_then(|owner| colours.get(owner)).cloned();
        let state = words(line.state);
        let mut says = match owner {
            Some(owner) => format!("{state}, {owner}"),
            None => state.to_owned(),
        };
        if let Some(wanted) = line.wanted.as_deref().filter(|it| Some(*it) != owner) {
            says += &format!(", to go to {wanted}");
        }
        Self {
            shard: line.shard.0,
            colour: colour.unwrap_or_default(),
            class: match line.state {
                ShardState::Owned => "",
                other => class_of(other),
            },
            says,
        }
    }
}

impl EventRow {
    fn of(event: &EventLine, now: Timestamp) -> Self {
        let shard = event.shard.map(|shard| shard.0.to_string());
        Self {
            at: When::of(event.at, now),
            event: event.kind,
            class: event.class(),
            shard: shard.unwrap_or_else(|| NONE.to_owned()),
            detail: event.detail.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::Shard;

    use super::*;
    use crate::cluster::seen::tests::{NOW, seen};

    fn html(change: impl FnOnce(&mut Seen), needs_token: bool) -> String {
        let mut seen = seen();
        change(&mut seen);
        let frame = Frame {
            title: "Cluster".to_owned(),
            here: "/cluster",
            version: "0.1.0",
            now: When::of(NOW, NOW),
            viewer: Viewer::of_test(needs_token),
            is_live: true,
            has_cluster: true,
        };
        let event = EventLine {
            at: NOW,
            kind: "takeover",
            shard: Some(Shard(3)),
            detail: "the lease of <c> was over".to_owned(),
        };
        let page = ClusterPage::of(frame, &seen, &[event]);
        page.render().expect("it can be written")
    }

    #[test]
    fn each_shard_says_whose_it_is_and_where_it_goes() {
        let page = html(|_| (), false);
        for cell in [
            "<li class=\"o0 \">0<span class=\"unseen\">: owned, a</span></li>",
            "<li class=\"o0 brass\">1<span class=\"unseen\">: taking, a</span></li>",
            "<li class=\"o1 \">2<span class=\"unseen\">: owned, b, to go to a</span></li>",
            "<li class=\"o2 bad\">3<span class=\"unseen\">: overdue, c</span></li>",
            "<li class=\" bad\">4<span class=\"unseen\">: free</span></li>",
            "<li class=\"o0 brass\">6<span class=\"unseen\">: handing over, a</span></li>",
        ] {
            assert!(page.contains(cell), "{cell} is not in {page}");
        }
        assert!(page.contains("http://b.example:7070"), "{page}");
        assert!(!html(|_| (), true).contains("http://b.example:7070"));
    }

    #[test]
    fn what_other_nodes_say_of_themselves_is_text() {
        let hostile = "<img src=x onerror=alert(1)>\u{202e}";
        let page = html(
            |seen| {
                for member in &mut seen.view.members {
                    let node = &mut member.node;
                    for text in [
                        &mut node.name,
                        &mut node.api,
                        &mut node.version,
                        &mut node.zones,
                    ] {
                        text.push_str(hostile);
                    }
                }
            },
            false,
        );
        assert!(
            !page.contains("<img") && !page.contains('\u{202e}'),
            "{page}"
        );
        assert!(page.contains("the lease of &lt;c&gt; was over"), "{page}");
    }
}
