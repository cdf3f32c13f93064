//! The database in a data directory: `timers.redb`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;

use super::EmbeddedStore;
use crate::store::directory::{
    Claim, EMBEDDED, Format, Lock, io_error, private_file, settle_format, settle_name,
    sync_directory, write_format,
};
use crate::store::place::FileSystem;
use crate::store::{DiskError, StoreError};

const DATABASE: &str = "timers.redb";

pub(super) fn open(directory: &Path, new_store_id: u64) -> Result<EmbeddedStore, StoreError> {
    let Claim { lock, format } = Claim::of(&FileSystem, directory, EMBEDDED)?;
    match format {
        Some(format) if format.ready => open_ready(directory, lock, format),
        _ => create(directory, directory.join(DATABASE), new_store_id, lock),
    }
}

/// Opens the store of a directory that this process has, and that has one.
pub(super) fn open_ready(
    directory: &Path,
    mut lock: Lock,
    format: Format,
) -> Result<EmbeddedStore, StoreError> {
    let database = directory.join(DATABASE);
    let file = open_database(&database)?;
    lock.with_file(directory)?;
    settle_format(&FileSystem, directory, format)?;
    EmbeddedStore::open_on(file, &database, Some(format.store_id), Some(lock))
}

/// Makes a store in a directory that has none, or has one that was never ready.
fn create(
    directory: &Path,
    database: PathBuf,
    store_id: u64,
    mut lock: Lock,
) -> Result<EmbeddedStore, StoreError> {
    let mut format = Format {
        version: EMBEDDED,
        store_id,
        ready: false,
    };
    settle_name(&FileSystem, directory)?;
    lock.with_file(directory)?;
    write_format(&FileSystem, directory, format)?;
    match fs::remove_file(&database) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(io_error(&database, source));
        }
        _ => {}
    }
    let file = private_file()
        .read(true)
        .create_new(true)
        .open(&database)
        .map_err(|source| io_error(&database, source))?;
    let backend = backend(file, &database)?;
    let store = EmbeddedStore::create_on(backend, database, store_id, Some(lock))?;
    // The database is there, under its name, before anything says so.
    sync_directory(&FileSystem, directory)?;
    format.ready = true;
    write_format(&FileSystem, directory, format)?;
    Ok(store)
}

/// Opens the database of a directory that says that it has one.
fn open_database(path: &Path) -> Result<FileBackend, StoreError> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(DiskError::Corrupt {
                path: path.to_owned(),
                problem: "it is missing".to_owned(),
            }
            .into());
        }
        file => file.map_err(|source| io_error(path, source))?,
    };
    let length = file
        .metadata()
        .map_err(|source| io_error(path, source))?
        .len();
    // redb would make a new database here.
    if length == 0 {
        return Err(DiskError::Corrupt {
            path: path.to_owned(),
            problem: "it is empty".to_owned(),
        }
        .into());
    }
    backend(file, path)
}

fn backend(file: File, path: &Path) -> Result<FileBackend, StoreError> {
    FileBackend::new(file).map_err(|error| super::Problem::from(error).at(path))
}
