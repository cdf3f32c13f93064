//! Answers the requests of the kernel.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fuser::{
    FileAttr, FileType, Filesystem, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
};
use rustix::io::Errno;

use crate::Shared;
use crate::disk::{Content, Directory, Disk, Kind, ROOT};

/// The kernel asks again each time: after a cut nothing is as it was.
const NO_TIME: Duration = Duration::ZERO;
/// `O_DSYNC`; `O_SYNC` has it set too.
const O_DSYNC: i32 = 0o10_000;
const RENAME_NOREPLACE: u32 = 1;
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;
const BLOCK: u32 = 512;

/// What the kernel is served.
pub(crate) struct Served {
    shared: Arc<Shared>,
    /// Directories that are being listed, as they were when that began.
    lists: HashMap<u64, Vec<(u64, FileType, OsString)>>,
    last_list: u64,
}

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the times of files are the system's"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn place(offset: i64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::INVAL)
}

fn length(length: u64) -> Result<usize, Errno> {
    // A file lives in memory.
    match usize::try_from(length) {
        Ok(length) if length <= 16 << 30 => Ok(length),
        _ => Err(Errno::FBIG),
    }
}

fn attributes(disk: &Disk, number: u64) -> Result<FileAttr, Errno> {
    let node = disk.node(number)?;
    let (kind, size) = match &node.kind {
        Kind::File(content) => (FileType::RegularFile, content.live.len() as u64),
        Kind::Directory(_) => (FileType::Directory, 0),
    };
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(node.modified);
    Ok(FileAttr {
        ino: number,
        size,
        blocks: size.div_ceil(u64::from(BLOCK)),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm: u16::try_from(node.mode & 0o7777).unwrap_or(0),
        nlink: 1,
        uid: node.owner.0,
        gid: node.owner.1,
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    })
}

impl Served {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            lists: HashMap::new(),
            last_list: 0,
        }
    }

    fn make(
        &self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        kind: Kind,
    ) -> Result<FileAttr, Errno> {
        let mut disk = self.shared.disk.lock();
        let owner = (request.uid(), request.gid());
        let node = disk.make(parent, name, (mode, owner, now()), kind)?;
        attributes(&disk, node)
    }

    fn list(&self, directory: u64) -> Result<Vec<(u64, FileType, OsString)>, Errno> {
        let disk = self.shared.disk.lock();
        let Kind::Directory(one) = &disk.node(directory)?.kind else {
            return Err(Errno::NOTDIR);
        };
        let mut list = vec![
            (directory, FileType::Directory, ".".into()),
            (ROOT, FileType::Directory, "..".into()),
        ];
        for (name, node) in &one.live {
            let kind = match disk.node(*node)?.kind {
                Kind::File(_) => FileType::RegularFile,
                Kind::Directory(_) => FileType::Directory,
            };
            list.push((*node, kind, name.clone()));
        }
        Ok(list)
    }

    /// Syncs, at once or after a while: then others go on meanwhile.
    fn sync(&self, node: u64, reply: ReplyEmpty) {
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let answer = move |reply: ReplyEmpty| match shared.disk.lock().sync(node) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        };
        match self.shared.sync_micros.load(Ordering::Relaxed) {
            0 => answer(reply),
            micros => {
                std::thread::spawn(move || {
                    sleep(Duration::from_micros(micros));
                    answer(reply);
                });
            }
        }
    }

    fn read_fails(&self) -> bool {
        let shared = &self.shared;
        let reads = shared.reads.fetch_add(1, Ordering::Relaxed) + 1;
        match shared.reads_per_error.load(Ordering::Relaxed) {
            0 => false,
            every => reads.is_multiple_of(every),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a slow disk is slow")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

impl Filesystem for Served {
    fn lookup(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let disk = self.shared.disk.lock();
        match disk
            .lookup(parent, name)
            .and_then(|node| attributes(&disk, node))
        {
            Ok(found) => reply.entry(&NO_TIME, &found, 0),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn getattr(&mut self, _: &Request<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        match attributes(&self.shared.disk.lock(), node) {
            Ok(found) => reply.attr(&NO_TIME, &found),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn setattr(
        &mut self,
        _: &Request<'_>,
        node: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<u64>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<u32>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.shared.disk.lock();
        let mut set = || {
            if let Some(size) = size {
                disk.content(node)?.set_length(length(size)?);
            }
            let one = disk.node_mut(node)?;
            one.mode = mode.unwrap_or(one.mode);
            one.owner = (uid.unwrap_or(one.owner.0), gid.unwrap_or(one.owner.1));
            one.modified = now();
            attributes(&disk, node)
        };
        match set() {
            Ok(found) => reply.attr(&NO_TIME, &found),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn mkdir(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let kind = Kind::Directory(Directory::default());
        match self.make(request, parent, name, mode & !umask, kind) {
            Ok(made) => reply.entry(&NO_TIME, &made, 0),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn create(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let kind = Kind::File(Content::default());
        match self.make(request, parent, name, mode & !umask, kind) {
            Ok(made) => reply.created(&NO_TIME, &made, 0, 0, 0),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn unlink(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        match self.shared.disk.lock().unlink(parent, name, false) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn rmdir(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        match self.shared.disk.lock().unlink(parent, name, true) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn rename(
        &mut self,
        _: &Request<'_>,
        parent: u64,
        name: &OsStr,
        to: u64,
        to_name: &OsStr,
        flags: u32,
        reply: ReplyEmpty,
    ) {
        if flags & !RENAME_NOREPLACE != 0 {
            return reply.error(Errno::INVAL.raw_os_error());
        }
        let mut disk = self.shared.disk.lock();
        match disk.rename((parent, name), (to, to_name), flags == 0) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn link(&mut self, _: &Request<'_>, node: u64, to: u64, name: &OsStr, reply: ReplyEntry) {
        let mut disk = self.shared.disk.lock();
        match disk
            .link(node, to, name)
            .and_then(|()| attributes(&disk, node))
        {
            Ok(made) => reply.entry(&NO_TIME, &made, 0),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn open(&mut self, _: &Request<'_>, node: u64, _: i32, reply: ReplyOpen) {
        // Without a flag to keep them, the kernel drops the pages that it had of the file.
        match self.shared.disk.lock().node(node) {
            Ok(_) => reply.opened(0, 0),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        node: u64,
        _: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        if self.read_fails() {
            return reply.error(Errno::IO.raw_os_error());
        }
        let mut disk = self.shared.disk.lock();
        let at = place(offset).and_then(|offset| Ok((offset, disk.content(node)?)));
        match at {
            Ok((offset, content)) => reply.data(content.read(offset, size as usize)),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        node: u64,
        _: u64,
        offset: i64,
        data: &[u8],
        _: u32,
        flags: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        let mut disk = self.shared.disk.lock();
        let mut write = || {
            let offset = place(offset)?;
            length((offset + data.len()) as u64)?;
            disk.content(node)?.write(offset, data);
            if flags & O_DSYNC != 0 {
                disk.sync(node)?;
            }
            Ok(())
        };
        match write() {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(Errno::raw_os_error(error)),
        }
    }

    fn flush(&mut self, _: &Request<'_>, _: u64, _: u64, _: u64, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&mut self, _: &Request<'_>, node: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(node, reply);
    }

    fn fsyncdir(&mut self, _: &Request<'_>, node: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.sync(node, reply);
    }

    fn fallocate(
        &mut self,
        _: &Request<'_>,
        node: u64,
        _: u64,
        offset: i64,
        size: i64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mut disk = self.shared.disk.lock();
        let mut allocate = || {
            let (offset, size) = (place(offset)?, place(size)?);
            let end = length((offset + size) as u64)?;
            let known = FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE;
            if mode & !known != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            let content = disk.content(node)?;
            if mode & FALLOC_KEEP_SIZE == 0 && end > content.live.len() {
                content.set_length(end);
            }
            if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE) != 0 {
                content.zero(offset, end);
            }
            Ok(())
        };
        match allocate() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn opendir(&mut self, _: &Request<'_>, node: u64, _: i32, reply: ReplyOpen) {
        match self.list(node) {
            Ok(list) => {
                self.last_list += 1;
                self.lists.insert(self.last_list, list);
                reply.opened(self.last_list, 0);
            }
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn readdir(
        &mut self,
        _: &Request<'_>,
        _: u64,
        list: u64,
        offset: i64,
        mut reply: ReplyDirectory,
    ) {
        if let Err(error) = self.shared.disk.lock().powered() {
            return reply.error(error.raw_os_error());
        }
        let list = self.lists.get(&list).map_or(&[][..], Vec::as_slice);
        let passed = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (node, kind, name)) in (1..).zip(list).skip(passed) {
            if reply.add(*node, next, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&mut self, _: &Request<'_>, _: u64, list: u64, _: i32, reply: ReplyEmpty) {
        self.lists.remove(&list);
        reply.ok();
    }

    fn statfs(&mut self, _: &Request<'_>, _: u64, reply: ReplyStatfs) {
        // A terabyte, most of it free.
        let blocks = 1 << 28;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4_096, 255, 4_096);
    }
}
