//! A directory of files that loses power: what was synced stays, of the rest anything may.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use countwheel_durable::store::{Files, StoreFile};

use super::Random;

const SECTOR: usize = 512;

/// A simulated directory. Clones are the same one.
#[derive(Clone, Default, Debug)]
pub(crate) struct Directory(Arc<Mutex<State>>);

#[derive(Default, Debug)]
struct State {
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// What became of names since the last sync of the directory.
    unsynced: Vec<Entry>,
    /// The process that has the directory. The handles of those before are dead.
    process: u64,
    /// Calls that change something until one fails, and all after it.
    left: Option<u64>,
    failed: bool,
    calls: u64,
}

#[derive(Default, Debug)]
struct Node {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// What each sector was since the last sync, oldest first.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
}

#[derive(Clone, Debug)]
enum Entry {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

impl Entry {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Create(name, node) => drop(names.insert(name.clone(), *node)),
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl Directory {
    /// The directory for a new process; the one before ended.
    pub(crate) fn open(&self) -> Arc<dyn Files> {
        let mut state = self.state();
        state.process += 1;
        (state.left, state.failed) = (None, false);
        let process = state.process;
        drop(state);
        Arc::new(Handle {
            directory: self.clone(),
            process,
        })
    }

    /// Makes the call after `calls` more that change something fail, and all after it.
    pub(crate) fn fail_after(&self, calls: u64) {
        self.state().left = Some(calls);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The power goes and comes back.
    pub(crate) fn cut(&self, random: &mut Random) {
        let mut state = self.state();
        state.process += 1;
        let unsynced = std::mem::take(&mut state.unsynced);
        let mut names = std::mem::take(&mut state.durable_names);
        // Most often in order, as a journal has it; sometimes any of them.
        let in_order = random.index(4) > 0;
        let kept = random.index(unsynced.len() + 1);
        for (index, entry) in unsynced.iter().enumerate() {
            if if in_order {
                index < kept
            } else {
                random.index(2) == 0
            } {
                entry.apply(&mut names);
            }
        }
        state.durable_names.clone_from(&names);
        state.names = names;
        let kept: Vec<usize> = state.names.values().copied().collect();
        for (number, node) in state.nodes.iter_mut().enumerate() {
            if !kept.contains(&number) {
                *node = Node::default(); // nobody finds it any more
                continue;
            }
            let share = [0, 1, 50, 50, 99, 100][random.index(6)];
            if node.durable.len() < node.live.len() && random.index(2) == 0 {
                node.durable.resize(node.live.len(), 0);
            }
            let len = node.durable.len();
            for (sector, versions) in std::mem::take(&mut node.unsynced) {
                let start = sector * SECTOR;
                let end = node.durable.len().min(start + SECTOR);
                if start < end && random.index(100) < share {
                    let version = &versions[random.index(versions.len())];
                    node.durable[start..end].copy_from_slice(&version[..end - start]);
                }
                if start < end && node.live.len() == len {
                    node.live[start..end].copy_from_slice(&node.durable[start..end]);
                }
            }
            if node.live.len() != len {
                node.live.clone_from(&node.durable);
            }
        }
    }

    /// Flips a bit of a file, anywhere in its first `within` bytes.
    pub(crate) fn flip(&self, name: &str, within: usize, random: &mut Random) -> usize {
        let mut state = self.state();
        let node = state.names[name];
        let node = &mut state.nodes[node];
        let at = random.index(within.min(node.live.len()));
        node.live[at] ^= 1 << random.index(8);
        node.durable.clone_from(&node.live);
        at
    }

    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name);
        state.durable_names.remove(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// Another directory with the same content.
    pub(crate) fn copy(&self) -> Self {
        let state = self.state();
        let nodes = state.nodes.iter().map(|node| Node {
            live: node.live.clone(),
            durable: node.live.clone(),
            unsynced: BTreeMap::new(),
        });
        Self(Arc::new(Mutex::new(State {
            nodes: nodes.collect(),
            names: state.names.clone(),
            durable_names: state.names.clone(),
            ..State::default()
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a call that changes something.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match &mut self.left {
            Some(0) => self.failed = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if self.failed {
            return Err(io::Error::other("no power"));
        }
        Ok(())
    }
}

impl Node {
    fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for sector in std::mem::take(&mut self.unsynced).into_keys() {
            let start = sector * SECTOR;
            let end = self.live.len().min(start + SECTOR);
            self.durable[start..end].copy_from_slice(&self.live[start..end]);
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = self.live.len().max(offset + data.len());
        self.live.resize(end, 0);
        self.live[offset..offset + data.len()].copy_from_slice(data);
        for sector in offset / SECTOR..(offset + data.len()).div_ceil(SECTOR) {
            let start = sector * SECTOR;
            let end = self.live.len().min(start + SECTOR);
            let mut version = self.live[start..end].to_vec();
            version.resize(SECTOR, 0);
            self.unsynced.entry(sector).or_default().push(version);
        }
    }
}

#[derive(Debug)]
struct Handle {
    directory: Directory,
    process: u64,
}

impl Handle {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.directory.state();
        if state.process != self.process {
            return Err(io::Error::other("the process is gone"));
        }
        Ok(state)
    }
}

impl Files for Handle {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        let mut state = self.state()?;
        state.call()?;
        let node = state.nodes.len();
        state.nodes.push(Node {
            live: vec![0; usize::try_from(len).unwrap()],
            ..Node::default()
        });
        if state.names.insert(name.to_owned(), node).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.unsynced.push(Entry::Create(name.to_owned(), node));
        drop(state);
        self.open(name)
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.create(name, 0)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let state = self.state()?;
        let node = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(File {
            directory: self.directory.clone(),
            process: self.process,
            node,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state()?;
        state.call()?;
        let entry = Entry::Rename(from.to_owned(), to.to_owned());
        entry.apply(&mut state.names);
        state.unsynced.push(entry);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state()?;
        state.call()?;
        let entry = Entry::Remove(name.to_owned());
        entry.apply(&mut state.names);
        state.unsynced.push(entry);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        state.call()?;
        state.unsynced.clear();
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("simulated")
    }
}

#[derive(Debug)]
struct File {
    directory: Directory,
    process: u64,
    node: usize,
}

impl File {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.directory.state();
        if state.process != self.process {
            return Err(io::Error::other("the process is gone"));
        }
        Ok(state)
    }
}

impl StoreFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.state()?.nodes[self.node].live.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state()?;
        let start = usize::try_from(offset).unwrap();
        let found = state.nodes[self.node].live.get(start..start + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state()?;
        let was_off = state.failed;
        // What the write that fails was to write may be there.
        let powered = state.call();
        if !was_off {
            let start = usize::try_from(offset).unwrap();
            state.nodes[self.node].write(start, data);
        }
        powered
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        state.call()?;
        state.nodes[self.node].sync();
        Ok(())
    }
}
