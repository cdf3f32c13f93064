//! Which tables are the store: one file, written anew for every change of it.
//!
//! A new manifest is written to a file of its own, synced, and renamed to `manifest`; then the
//! directory is synced. So there is always one, old or new, and never half of one.
//!
//! ```text
//! | magic 8 | version u32 | length u32 | store id u64 | checksum u32 | zero u32 | body |
//! ```
//!
//! Numbers are little endian; the checksum is the CRC-32 of everything else. The body is a
//! [`Manifest`] in postcard and, since version 3, how far the log had reached: nothing, or a
//! segment and a commit. A manifest of version 2 is read; what is written is of version 3.

use serde::{Deserialize, Serialize};

use super::directory::{Directory, corrupt, io_error, not_a_store};
use super::format::{u32_at, u64_at};
use crate::files::Files;
use crate::{Reached, StoreError};

const MAGIC: [u8; 8] = *b"cwheelmf";
pub(super) const VERSION: u32 = 3;
/// The version before manifests said how far the log had reached.
pub(super) const VERSION_WITHOUT_REACHED: u32 = 2;
const HEADER: usize = 32;
const CHECKSUM_AT: usize = 24;

/// Everything that is in the store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The last segment that was taken in.
    pub(super) ingested: u64,
    /// How many ingests there were.
    pub(super) sequence: u64,
    /// No file has this number or a higher one, or had it.
    pub(super) next_file: u64,
    /// Newest first.
    pub(super) runs: Vec<RunEntry>,
    /// How far the log had reached when the last segment was taken in: what a commit up to there
    /// had replaced was not taken in, so these tables are right only behind a log that has it.
    /// Stands behind everything else, so that what was written before is read alike.
    #[serde(skip)]
    pub(super) reached: Option<Reached>,
}

/// A run: tables one behind the other by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RunEntry {
    /// How often what is in it was merged.
    pub(super) tier: u32,
    /// The last ingest of which something is in it.
    pub(super) newest: u64,
    pub(super) tables: Vec<TableEntry>,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct TableEntry {
    pub(super) number: u64,
    /// The length of its file.
    pub(super) length: u64,
    /// The checksum of its footer.
    pub(super) checksum: u32,
    /// How many records it has.
    pub(super) records: u64,
    #[serde(with = "serde_bytes")]
    pub(super) first_key: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub(super) last_key: Vec<u8>,
}

impl Manifest {
    #[cfg(feature = "planted-bugs")]
    pub(super) const HEADER_BYTES: usize = HEADER;

    pub(super) fn write(&self, store_id: u64) -> Vec<u8> {
        let reached = self
            .reached
            .map(|reached| (reached.segment, reached.commit));
        let body = postcard::to_allocvec(&(self, reached))
            .expect("a manifest holds nothing postcard cannot write");
        Self::sealed(VERSION, &body, store_id)
    }

    /// A manifest of a version with this body.
    pub(super) fn sealed(version: u32, body: &[u8], store_id: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&store_id.to_le_bytes());
        bytes.extend_from_slice(body);
        let length = u32::try_from(bytes.len() - HEADER).unwrap_or(u32::MAX);
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The manifest of a store; `None` if there is none.
    pub(super) fn read(files: &dyn Files, store_id: u64) -> Result<Option<Self>, StoreError> {
        let name = Directory::MANIFEST;
        let on_error = |source| io_error(files, source);
        let listed = files.list().map_err(on_error)?;
        if !listed.iter().any(|file| file == name) {
            return Ok(None);
        }
        let file = files.open(name).map_err(on_error)?;
        let length = file.length().map_err(on_error)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let damaged = |problem| corrupt(files, name, 0, problem);
        if length < HEADER || length > HEADER + u32::MAX as usize {
            return Err(damaged("it is too short or too long"));
        }
        let mut bytes = vec![0; length];
        file.read_at(0, &mut bytes).map_err(on_error)?;
        if bytes[..8] != MAGIC || u32_at(&bytes, CHECKSUM_AT) != checksum(&bytes) {
            return Err(damaged("its checksum does not match"));
        }
        let version = u32_at(&bytes, 8);
        if version != VERSION && version != VERSION_WITHOUT_REACHED {
            let problem = format!("is of another version, {version}");
            return Err(not_a_store(files, name, problem));
        }
        let found = u64_at(&bytes, 16);
        if found != store_id {
            let problem = format!("belongs to store {found:016x}");
            return Err(not_a_store(files, name, problem));
        }
        if u32_at(&bytes, 12) as usize != length - HEADER {
            return Err(damaged("its length is another"));
        }
        let Some(manifest) = Self::of(version, &bytes[HEADER..]) else {
            return Err(damaged("its content cannot be read"));
        };
        if !manifest.makes_sense() {
            return Err(damaged("its tables do not fit together"));
        }
        Ok(Some(manifest))
    }

    /// The manifest with this body; `None` if it has more or less than one of its version.
    fn of(version: u32, body: &[u8]) -> Option<Self> {
        let (mut manifest, rest) = postcard::take_from_bytes::<Self>(body).ok()?;
        if version == VERSION_WITHOUT_REACHED {
            return rest.is_empty().then_some(manifest);
        }
        let (reached, rest) = postcard::take_from_bytes::<Option<(u64, u64)>>(rest).ok()?;
        manifest.reached = reached.map(|(segment, commit)| Reached { segment, commit });
        rest.is_empty().then_some(manifest)
    }

    /// Tables of a run are in order, and no number occurs twice.
    fn makes_sense(&self) -> bool {
        let mut numbers: Vec<u64> = self.tables().map(|table| table.number).collect();
        numbers.sort_unstable();
        let ordered = |run: &RunEntry| {
            run.tables.iter().all(|t| t.first_key <= t.last_key)
                && run.tables.is_sorted_by(|a, b| a.last_key < b.first_key)
                && !run.tables.is_empty()
        };
        numbers.is_sorted_by(|a, b| a < b)
            && numbers.last().is_none_or(|&last| last < self.next_file)
            && self.runs.iter().all(ordered)
            && self.runs.is_sorted_by(|a, b| a.newest > b.newest)
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = &TableEntry> {
        self.runs.iter().flat_map(|run| &run.tables)
    }
}

/// Of everything but where it stands itself.
fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CHECKSUM_AT]);
    hasher.update(&bytes[CHECKSUM_AT + 4..]);
    hasher.finalize()
}
