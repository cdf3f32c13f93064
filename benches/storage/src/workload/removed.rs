//! S7: nine in ten are removed, in random order.

use std::path::Path;
use std::time::Duration;

use super::random::Keys;
use super::{BATCH, Figures, add_quantiles, check, life, random};
use crate::item::{LOGICAL_BYTES, Op};
use crate::peer::Name;
use crate::statistics::Durations;
use crate::stopwatch::{Stopwatch, pause};
use crate::system;
use crate::traffic::Traffic;

/// The disk is quiet when it has not changed for so long.
const QUIET_S: u64 = 5;
const QUIET_MAX_S: u64 = 60;

/// How long records are looked up.
const GET_S: f64 = 2.0;

/// Loads, removes, and looks at what is left.
pub(crate) fn measure(name: Name, live: u64, directory: &Path) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    let mut traffic = Traffic::new(live);
    let mut peer = name.open(directory, true)?;
    life::load(&mut *peer, &mut traffic.far, live)?;

    system::sync_file_system(directory)?;
    let device = system::device_written(directory);
    let mut keys = Keys::new(traffic.far);
    let removals = live - live / 10;
    let (mut removed, mut durations) = (0, Durations::default());
    while removed < removals {
        let batch = usize::try_from(removals - removed)?.min(BATCH);
        let ops: Vec<Op> = keys.by_ref().take(batch).map(Op::Deliver).collect();
        let watch = Stopwatch::start();
        peer.commit(&ops)?;
        durations.record(watch.nanoseconds());
        removed += ops.len() as u64;
    }
    let rate = removed as f64 / durations.seconds();
    figures.insert("removed_per_s".to_owned(), rate);
    add_quantiles(&mut figures, "removed", durations.quantiles());

    let left = live - removed;
    let per_timer = |bytes: u64| bytes as f64 / left as f64;
    let mut disk = system::disk_bytes(directory)?;
    figures.insert("disk_at_once".to_owned(), per_timer(disk));
    let (mut waited, mut quiet) = (0, 0);
    while quiet < QUIET_S && waited < QUIET_MAX_S {
        pause(Duration::from_secs(1));
        let now = system::disk_bytes(directory)?;
        quiet = if now == disk { quiet + 1 } else { 0 };
        disk = now;
        waited += 1;
    }
    figures.insert("quiet_s".to_owned(), (waited - quiet) as f64);
    figures.insert("disk_per_timer".to_owned(), per_timer(disk));
    system::sync_file_system(directory)?;
    if let Some((before, after)) = device.zip(system::device_written(directory)) {
        let logical = removed as f64 * LOGICAL_BYTES as f64;
        let amplification = after.saturating_sub(before) as f64 / logical;
        figures.insert("removed_device_wa".to_owned(), amplification);
    }

    let (mut count, mut first) = (0_u64, 0.0);
    let watch = Stopwatch::start();
    peer.scan(0, &mut |_| {
        if count == 0 {
            first = watch.milliseconds();
        }
        count += 1;
        true
    })?;
    figures.insert("scan_first_ms".to_owned(), first);
    figures.insert("scan_per_s".to_owned(), count as f64 / watch.seconds());
    anyhow::ensure!(
        count == left,
        "REFUSED: {count} records are left, not {left}"
    );
    let mut some = keys.clone();
    random::get(&mut *peer, &mut some, GET_S, "get_per_s", &mut figures)?;
    let memory = peer.memory()?;
    figures.insert("resident".to_owned(), memory.resident as f64);
    drop(peer);

    let watch = Stopwatch::start();
    let mut peer = name.open(directory, false)?;
    figures.insert("open_ms".to_owned(), watch.milliseconds());
    check::count(&mut *peer, left)?;
    check::records(&mut *peer, keys)?;
    Ok(figures)
}
