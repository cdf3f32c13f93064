//! A process's way to the disk: directories and files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::fault::{Failure, Strike, no_space};
use super::node::{Node, SECTOR};
use super::tree::{Directory, Tree, TreeEntry, join, split};
use super::{Disk, Operation, State};
use crate::place::DirectoryTree as _;
use crate::{Files, StoreFile};

/// Where a simulated directory says it is.
const ROOT: &str = "simulated";
/// Where files are kept that are set aside.
const ASIDE: &str = "set-aside";

#[derive(Debug)]
pub(super) struct Handle {
    disk: Disk,
    directory: String,
    shown: Arc<str>,
    process: u64,
    /// Whether the directory is not there unless it was made.
    is_made: bool,
}

impl Handle {
    pub(super) fn new(disk: Disk, directory: &str, process: u64) -> Self {
        Self {
            disk,
            directory: directory.to_owned(),
            shown: directory.into(),
            process,
            is_made: false,
        }
    }

    /// The same, of a directory that is not there unless it was made.
    pub(super) fn of_place(disk: Disk, directory: &str, process: u64) -> Self {
        let is_made = true;
        Self {
            is_made,
            ..Self::new(disk, directory, process)
        }
    }

    fn directory<'a>(&self, state: &'a mut State) -> io::Result<&'a mut Directory> {
        if self.is_made {
            let found = state.found(&self.directory);
            return found.ok_or(io::ErrorKind::NotFound.into());
        }
        Ok(state.directory(&self.directory))
    }

    fn node_of(&self, state: &mut State, name: &str) -> io::Result<u64> {
        let found = self.directory(state)?.names.get(name).copied();
        found.ok_or(io::ErrorKind::NotFound.into())
    }

    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        alive(&self.disk, self.process)
    }

    fn path_of(&self, name: &str) -> Arc<str> {
        join(&self.directory, name).into()
    }

    /// Gives a file a second name, in another directory.
    fn link(&self, name: &str, to: &Self) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Rename, &self.path_of(name), 0, 0);
        let node = self.node_of(&mut state, name)?;
        if state.is_made(strike) {
            let name = name.to_owned();
            let directory = to.directory(&mut state)?;
            directory.change(TreeEntry::Create { name, node });
        }
        outcome(strike)
    }

    fn handle(&self, state: MutexGuard<'_, State>, name: &str, node: u64) -> Arc<dyn StoreFile> {
        drop(state);
        let path = join(&self.directory, name);
        Arc::new(File::new(self.disk.clone(), &path, node, self.process))
    }
}

pub(super) fn alive(disk: &Disk, process: u64) -> io::Result<MutexGuard<'_, State>> {
    let state = disk.0.lock();
    if state.process == process {
        Ok(state)
    } else {
        Err(io::Error::other("the simulated process is gone"))
    }
}

impl State {
    fn node(&mut self, number: u64) -> io::Result<&mut Node> {
        let node = self.nodes.get_mut(&number);
        node.ok_or(io::ErrorKind::NotFound.into())
    }

    /// Whether a change of names that fails is made all the same.
    pub(super) fn is_made(&mut self, strike: Option<Strike>) -> bool {
        match strike {
            None => true,
            Some(strike) => {
                strike.failure == Failure::Torn && !strike.again && self.random.below(2) == 0
            }
        }
    }
}

pub(super) fn outcome(strike: Option<Strike>) -> io::Result<()> {
    strike.map_or(Ok(()), |strike| Err(strike.failure.error()))
}

impl Files for Handle {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.state()?;
        state.plain_call(Operation::List, &self.shown, 0, 0)?;
        let names = match self.directory(&mut state) {
            Ok(directory) => directory.names.clone(),
            // Who only looks finds nothing where there is nothing.
            Err(_) => return Ok(Vec::new()),
        };
        let files = names.into_iter();
        let files = files.filter(|(_, number)| state.nodes.contains_key(number));
        Ok(files.map(|(name, _)| name).collect())
    }

    fn identity(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        let mut state = self.state()?;
        let node = self.node_of(&mut state, name)?;
        Ok(Some((0, node)))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Create, &self.path_of(name), 0, len);
        if self.directory(&mut state)?.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let room = len.min(state.room());
        let made = match strike {
            None => Some(room),
            Some(strike) if strike.again || strike.failure == Failure::Io => None,
            Some(_) => state
                .random
                .below(4)
                .checked_sub(1)
                .map(|part| room * part / 3),
        };
        if let Some(made) = made {
            let made = usize::try_from(made).map_err(io::Error::other)?;
            let node = state.add(Node::zeros(made));
            let name = name.to_owned();
            let directory = self.directory(&mut state)?;
            directory.change(TreeEntry::Create { name, node });
        }
        outcome(strike)?;
        if room < len {
            return Err(no_space());
        }
        let node = self.node_of(&mut state, name)?;
        Ok(self.handle(state, name, node))
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.create(name, 0)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let mut state = self.state()?;
        state.plain_call(Operation::Open, &self.path_of(name), 0, 0)?;
        let node = self.node_of(&mut state, name)?;
        Ok(self.handle(state, name, node))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Rename, &self.path_of(from), 0, 0);
        let node = self.node_of(&mut state, from)?;
        if from != to && state.is_made(strike) {
            let to = to.to_owned();
            let directory = self.directory(&mut state)?;
            directory.change(TreeEntry::Rename { to, node });
        }
        outcome(strike)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Remove, &self.path_of(name), 0, 0);
        let node = self.node_of(&mut state, name)?;
        if state.is_made(strike) {
            let directory = self.directory(&mut state)?;
            directory.change(TreeEntry::Remove { node });
        }
        outcome(strike)
    }

    fn set_aside(&self, names: &[String]) -> io::Result<()> {
        let (parent, _) = split(&self.directory);
        let path = join(parent, ASIDE);
        let aside = if self.is_made {
            let place = Tree::new(self.disk.clone(), self.process);
            if !place.is_directory(Path::new(&path)) {
                if names.is_empty() {
                    return Ok(());
                }
                place.make_directory(Path::new(&path))?;
                place.sync_directory(Path::new(parent))?;
            }
            Self::of_place(self.disk.clone(), &path, self.process)
        } else {
            Self::new(self.disk.clone(), &path, self.process)
        };
        for name in aside.list()? {
            aside.remove(&name)?;
        }
        for name in names {
            self.link(name, &aside)?;
        }
        if !names.is_empty() {
            aside.sync()?;
            names.iter().try_for_each(|name| self.remove(name))?;
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::SyncDirectory, &self.shown, 0, 0);
        if state.ignores_syncs {
            return outcome(strike);
        }
        if strike.is_some_and(|strike| strike.again) {
            return outcome(strike);
        }
        // A journal that failed is replayed up to somewhere, or not at all. The rest can be seen, and
        // no later sync writes it.
        let count = self.directory(&mut state)?.unsynced.len();
        let kept = match strike {
            None => count,
            Some(_) => usize::try_from(state.random.below(count as u64 + 1)).unwrap_or(0),
        };
        let directory = self.directory(&mut state)?;
        let unsynced = std::mem::take(&mut directory.unsynced);
        for entry in &unsynced[..kept] {
            entry.apply(&mut directory.durable);
        }
        state.collect();
        outcome(strike)
    }

    fn path(&self) -> PathBuf {
        Path::new(ROOT).join(&self.directory)
    }

    fn nonce(&self) -> io::Result<u64> {
        Ok(self.state()?.nonces.draw())
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    disk: Disk,
    path: Arc<str>,
    node: u64,
    process: u64,
}

impl File {
    pub(super) fn new(disk: Disk, path: &str, node: u64, process: u64) -> Self {
        if let Some(node) = disk.0.lock().nodes.get_mut(&node) {
            node.opened += 1;
        }
        Self {
            disk,
            path: path.into(),
            node,
            process,
        }
    }

    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        alive(&self.disk, self.process)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let mut state = self.disk.0.lock();
        if state.process != self.process {
            return;
        }
        if let Some(node) = state.nodes.get_mut(&self.node) {
            node.opened = node.opened.saturating_sub(1);
            if node.opened == 0 {
                state.collect();
            }
        }
    }
}

impl StoreFile for File {
    fn length(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        state.plain_call(Operation::Length, &self.path, 0, 0)?;
        Ok(state.node(self.node)?.live.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state()?;
        state.plain_call(Operation::Read, &self.path, offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(()); // wherever
        }
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let live = &state.node(self.node)?.live;
        let bytes = start
            .checked_add(out.len())
            .and_then(|end| live.get(start..end));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Write, &self.path, offset, data.len() as u64);
        let room = state.room();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let len = state.node(self.node)?.live.len();
        if start > len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // What fits without the file growing more than it can.
        let most = (len - start).saturating_add(usize::try_from(room).unwrap_or(usize::MAX));
        let fitting = &data[..data.len().min(most)];
        match strike {
            None => state.node(self.node)?.write(start, fitting),
            Some(strike) if strike.again && strike.failure != Failure::NoSpaceShort => {}
            Some(strike) => match strike.failure {
                Failure::NoSpaceShort => {
                    let part = state.random.below(data.len().max(1) as u64);
                    let part = usize::try_from(part).unwrap_or(0).min(fitting.len());
                    state.node(self.node)?.write(start, &fitting[..part]);
                }
                Failure::Short => {
                    let part = state.random.below(fitting.len() as u64 + 1);
                    let part = usize::try_from(part).unwrap_or(0);
                    state.node(self.node)?.write(start, &fitting[..part]);
                }
                Failure::Torn => {
                    let (mut at, mut rest) = (start, fitting);
                    while !rest.is_empty() {
                        let piece = (SECTOR - at % SECTOR).min(rest.len());
                        if state.random.below(2) == 0 {
                            state.node(self.node)?.write(at, &rest[..piece]);
                        }
                        (at, rest) = (at + piece, &rest[piece..]);
                    }
                }
                Failure::Io | Failure::NoSpace | Failure::Panic => {}
            },
        }
        outcome(strike)?;
        if fitting.len() < data.len() {
            return Err(no_space());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let strike = state.call(Operation::Sync, &self.path, 0, 0);
        if state.ignores_syncs {
            return outcome(strike);
        }
        match strike {
            None => state.node(self.node)?.sync(),
            Some(strike) if strike.again => {}
            Some(_) => {
                let mut random = state.random.clone();
                state.node(self.node)?.sync_in_part(&mut random);
                state.random = random;
            }
        }
        outcome(strike)
    }
}
