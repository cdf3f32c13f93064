//! S1: durable inserts, `batch` at a time, into an empty store.

use std::path::Path;

use super::{Figures, add_quantiles, check};
use crate::item::LOGICAL_BYTES;
use crate::peer::Name;
use crate::system;
use crate::traffic::Traffic;

/// Deadlines are in random order within so many.
const SPREAD: u64 = 1_000_000;
/// No more records than these, so that the fastest do not fill the disk.
const RECORDS_MAX: u64 = 8_000_000;
/// Before the watch starts.
const WARM_UP_COMMITS: u64 = 8;
/// And no longer than this part of the time.
const WARM_UP_PART: f64 = 0.2;

/// Measures for `seconds`, then closes, opens again and checks what is there.
pub(crate) fn measure(
    name: Name,
    batch: usize,
    seconds: f64,
    directory: &Path,
) -> anyhow::Result<Figures> {
    let mut traffic = Traffic::new(SPREAD);
    let mut peer = name.open(directory, false)?;
    let mut left = WARM_UP_COMMITS * batch as u64;
    peer.insert_all(batch, &mut |so_far| {
        left = left.checked_sub(1)?;
        (so_far < seconds * WARM_UP_PART).then(|| traffic.far.insert())
    })?;
    let warmed_up = traffic.far.inserted;

    let before = system::device_written(directory);
    let mut left = RECORDS_MAX;
    let inserted = peer.insert_all(batch, &mut |so_far| {
        left = left.checked_sub(1)?;
        (so_far < seconds).then(|| traffic.far.insert())
    })?;
    let after = system::device_written(directory);

    let mut figures = Figures::new();
    let records = inserted.records as f64;
    figures.insert("per_s".to_owned(), records / inserted.seconds);
    figures.insert("records".to_owned(), records);
    figures.insert("warm_up_records".to_owned(), warmed_up as f64);
    if let Some((before, after)) = before.zip(after) {
        let device = after.saturating_sub(before) as f64;
        let logical = records * LOGICAL_BYTES as f64;
        figures.insert("write_amplification".to_owned(), device / logical);
    }
    add_quantiles(&mut figures, "commit", inserted.durations.quantiles());
    peer.remember()?;
    drop(peer);

    let mut peer = name.reader().open(directory, false)?;
    check::count(&mut *peer, traffic.far.inserted)?;
    let kept = check::scattered(peer.overwritten(), traffic.far.inserted);
    check::records(&mut *peer, kept.map(|number| traffic.far.item(number)))?;
    Ok(figures)
}
