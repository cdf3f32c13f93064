//! Tables and a manifest made of arbitrary bytes: with the checksums of real ones, so that what is
//! behind them is reached.
//!
//! What they are made of, the **recipe**, is
//!
//! ```text
//! | last segment taken in u8 | table ... |
//! ```
//!
//! and a table is its tier u8, its first and its last key (a length u8 and so many bytes each), and
//! frames up to its footer: a kind u8, a length u16 and a body each. If the first byte is 255, the
//! rest is the body of a manifest; if it is 254, of one that does not say how far the log had reached.
//! The manifest of tables says that, too, if the last segment taken in has an odd number.

use super::directory::Directory;
use super::format::{FRAME_HEADER, Footer, Kind, TablePlace, frame_len, u32_at};
use super::manifest::{Manifest, RunEntry, TableEntry, VERSION, VERSION_WITHOUT_REACHED};
use crate::{Files, Reached};

const MANIFEST_ALONE: u8 = 255;
const OLDER_MANIFEST_ALONE: u8 = 254;
/// A recipe with more has nothing to say that one with fewer has not.
const TABLES_MAX: u64 = 16;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        let length = self.byte().unwrap_or(0);
        self.take(usize::from(length))
    }
}

/// Writes the files of a recipe.
pub(crate) fn write(recipe: &[u8], files: &dyn Files, store_id: u64) {
    let mut recipe = Bytes(recipe);
    let put = |name: &str, bytes: &[u8]| {
        if let Ok(file) = files.begin(name) {
            file.write_at(0, bytes).unwrap_or_default();
        }
    };
    let Some(ingested) = recipe.byte() else {
        return;
    };
    let alone = match ingested {
        MANIFEST_ALONE => Some(VERSION),
        OLDER_MANIFEST_ALONE => Some(VERSION_WITHOUT_REACHED),
        _ => None,
    };
    if let Some(version) = alone {
        let bytes = Manifest::sealed(version, recipe.0, store_id);
        put(Directory::MANIFEST, &bytes);
        return;
    }
    let segment = u64::from(ingested);
    let reached = Reached {
        segment,
        commit: segment,
    };
    let mut manifest = Manifest {
        ingested: segment,
        reached: (segment % 2 == 1).then_some(reached),
        ..Manifest::default()
    };
    for number in 0..TABLES_MAX {
        let Some(tier) = recipe.byte() else {
            break;
        };
        let (first_key, last_key) = (recipe.key(), recipe.key());
        let (entry, bytes) = table(
            &mut recipe,
            TablePlace {
                store_id,
                file: number,
            },
        );
        put(&Directory::table_name(number), &bytes);
        manifest.next_file = number + 1;
        manifest.runs.push(RunEntry {
            tier: u32::from(tier),
            newest: TABLES_MAX - number,
            tables: vec![TableEntry {
                first_key,
                last_key,
                ..entry
            }],
        });
    }
    manifest.sequence = TABLES_MAX;
    put(Directory::MANIFEST, &manifest.write(store_id));
}

/// The bytes of a table, and what a manifest says of it but for its keys.
fn table(recipe: &mut Bytes<'_>, place: TablePlace) -> (TableEntry, Vec<u8>) {
    let (mut bytes, mut checksums) = (Vec::new(), crc32fast::Hasher::new());
    let mut entry = TableEntry {
        number: place.file,
        length: 0,
        checksum: 0,
        records: 0,
        first_key: Vec::new(),
        last_key: Vec::new(),
    };
    while let Some(kind) = recipe.byte() {
        let length = recipe.take(2);
        let length = length.first_chunk().map_or(0, |l| u16::from_le_bytes(*l));
        let mut body = recipe.take(usize::from(length));
        let is_footer = kind == Kind::Footer as u8;
        if is_footer && body.len() >= 16 {
            let content = checksums.clone().finalize();
            body[12..16].copy_from_slice(&content.to_le_bytes());
        }
        let at = bytes.len();
        place.write(at as u64, kind, &body, &mut bytes);
        let checksum = u32_at(&bytes, at);
        checksums.update(&checksum.to_le_bytes());
        if is_footer {
            entry.checksum = checksum;
            if let Ok(Ok(footer)) = Footer::read(&body) {
                entry.records = footer.records;
            }
            break;
        }
    }
    entry.length = bytes.len() as u64;
    (entry, bytes)
}

/// The recipe of the tables of a real store.
pub(crate) fn recipe(files: &dyn Files, store_id: u64) -> Vec<u8> {
    let Ok(Some(manifest)) = Manifest::read(files, store_id) else {
        return Vec::new();
    };
    let mut recipe = vec![u8::try_from(manifest.ingested).unwrap_or(0)];
    for run in &manifest.runs {
        for table in &run.tables {
            recipe.push(u8::try_from(run.tier).unwrap_or(0));
            for key in [&table.first_key, &table.last_key] {
                recipe.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
                recipe.extend_from_slice(key);
            }
            let mut bytes = vec![0; usize::try_from(table.length).unwrap_or(0)];
            let name = Directory::table_name(table.number);
            let read = files
                .open(&name)
                .and_then(|file| file.read_at(0, &mut bytes));
            read.unwrap_or_default();
            let mut at = 0;
            while at + FRAME_HEADER <= bytes.len() {
                let length = u32_at(&bytes, at + 4) as usize;
                recipe.push(bytes[at + 8]);
                recipe.extend(u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
                let body = bytes.get(at + FRAME_HEADER..).unwrap_or_default();
                recipe.extend_from_slice(&body[..length.min(body.len())]);
                at += usize::try_from(frame_len(length)).unwrap_or(usize::MAX);
            }
        }
    }
    recipe
}

/// The body of the manifest of a real store, as a recipe of its own.
pub(crate) fn manifest_recipe(files: &dyn Files, store_id: u64) -> Vec<u8> {
    let manifest = Manifest::read(files, store_id).ok().flatten();
    let bytes = manifest.unwrap_or_default().write(store_id);
    let body = bytes.get(Manifest::HEADER_BYTES..).unwrap_or_default();
    [&[MANIFEST_ALONE], body].concat()
}

/// The same, as an earlier version wrote it.
pub(crate) fn older_manifest_recipe(files: &dyn Files, store_id: u64) -> Vec<u8> {
    let manifest = Manifest::read(files, store_id).ok().flatten();
    let manifest = Manifest {
        reached: None,
        ..manifest.unwrap_or_default()
    };
    let bytes = manifest.write(store_id);
    let body = bytes.get(Manifest::HEADER_BYTES..).unwrap_or_default();
    // Behind everything else stands that it says nothing of it.
    let body = body.split_last().map_or(body, |(_, body)| body);
    [&[OLDER_MANIFEST_ALONE], body].concat()
}
