//! The metrics for Prometheus. `docs/metrics.md` explains each of them.

mod node;
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use countwheel_durable::store::Durability;
use countwheel_durable::{
    Health, Lateness, Overview, QueueOverview, StateKind, Stats, Timers, Trouble, TroubleReason,
};
use countwheel_time::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use self::node::NodeFigures;
use crate::VERSION;
use crate::events;
use crate::places::Figures;
use crate::pool::Phases;
use crate::scrub::Progress;
use crate::tls::TlsFigures;

/// So many queues have series of their own: first those of which most is overdue, then those with the
/// most dead timers.
pub(crate) const QUEUES_MAX: usize = 1_000;

/// How metrics are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// The OpenMetrics standard.
    OpenMetrics,
    /// The text format of Prometheus, which came before it, and which more tools read.
    Text,
}

impl Form {
    /// The form that an `Accept` header asks for: the standard if that is named.
    pub(crate) fn of(accept: &HeaderMap) -> Self {
        let accepted = accept.get_all(header::ACCEPT).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        let mut ranges = accepted.flat_map(|value| value.split(','));
        let is_standard = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let is_refused = |part: &str| {
                let weight = part.strip_prefix("q=");
                weight.is_some_and(|weight| weight.parse() == Ok(0.0))
            };
            kind.eq_ignore_ascii_case("application/openmetrics-text") && !parts.any(is_refused)
        };
        if ranges.any(is_standard) {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The HTTP requests answered so far.
pub(crate) type Requests = Family<RequestLabels, Counter>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) method: &'static str,
    /// The route's pattern, so that the number of series is bounded.
    pub(crate) route: String,
    pub(crate) status: u16,
}

/// What was seen for the metrics beside the timers' own numbers.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The wall clock.
    pub(crate) wall: Timestamp,
    /// Of [`QUEUES_MAX`] queues; `None` if the store could not be read.
    pub(crate) overview: Option<Overview>,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) scrub: Arc<Progress>,
    pub(crate) callers: Callers,
    /// Where TLS is spoken to callers.
    pub(crate) tls: Option<TlsFigures>,
    /// Of a node of a cluster.
    pub(crate) node: Option<NodeFigures>,
    /// Tokens that count now and end soon.
    pub(crate) expiring: usize,
}

/// All metrics as text.
pub(crate) fn text(
    timers: &Timers,
    seen: Seen,
    requests: &Requests,
    form: Form,
) -> Result<String, fmt::Error> {
    let Seen {
        wall,
        overview,
        troubles,
        scrub,
        callers,
        tls,
        node,
        expiring,
    } = seen;
    let mut registry = Registry::with_prefix("countwheel");
    registry.register("http_requests", "HTTP requests answered", requests.clone());
    registry.register_collector(Box::new(Engine {
        stats: timers.stats(),
        wall,
        healthy: timers.health() == Health::Running,
        troubles,
        is_reachable: timers.reach().is_ok(),
        is_counted: timers.counts_are_exact(),
        durability: timers.durability(),
        oldest_snapshot: timers.oldest_snapshot(),
        scrub,
        callers,
        expiring,
        overview: overview.unwrap_or_default(),
    }));
    if let Some(tls) = tls {
        registry.register_collector(Box::new(tls));
    }
    if let Some(node) = node {
        registry.register_collector(Box::new(node));
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(match form {
        Form::OpenMetrics => text,
        Form::Text => classic(&text),
    })
}

/// The same in the text format of Prometheus. There a family has the name of its samples: a counter
/// ends in `_total`, and what is `info` is a gauge that ends so.
fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            (Some("#"), Some("HELP"), Some(name), says) => help = Some((name, says)),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                if let Some((_, says)) = help.take().filter(|(of, _)| *of == name) {
                    let says = says.unwrap_or_default();
                    classic += &format!("# HELP {name}{suffix} {says}\n");
                }
                classic += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            _ => {
                classic += line;
                classic += "\n";
            }
        }
    }
    classic
}

/// What is open of callers and to targets at one moment.
#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) places: Figures,
    /// Bytes that the bodies of requests take.
    pub(crate) bodies: usize,
    pub(crate) events: events::Figures,
    pub(crate) phases: Phases,
}

/// The engine's numbers at one moment.
#[derive(Debug)]
struct Engine {
    stats: Stats,
    wall: Timestamp,
    healthy: bool,
    troubles: Vec<Trouble>,
    is_reachable: bool,
    is_counted: bool,
    durability: Option<Durability>,
    oldest_snapshot: Option<Duration>,
    scrub: Arc<Progress>,
    callers: Callers,
    expiring: usize,
    overview: Overview,
}

impl Collector for Engine {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = &self.stats;
        for (name, help, value) in [
            (
                "timers_set",
                "Timers set, replaced ones included",
                stats.set,
            ),
            ("timers_moved", "Timers moved", stats.moved),
            ("timers_removed", "Timers removed", stats.removed),
            (
                "timers_fired_by_request",
                "Timers made due by request",
                stats.fired_by_request,
            ),
            (
                "timers_revived",
                "Dead timers made pending again",
                stats.revived,
            ),
            ("timers_dead", "Timers given up", stats.dead),
            (
                "runs_dead",
                "Runs of recurring timers given up",
                stats.runs_dead,
            ),
            (
                "missed",
                "Runs not made, and timers given up, for being overdue",
                stats.missed,
            ),
            (
                "runs_overlapped",
                "Runs not made because the one before was not at its end",
                stats.overlapped,
            ),
            (
                "timers_forgotten",
                "Done timers forgotten after their retention",
                stats.forgotten,
            ),
            (
                "requests_refused",
                "Requests refused for what they asked",
                stats.refused,
            ),
            ("attempts_started", "Attempts started", stats.attempts),
            ("attempts_done", "Attempts that succeeded", stats.done),
            ("attempts_failed", "Attempts that failed", stats.failed),
            (
                "attempts_stopped",
                "Attempts whose receiver ended the timer",
                stats.stopped,
            ),
            (
                "attempts_not_made",
                "Attempts that were claimed and held before they were made",
                stats.not_made,
            ),
            (
                "attempts_interrupted",
                "Attempts that the end of a process cut off",
                stats.interrupted,
            ),
            ("leases_granted", "Attempts that were leased", stats.leases),
            (
                "leases_extended",
                "Times a lease was extended",
                stats.leases_extended,
            ),
            (
                "leases_lost",
                "Leases that ended without an outcome",
                stats.leases_lost,
            ),
            (
                "leases_released",
                "Leases that were given back before anybody began",
                stats.leases_released,
            ),
            (
                "outcomes_outdated",
                "Outcomes of timers removed or replaced meanwhile",
                stats.outdated,
            ),
            (
                "unreadable",
                "Times a record could not be read",
                stats.unreadable,
            ),
            ("commits", "Commits of the store", stats.commits),
            (
                "changes",
                "Records written or removed by commits",
                stats.changes,
            ),
            (
                "window_refills",
                "Times the window was filled from the store",
                stats.refills,
            ),
            (
                "window_rebuilds",
                "Times the window gave up what was latest, or was read anew",
                stats.rebuilds,
            ),
            (
                "clock_steps_forward",
                "Times the wall clock was found set forward",
                stats.steps_forward,
            ),
            (
                "clock_steps_backward",
                "Times the wall clock was found set back",
                stats.steps_backward,
            ),
            (
                "connections_closed_for_room",
                "Connections of callers that had to make room for others",
                self.callers.places.told,
            ),
            (
                "event_gaps",
                "Gaps that streams of events were told of",
                self.callers.events.gaps,
            ),
            (
                "events_missed",
                "Events that are known to be missing in those gaps",
                self.callers.events.missed,
            ),
            (
                "event_streams_unread",
                "Streams of events that were cut off because their client read nothing",
                self.callers.events.unread,
            ),
            (
                "scrub_bytes",
                "Bytes of which the scrub has read the checksums",
                self.scrub.bytes(),
            ),
            (
                "scrub_rounds",
                "Rounds of the scrub that have ended",
                self.scrub.rounds(),
            ),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        for (name, help, value) in [
            (
                "up",
                "1 while the scheduler runs, else 0",
                u64::from(self.healthy),
            ),
            (
                "window_timers",
                "Timers held in memory",
                stats.in_window as u64,
            ),
            (
                "window_bytes",
                "Memory for what is known of timers",
                stats.window_bytes as u64,
            ),
            (
                "window_capped_queues",
                "Queues that have used up their share of the window",
                stats.capped_queues as u64,
            ),
            (
                "catching_up",
                "1 while some of what was overdue at the start is left, else 0",
                u64::from(stats.catching_up),
            ),
            (
                "caught_up_to_seconds",
                "The deadline of what was started last of that",
                stats
                    .caught_up_to
                    .map_or(0, |at| at.as_micros() / 1_000_000),
            ),
            (
                "timers_overdue",
                "Timers that pend although their time has come",
                stats.overdue.count,
            ),
            (
                "timers_overdue_exact",
                "1 if all of them are counted, 0 while the count catches up",
                u64::from(stats.overdue.is_exact),
            ),
            (
                "attempts_in_flight",
                "Attempts that run now",
                stats.in_flight as u64,
            ),
            (
                "leases",
                "Attempts that are leased now, of the leases granted since the start",
                stats.leased as u64,
            ),
            (
                "suspects",
                "Timers held back or run few at a time because the process ended during them",
                stats.suspects as u64,
            ),
            (
                "connections",
                "Connections of callers that are open",
                self.callers.places.open as u64,
            ),
            (
                "connections_in_reserve",
                "Those of them on which only health and metrics are answered",
                self.callers.places.reserved as u64,
            ),
            (
                "tokens_expiring",
                "Stored tokens that count now and expire within 7 days",
                self.expiring as u64,
            ),
            (
                "event_streams",
                "Streams of events that are open",
                self.callers.events.open as u64,
            ),
            (
                "request_body_bytes",
                "Memory that the bodies of requests take",
                self.callers.bodies as u64,
            ),
            (
                "scrub_files_left",
                "About how many files this round of the scrub has still to read",
                self.scrub.files_left(),
            ),
            (
                "scrub_ended_seconds",
                "When the last round of the scrub ended",
                self.scrub.ended_seconds(),
            ),
            (
                "store_reachable",
                "Whether the store can be reached: 0 while its database is away",
                u64::from(self.is_reachable),
            ),
            (
                "counts_exact",
                "Whether the numbers of timers have all of them: 0 while large shards of a database are counted",
                u64::from(self.is_counted),
            ),
            (
                "clock_behind_commits_seconds",
                "How far the wall clock is behind what an earlier process committed",
                stats.behind_commits(self.wall).as_secs(),
            ),
            (
                "clock_line_skew_seconds",
                "How far the wall clock is ahead of the time line of delays",
                (stats.line_skew_micros / 1_000_000).cast_unsigned(),
            ),
        ] {
            let gauge = ConstGauge::new(value.cast_signed());
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let oldest = stats.overdue.oldest;
        let age = oldest.map_or(0.0, |at| self.wall.saturating_since(at).as_secs_f64());
        let gauge = ConstGauge::new(age);
        let help = "For how long the timer that was due first is overdue";
        let metric =
            encoder.encode_descriptor("overdue_age_seconds", help, None, gauge.metric_type())?;
        gauge.encode(metric)?;
        for (name, help, spans) in [
            (
                "lateness",
                "How late the heads of attempts were handed to an open connection, without what held them",
                &stats.lateness,
            ),
            (
                "held",
                "For how long limits held the attempts that were held",
                &stats.held,
            ),
            (
                "connect",
                "How long it took from a target's name to an open connection",
                &self.callers.phases.connect,
            ),
            (
                "tls",
                "How long the handshake of TLS took on it",
                &self.callers.phases.tls,
            ),
        ] {
            encode_spans(name, help, spans, &mut encoder)?;
        }
        encode_degraded(&self.troubles, &mut encoder)?;

        encode_timers(&self.overview, &mut encoder)?;

        if let Some(age) = self.oldest_snapshot {
            let gauge = ConstGauge::new(age.as_secs_f64());
            let name = "store_oldest_snapshot_seconds";
            let what = "For how long somebody has kept the oldest snapshot of the database";
            let metric = encoder.encode_descriptor(name, what, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        if let Some(durability) = self.durability {
            let what = "What becomes of acknowledged timers if the database's machine is lost";
            let mut store = encoder.encode_descriptor("store", what, None, MetricType::Info)?;
            store.encode_info(&[("durability", durability.as_str())])?;
        }

        let mut build =
            encoder.encode_descriptor("build", "Which version runs", None, MetricType::Info)?;
        build.encode_info(&[("version", VERSION)])
    }
}

fn encode_timers(
    overview: &Overview,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let Overview {
        totals,
        overdue,
        queues,
    } = overview;
    let gauge = ConstGauge::new(0_i64).metric_type();
    let help = "Timers stored, by queue and state";
    let mut timers = encoder.encode_descriptor("timers", help, None, gauge)?;
    let mut others = totals.by_state;
    for QueueOverview { counts, .. } in queues {
        for state in StateKind::ALL {
            let labels = [("queue", counts.queue.as_str()), ("state", state.as_str())];
            let count = counts.of(state);
            let other = &mut others[state as usize];
            *other = other.saturating_sub(count);
            let value = ConstGauge::new(count.cast_signed());
            value.encode(timers.encode_family(&labels)?)?;
        }
    }
    let help = "Timers of the queues without series of their own, by state";
    let mut timers = encoder.encode_descriptor("timers_other_queues", help, None, gauge)?;
    for (state, sum) in StateKind::ALL.into_iter().zip(others) {
        let value = ConstGauge::new(sum.cast_signed());
        value.encode(timers.encode_family(&[("state", state.as_str())])?)?;
    }
    let help = "Overdue timers by queue";
    let mut timers = encoder.encode_descriptor("queue_timers_overdue", help, None, gauge)?;
    let mut overdue = overdue.count;
    for queue in queues {
        overdue = overdue.saturating_sub(queue.overdue);
        let labels = [("queue", queue.counts.queue.as_str())];
        let value = ConstGauge::new(queue.overdue.cast_signed());
        value.encode(timers.encode_family(&labels)?)?;
    }
    for (name, help, value) in [
        (
            "timers_overdue_other_queues",
            "Overdue timers of the queues without series of their own",
            overdue,
        ),
        ("queues", "Queues with timers", totals.queues),
        (
            "queues_other",
            "Queues without series of their own",
            totals.queues.saturating_sub(queues.len() as u64),
        ),
    ] {
        let gauge = ConstGauge::new(value.cast_signed());
        let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric)?;
    }
    Ok(())
}

fn encode_degraded(
    troubles: &[Trouble],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(0_i64).metric_type();
    let help = "1 while something cannot be read or done for this reason, else 0";
    let mut degraded = encoder.encode_descriptor("degraded", help, None, gauge)?;
    for reason in TroubleReason::ALL {
        let is_there = troubles.iter().any(|trouble| trouble.reason == reason);
        let labels = [("reason", reason.as_str())];
        ConstGauge::new(i64::from(is_there)).encode(degraded.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_spans(
    name: &str,
    help: &str,
    spans: &Lateness,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    #[expect(clippy::cast_precision_loss, reason = "the bounds are small")]
    let bounds = Lateness::BOUNDS_MICROS
        .iter()
        .map(|&micros| micros as f64 / 1e6)
        .chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(spans.buckets().iter().copied()).collect();
    encoder
        .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(spans.sum().as_secs_f64(), spans.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use countwheel_durable::store::{QueueCounts, Totals};
    use countwheel_durable::{OverdueCount, QueueName};

    #[test]
    fn the_standard_is_written_for_who_names_it() {
        for (accept, form) in [
            ("*/*", Form::Text),
            ("text/plain;version=0.0.4", Form::Text),
            ("application/openmetrics-text", Form::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2",
                Form::OpenMetrics,
            ),
            ("text/plain, application/openmetrics-text; q=0", Form::Text),
        ] {
            let mut headers = HeaderMap::new();
            assert_eq!(Form::of(&headers), Form::Text);
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(Form::of(&headers), form, "{accept}");
        }
    }

    #[test]
    fn the_text_format_names_families_as_their_samples() {
        let standard = "\
# HELP a_b Things done.
# TYPE a_b counter
a_b_total 3
# HELP late_seconds How late.
# TYPE late_seconds histogram
# UNIT late_seconds seconds
late_seconds_sum 1.5
# HELP build Which.
# TYPE build info
build_info{version=\"1\"} 1
# EOF
";
        let text = "\
# HELP a_b_total Things done.
# TYPE a_b_total counter
a_b_total 3
# HELP late_seconds How late.
# TYPE late_seconds histogram
late_seconds_sum 1.5
# HELP build_info Which.
# TYPE build_info gauge
build_info{version=\"1\"} 1
";
        assert_eq!(classic(standard), text);
    }

    /// What is in trouble has a series of its own; what has none is in the sums.
    #[test]
    fn what_has_no_series_of_its_own_is_in_the_sums() {
        #[derive(Debug)]
        struct Timers(Overview);

        impl Collector for Timers {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
                encode_timers(&self.0, &mut encoder)
            }
        }

        let queue = |number: u64| QueueOverview {
            counts: QueueCounts {
                queue: QueueName::new(format!("q-{number}")).expect("a good name"),
                by_state: [number, 1, 0, number % 2],
            },
            overdue: number / 2,
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Timers(Overview {
            totals: Totals {
                queues: 100,
                by_state: [4_950, 100, 0, 50],
            },
            overdue: OverdueCount {
                count: 2_450,
                ..OverdueCount::default()
            },
            queues: vec![queue(99), queue(7)],
        })));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it fits");
        for line in [
            "timers{queue=\"q-99\",state=\"pending\"} 99",
            "timers_other_queues{state=\"pending\"} 4844",
            "timers_other_queues{state=\"delivering\"} 98",
            "timers_other_queues{state=\"dead\"} 48",
            "queue_timers_overdue{queue=\"q-7\"} 3",
            "timers_overdue_other_queues 2398",
            "queues 100",
            "queues_other 98",
        ] {
            assert!(
                text.lines().any(|written| written == line),
                "{line}\n{text}"
            );
        }
    }
}
