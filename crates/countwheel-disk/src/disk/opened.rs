//! Opens a data directory and makes a store in it, on any file system.

use std::path::{Path, PathBuf};

use super::super::directory::{
    Claim, Format, Lock, VERSION, create_directory, io_error, persist_format, persist_name,
    sync_directory, write_format,
};
use super::super::place::{DirectoryTree, SET_ASIDE};
use super::super::{DiskError, DiskOptions, LogStore, StoreError, TableStore, table};
use super::{LOG, SNAPSHOT, TABLES};

/// A data directory that is open, before threads flush its log and compact its tables.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) log: LogStore<TableStore>,
    pub(crate) format: Format,
    /// Whether there was no store.
    pub(crate) was_made: bool,
    pub(super) lock: Lock,
}

impl Opened {
    /// Opens the store in `directory`, and makes it if there is none.
    pub(crate) fn at(
        place: &dyn DirectoryTree,
        directory: &Path,
        new_store_id: u64,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        refuse_snapshot(place, directory)?;
        let Claim { lock, format } = Claim::of(place, directory)?;
        match format {
            Some(format) if format.ready => {
                must_have(place, directory)?;
                Self::ready(place, directory, format, options, lock)
            }
            format => {
                if format.is_some() {
                    refuse_unfinished(place, directory)?;
                }
                let mut made = making(place, directory, new_store_id, lock, |format, lock| {
                    Self::ready(place, directory, format, options, lock)
                })?;
                made.was_made = true;
                Ok(made)
            }
        }
    }

    /// Opens a store that has its parts.
    pub(super) fn ready(
        place: &dyn DirectoryTree,
        directory: &Path,
        format: Format,
        options: DiskOptions,
        mut lock: Lock,
    ) -> Result<Self, StoreError> {
        let files = |part| {
            let path = directory.join(part);
            if place.is_directory(&path) {
                return Ok(place.files(&path));
            }
            Err(missing(path))
        };
        let (log, tables) = (files(LOG)?, files(TABLES)?);
        let store_id = format.store_id;
        let tables = TableStore::open_unpersisted(tables, store_id, options.tables)?;
        let log = LogStore::open(tables, log, store_id, options.log)?;
        // Sound: whoever is refused from here on is refused by the system.
        lock.with_file(directory)?;
        let format = persist_format(place, directory, format)?;
        if format.is_older() {
            let directory = directory.display();
            tracing::warn!(%directory, version = format.version, "the disk is full: the directory keeps its format for now");
        }
        Ok(Self {
            log,
            format,
            was_made: false,
            lock,
        })
    }
}

/// Makes a store in a directory that has none, or has one that was never ready. It is ready
/// once `fill` is done with it; if that fails, the directory is as good as empty.
pub(super) fn making<T>(
    place: &dyn DirectoryTree,
    directory: &Path,
    store_id: u64,
    mut lock: Lock,
    fill: impl FnOnce(Format, Lock) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let held = lock.share();
    let begun = begin(place, directory, store_id, &mut lock);
    let filled = begun.and_then(|format| Ok((fill(format, lock)?, format)));
    let (filled, format) = filled.inspect_err(|_| give_up(place, directory))?;
    // All of it is there, under its names, before anything says so.
    sync_directory(place, directory)?;
    let ready = Format {
        ready: true,
        ..format
    };
    if let Err(error) = write_format(place, directory, ready) {
        drop(filled);
        // Nothing says so then.
        if error.is_full() {
            give_up(place, directory);
        }
        return Err(error);
    }
    drop(held);
    let directory = directory.display();
    tracing::info!(%directory, "a new store was made");
    Ok(filled)
}

/// Says that a store is being made in the directory, and makes its parts, empty.
pub(super) fn begin(
    place: &dyn DirectoryTree,
    directory: &Path,
    store_id: u64,
    lock: &mut Lock,
) -> Result<Format, StoreError> {
    persist_name(place, directory)?;
    lock.with_file(directory)?;
    let format = Format {
        version: VERSION,
        store_id,
        ready: false,
    };
    write_format(place, directory, format)?;
    for part in [LOG, TABLES] {
        let path = directory.join(part);
        if place.is_directory(&path) {
            let removed = place.remove_tree(&path);
            removed.map_err(|source| io_error(&path, source))?;
        }
        create_directory(place, &path)?;
    }
    Ok(format)
}

/// Removes what there is of a store that did not become one: it would keep a full disk full.
pub(super) fn give_up(place: &dyn DirectoryTree, directory: &Path) {
    for part in [LOG, TABLES, SET_ASIDE] {
        let path = directory.join(part);
        if place.is_directory(&path)
            && let Err(error) = place.remove_tree(&path)
        {
            let path = path.display();
            tracing::warn!(%path, %error, "what was made could not be removed");
        }
    }
}

/// A store that an opening began to make has no commits. What has some was left by a conversion, a
/// repair or a restore that ended before its time, or has an older `FORMAT` than the rest.
fn refuse_unfinished(place: &dyn DirectoryTree, directory: &Path) -> Result<(), StoreError> {
    match table::reached(&*place.read_only(&directory.join(TABLES))) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(DiskError::NotAStore {
            path: directory.to_owned(),
            problem: "holds a store with commits that was never finished: if that is known to be \
                      of no use, remove what is in the directory"
                .to_owned(),
        }
        .into()),
        Err(source) => Err(io_error(directory, source)),
    }
}

/// A snapshot shares its revisions and ids with the store that it was made of.
pub(super) fn refuse_snapshot(
    place: &dyn DirectoryTree,
    directory: &Path,
) -> Result<(), StoreError> {
    let names = place.names(directory).unwrap_or_default();
    if !names.iter().any(|name| name == SNAPSHOT) {
        return Ok(());
    }
    Err(DiskError::NotAStore {
        path: directory.to_owned(),
        problem: "is a snapshot, no data directory: make one of it with `countwheel restore`"
            .to_owned(),
    }
    .into())
}

/// A store that was ever ready has a segment of a log and a manifest of tables: without them
/// it is not new, something was taken away.
pub(super) fn must_have(place: &dyn DirectoryTree, directory: &Path) -> Result<(), StoreError> {
    for (part, begins) in [(LOG, "segment-"), (TABLES, "manifest")] {
        let path = directory.join(part);
        if !place.is_directory(&path) {
            return Err(missing(path));
        }
        let names = place.names(&path);
        let names = names.map_err(|source| io_error(&path, source))?;
        // A checkpoint says which segment it is that is missing.
        let has_checkpoint = || table::reached(&*place.read_only(&directory.join(TABLES)));
        if part == LOG && has_checkpoint().is_ok_and(|reached| reached.is_some()) {
            continue;
        }
        let is_it = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(begins);
        if !names.iter().any(is_it) {
            return Err(DiskError::NotAStore {
                path,
                problem: format!("it has no file {begins}..., though there was a store"),
            }
            .into());
        }
    }
    Ok(())
}

fn missing(path: PathBuf) -> StoreError {
    let problem = "it is missing".to_owned();
    DiskError::Corrupt { path, problem }.into()
}
