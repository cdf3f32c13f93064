//! One page for the operator: am I late, what is coming, what was lost. Plain HTML, no
//! script.

use std::fmt::{self, Display, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use countwheel::Timestamp;
use countwheel_durable::store::{Filter, QueueCounts};
use countwheel_durable::{Health, Record, StateKind, Stats, Timers};

use crate::VERSION;
use crate::api::App;
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::shown;
use crate::time::{format_duration, format_time};

const STYLE: &str = include_str!("dashboard.css");
/// Of how many queues the overdue are counted.
const QUEUES_SHOWN: usize = 50;
/// Up to which number the overdue of a queue are counted.
const OVERDUE_COUNTED: usize = 100;
/// How many entries of a queue are looked at for that, and for the dead ones. Many may stand before
/// them that were delivered and are not cleared away yet.
const SCANNED: usize = 1_000_000;
const DEAD_SHOWN: usize = 20;
/// Nothing is loaded but the page's own style.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";

pub(crate) async fn show(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let now = app.clock.timestamp();
    // The page asks for no token, so where one is needed it names no timer.
    let with_keys = !app.needs_token();
    let page = app
        .read(move |timers| Page::of(timers, now, with_keys))
        .await?;
    let mut html = String::new();
    write!(html, "{page}").map_err(|_| Problem::new(Code::Internal, "no page"))?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ]
    .map(|(name, value): (HeaderName, _)| (name, HeaderValue::from_static(value)));
    Ok((headers, html).into_response())
}

struct Page {
    now: Timestamp,
    health: Health,
    stats: Stats,
    queues: Vec<QueueRow>,
    queues_left_out: usize,
    /// `None` where a token is needed.
    dead: Option<Vec<Record>>,
}

struct QueueRow {
    counts: QueueCounts,
    overdue: usize,
    overdue_is_more: bool,
    oldest: Option<Duration>,
}

impl Page {
    fn of(timers: &Timers, now: Timestamp, with_keys: bool) -> Result<Self, Problem> {
        let counts = timers.counts().map_err(|error| Problem::from(&error))?;
        let queues_left_out = counts.len().saturating_sub(QUEUES_SHOWN);
        let mut queues = Vec::new();
        let mut dead = Vec::new();
        for counts in counts.into_iter().take(QUEUES_SHOWN) {
            let filter = |state, limit| Filter {
                state: Some(state),
                limit,
                scan_limit: SCANNED,
                ..Filter::queue(counts.queue.clone())
            };
            if with_keys && counts.of(StateKind::Dead) > 0 && dead.len() < DEAD_SHOWN {
                let filter = filter(StateKind::Dead, DEAD_SHOWN - dead.len());
                let page = timers
                    .list(&filter)
                    .map_err(|error| Problem::from(&error))?;
                dead.extend(page.records);
            }
            let overdue = if counts.of(StateKind::Pending) > 0 {
                let filter = Filter {
                    due_before: Some(now),
                    ..filter(StateKind::Pending, OVERDUE_COUNTED)
                };
                let page = timers
                    .list(&filter)
                    .map_err(|error| Problem::from(&error))?;
                Some(page)
            } else {
                None
            };
            let records = overdue.as_ref().map_or(&[][..], |page| &page.records);
            queues.push(QueueRow {
                overdue: records.len(),
                overdue_is_more: overdue.as_ref().is_some_and(|page| page.next.is_some()),
                oldest: records
                    .first()
                    .map(|record| now.saturating_since(record.due)),
                counts,
            });
        }
        Ok(Self {
            now,
            health: timers.health(),
            stats: timers.stats(),
            queues,
            queues_left_out,
            dead: with_keys.then_some(dead),
        })
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <meta http-equiv=\"refresh\" content=\"5\">\
             <title>Countwheel</title><style>{STYLE}</style></head><body>\
             <header><h1>Countwheel</h1><p>{VERSION} · {} · <a href=\"/v1/queues\">API</a> · \
             <a href=\"/metrics\">metrics</a></p></header><main>",
            format_time(self.now)
        )?;
        if let Health::Failed(reason) = &self.health {
            write!(
                f,
                "<p class=\"bad\">The store failed: {}</p>",
                Escaped(reason)
            )?;
        }
        self.write_lateness(f)?;
        self.write_queues(f)?;
        self.write_dead(f)?;
        f.write_str("</main></body></html>\n")
    }
}

impl Page {
    fn write_lateness(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lateness = &self.stats.lateness;
        let overdue: usize = self.queues.iter().map(|queue| queue.overdue).sum();
        let more = if self.queues.iter().any(|queue| queue.overdue_is_more) {
            "+"
        } else {
            ""
        };
        write!(
            f,
            "<h2>Lateness</h2><dl><dt>overdue now</dt><dd>{overdue}{more}</dd>\
             <dt>p50</dt><dd>≤ {}</dd><dt>p99</dt><dd>≤ {}</dd><dt>max</dt><dd>{}</dd>\
             <dt>attempts since start</dt><dd>{}</dd><dt>failed</dt><dd>{}</dd>\
             <dt>in flight</dt><dd>{}</dd></dl>",
            format_duration(lateness.quantile(0.5)),
            format_duration(lateness.quantile(0.99)),
            format_duration(lateness.max()),
            self.stats.attempts,
            self.stats.failed,
            self.stats.in_flight,
        )
    }

    fn write_queues(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "<h2>Queues</h2><table><thead><tr><th>queue</th><th>overdue</th><th>oldest</th>\
             <th>pending</th><th>delivering</th><th>done</th><th>dead</th></tr></thead><tbody>",
        )?;
        if self.queues.is_empty() {
            f.write_str("<tr><td colspan=\"7\">no timers yet</td></tr>")?;
        }
        for row in &self.queues {
            let queue = Escaped(row.counts.queue.as_str());
            write!(
                f,
                "<tr><th>{queue}</th><td>{}{}</td><td>{}</td>",
                row.overdue,
                if row.overdue_is_more { "+" } else { "" },
                row.oldest
                    .map(whole_millis)
                    .map(format_duration)
                    .unwrap_or_default(),
            )?;
            for state in StateKind::ALL {
                write!(f, "<td>{}</td>", row.counts.of(state))?;
            }
            f.write_str("</tr>")?;
        }
        f.write_str("</tbody></table>")?;
        if self.queues_left_out > 0 {
            write!(f, "<p>and {} more queues</p>", self.queues_left_out)?;
        }
        Ok(())
    }

    fn write_dead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>Dead letters</h2>")?;
        let Some(dead) = &self.dead else {
            return f.write_str("<p>Not shown without the token: ask the API for them.</p>");
        };
        if dead.is_empty() {
            return f.write_str("<p>none</p>");
        }
        f.write_str(
            "<table><thead><tr><th>queue</th><th>key</th><th>due</th><th>attempts</th>\
             <th>last answer</th></tr></thead><tbody>",
        )?;
        for record in dead {
            let last = record
                .attempts
                .last()
                .and_then(|attempt| attempt.ended.as_ref());
            write!(
                f,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                Escaped(record.name.queue.as_str()),
                Escaped(record.name.key.as_str()),
                format_time(record.due),
                record.attempt,
                Escaped(last.map_or("", |end| end.detail.as_str())),
            )?;
        }
        f.write_str("</tbody></table>")
    }
}

fn whole_millis(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// Text that means nothing in HTML, and of which all is seen.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => shown::put(f, other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let text = Escaped("<script>'a' & \"b\"</script>").to_string();
        assert_eq!(
            text,
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot;&lt;/script&gt;"
        );
        assert_eq!(Escaped("gpj\u{202e}exe").to_string(), "gpj\\u202eexe");
    }
}
