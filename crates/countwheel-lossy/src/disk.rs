//! The disk without the system: files and names, as they are and as they would be after a power
//! cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use rustix::io::Errno;

use crate::Cut;

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// The directory that is mounted.
pub(crate) const ROOT: u64 = 1;

type Result<T> = std::result::Result<T, Errno>;
type Names = BTreeMap<OsString, u64>;

/// All files and names.
pub(crate) struct Disk {
    nodes: BTreeMap<u64, Node>,
    last: u64,
    /// Names that were changed since the sync of their directory, oldest first.
    renamed: Vec<Renamed>,
    /// Every call fails since the power was cut.
    is_off: bool,
    /// Syncs answer and do nothing.
    pub(crate) lies: bool,
    /// So many syncs of directories succeed before one fails.
    pub(crate) directory_syncs_left: Option<u64>,
}

/// A file or a directory. Its number is never given again.
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) modified: u64,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    File(Content),
    Directory(Directory),
}

/// What a file holds.
#[derive(Default)]
pub(crate) struct Content {
    pub(crate) live: Vec<u8>,
    durable: Vec<u8>,
    /// What was done since the last sync, oldest first.
    changes: Vec<Change>,
}

enum Change {
    Sector(usize, Box<[u8; SECTOR]>),
    Length(usize),
}

#[derive(Default)]
pub(crate) struct Directory {
    pub(crate) live: Names,
    durable: Names,
}

/// One change of names, in one or two directories: it survives as a whole or not at all.
struct Renamed {
    names: Vec<(u64, OsString, Option<u64>)>,
    /// A sync that was for it failed: it counts as written, and no later sync writes it.
    is_lost: bool,
}

impl Renamed {
    fn touches(&self, directories: &BTreeSet<u64>) -> bool {
        self.names
            .iter()
            .any(|(one, _, _)| directories.contains(one))
    }
}

impl Disk {
    pub(crate) fn new() -> Self {
        let mut disk = Self {
            nodes: BTreeMap::new(),
            last: 0,
            renamed: Vec::new(),
            is_off: false,
            lies: false,
            directory_syncs_left: None,
        };
        disk.add(0o755, (0, 0), 0, Kind::Directory(Directory::default()));
        disk
    }

    fn add(&mut self, mode: u32, owner: (u32, u32), now: u64, kind: Kind) -> u64 {
        self.last += 1;
        let node = Node {
            mode,
            owner,
            modified: now,
            kind,
        };
        self.nodes.insert(self.last, node);
        self.last
    }

    pub(crate) fn node(&self, node: u64) -> Result<&Node> {
        self.powered()?;
        self.nodes.get(&node).ok_or(Errno::IO)
    }

    pub(crate) fn node_mut(&mut self, node: u64) -> Result<&mut Node> {
        self.powered()?;
        self.nodes.get_mut(&node).ok_or(Errno::IO)
    }

    pub(crate) fn powered(&self) -> Result<()> {
        if self.is_off { Err(Errno::IO) } else { Ok(()) }
    }

    fn names(&self, directory: u64) -> Result<&Names> {
        match &self.node(directory)?.kind {
            Kind::Directory(directory) => Ok(&directory.live),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    pub(crate) fn content(&mut self, file: u64) -> Result<&mut Content> {
        match &mut self.node_mut(file)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(Errno::ISDIR),
        }
    }

    pub(crate) fn lookup(&self, directory: u64, name: &OsStr) -> Result<u64> {
        let names = self.names(directory)?;
        names.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Makes a file, or a directory if the mode says so.
    pub(crate) fn make(
        &mut self,
        parent: u64,
        name: &OsStr,
        node: (u32, (u32, u32), u64),
        kind: Kind,
    ) -> Result<u64> {
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let (mode, owner, now) = node;
        let node = self.add(mode, owner, now, kind);
        self.change(vec![(parent, name.to_owned(), Some(node))]);
        Ok(node)
    }

    pub(crate) fn link(&mut self, node: u64, parent: u64, name: &OsStr) -> Result<()> {
        self.content(node)?;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        self.change(vec![(parent, name.to_owned(), Some(node))]);
        Ok(())
    }

    /// Removes the name of a file, or of an empty directory. What it held stays for those who
    /// have it open, and for the name that may come back.
    pub(crate) fn unlink(&mut self, parent: u64, name: &OsStr, directory: bool) -> Result<()> {
        let node = self.lookup(parent, name)?;
        match (&self.node(node)?.kind, directory) {
            (Kind::File(_), true) => return Err(Errno::NOTDIR),
            (Kind::Directory(_), false) => return Err(Errno::ISDIR),
            (Kind::Directory(one), true) if !one.live.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.change(vec![(parent, name.to_owned(), None)]);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        (parent, name): (u64, &OsStr),
        (to, to_name): (u64, &OsStr),
        replace: bool,
    ) -> Result<()> {
        let node = self.lookup(parent, name)?;
        match self.lookup(to, to_name) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(target) if target == node => return Ok(()),
            Ok(target) => match (&self.node(node)?.kind, &self.node(target)?.kind) {
                (Kind::File(_), Kind::File(_)) => {}
                (Kind::Directory(_), Kind::Directory(one)) if one.live.is_empty() => {}
                (Kind::Directory(_), Kind::Directory(_)) => return Err(Errno::NOTEMPTY),
                (Kind::File(_), Kind::Directory(_)) => return Err(Errno::ISDIR),
                (Kind::Directory(_), Kind::File(_)) => return Err(Errno::NOTDIR),
            },
        }
        self.change(vec![
            (parent, name.to_owned(), None),
            (to, to_name.to_owned(), Some(node)),
        ]);
        Ok(())
    }

    fn change(&mut self, names: Vec<(u64, OsString, Option<u64>)>) {
        for (directory, name, node) in &names {
            if let Some(Kind::Directory(one)) =
                self.nodes.get_mut(directory).map(|node| &mut node.kind)
            {
                put(&mut one.live, name, *node);
            }
        }
        self.renamed.push(Renamed {
            names,
            is_lost: false,
        });
    }

    /// Makes a file's content and length durable, or a directory's names.
    pub(crate) fn sync(&mut self, node: u64) -> Result<()> {
        let lies = self.lies;
        match &mut self.node_mut(node)?.kind {
            _ if lies => {}
            Kind::File(content) => content.sync(),
            Kind::Directory(_) => return self.sync_directory(node),
        }
        Ok(())
    }

    fn sync_directory(&mut self, directory: u64) -> Result<()> {
        let left = self.directory_syncs_left;
        self.directory_syncs_left = left.and_then(|left| left.checked_sub(1));
        if left != Some(0) {
            self.sync_names(directory);
            return Ok(());
        }
        let directories = BTreeSet::from([directory]);
        for renamed in &mut self.renamed {
            renamed.is_lost |= renamed.touches(&directories);
        }
        Err(Errno::IO)
    }

    /// What a change of two directories needs of the other one before it, goes along.
    fn sync_names(&mut self, directory: u64) {
        let mut directories = BTreeSet::from([directory]);
        let (mut synced, mut left) = (Vec::new(), Vec::new());
        for renamed in std::mem::take(&mut self.renamed).into_iter().rev() {
            if !renamed.is_lost && renamed.touches(&directories) {
                directories.extend(renamed.names.iter().map(|(one, _, _)| *one));
                synced.push(renamed);
            } else {
                left.push(renamed);
            }
        }
        left.reverse();
        self.renamed = left;
        for renamed in synced.into_iter().rev() {
            self.endure(renamed);
        }
    }

    fn endure(&mut self, renamed: Renamed) {
        for (directory, name, node) in renamed.names {
            if let Some(Kind::Directory(one)) =
                self.nodes.get_mut(&directory).map(|node| &mut node.kind)
            {
                put(&mut one.durable, &name, node);
            }
        }
    }

    /// Cuts the power: decides what survives, and fails every call from now on.
    pub(crate) fn cut(&mut self, seed: u64) -> Cut {
        let mut random = Random(seed);
        let mut cut = Cut::default();
        // One time in eight nothing that was not synced had reached the disk.
        let none = random.below(8) == 0;
        let survives = |random: &mut Random| !none && random.below(2) == 0;
        let renamed = std::mem::take(&mut self.renamed);
        // As a journal would have it, all up to some moment; or any of them.
        let journal = (random.below(2) == 0).then(|| random.below(renamed.len() as u64 + 1));
        for (place, one) in (0..).zip(renamed) {
            let kept = match journal {
                Some(end) => !none && place < end,
                None => survives(&mut random),
            } && !one.is_lost;
            if kept {
                cut.names_kept += 1;
                self.endure(one);
            } else {
                cut.names_dropped += 1;
            }
        }
        for node in self.nodes.values_mut() {
            let Kind::File(content) = &mut node.kind else {
                continue;
            };
            for change in std::mem::take(&mut content.changes) {
                let kept = survives(&mut random);
                if matches!(change, Change::Sector(..)) {
                    *if kept {
                        &mut cut.sectors_kept
                    } else {
                        &mut cut.sectors_dropped
                    } += 1;
                }
                if kept {
                    change.apply(&mut content.durable);
                }
            }
        }
        self.is_off = true;
        cut
    }

    /// Power again: what survived is what there is.
    pub(crate) fn heal(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(node) = open.pop() {
            match self.nodes.get_mut(&node).map(|node| &mut node.kind) {
                Some(Kind::Directory(directory)) => {
                    directory.live.clone_from(&directory.durable);
                    let inside = directory.live.values();
                    open.extend(inside.filter(|node| reached.insert(**node)));
                }
                Some(Kind::File(content)) => {
                    content.live.clone_from(&content.durable);
                    content.changes.clear();
                }
                None => {}
            }
        }
        self.nodes.retain(|node, _| reached.contains(node));
        self.renamed.clear();
        self.is_off = false;
    }
}

fn put(names: &mut Names, name: &OsStr, node: Option<u64>) {
    match node {
        Some(node) => names.insert(name.to_owned(), node),
        None => names.remove(name),
    };
}

impl Content {
    pub(crate) fn read(&self, offset: usize, length: usize) -> &[u8] {
        let start = offset.min(self.live.len());
        let end = offset.saturating_add(length).min(self.live.len());
        &self.live[start..end]
    }

    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.live.len() {
            self.set_length(end);
        }
        self.live[offset..end].copy_from_slice(data);
        self.touch(offset, end);
    }

    /// Zeroes what is there of a range.
    pub(crate) fn zero(&mut self, offset: usize, end: usize) {
        let end = end.min(self.live.len());
        if offset < end {
            self.live[offset..end].fill(0);
            self.touch(offset, end);
        }
    }

    pub(crate) fn set_length(&mut self, length: usize) {
        if length != self.live.len() {
            self.live.resize(length, 0);
            self.changes.push(Change::Length(length));
        }
    }

    fn touch(&mut self, offset: usize, end: usize) {
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let mut bytes = Box::new([0; SECTOR]);
            let there = self.read(sector * SECTOR, SECTOR);
            bytes[..there.len()].copy_from_slice(there);
            self.changes.push(Change::Sector(sector, bytes));
        }
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            change.apply(&mut self.durable);
        }
    }
}

impl Change {
    /// A sector behind the end is not part of the file.
    fn apply(self, durable: &mut Vec<u8>) {
        match self {
            Self::Length(length) => durable.resize(length, 0),
            Self::Sector(sector, bytes) => {
                let start = (sector * SECTOR).min(durable.len());
                let end = (start + SECTOR).min(durable.len());
                durable[start..end].copy_from_slice(&bytes[..end - start]);
            }
        }
    }
}

/// `SplitMix64`, as `countwheel_time::Random` has it: the same seed, the same draws. This file system
/// depends on nothing of what it is to find mistakes in.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: (u32, (u32, u32), u64) = (0o600, (0, 0), 0);

    fn file(disk: &mut Disk, parent: u64, name: &str) -> u64 {
        disk.make(parent, name.as_ref(), NEW, Kind::File(Content::default()))
            .expect("a new name")
    }

    fn directory(disk: &mut Disk, name: &str) -> u64 {
        let kind = Kind::Directory(Directory::default());
        disk.make(ROOT, name.as_ref(), NEW, kind)
            .expect("a new name")
    }

    fn write(disk: &mut Disk, node: u64, offset: usize, data: &[u8]) {
        disk.content(node).expect("a file").write(offset, data);
    }

    fn rename(disk: &mut Disk, from: (u64, &str), to: (u64, &str)) {
        disk.rename((from.0, from.1.as_ref()), (to.0, to.1.as_ref()), true)
            .expect("a rename");
    }

    fn power_cut(disk: &mut Disk, seed: u64) -> Cut {
        let cut = disk.cut(seed);
        assert_eq!(disk.lookup(ROOT, "a".as_ref()), Err(Errno::IO));
        disk.heal();
        cut
    }

    fn read(disk: &mut Disk, node: u64) -> Vec<u8> {
        disk.content(node).expect("a file").live.clone()
    }

    #[test]
    fn what_was_synced_survives_every_cut() {
        for seed in 0..64 {
            let mut disk = Disk::new();
            let inside = directory(&mut disk, "d");
            let node = file(&mut disk, inside, "a");
            write(&mut disk, node, 0, &[7; 2_000]);
            for one in [node, inside, ROOT] {
                disk.sync(one).expect("a sync");
            }
            let cut = power_cut(&mut disk, seed);
            assert_eq!(cut, Cut::default());
            assert_eq!(disk.lookup(ROOT, "d".as_ref()), Ok(inside));
            assert_eq!(disk.lookup(inside, "a".as_ref()), Ok(node));
            assert_eq!(read(&mut disk, node), [7; 2_000]);
        }
    }

    /// Who syncs again after a failure believes that the names are there. Who renames first is
    /// right.
    #[test]
    fn a_sync_of_a_directory_that_failed_is_not_made_good_by_another() {
        for seed in 0..64 {
            let mut disk = Disk::new();
            directory(&mut disk, "a");
            disk.directory_syncs_left = Some(0);
            assert_eq!(disk.sync(ROOT), Err(Errno::IO));
            let later = directory(&mut disk, "later");
            assert_eq!(disk.sync(ROOT), Ok(()));
            power_cut(&mut disk, seed);
            assert_eq!(disk.lookup(ROOT, "a".as_ref()), Err(Errno::NOENT));
            assert_eq!(disk.lookup(ROOT, "later".as_ref()), Ok(later));

            let kept = directory(&mut disk, "a");
            disk.directory_syncs_left = Some(0);
            assert_eq!(disk.sync(ROOT), Err(Errno::IO));
            rename(&mut disk, (ROOT, "a"), (ROOT, "b"));
            rename(&mut disk, (ROOT, "b"), (ROOT, "a"));
            assert_eq!(disk.sync(ROOT), Ok(()));
            power_cut(&mut disk, seed);
            assert_eq!(disk.lookup(ROOT, "a".as_ref()), Ok(kept));
        }
    }

    #[test]
    fn of_what_was_not_synced_any_sector_may_survive_or_not() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::new();
            let node = file(&mut disk, ROOT, "a");
            write(&mut disk, node, 0, &[1; 3 * SECTOR]);
            disk.sync(node).expect("a sync");
            disk.sync(ROOT).expect("a sync");
            write(&mut disk, node, SECTOR - 1, &[2; SECTOR + 2]);
            let cut = power_cut(&mut disk, seed);
            assert_eq!(cut.sectors_kept + cut.sectors_dropped, 3);
            let bytes = read(&mut disk, node);
            assert_eq!(bytes[..SECTOR - 1], [1; SECTOR - 1]);
            seen.insert([SECTOR - 1, SECTOR, 2 * SECTOR].map(|at| bytes[at]));
        }
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn a_length_that_was_not_synced_may_survive_without_what_was_written() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let mut disk = Disk::new();
            let node = file(&mut disk, ROOT, "a");
            disk.sync(ROOT).expect("a sync");
            write(&mut disk, node, 0, &[1; SECTOR]);
            power_cut(&mut disk, seed);
            seen.insert(read(&mut disk, node));
        }
        let all = [vec![], vec![0; SECTOR], vec![1; SECTOR]];
        assert_eq!(seen, all.into());
    }

    #[test]
    fn a_name_survives_for_sure_only_with_the_sync_of_its_directory() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::new();
            let node = file(&mut disk, ROOT, "a");
            write(&mut disk, node, 0, b"new");
            disk.sync(node).expect("a sync");
            rename(&mut disk, (ROOT, "a"), (ROOT, "b"));
            power_cut(&mut disk, seed);
            let names = ["a", "b"].map(|name| disk.lookup(ROOT, name.as_ref()) == Ok(node));
            seen.insert(names);
        }
        assert_eq!(
            seen,
            [[false, false], [true, false], [false, true]].into(),
            "never both: a rename is one change"
        );
    }

    #[test]
    fn a_later_name_may_survive_without_an_earlier_one() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::new();
            file(&mut disk, ROOT, "a");
            file(&mut disk, ROOT, "b");
            power_cut(&mut disk, seed);
            seen.insert(["a", "b"].map(|name| disk.lookup(ROOT, name.as_ref()).is_ok()));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_file_that_was_cut_short_is_so_once_that_was_synced() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let mut disk = Disk::new();
            let node = file(&mut disk, ROOT, "a");
            disk.sync(ROOT).expect("a sync");
            write(&mut disk, node, 0, &[1; 3]);
            disk.sync(node).expect("a sync");
            disk.content(node).expect("a file").set_length(1);
            if seed % 2 == 0 {
                disk.sync(node).expect("a sync");
            }
            power_cut(&mut disk, seed);
            seen.insert((seed % 2, read(&mut disk, node)));
        }
        let all = [(0, vec![1]), (1, vec![1]), (1, vec![1; 3])];
        assert_eq!(seen, all.into());
    }

    #[test]
    fn a_file_that_was_removed_may_come_back() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let mut disk = Disk::new();
            let node = file(&mut disk, ROOT, "a");
            write(&mut disk, node, 0, b"old");
            disk.sync(node).expect("a sync");
            disk.sync(ROOT).expect("a sync");
            disk.unlink(ROOT, "a".as_ref(), false).expect("a remove");
            power_cut(&mut disk, seed);
            let back = disk.lookup(ROOT, "a".as_ref()) == Ok(node);
            seen.insert(back);
            if back {
                assert_eq!(read(&mut disk, node), b"old");
            }
        }
        assert_eq!(seen.len(), 2);
    }

    #[test]
    fn a_rename_between_directories_is_synced_with_what_it_stands_on() {
        for seed in 0..50 {
            let mut disk = Disk::new();
            let (one, other) = (directory(&mut disk, "1"), directory(&mut disk, "2"));
            disk.sync(ROOT).expect("a sync");
            let old = file(&mut disk, other, "x");
            let node = file(&mut disk, one, "a");
            rename(&mut disk, (one, "a"), (other, "x"));
            disk.sync(one).expect("a sync");
            power_cut(&mut disk, seed);
            assert_ne!(old, node);
            assert_eq!(disk.lookup(one, "a".as_ref()), Err(Errno::NOENT));
            assert_eq!(disk.lookup(other, "x".as_ref()), Ok(node));
        }
    }

    #[test]
    fn a_sync_that_lies_keeps_nothing_for_sure() {
        let mut lost = 0;
        for seed in 0..50 {
            let mut disk = Disk::new();
            disk.lies = true;
            let node = file(&mut disk, ROOT, "a");
            disk.sync(node).expect("a sync");
            disk.sync(ROOT).expect("a sync");
            power_cut(&mut disk, seed);
            lost += u64::from(disk.lookup(ROOT, "a".as_ref()).is_err());
        }
        assert!((10..50).contains(&lost), "{lost} of 50");
    }
}
