//! The metrics of a node of a cluster.

use std::fmt;
use std::time::Duration;

use countwheel_durable::Timers;
use countwheel_peers::CloseReason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::cluster::certificate::Certificate;
use crate::cluster::seen::{Seen, ShardState};
use crate::cluster::{Cluster, Counted, Offset};

/// What a node says of itself and of the shards, at one moment.
#[derive(Debug)]
pub(crate) struct NodeFigures {
    seen: Seen,
    counted: Counted,
    offset: Offset,
    unreachable: u64,
    lease_left: Duration,
    /// How long others will take the certificate of this node, if it has one.
    certificate_left: Option<Duration>,
}

impl NodeFigures {
    pub(crate) fn of(cluster: &Cluster, timers: &Timers) -> Self {
        let seen = cluster.seen(timers);
        Self {
            lease_left: seen.lease_left(),
            counted: cluster.counted(),
            offset: cluster.clock_offset(),
            certificate_left: cluster.certificate().map(Certificate::left),
            unreachable: cluster.unreachable().len() as u64,
            seen,
        }
    }

    /// How many shards this process works on.
    fn owned(&self) -> usize {
        let here = self.seen.view.holdings.iter();
        let here = here.filter(|holding| holding.owner == Some(self.seen.me));
        here.filter(|holding| self.seen.state_of_shard(holding) == ShardState::Owned)
            .count()
    }
}

impl Collector for NodeFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counted = &self.counted;
        for (name, help, value) in [
            (
                "handovers",
                "Shards that this node gave to others",
                counted.handovers,
            ),
            (
                "fenced",
                "Times another node was found to be the owner of a shard of this one",
                counted.fenced,
            ),
            (
                "peer_asked",
                "Questions that this node sent to the owner of their shard",
                counted.peers.asked,
            ),
            (
                "peer_answered",
                "Questions of other nodes that came to this one",
                counted.peers.answered,
            ),
            (
                "peer_held",
                "Times a question was held since nobody who owns its shard took it",
                counted.peers.held,
            ),
            (
                "peer_unavailable",
                "Questions that ended undone, since no owner of their shard took them",
                counted.peers.unavailable,
            ),
            (
                "peer_unknown",
                "Questions that were sent and had no answer in time",
                counted.peers.unknown,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Shards that this node took, by why it could";
        let mut takeovers = encoder.encode_descriptor("takeovers", help, None, kind)?;
        for (reason, count) in &counted.takeovers {
            let counter = ConstCounter::new(*count);
            counter.encode(takeovers.encode_family(&[("reason", *reason)])?)?;
        }
        let help = "Connections between nodes that were closed or did not come to be, by why";
        let mut closed = encoder.encode_descriptor("peer_closed", help, None, kind)?;
        for reason in CloseReason::ALL {
            let counter = ConstCounter::new(counted.peers.closed(reason));
            counter.encode(closed.encode_family(&[("reason", reason.as_str())])?)?;
        }
        let figure = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        for (name, help, value) in [
            (
                "shards_owned",
                "Shards on which this node works",
                figure(self.owned() as u64),
            ),
            (
                "peer_connected",
                "Nodes to which this one has a connection",
                figure(counted.peers.connected),
            ),
            (
                "peer_waiting",
                "Requests that wait for another node now",
                figure(counted.peers.waiting),
            ),
            (
                "peers_unreachable",
                "Nodes that live and cannot be reached from here",
                figure(self.unreachable),
            ),
            (
                "lease_remaining_seconds",
                "How long the lease of this node goes on",
                self.lease_left.as_secs_f64(),
            ),
            (
                "clock_offset_seconds",
                "How far the clock of this machine is ahead of that of the database",
                self.offset.seconds(),
            ),
        ] {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        if let Some(left) = self.certificate_left {
            let gauge = ConstGauge::new(left.as_secs_f64());
            let (name, help) = (
                "peer_certificate_expires_seconds",
                "How long other nodes will take the certificate of this one",
            );
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "How each shard stands as this node sees it: 1 of its state";
        let mut states = encoder.encode_descriptor("shard_state", help, None, kind)?;
        for holding in &self.seen.view.holdings {
            let shard = holding.shard.0.to_string();
            let state = self.seen.state_of_shard(holding).as_str();
            let labels = [("shard", shard.as_str()), ("state", state)];
            ConstGauge::new(1_i64).encode(states.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use countwheel_peers::PeerCounts;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::cluster::seen::tests::seen;

    #[test]
    fn a_node_has_no_series_by_shard_but_one_gauge() {
        let mut registry = Registry::with_prefix("countwheel");
        registry.register_collector(Box::new(NodeFigures {
            lease_left: seen().lease_left(),
            counted: Counted {
                takeovers: [("free", 20), ("overdue", 2)].into(),
                handovers: 3,
                fenced: 1,
                peers: PeerCounts::default(),
            },
            offset: Offset { micros: -260_500 },
            certificate_left: Some(Duration::from_secs(172_800)),
            unreachable: 2,
            seen: seen(),
        }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it fits");
        for line in [
            "countwheel_shards_owned 1.0",
            "countwheel_lease_remaining_seconds 4.821",
            "countwheel_clock_offset_seconds -0.2605",
            "countwheel_peer_certificate_expires_seconds 172800.0",
            "countwheel_peers_unreachable 2.0",
            "countwheel_takeovers_total{reason=\"overdue\"} 2",
            "countwheel_takeovers_total{reason=\"free\"} 20",
            "countwheel_handovers_total 3",
            "countwheel_fenced_total 1",
            "countwheel_peer_asked_total 0",
            "countwheel_peer_closed_total{reason=\"version\"} 0",
            "countwheel_shard_state{shard=\"1\",state=\"taking\"} 1",
            "countwheel_shard_state{shard=\"4\",state=\"free\"} 1",
        ] {
            let mut lines = text.lines();
            assert!(lines.any(|written| written == line), "{line}\n{text}");
        }
        let by_shard = text.lines().filter(|line| line.contains("shard=\""));
        assert_eq!(by_shard.count(), seen().view.holdings.len());
    }
}
