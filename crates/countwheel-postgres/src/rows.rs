//! Rows whose names are not those that they were written with: no timer of theirs can be looked up.

use std::collections::BTreeMap;

use countwheel_durable::store::Shard;
use countwheel_durable::{TimerName, Trouble, TroubleReason, Troubles};
use parking_lot::Mutex;

use crate::bits::Bits;
use crate::hash::NameHash;
use crate::session::{Reach, Session};

/// Those that were come by and are still so, at most [`Troubles::LISTED_MAX`].
#[derive(Default)]
pub(crate) struct Misnamed(Mutex<BTreeMap<(Shard, Bits), String>>);

impl Misnamed {
    /// The name of a row, if it is the one that its hash is of.
    pub(crate) fn name(
        &self,
        of: &NameHash,
        (shard, hash): (Shard, Bits),
        queue: &str,
        key: &str,
    ) -> Option<TimerName> {
        let problem = match TimerName::from_text(queue, key) {
            Ok(name) if of.of(&name) == hash => return Some(name),
            Ok(name) => format!("{name} is not the name that it was written with"),
            Err(error) => error.to_string(),
        };
        let mut noted = self.0.lock();
        if noted.len() < Troubles::LISTED_MAX && !noted.contains_key(&(shard, hash)) {
            let detail = format!("row {hash:?} of shard {}: {problem}", shard.0);
            tracing::error!("{detail}");
            noted.insert((shard, hash), detail);
        }
        None
    }

    /// Looks whether they are gone or mended. Without an answer they stay.
    pub(crate) fn look(&self, session: &mut dyn Session, of: &NameHash) {
        let noted: Vec<_> = self.0.lock().keys().copied().collect();
        for (shard, hash) in noted {
            let Ok(rows) = session.names(shard, &[hash], Reach::ALL, usize::MAX) else {
                return;
            };
            let row = rows.into_iter().next().flatten();
            let name = row.map(|row| TimerName::from_text(&row.queue, &row.key));
            if name.is_none_or(|name| name.is_ok_and(|name| of.of(&name) == hash)) {
                self.0.lock().remove(&(shard, hash));
            }
        }
    }

    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let noted = self.0.lock();
        let trouble =
            |detail: &String| Trouble::new(TroubleReason::UnreadableRecord, None, detail.clone());
        noted.values().map(trouble).collect()
    }
}
