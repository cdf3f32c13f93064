//! S2: the steady state, one inserted and the oldest delivered, again and again.

use std::path::Path;

use super::{BATCH, Figures, add_quantiles};
use crate::item::LOGICAL_BYTES;
use crate::peer::Peer;
use crate::statistics::Durations;
use crate::stopwatch::Stopwatch;
use crate::system;
use crate::traffic::{Pattern, Traffic};

/// Measures for `seconds` of commits.
pub(crate) fn measure(
    peer: &mut dyn Peer,
    traffic: &mut Traffic,
    pattern: Pattern,
    seconds: f64,
    directory: &Path,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    // So that what the load left behind is not counted here.
    system::sync_file_system(directory)?;
    let device = system::device_written(directory);
    let process = system::process_written(peer.process());
    let written = peer.written();
    let mut durations = Durations::default();
    let mut ops = Vec::with_capacity(BATCH);
    let mut count = 0_usize;
    while durations.seconds() < seconds {
        traffic.steady(pattern, BATCH, &mut ops);
        let watch = Stopwatch::start();
        peer.commit(&ops)?;
        durations.record(watch.nanoseconds());
        count += ops.len();
    }
    let took = durations.seconds();
    // What was acknowledged and not written to its place yet counts, too.
    system::sync_file_system(directory)?;

    let prefix = match pattern {
        Pattern::AllFar => "far",
        Pattern::NearHeavy => "near",
    };
    let logical = (count / 2) as f64 * LOGICAL_BYTES as f64;
    let amplification = |before: Option<u64>, after: Option<u64>| {
        let (before, after) = before.zip(after)?;
        Some(after.saturating_sub(before) as f64 / logical)
    };
    let of_device = amplification(device, system::device_written(directory));
    let of_process = amplification(process, system::process_written(peer.process()));
    figures.extend(of_device.map(|wa| (format!("{prefix}_device_wa"), wa)));
    figures.extend(of_process.map(|wa| (format!("{prefix}_process_wa"), wa)));
    // For each source its share, whoever else writes to the device.
    for ((name, before), (_, after)) in written.iter().zip(peer.written()) {
        let share = after.saturating_sub(*before) as f64 / logical;
        figures.insert(format!("{prefix}_wa_of_{name}"), share);
    }
    figures.insert(format!("{prefix}_per_s"), count as f64 / took);
    add_quantiles(figures, prefix, durations.quantiles());
    Ok(())
}
