//! S3: reading in the order of deadlines, as a window does when it is filled.

use std::path::Path;

use super::{Figures, LOAD_BATCH};
use crate::item::Op;
use crate::peer::{Name, Peer};
use crate::stopwatch::Stopwatch;
use crate::system;
use crate::traffic::Traffic;

/// How many records are read.
const RECORDS: u64 = 100_000;

/// A scan of the untouched store, then many deliveries, then scans from the beginning and from
/// where the deliveries got to.
pub(crate) fn warm(
    peer: &mut dyn Peer,
    traffic: &mut Traffic,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    scan(peer, 0, "scan_fresh", figures)?;
    let deliveries = (traffic.far.live / 10).min(1_000_000);
    let watch = Stopwatch::start();
    let (mut left, mut deleted) = (deliveries, 0);
    while left > 0 {
        let batch = left.min(LOAD_BATCH as u64 / 4);
        let passed = (0..batch).filter_map(|_| traffic.far.deliver_or_pass());
        let ops: Vec<Op> = passed.collect();
        peer.commit(&ops)?;
        deleted += ops.len();
        left -= batch;
    }
    let deletes = deleted as f64 / watch.seconds();
    figures.insert("head_deletes_per_s".to_owned(), deletes);
    scan(peer, 0, "scan_zero", figures)?;
    scan(peer, traffic.far.next_due_ms(), "scan_cursor", figures)
}

/// The same from where the deliveries got to, with nothing of the files in memory. Opens the
/// candidate again; the caller has closed it.
pub(crate) fn cold(
    name: Name,
    directory: &Path,
    traffic: &Traffic,
    figures: &mut Figures,
) -> anyhow::Result<Box<dyn Peer>> {
    let mut peer = name.open(directory, false)?;
    system::drop_cache(directory)?;
    scan(&mut *peer, traffic.far.next_due_ms(), "scan_cold", figures)?;
    Ok(peer)
}

fn scan(
    peer: &mut dyn Peer,
    from_ms: u64,
    prefix: &str,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let (mut count, mut first, mut last) = (0_u64, 0.0, 0);
    let mut in_order = true;
    let watch = Stopwatch::start();
    peer.scan(from_ms, &mut |due| {
        if count == 0 {
            first = watch.milliseconds();
        }
        in_order &= due >= last && due >= from_ms;
        last = due;
        count += 1;
        count < RECORDS
    })?;
    let per_second = count as f64 / watch.seconds();
    anyhow::ensure!(
        in_order,
        "REFUSED: the scan is not in the order of deadlines"
    );
    figures.insert(format!("{prefix}_first_ms"), first);
    figures.insert(format!("{prefix}_per_s"), per_second);
    figures.insert(format!("{prefix}_records"), count as f64);
    Ok(())
}
