//! Nodes of one cluster, each a process of this program, and load on all of them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use countwheel_postgres::PostgresOptions;
use countwheel_time::{Clock as _, SystemClock};

use crate::node::{Kind, Names, Said, Told, Work};
use crate::ours::SHARDS;
use crate::{Bench, processor, rate, wait};

/// Callers of all nodes together.
const CALLERS: usize = 4;
/// How long the nodes may take to share the shards.
const SETTLES_WITHIN: Duration = Duration::from_secs(90);
/// How often it is looked at what they say.
const LOOKED_EVERY: Duration = Duration::from_millis(10);

/// How many nodes, and how each is.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) nodes: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) receivers_take: Duration,
    /// Lives that were asked for and have not ended, on all nodes together.
    pub(crate) ahead: u64,
}

/// What all nodes together did.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    pub(crate) per_second: f64,
    /// In a second of a processor, of all nodes and the server: who else uses the machine changes it little.
    pub(crate) per_processor_second: f64,
    /// Of the sets that their callers had asked for until then, those that went to another node.
    pub(crate) forwarded: f64,
}

pub(crate) struct Nodes {
    processes: Vec<Process>,
    ahead: u64,
    postmaster: u32,
    clock: SystemClock,
}

struct Process {
    child: Child,
    input: ChildStdin,
    said: Arc<Mutex<Said>>,
}

/// The sum over all nodes.
#[derive(Clone, Copy, Default)]
struct Sum {
    asked_for: u64,
    set: u64,
    done: u64,
    sent: u64,
}

impl Nodes {
    /// Starts them, and waits until each has its share of the shards.
    pub(crate) fn start(
        bench: &Bench,
        options: &PostgresOptions,
        setup: Setup,
    ) -> anyhow::Result<Self> {
        let url = bench.server.url();
        let program = std::env::current_exe()?;
        let processes = (0..setup.nodes).map(|number| {
            let mut child = Command::new(&program)
                .args(["node", "--url", &url, "--schema", &options.schema])
                .args(["--name", &format!("n{number}")])
                .args(["--max-in-flight", &setup.max_in_flight.to_string()])
                .args(["--takes", &setup.receivers_take.as_millis().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = child.stdin.take().context("the pipe was asked for")?;
            let out = child.stdout.take().context("the pipe was asked for")?;
            let said = Arc::new(Mutex::new(Said::default()));
            let last = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if let Ok(line) = serde_json::from_str(&line) {
                        *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
                    }
                }
            });
            anyhow::Ok(Process { child, input, said })
        });
        let mut nodes = Self {
            processes: processes.collect::<Result<_, _>>()?,
            ahead: setup.ahead,
            postmaster: bench.postmaster()?,
            clock: bench.clock,
        };
        nodes.settle()?;
        Ok(nodes)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        let most = usize::from(SHARDS).div_ceil(self.processes.len());
        let until = self.clock.now() + SETTLES_WITHIN;
        loop {
            self.sum()?;
            let owned: Vec<_> = self.processes.iter().map(|it| it.said().owned).collect();
            let all: usize = owned.iter().sum();
            if all == usize::from(SHARDS) && owned.iter().all(|owned| *owned <= most) {
                return Ok(());
            }
            ensure!(
                self.clock.now() < until,
                "the nodes do not share the shards evenly: {owned:?}"
            );
            wait(self.clock, LOOKED_EVERY);
        }
    }

    /// How much they do, each asked by the same number of callers.
    pub(crate) fn rate(
        &mut self,
        kind: Kind,
        names: Names,
        span: Duration,
    ) -> anyhow::Result<Done> {
        let callers = CALLERS / self.processes.len();
        self.tell(&Told::Work(Work {
            kind,
            names,
            callers,
        }))?;
        self.go_on(span / 2)?;
        let (before, used_before) = (self.sum()?, self.used()?);
        let began = self.clock.now();
        self.go_on(span)?;
        let (after, used_after) = (self.sum()?, self.used()?);
        let took = self.clock.now().saturating_since(began);
        self.tell(&Told::Rest)?;
        ensure!(after.set > before.set, "nothing was set");
        let count = match kind {
            Kind::Sets => after.set - before.set,
            Kind::Lives => after.done - before.done,
        };
        let all = rate(after.asked_for, Duration::from_secs(1));
        Ok(Done {
            per_second: rate(count, took),
            per_processor_second: rate(count, used_after.saturating_sub(used_before)),
            forwarded: rate(after.sent, Duration::from_secs(1)) / all,
        })
    }

    /// What the server and all nodes have used of the processors.
    fn used(&self) -> anyhow::Result<Duration> {
        let mut all = processor::used_with_children(self.postmaster)?;
        for process in &self.processes {
            all += processor::used(process.child.id())?;
        }
        Ok(all)
    }

    /// Lets the callers work, and keeps as many lives under way as there may be.
    fn go_on(&mut self, span: Duration) -> anyhow::Result<()> {
        let until = self.clock.now() + span;
        while self.clock.now() < until {
            let sum = self.sum()?;
            let nodes = u64::try_from(self.processes.len())?;
            self.tell(&Told::Allow((sum.done + self.ahead) / nodes))?;
            let left = until.saturating_since(self.clock.now());
            wait(self.clock, LOOKED_EVERY.min(left));
        }
        Ok(())
    }

    fn tell(&mut self, told: &Told) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(told)?;
        line.push(b'\n');
        for process in &mut self.processes {
            process.input.write_all(&line)?;
        }
        Ok(())
    }

    fn sum(&mut self) -> anyhow::Result<Sum> {
        let mut sum = Sum::default();
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait()? {
                bail!("a node has ended: {status}");
            }
            let said = process.said();
            if let Some(why) = said.refused {
                bail!("a request was refused: {why}");
            }
            sum.asked_for += said.asked_for;
            sum.set += said.set;
            sum.done += said.done;
            sum.sent += said.sent;
        }
        Ok(sum)
    }
}

impl Process {
    fn said(&self) -> Said {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }
}

impl Drop for Process {
    /// At once: its tables go as well.
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("a node does not end: {error}");
        }
    }
}
