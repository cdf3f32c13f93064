//! S6: memory, and bytes on the disk.

use std::path::Path;

use super::Figures;
use crate::item::LOGICAL_BYTES;
use crate::peer::Peer;
use crate::system;

/// What it takes now, with `live` records in it.
pub(crate) fn measure(
    peer: &dyn Peer,
    directory: &Path,
    live: u64,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let memory = peer.memory()?;
    let disk = system::disk_bytes(directory)? as f64;
    figures.insert("resident".to_owned(), memory.resident as f64);
    figures.insert("anonymous".to_owned(), memory.anonymous as f64);
    figures.insert("disk_per_timer".to_owned(), disk / live as f64);
    let logical = live as f64 * LOGICAL_BYTES as f64;
    figures.insert("disk_to_logical".to_owned(), disk / logical);
    Ok(())
}
