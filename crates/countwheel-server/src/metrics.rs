//! What Prometheus scrapes. Each metric is explained in `docs/metrics.md`.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use countwheel::Timestamp;
use countwheel_durable::store::QueueCounts;
use countwheel_durable::{Health, Lateness, StateKind, Stats, Timers, Trouble, TroubleReason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::VERSION;
use crate::scrub::Progress;

/// So many queues have series of their own: first those with dead timers, then the largest.
const QUEUES_MAX: usize = 1_000;

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

/// All metrics as text, with the wall clock at `wall`. Without `counts`, the store could not be read.
pub(crate) fn text(
    timers: &Timers,
    wall: Timestamp,
    counts: Option<Vec<QueueCounts>>,
    requests: &Requests,
    scrub: Arc<Progress>,
    form: Form,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("countwheel");
    registry.register("http_requests", "HTTP requests answered", requests.clone());
    registry.register_collector(Box::new(Engine {
        stats: timers.stats(),
        wall,
        healthy: timers.health() == Health::Running,
        troubles: timers.troubles(),
        scrub,
        counts: counts.unwrap_or_default(),
    }));
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

/// The queues with series of their own, and the sums of all others.
fn bounded(mut counts: Vec<QueueCounts>, most: usize) -> (Vec<QueueCounts>, usize, [u64; 4]) {
    let mut others = [0; 4];
    let mut left_out = 0;
    if counts.len() > most {
        counts.sort_by_cached_key(|counts| {
            let all: u64 = counts.by_state.iter().sum();
            std::cmp::Reverse((counts.of(StateKind::Dead), all))
        });
        for counts in counts.drain(most..) {
            left_out += 1;
            for (sum, count) in others.iter_mut().zip(counts.by_state) {
                *sum += count;
            }
        }
        counts.sort_by(|one, other| one.queue.cmp(&other.queue));
    }
    (counts, left_out, others)
}

/// The engine's numbers at one moment.
#[derive(Debug)]
struct Engine {
    stats: Stats,
    wall: Timestamp,
    healthy: bool,
    troubles: Vec<Trouble>,
    scrub: Arc<Progress>,
    counts: Vec<QueueCounts>,
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
                "attempts_interrupted",
                "Attempts that the end of a process cut off",
                stats.interrupted,
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
                "attempts_in_flight",
                "Attempts that run now",
                stats.in_flight as u64,
            ),
            (
                "suspects",
                "Timers held back or run few at a time because the process ended during them",
                stats.suspects as u64,
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
        encode_lateness(&stats.lateness, &mut encoder)?;
        encode_degraded(&self.troubles, &mut encoder)?;

        encode_timers(&self.counts, &mut encoder)?;

        let mut build =
            encoder.encode_descriptor("build", "Which version runs", None, MetricType::Info)?;
        build.encode_info(&[("version", VERSION)])
    }
}

fn encode_timers(
    counts: &[QueueCounts],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let all = counts.len();
    let (counts, left_out, others) = bounded(counts.to_vec(), QUEUES_MAX);
    let gauge = ConstGauge::new(0_i64).metric_type();
    let help = "Timers stored, by queue and state";
    let mut timers = encoder.encode_descriptor("timers", help, None, gauge)?;
    for counts in &counts {
        for state in StateKind::ALL {
            let labels = [("queue", counts.queue.as_str()), ("state", state.as_str())];
            let value = ConstGauge::new(counts.of(state).cast_signed());
            value.encode(timers.encode_family(&labels)?)?;
        }
    }
    let help = "Timers of the queues without series of their own, by state";
    let mut timers = encoder.encode_descriptor("timers_other_queues", help, None, gauge)?;
    for (state, sum) in StateKind::ALL.into_iter().zip(others) {
        let value = ConstGauge::new(sum.cast_signed());
        value.encode(timers.encode_family(&[("state", state.as_str())])?)?;
    }
    for (name, help, value) in [
        ("queues", "Queues with timers", all),
        (
            "queues_other",
            "Queues without series of their own",
            left_out,
        ),
    ] {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
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

fn encode_lateness(
    lateness: &Lateness,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    #[expect(clippy::cast_precision_loss, reason = "the bounds are small")]
    let bounds = Lateness::BOUNDS_MICROS
        .iter()
        .map(|&micros| micros as f64 / 1e6)
        .chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(lateness.buckets().iter().copied()).collect();
    encoder
        .encode_descriptor(
            "lateness",
            "How late attempts started: handed over minus due",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?
        .encode_histogram::<NoLabelSet>(
            lateness.sum().as_secs_f64(),
            lateness.count(),
            &buckets,
            None,
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use countwheel_durable::QueueName;

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
    fn the_number_of_series_is_bounded_and_nothing_is_left_out() {
        let queue = |number: u64| {
            let dead = u64::from(number == 7 || number == 90);
            QueueCounts {
                queue: QueueName::new(format!("q-{number:03}")).expect("a good name"),
                by_state: [number, 1, 0, dead],
            }
        };
        let all: Vec<_> = (0..100).map(queue).collect();
        let (own, left_out, others) = bounded(all.clone(), 5);
        let names: Vec<_> = own.iter().map(|one| one.queue.as_str()).collect();
        assert_eq!(names, ["q-007", "q-090", "q-097", "q-098", "q-099"]);
        assert_eq!(left_out, 95);
        for (state, others) in others.into_iter().enumerate() {
            let shown: u64 = own.iter().map(|one| one.by_state[state]).sum();
            let whole: u64 = all.iter().map(|one| one.by_state[state]).sum();
            assert_eq!(shown + others, whole);
        }
        assert_eq!(bounded(all.clone(), 100), (all, 0, [0; 4]));
    }
}
