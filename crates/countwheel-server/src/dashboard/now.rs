//! The first page: am I late, what is coming, which queues are in trouble, what was lost.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use countwheel_durable::store::Durability;
use countwheel_durable::{Health, QueueOverview, StateKind, Trouble};

use super::dead::{self, Letter};
use super::figures::Figures;
use super::login::Viewer;
use super::text::{When, at_most, count, queue_link, size, span};
use super::{Frame, answer};
use crate::api::App;
use crate::api::problem::Problem;
use crate::api::request::Query;
use crate::api::stats;

/// How many dead letters the first page shows.
const DEAD_SHOWN: usize = 8;

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<Now, Problem> {
    Query::of(uri, &[])?;
    let now = app.clock.timestamp();
    let mut frame = Frame::of(app, viewer, now, "/", "Now");
    frame.is_live = true;
    let troubles = app.troubles();
    let ahead = stats::ahead(app).await?;
    app.read(move |timers| {
        let figures = Figures::take(timers, troubles, now)?;
        let letters = if figures.totals.of(StateKind::Dead) > 0 {
            dead::find(timers, None, DEAD_SHOWN)?.letters(now)
        } else {
            Vec::new()
        };
        Ok(Now::of(frame, &figures, ahead, letters))
    })
    .await
}

#[derive(Template)]
#[template(path = "now.html")]
struct Now {
    frame: Frame,
    /// Why the process should be replaced, or that it stops.
    failure: Option<String>,
    troubles: Vec<TroubleRow>,
    durability: Option<DurabilityLine>,
    is_late: bool,
    overdue: String,
    /// What says how late the service is and was.
    lateness: Vec<Figure>,
    coming: Vec<Figure>,
    to_come: String,
    ahead: Ahead,
    queues: Vec<QueueLine>,
    queues_left_out: String,
    /// Whether some figures of overdue timers are too low.
    is_partial: bool,
    letters: Vec<Letter>,
    dead: String,
    has_dead: bool,
}

/// What becomes of acknowledged timers if the machine of the database is lost.
struct DurabilityLine {
    name: &'static str,
    /// The class that colours it.
    class: &'static str,
    means: &'static str,
}

struct TroubleRow {
    reason: &'static str,
    /// Empty where the token is needed: it may name a timer.
    detail: String,
    since: Option<When>,
}

/// A number with its name.
struct Figure {
    name: &'static str,
    value: String,
}

/// How many pending timers are due when.
struct Ahead {
    bars: Vec<Bar>,
    /// Whether there may be more in any of them.
    is_partial: bool,
}

struct Bar {
    name: &'static str,
    /// How long it is, and how long the longest may be.
    part: u64,
    all: u64,
    timers: String,
}

/// What the parts of [`stats::ahead`] are.
const AHEAD: [&str; 5] = [
    "under 1 minute",
    "1 minute to 1 hour",
    "1 hour to 1 day",
    "1 day to 1 year",
    "over 1 year",
];

impl Ahead {
    fn of((parts, exact): ([u64; 5], bool)) -> Self {
        let all = parts.iter().sum::<u64>().max(1);
        let bars = AHEAD.into_iter().zip(parts).map(|(name, part)| Bar {
            name,
            part,
            all,
            timers: count(part),
        });
        Self {
            bars: bars.collect(),
            is_partial: !exact,
        }
    }
}

struct QueueLine {
    name: String,
    link: String,
    /// How it stands, and the class that colours it.
    standing: (&'static str, &'static str),
    overdue: String,
    by_state: [String; 4],
}

/// What is written where there is no figure.
const NONE: &str = "–";

impl Now {
    fn of(frame: Frame, figures: &Figures, ahead: ([u64; 5], bool), letters: Vec<Letter>) -> Self {
        let Figures {
            now,
            stats,
            overdue,
            ..
        } = figures;
        let late = |quantile| {
            if stats.lateness.count() == 0 {
                NONE.to_owned()
            } else {
                format!("≤ {}", span(stats.lateness.quantile(quantile)))
            }
        };
        let max = if stats.lateness.count() == 0 {
            NONE.to_owned()
        } else {
            span(stats.lateness.max())
        };
        let figure = |name, value| Figure { name, value };
        let oldest = figures.oldest().map_or_else(|| NONE.to_owned(), span);
        let totals = figures.totals;
        let dead = totals.of(StateKind::Dead);
        let shown = u64::try_from(figures.queues.len()).unwrap_or(u64::MAX);
        let left_out = totals.queues.saturating_sub(shown);
        Self {
            failure: failure(&figures.health),
            troubles: troubles(&figures.troubles, *now),
            durability: figures.durability.map(DurabilityLine::of),
            is_late: overdue.count > 0,
            overdue: count(overdue.count),
            lateness: vec![
                figure("oldest overdue", oldest),
                figure("p99 of lateness", late(0.99)),
                figure("highest lateness", max),
                figure("p50 of lateness", late(0.5)),
                figure("attempts", count(stats.attempts)),
                figure("failed attempts", count(stats.failed)),
                figure("in flight", size(stats.in_flight)),
            ],
            coming: vec![
                figure("pending in all", count(totals.of(StateKind::Pending))),
                figure("queues", count(totals.queues)),
            ],
            to_come: at_most(figures.coming(), overdue.is_exact),
            ahead: Ahead::of(ahead),
            queues: figures.queues.iter().map(QueueLine::of).collect(),
            queues_left_out: if left_out == 0 {
                String::new()
            } else {
                count(left_out)
            },
            is_partial: !overdue.is_exact,
            letters,
            dead: count(dead),
            has_dead: dead > 0,
            frame,
        }
    }
}

fn failure(health: &Health) -> Option<String> {
    match health {
        Health::Running => None,
        Health::Stopping | Health::Stopped => Some("The service is stopping.".to_owned()),
        Health::Lost(reason) | Health::Failed(reason) => {
            Some(format!("The store failed: {reason}"))
        }
    }
}

fn troubles(troubles: &[Trouble], now: countwheel_time::Timestamp) -> Vec<TroubleRow> {
    let row = |trouble: &Trouble| TroubleRow {
        reason: trouble.reason.as_str(),
        detail: match &trouble.path {
            Some(path) => format!("{}: {}", path.display(), trouble.detail),
            None => trouble.detail.clone(),
        },
        since: trouble.first_seen.map(|seen| When::of(seen, now)),
    };
    troubles.iter().map(row).collect()
}

impl DurabilityLine {
    fn of(durability: Durability) -> Self {
        let (class, means) = match durability {
            Durability::MayLose => (
                "bad",
                "Acknowledged timers may be lost even if the database's machine only loses power.",
            ),
            Durability::OneMachine => (
                "warn",
                "If the database's machine is lost, all timers on it are lost.",
            ),
            Durability::Standby => (
                "ok",
                "A second machine has every timer before the timer is acknowledged.",
            ),
            Durability::Managed => (
                "ok",
                "The vendor's storage is believed to keep every timer that is acknowledged.",
            ),
            _ => ("dim", "This version does not know what that means."),
        };
        let name = durability.as_str();
        Self { name, class, means }
    }
}

impl QueueLine {
    fn of(queue: &QueueOverview) -> Self {
        let QueueOverview { counts, overdue } = queue;
        let [pending, delivering, ..] = counts.by_state;
        let standing = if *overdue > 0 {
            ("late", "bad")
        } else if counts.of(StateKind::Dead) > 0 {
            ("dead letters", "warn")
        } else if pending + delivering == 0 {
            ("nothing to do", "dim")
        } else {
            ("on time", "ok")
        };
        Self {
            name: counts.queue.to_string(),
            link: queue_link(&counts.queue),
            standing,
            overdue: count(*overdue),
            by_state: counts.by_state.map(count),
        }
    }
}
