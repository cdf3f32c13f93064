//! The metrics of TLS on the listening side.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::tls::TlsFigures;

impl Collector for TlsFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Handshakes of TLS with callers, by how they ended";
        let mut handshakes = encoder.encode_descriptor("tls_handshakes", help, None, kind)?;
        for (ended, count) in self.handshakes {
            let counter = ConstCounter::new(count);
            counter.encode(handshakes.encode_family(&[("ended", ended)])?)?;
        }
        let help = "When the certificate that callers are shown ends, in seconds since 1970";
        let certificate = ("tls_certificate_not_after_seconds", help, self.not_after);
        let help = "When the first revocation list of callers ends, in seconds since 1970";
        let lists = |end| ("tls_client_crl_next_update_seconds", help, end);
        let ends = [Some(certificate), self.lists_end.map(lists)];
        for (name, help, end) in ends.into_iter().flatten() {
            // Exact: a double has 53 bits, and this is in seconds.
            let end = i64::try_from(end.as_micros() / 1_000_000).unwrap_or(i64::MAX);
            let gauge = ConstGauge::new(end);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let help = "1 for a file of TLS that was changed and cannot be used";
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut bad = encoder.encode_descriptor("tls_file_unusable", help, None, kind)?;
        if let Some(file) = &self.bad_file {
            let file = file.display().to_string();
            let gauge = ConstGauge::new(1_i64);
            gauge.encode(bad.encode_family(&[("file", file)])?)?;
        }
        Ok(())
    }
}
