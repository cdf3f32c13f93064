//! How far the log in front has reached, kept where a loss of the log's newest files leaves it.
//!
//! A checkpoint is an empty file, `reached-<segment>-<commit>`: its name says all. One checkpoint
//! becomes the next by a rename and one sync of the directory.

use std::io;

use super::directory::{Directory, FileName};
use crate::files::{Files, is_full};
use crate::{Reached, StoreError};

const CHECKPOINT: &str = "reached-";
/// A checkpoint on its way from a name to the same name.
const RENAMING: &str = "reaching-";

/// The checkpoints of a directory: one, but for what was copied into it.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    names: Vec<String>,
    reached: Option<Reached>,
}

impl Checkpoints {
    /// The checkpoints among the files of a directory.
    pub(super) fn of<'a>(found: impl Iterator<Item = (&'a FileName, &'a String)>) -> Self {
        let mut checkpoints = Self::default();
        for (parsed, name) in found {
            if let FileName::Checkpoint(reached) = parsed {
                checkpoints.names.push(name.clone());
                checkpoints.reached = checkpoints.reached.max(Some(*reached));
            }
        }
        checkpoints
    }

    pub(super) fn reached(&self) -> Option<Reached> {
        self.reached
    }

    /// Notes how far the log has reached. Durable on return, also if a checkpoint of the same name was
    /// there already: the sync before may have failed.
    pub(super) fn checkpoint(
        &mut self,
        directory: &Directory,
        reached: Reached,
    ) -> Result<(), StoreError> {
        directory.check_usable()?;
        let files = &*directory.files;
        let made = self.rename(files, &name_of(CHECKPOINT, reached));
        made.map_err(|error| directory.write_failed(error))?;
        files.sync().map_err(|error| directory.sync_failed(error))?;
        self.reached = Some(reached);
        // Older ones count no more, and are in nobody's way.
        for stray in self.names.drain(1..) {
            directory.discard(&stray);
        }
        Ok(())
    }

    /// Gives the checkpoint this name. After an error, `names` is what is there.
    fn rename(&mut self, files: &dyn Files, name: &str) -> io::Result<()> {
        if let Some(at) = self.names.iter().position(|found| found == name) {
            self.names.swap(0, at);
            let renaming = name.replacen(CHECKPOINT, RENAMING, 1);
            files.rename(name, &renaming)?;
            self.names[0] = renaming;
        }
        match self.names.first_mut() {
            Some(first) => {
                files.rename(first, name)?;
                name.clone_into(first);
            }
            None => {
                if let Err(error) = files.begin(name)
                    && error.kind() != io::ErrorKind::AlreadyExists
                {
                    if is_full(&error) {
                        // An empty file may be there all the same: the next call finds it.
                        tracing::debug!(name, %error, "no room for a checkpoint");
                    }
                    return Err(error);
                }
                self.names.push(name.to_owned());
            }
        }
        Ok(())
    }
}

/// The name of the checkpoint of a log that has reached this.
pub(crate) fn checkpoint_of(reached: Reached) -> String {
    name_of(CHECKPOINT, reached)
}

/// How far the checkpoints in a directory say that the log has reached.
pub(crate) fn reached(files: &dyn Files) -> io::Result<Option<Reached>> {
    let names = files.list()?;
    Ok(names.iter().filter_map(|name| parse(name)).max())
}

/// What a file of this name says; `None` if it is no checkpoint.
pub(super) fn parse(name: &str) -> Option<Reached> {
    let prefix = [CHECKPOINT, RENAMING]
        .into_iter()
        .find(|prefix| name.starts_with(prefix))?;
    let (segment, commit) = name[prefix.len()..].split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let reached = Reached {
        segment: number(segment)?,
        commit: number(commit)?,
    };
    (name_of(prefix, reached) == name).then_some(reached)
}

fn name_of(prefix: &str, Reached { segment, commit }: Reached) -> String {
    format!("{prefix}{segment:016x}-{commit:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_read_as_it_was_written() {
        for segment in [0, 1, u64::MAX] {
            for prefix in [CHECKPOINT, RENAMING] {
                let reached = Reached { segment, commit: 9 };
                assert_eq!(parse(&name_of(prefix, reached)), Some(reached));
            }
        }
        for name in [
            "reached-",
            "reached-1-2",
            "reached-0000000000000001-000000000000000G",
            "reached-000000000000000A-0000000000000001",
            "reached-+000000000000001-0000000000000001",
            "reached-0000000000000001-0000000000000001-",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
