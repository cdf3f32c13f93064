//! beanstalkd: the existing service, as Debian has it, over loopback.

use std::fs::{read, read_to_string};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Found, Peer, Visit};
use crate::item::{Item, KEY_BYTES, Op, PAYLOAD_BYTES};
use crate::stopwatch::{Stopwatch, pause};
use crate::traffic::FIRST_DUE_MS;

const PROGRAM: &str = "beanstalkd";
/// Where the id of the daemon's process is, for who has to end it.
const PID_FILE: &str = "beanstalkd.pid";
const BODY_BYTES: usize = KEY_BYTES + PAYLOAD_BYTES;
/// Far from now in any case; the order is that of the deadlines.
const DELAY_SECONDS: u64 = 10_000_000;
/// It reads its whole log before it listens.
const OPEN_SECONDS: f64 = 300.0;

pub(crate) struct Beanstalkd {
    directory: PathBuf,
    daemon: Child,
    connection: BufReader<TcpStream>,
    /// Its ids of our timers, by stream and number.
    ids: [Vec<u64>; 2],
    buffer: Vec<u8>,
}

/// Why it cannot be measured here.
pub(crate) fn missing() -> Option<String> {
    let version = Command::new(PROGRAM).arg("-v").output();
    let works = version.is_ok_and(|output| output.status.success());
    (!works).then(|| "beanstalkd is not installed".to_owned())
}

/// Ends the daemon that was started in `directory`, at once, if it still runs.
pub(crate) fn stop_daemon_of(directory: &Path) {
    let Ok(text) = read_to_string(directory.join(PID_FILE)) else {
        return;
    };
    let name = read_to_string(format!("/proc/{}/comm", text.trim()));
    // Another process may have the number by now.
    if name.is_ok_and(|name| name.trim() == PROGRAM) {
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::KILL).unwrap_or_default();
        }
        while read_to_string(format!("/proc/{}/comm", text.trim()))
            .is_ok_and(|name| name.trim() == PROGRAM && is_running(text.trim()))
        {
            pause(Duration::from_millis(1));
        }
    }
}

/// Not ended and waiting to be noticed.
fn is_running(pid: &str) -> bool {
    let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default();
    !state.trim_start().starts_with(['Z', 'X']) && !state.is_empty()
}

impl Beanstalkd {
    pub(crate) fn open(directory: &Path, loading: bool) -> anyhow::Result<Self> {
        let log = directory.join("binlog");
        std::fs::create_dir_all(&log)?;
        // The next one to ask gets another port, and so does the daemon get this one.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut daemon = Command::new(PROGRAM)
            .args(["-l", "127.0.0.1", "-p", &port.to_string()])
            .arg("-b")
            .arg(&log)
            .arg(if loading { "-f50" } else { "-f0" })
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("beanstalkd does not start")?;
        std::fs::write(directory.join(PID_FILE), daemon.id().to_string())?;
        let watch = Stopwatch::start();
        let connection = loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                Ok(connection) => break connection,
                Err(error) if watch.seconds() > OPEN_SECONDS => return Err(error.into()),
                Err(_) => pause(Duration::from_millis(1)),
            }
            ensure!(daemon.try_wait()?.is_none(), "beanstalkd ended by itself");
        };
        connection.set_nodelay(true)?;
        let ids = [0, 1].map(|tag| read_ids(&directory.join(format!("ids-{tag}"))));
        Ok(Self {
            directory: directory.to_owned(),
            daemon,
            connection: BufReader::new(connection),
            ids,
            buffer: Vec::new(),
        })
    }

    fn id_of(&self, item: Item) -> Option<u64> {
        let (tag, number) = places(item).ok()?;
        self.ids[tag].get(number).copied()
    }

    fn reply(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.connection.read_line(&mut line)?;
        ensure!(line.ends_with("\r\n"), "beanstalkd closed the connection");
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn body(&mut self, bytes: usize) -> anyhow::Result<Vec<u8>> {
        let mut body = vec![0; bytes + 2];
        self.connection.read_exact(&mut body)?;
        body.truncate(bytes);
        Ok(body)
    }

    fn write(&mut self, op: Op) -> anyhow::Result<()> {
        match op {
            Op::Insert(item) => {
                let delay = DELAY_SECONDS + (item.due_ms - FIRST_DUE_MS) / 1_000;
                write!(self.buffer, "put 0 {delay} 60 {BODY_BYTES}\r\n")?;
                self.buffer.extend_from_slice(&item.key());
                self.buffer.extend_from_slice(&item.payload());
                self.buffer.extend_from_slice(b"\r\n");
            }
            Op::Deliver(item) | Op::Remove(item) => {
                let id = self.id_of(item).context("a timer without an id")?;
                write!(self.buffer, "delete {id}\r\n")?;
            }
            Op::Move(_) => bail!("beanstalkd cannot move what is delayed"),
        }
        Ok(())
    }

    fn confirm(&mut self, op: Op) -> anyhow::Result<()> {
        let reply = self.reply()?;
        match (op, reply.split_once(' ')) {
            (Op::Insert(item), Some(("INSERTED", id))) => {
                let (tag, number) = places(item)?;
                let ids = &mut self.ids[tag];
                if ids.len() <= number {
                    ids.resize(number + 1, 0);
                }
                ids[number] = id.parse()?;
                Ok(())
            }
            (Op::Deliver(_) | Op::Remove(_), None) if reply == "DELETED" => Ok(()),
            _ => bail!("beanstalkd answered {reply}"),
        }
    }
}

/// The stream and the number in it that the id was made of.
fn places(item: Item) -> anyhow::Result<(usize, usize)> {
    Ok((
        usize::try_from(item.id & 1)?,
        usize::try_from(item.id >> 1)?,
    ))
}

fn read_ids(path: &Path) -> Vec<u64> {
    let bytes = read(path).unwrap_or_default();
    let (whole, _) = bytes.as_chunks::<8>();
    whole.iter().map(|id| u64::from_le_bytes(*id)).collect()
}

/// The sum of all jobs, from the answer to `stats`.
fn jobs_in(stats: &str) -> u64 {
    let of_kind = |line: &str| {
        let (name, count) = line.split_once(':')?;
        let kinds = ["ready", "reserved", "delayed", "buried"];
        let kind = name.strip_prefix("current-jobs-")?;
        kinds
            .contains(&kind)
            .then(|| count.trim().parse::<u64>().ok())?
    };
    stats.lines().filter_map(of_kind).sum()
}

impl Peer for Beanstalkd {
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()> {
        self.buffer.clear();
        for op in ops {
            self.write(*op)?;
        }
        // Written while the answers are read: else both sides could wait for the other to read.
        let mut out = self.connection.get_ref().try_clone()?;
        let commands = std::mem::take(&mut self.buffer);
        let confirmed = if commands.len() < 1 << 14 {
            out.write_all(&commands)?;
            ops.iter().try_for_each(|op| self.confirm(*op))
        } else {
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| out.write_all(&commands));
                let confirmed = ops.iter().try_for_each(|op| self.confirm(*op));
                match writer.join() {
                    Ok(written) => written?,
                    Err(_) => bail!("the writer panicked"),
                }
                confirmed
            })
        };
        self.buffer = commands;
        confirmed
    }

    fn get(&mut self, item: Item) -> anyhow::Result<Option<Found>> {
        let Some(id) = self.id_of(item) else {
            return Ok(None);
        };
        write!(self.connection.get_mut(), "peek {id}\r\n")?;
        let reply = self.reply()?;
        if reply == "NOT_FOUND" {
            return Ok(None);
        }
        let bytes = reply
            .strip_prefix("FOUND ")
            .and_then(|rest| rest.rsplit(' ').next());
        let bytes = bytes.with_context(|| format!("beanstalkd answered {reply}"))?;
        let body = self.body(bytes.parse()?)?;
        let (key, payload) = body.split_at_checked(KEY_BYTES).context("a short job")?;
        ensure!(*key == item.key(), "an id leads to another job");
        Ok(Some(Found {
            due_ms: None,
            payload: payload.to_vec(),
        }))
    }

    fn scan(&mut self, _: u64, _: Visit<'_>) -> anyhow::Result<()> {
        bail!("beanstalkd gives no order")
    }

    fn count(&mut self) -> anyhow::Result<u64> {
        self.connection.get_mut().write_all(b"stats\r\n")?;
        let reply = self.reply()?;
        let bytes = reply.strip_prefix("OK ").context("no answer to stats")?;
        let stats = self.body(bytes.parse()?)?;
        Ok(jobs_in(&String::from_utf8_lossy(&stats)))
    }

    fn process(&self) -> u32 {
        self.daemon.id()
    }

    fn remember(&mut self) -> anyhow::Result<()> {
        for (tag, ids) in self.ids.iter().enumerate() {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            std::fs::write(self.directory.join(format!("ids-{tag}")), bytes)?;
        }
        Ok(())
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.daemon.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            kill_process(pid, Signal::TERM).unwrap_or_default();
        }
        if let Err(error) = self.daemon.wait() {
            eprintln!("beanstalkd does not end: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_jobs_are_counted_and_nothing_else() {
        let stats = "---\ncurrent-jobs-urgent: 9\ncurrent-jobs-ready: 1\n\
                     current-jobs-reserved: 2\ncurrent-jobs-delayed: 30\n\
                     current-jobs-buried: 400\ntotal-jobs: 5000\n";
        assert_eq!(jobs_in(stats), 433);
        assert_eq!(jobs_in("---\n"), 0);
    }
}
