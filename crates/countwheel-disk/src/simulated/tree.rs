//! Directories: the present names of files and directories, and the names after a loss of power.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handle::{Handle, alive, outcome};
use super::{Disk, Operation, State};
use crate::Files;
use crate::place::DirectoryTree;
use countwheel_time::Random;
use parking_lot::MutexGuard;

/// The directory of the disk itself.
pub(super) const ROOT: u64 = 0;

/// Names of files and of directories, by their numbers.
type Names = BTreeMap<String, u64>;

#[derive(Clone, Default, Debug)]
pub(super) struct Directory {
    pub(super) names: Names,
    pub(super) durable: Names,
    /// What became of names since the last sync of the directory, oldest first.
    pub(super) unsynced: Vec<TreeEntry>,
}

#[derive(Clone, Debug)]
pub(super) enum TreeEntry {
    Create { name: String, node: u64 },
    Rename { to: String, node: u64 },
    Remove { node: u64 },
}

impl TreeEntry {
    /// A file has one name, whatever became of an entry before that gave it another.
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            Self::Create { name, node } => drop(names.insert(name.clone(), *node)),
            Self::Rename { to, node } => {
                names.retain(|_, named| named != node);
                names.insert(to.clone(), *node);
            }
            Self::Remove { node } => names.retain(|_, named| named != node),
        }
    }

    fn node(&self) -> u64 {
        match self {
            Self::Create { node, .. } | Self::Rename { node, .. } | Self::Remove { node } => *node,
        }
    }
}

impl Directory {
    pub(super) fn cut(&mut self, random: &mut Random) {
        let unsynced = std::mem::take(&mut self.unsynced);
        // Most often in order, as a journal has it; sometimes any of them.
        let in_order = random.below(4) > 0;
        let kept = random.below(unsynced.len() as u64 + 1);
        for (index, entry) in (0..).zip(&unsynced) {
            let survives = if in_order {
                index < kept
            } else {
                random.below(2) == 0
            };
            if survives {
                entry.apply(&mut self.durable);
            }
        }
        self.names.clone_from(&self.durable);
    }

    pub(super) fn change(&mut self, entry: TreeEntry) {
        entry.apply(&mut self.names);
        self.unsynced.push(entry);
    }

    /// Gives a name that is durable.
    pub(super) fn put(&mut self, name: &str, node: u64) {
        self.names.insert(name.to_owned(), node);
        self.durable.insert(name.to_owned(), node);
    }
}

impl State {
    /// The number of a directory, if it is there.
    fn number(&self, path: &str) -> Option<u64> {
        parts(path).try_fold(ROOT, |at, name| {
            let number = self.directories.get(&at)?.names.get(name)?;
            self.directories.contains_key(number).then_some(*number)
        })
    }

    /// A directory, if it is there.
    pub(super) fn found(&mut self, path: &str) -> Option<&mut Directory> {
        let number = self.number(path)?;
        self.directories.get_mut(&number)
    }

    /// A directory. If it is not there, it is made, durably.
    pub(super) fn directory(&mut self, path: &str) -> &mut Directory {
        let mut at = ROOT;
        for name in parts(path) {
            let there = self.directories.get(&at).and_then(|at| at.names.get(name));
            let there = there.copied();
            at = match there.filter(|number| self.directories.contains_key(number)) {
                Some(number) => number,
                None => {
                    let number = self.add_directory();
                    let above = self.directories.entry(at).or_default();
                    above.put(name, number);
                    number
                }
            };
        }
        self.directories.entry(at).or_default()
    }

    fn add_directory(&mut self) -> u64 {
        self.next_node += 1;
        self.directories
            .insert(self.next_node, Directory::default());
        self.next_node
    }

    /// The number of a file, if it is there.
    pub(super) fn find(&self, path: &str) -> Option<u64> {
        let (parent, name) = split(path);
        let directory = self.directories.get(&self.number(parent)?)?;
        let number = directory.names.get(name).copied()?;
        self.nodes.contains_key(&number).then_some(number)
    }

    /// The paths of all files, one directory after the other.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((path, number)) = left.pop() {
            let names = self.directories.get(&number).map(|at| &at.names);
            for (name, number) in names.into_iter().flatten() {
                if self.directories.contains_key(number) {
                    left.push((join(&path, name), *number));
                } else {
                    paths.push((path.clone(), name.clone()));
                }
            }
        }
        paths.sort_unstable();
        let paths = paths.into_iter();
        paths.map(|(path, name)| join(&path, &name)).collect()
    }

    /// Forgets the files and directories that nobody can find any more.
    pub(super) fn collect(&mut self) {
        let (mut found, mut left) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(number) = left.pop() {
            let Some(directory) = self.directories.get(&number) else {
                continue;
            };
            let unsynced = directory.unsynced.iter().map(TreeEntry::node);
            let named = directory.names.values().chain(directory.durable.values());
            for number in named.copied().chain(unsynced) {
                if found.insert(number) {
                    left.push(number);
                }
            }
        }
        self.nodes
            .retain(|number, node| node.opened > 0 || found.contains(number));
        self.directories.retain(|number, _| found.contains(number));
    }
}

/// A process's way to the directories, none of which is there before it is made.
#[derive(Debug)]
pub(super) struct Tree {
    disk: Disk,
    process: u64,
}

impl Tree {
    pub(super) fn new(disk: Disk, process: u64) -> Self {
        Self { disk, process }
    }

    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        alive(&self.disk, self.process)
    }

    fn handle(&self, path: &Path) -> Handle {
        Handle::of_place(self.disk.clone(), &shown(path), self.process)
    }

    /// Changes a name in the directory above `path`.
    fn change(
        &self,
        operation: Operation,
        path: &Path,
        entry: impl FnOnce(&mut State, String) -> io::Result<TreeEntry>,
    ) -> io::Result<()> {
        let path = shown(path);
        let (parent, name) = split(&path);
        let mut state = self.state()?;
        let strike = state.call(operation, &path.as_str().into(), 0, 0);
        if state.number(parent).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let made = state.is_made(strike);
        let entry = entry(&mut state, name.to_owned())?;
        if made {
            state.directory(parent).change(entry);
        }
        state.collect();
        outcome(strike)
    }
}

impl DirectoryTree for Tree {
    fn is_directory(&self, path: &Path) -> bool {
        let state = self.state();
        state.is_ok_and(|state| state.number(&shown(path)).is_some())
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(shown(path).into())
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let path = shown(directory);
        let mut state = self.state()?;
        state.plain_call(Operation::List, &path.as_str().into(), 0, 0)?;
        let directory = state.found(&path).ok_or(io::ErrorKind::NotFound)?;
        Ok(directory.names.keys().map(OsString::from).collect())
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let is_there = self.is_directory(path);
        self.change(Operation::Create, path, |state, name| {
            if is_there {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let node = state.add_directory();
            Ok(TreeEntry::Create { name, node })
        })
    }

    fn are_alike(&self, _one: &Path, _other: &Path) -> io::Result<bool> {
        Ok(true)
    }

    fn rename_directory(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to_path = shown(to);
        let to = split(&to_path).1.to_owned();
        let from_path = shown(from);
        self.change(Operation::Rename, from, |state, _| {
            if state.found(&to_path).is_some_and(|at| !at.names.is_empty()) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            let node = state.number(&from_path).ok_or(io::ErrorKind::NotFound)?;
            Ok(TreeEntry::Rename { to, node })
        })
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let shown = shown(path);
        self.change(Operation::Remove, path, |state, _| {
            let node = state.number(&shown).ok_or(io::ErrorKind::NotFound)?;
            if state.found(&shown).is_some_and(|at| !at.names.is_empty()) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            Ok(TreeEntry::Remove { node })
        })
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        let handle = self.handle(path);
        for name in handle.list()? {
            handle.remove(&name)?;
        }
        self.remove_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.handle(path).sync()
    }

    fn files(&self, directory: &Path) -> Arc<dyn Files> {
        Arc::new(self.handle(directory))
    }

    fn read_only(&self, directory: &Path) -> Arc<dyn Files> {
        Arc::new(self.handle(directory))
    }

    fn is_shared(&self) -> bool {
        false
    }
}

/// A path as the disk has it.
fn shown(path: &Path) -> String {
    let path = path.to_string_lossy();
    parts(&path).collect::<Vec<_>>().join("/")
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

/// The directory of a path, and the name in it.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

pub(super) fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    }
}
