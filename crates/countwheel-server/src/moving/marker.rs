//! What a data directory says of a move of its timers: a file beside those of the store.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use countwheel_postgres::{MoveState, MoveToken, PostgresOptions, settle_move};
use serde::{Deserialize, Serialize};

use crate::server::StartError;

const NAME: &str = "move.json";

/// A move that has come so far that only the database knows which side has the timers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) token: String,
    /// The URL of the database, without a password.
    pub(crate) store: String,
    pub(crate) schema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store_ca: Option<PathBuf>,
    pub(crate) way: Way,
}

/// Which way the timers went, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// Into the database, if that says so.
    Leaving,
    /// Into the database, which has said so.
    Left,
    /// Out of the database, if that says so.
    Coming,
}

impl Marker {
    /// What the directory says; `None` if it says nothing.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(directory.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        serde_json::from_str(&text).map(Some).map_err(Into::into)
    }

    /// Writes it down. It lasts once this has returned.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let (new, place) = (directory.join("move.json.new"), directory.join(NAME));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        serde_json::to_writer(&mut file, self)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(new, place)?;
        File::open(directory)?.sync_all()
    }

    /// Takes it away. It is gone once this has returned.
    pub(crate) fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        File::open(directory)?.sync_all()
    }

    fn target(&self) -> String {
        format!("schema {} of {}", self.schema, self.store)
    }
}

/// Refuses a directory whose timers are in a database, by now or still. Asks the database if the directory does not know: as
/// its URL `known` if there is one, since none that is written down has a password.
pub(crate) fn must_be_here(directory: &Path, known: Option<&str>) -> Result<(), StartError> {
    let file = |source| StartError::File {
        path: directory.join(NAME),
        source,
    };
    let Some(marker) = Marker::read(directory).map_err(file)? else {
        return Ok(());
    };
    let (data, target) = (directory.to_owned(), marker.target());
    if marker.way == Way::Left {
        return Err(StartError::Moved { data, target });
    }
    let token = marker.token.parse::<MoveToken>();
    let token = token.map_err(|error| file(io::Error::other(error)))?;
    let mut options = PostgresOptions::new(known.unwrap_or(&marker.store));
    options.schema.clone_from(&marker.schema);
    options.ca.clone_from(&marker.store_ca);
    let state = match settle_move(&options, token) {
        Ok(MoveState::Moving | MoveState::Unknown) => Err("it knows no such move".to_owned()),
        Ok(state) => Ok(state),
        Err(error) => Err(error.to_string()),
    };
    let is_decided = state.map(|state| state == MoveState::Decided);
    let is_decided = is_decided.map_err(|reason| StartError::MoveUnknown {
        data: data.clone(),
        target: target.clone(),
        reason,
    })?;
    match (marker.way, is_decided) {
        (Way::Coming, true) => Marker::remove(directory).map_err(file),
        (Way::Coming, false) => Err(StartError::NotMoved { data, target }),
        (_, true) => Err(StartError::Moved { data, target }),
        (_, false) => {
            tracing::warn!(
                to = target,
                "a move of these timers was not ended, and is given up"
            );
            Marker::remove(directory).map_err(file)
        }
    }
}
