//! Whether what was acknowledged is there: a row that fails this is refused.

use anyhow::{Context as _, ensure};

use crate::item::Item;
use crate::numbers::Permutation;
use crate::peer::{Name, Peer};

/// How many records are read back and compared.
pub(crate) const SAMPLES: usize = 1_000;

/// Compares the number of records with what it should be.
pub(crate) fn count(peer: &mut dyn Peer, expected: u64) -> anyhow::Result<()> {
    let found = peer.count()?;
    ensure!(
        found == expected,
        "REFUSED: it holds {found} records, not {expected}"
    );
    Ok(())
}

/// Reads records back by their keys, and compares each with what was written.
pub(crate) fn records(
    peer: &mut dyn Peer,
    items: impl Iterator<Item = Item>,
) -> anyhow::Result<()> {
    let mut read = 0;
    for item in items.take(SAMPLES) {
        let found = peer.get(item)?;
        let found = found.with_context(|| format!("REFUSED: record {} is gone", item.id))?;
        ensure!(
            found.payload == item.payload(),
            "REFUSED: record {} has another payload",
            item.id
        );
        ensure!(
            found.due_ms.is_none_or(|due| due == item.due_ms),
            "REFUSED: record {} has another deadline",
            item.id
        );
        read += 1;
    }
    ensure!(read > 0, "REFUSED: there was nothing to read back");
    Ok(())
}

/// `from..to` in random order.
pub(crate) fn scattered(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let order = (to > from).then(|| Permutation::new(to - from, 31));
    (0..to.saturating_sub(from)).filter_map(move |n| order.map(|order| from + order.of(n)))
}

impl Name {
    /// Who reads back what this candidate wrote: of an engine, its store.
    pub(crate) fn reader(self) -> Self {
        match self {
            Self::EngineLog => Self::CountwheelLog,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Op;

    fn filled(directory: &std::path::Path) -> Box<dyn Peer> {
        let mut peer = Name::CountwheelLog.open(directory, false).unwrap();
        let item = |id| Item { id, due_ms: id };
        let ops: Vec<Op> = (1..100).map(|id| Op::Insert(item(id))).collect();
        peer.commit(&ops).unwrap();
        peer
    }

    #[test]
    fn a_missing_or_a_wrong_record_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let mut peer = filled(directory.path());
        let peer = &mut *peer;
        count(peer, 99).unwrap();
        assert!(count(peer, 98).is_err());
        let item = |id| Item { id, due_ms: id };
        records(peer, (1..100).map(item)).unwrap();
        assert!(records(peer, (1..101).map(item)).is_err());
        assert!(records(peer, std::iter::empty()).is_err());
        let late = Item { id: 5, due_ms: 6 };
        assert!(records(peer, std::iter::once(late)).is_err());
    }

    #[test]
    fn a_scattered_range_is_the_whole_range() {
        let mut all: Vec<u64> = scattered(5, 300).collect();
        assert!(!all.is_sorted());
        all.sort_unstable();
        assert!(all.into_iter().eq(5..300));
        assert_eq!(scattered(5, 5).count(), 0);
    }
}
