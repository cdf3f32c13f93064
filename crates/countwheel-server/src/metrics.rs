//! What Prometheus scrapes. Each metric is explained in `docs/metrics.md`.

use std::fmt;
use std::sync::Arc;

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

/// The form of what [`text`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    Ok(text)
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

        let gauge = ConstGauge::new(0_i64).metric_type();
        let mut timers = encoder.encode_descriptor(
            "timers",
            "Timers stored, by queue and state",
            None,
            gauge,
        )?;
        for counts in &self.counts {
            for state in StateKind::ALL {
                let labels = [("queue", counts.queue.as_str()), ("state", state.as_str())];
                let value = ConstGauge::new(counts.of(state).cast_signed());
                value.encode(timers.encode_family(&labels)?)?;
            }
        }

        let mut build =
            encoder.encode_descriptor("build", "Which version runs", None, MetricType::Info)?;
        build.encode_info(&[("version", VERSION)])
    }
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
