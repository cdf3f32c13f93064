//! Those that are asked.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{KeyedTimer, Move, Timer};
use countwheel_durable::store::{Filter, MemoryStore};
use countwheel_durable::{
    self as durable, Attempt, Config, DrainMode, Due, Outcome, Precondition, QueueName, Request,
    RetryPolicy, SetOptions, TimerError, TimerName, Timers, Was,
};
use countwheel_server::client::{Answer, Client, ClientError, NewTimer};
use countwheel_time::{By, Clock, SystemClock, Timestamp};
use hyper::Method;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::receiver::{Gate, Receiver};
use super::words::{HOUR, NO_REVISION, after};
use super::{Delivery, Do, Mode, Revision, Say};
use crate::support::{Directory, Server, program};

pub(crate) trait Speaker {
    fn name(&self) -> &'static str;
    /// Whether the verb is one of its own, and the answer one that it can give.
    fn knows(&self, what: Do, say: &Say) -> bool;
    /// A sentence begins: its timers are in this queue.
    fn begin(&mut self, queue: &str);
    fn ask(&mut self, what: Do) -> Say;
    /// The state of a timer.
    fn state(&mut self, key: &str) -> String;
}

fn hours(span: i64) -> Duration {
    HOUR * u32::try_from(span.unsigned_abs()).unwrap()
}

fn by(span: i64) -> By {
    if span < 0 {
        By::Sooner(hours(span))
    } else {
        By::Later(hours(span))
    }
}

/// One attempt, and no retry.
fn once() -> RetryPolicy {
    RetryPolicy::fixed(Duration::from_secs(1)).max_retries(0)
}

fn drain_mode(mode: Mode) -> DrainMode {
    match mode {
        Mode::Fire => DrainMode::Fire { until: None },
        Mode::Hold => DrainMode::Hold,
        Mode::Remove => DrainMode::Remove,
    }
}

/// Keyed timers in a process.
pub(crate) struct Keyed {
    timers: KeyedTimer<String, ()>,
    fired: Arc<Mutex<BTreeSet<String>>>,
    start: countwheel::Instant,
}

impl Keyed {
    pub(crate) fn new() -> Self {
        let fired = Arc::<Mutex<BTreeSet<String>>>::default();
        let note = Arc::clone(&fired);
        let timers = KeyedTimer::new(Timer::new(), move |key: String, ()| {
            note.lock().insert(key);
        });
        let start = timers.timer().now();
        Self {
            timers,
            fired,
            start,
        }
    }

    fn moved(answer: Move) -> Say {
        match answer {
            Move::Moved => Say::MovedSomewhere,
            Move::Absent => Say::No("not_found".to_owned()),
            other => panic!("{other:?}"),
        }
    }
}

impl Speaker for Keyed {
    fn name(&self) -> &'static str {
        "a keyed timer"
    }

    fn knows(&self, what: Do, say: &Say) -> bool {
        let is_verb = match what {
            Do::Set(_, _, Delivery::Done)
            | Do::SetNew(..)
            | Do::MoveTo(..)
            | Do::MoveBy(..)
            | Do::Remove(_)
            | Do::Get(_)
            | Do::List
            | Do::Fire(_)
            | Do::Drain(Mode::Remove) => true,
            Do::Await(_, state) => state == "done",
            _ => false,
        };
        // What has fired is forgotten.
        let is_known = match say {
            Say::No(code) => code == "not_found" || code == "exists",
            Say::Set(state) => state.as_deref().is_none_or(|state| state == "pending"),
            _ => true,
        };
        is_verb && is_known
    }

    fn begin(&mut self, _queue: &str) {
        drop(self.timers.drain());
        self.fired.lock().clear();
        self.start = self.timers.timer().now();
    }

    fn ask(&mut self, what: Do) -> Say {
        let timers = &self.timers;
        let found = |removed: Option<()>, say: Say| match removed {
            Some(()) => say,
            None => Say::No("not_found".to_owned()),
        };
        match what {
            Do::Set(key, due, _) => {
                let old = timers.set(key.to_owned(), (), hours(due)).unwrap();
                Say::Set(old.map(|()| "pending".to_owned()))
            }
            Do::SetNew(key, due) => match timers.set_if_absent(key.to_owned(), (), hours(due)) {
                Ok(()) => Say::Set(None),
                Err(_) => Say::No("exists".to_owned()),
            },
            Do::MoveTo(key, due) => Self::moved(timers.move_to(key, hours(due))),
            Do::MoveBy(key, span) => Self::moved(timers.move_by(key, by(span))),
            Do::Remove(key) => found(timers.remove(key), Say::Was("pending".to_owned())),
            Do::Get(key) => match timers.deadline(key) {
                None => Say::No("not_found".to_owned()),
                Some(deadline) => {
                    let span = deadline.saturating_since(self.start) + HOUR / 2;
                    let hours = i64::try_from(span.as_secs() / HOUR.as_secs()).unwrap();
                    Say::Is("pending".to_owned(), hours)
                }
            },
            Do::List => {
                let mut all = timers.deadlines();
                all.sort_by_key(|(_, deadline)| *deadline);
                Say::Keys(all.into_iter().map(|(key, _)| key).collect())
            }
            Do::Fire(key) => Self::moved(timers.fire(key)),
            Do::Drain(Mode::Remove) => {
                let taken = timers.drain().into_iter();
                let keys: BTreeSet<_> = taken.map(|entry| entry.key).collect();
                Say::Drained(keys.into_iter().collect(), [0; 3])
            }
            other => panic!("a keyed timer has no {other:?}"),
        }
    }

    fn state(&mut self, key: &str) -> String {
        let fired = self.fired.lock().contains(key);
        (if fired { "done" } else { "pending" }).to_owned()
    }
}

/// Durable timers.
pub(crate) struct Durable {
    timers: Timers,
    gate: Gate,
    queue: QueueName,
    start: Timestamp,
    revision: durable::Revision,
}

impl Durable {
    pub(crate) fn new() -> Self {
        let gate = Gate::default();
        let held = gate.clone();
        let handler = move |attempt: &Attempt| match attempt.payload.as_slice() {
            b"fails" => Outcome::failed("as told"),
            b"hangs" => {
                held.wait();
                Outcome::done()
            }
            _ => Outcome::done(),
        };
        let clock = Arc::new(SystemClock::new());
        let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default());
        Self {
            timers: timers.unwrap(),
            gate,
            queue: QueueName::new("none").unwrap(),
            start: Timestamp::EPOCH,
            revision: durable::Revision(0),
        }
    }

    fn timer(&self, key: &str) -> TimerName {
        TimerName::new(self.queue.name(), key).unwrap()
    }

    fn set(
        &mut self,
        key: &str,
        due: i64,
        how: Delivery,
        precondition: Precondition,
    ) -> Result<Say, TimerError> {
        let answer = self.timers.call(Request::Set {
            name: self.timer(key),
            due: Due::In(hours(due)),
            policy: once(),
            payload: how.name().into(),
            precondition,
            options: SetOptions::default(),
        })?;
        let set = durable::Set::try_from(answer).unwrap();
        self.revision = set.revision;
        Ok(Say::Set(set.replaced.map(|state| state.to_string())))
    }

    fn moved(&mut self, moved: durable::Moved) -> Say {
        self.revision = moved.revision;
        let after = |at| after(self.start, at);
        Say::Moved(after(moved.old_due), after(moved.due))
    }

    fn revision(&self, which: Revision) -> Precondition {
        Precondition::Revision(match which {
            Revision::Last => self.revision,
            Revision::Wrong => durable::Revision(NO_REVISION),
        })
    }

    fn remove(
        &self,
        key: &str,
        precondition: Precondition,
        only_pending: bool,
    ) -> Result<Say, TimerError> {
        let answer = self.timers.call(Request::Remove {
            name: self.timer(key),
            precondition,
            only_pending,
        })?;
        Ok(was(Was::try_from(answer).unwrap()))
    }

    fn drain(&self, queue: Option<&QueueName>, mode: Mode) -> Result<Say, TimerError> {
        let mode = drain_mode(mode);
        let drained = self.timers.drain(queue, mode)?;
        let keys: BTreeSet<_> = drained
            .removed
            .iter()
            .map(|it| it.name.key.to_string())
            .collect();
        let left = drained.left;
        Ok(Say::Drained(
            keys.into_iter().collect(),
            [left.pending, left.delivering, left.dead],
        ))
    }

    fn try_ask(&mut self, what: Do) -> Result<Say, TimerError> {
        Ok(match what {
            Do::Set(key, due, Delivery::Done) => {
                // As a program sets it; the others name what must hold.
                let set = self
                    .timers
                    .set_with(self.timer(key), hours(due), once(), "done")?;
                self.revision = set.revision;
                Say::Set(set.replaced.map(|state| state.to_string()))
            }
            Do::Set(key, due, how) => self.set(key, due, how, Precondition::None)?,
            Do::SetNew(key, due) => self.set(key, due, Delivery::Done, Precondition::Absent)?,
            Do::SetIf(key, due, which) => {
                let revision = self.revision(which);
                self.set(key, due, Delivery::Done, revision)?
            }
            Do::MoveTo(key, due) => {
                let moved = self.timers.move_to(self.timer(key), hours(due))?;
                self.moved(moved)
            }
            Do::MoveBy(key, span) => {
                let moved = self.timers.move_by(self.timer(key), by(span))?;
                self.moved(moved)
            }
            Do::MoveIf(key, due, which) => {
                let answer = self.timers.call(Request::Move {
                    name: self.timer(key),
                    shift: durable::Shift::To(Due::In(hours(due))),
                    precondition: self.revision(which),
                })?;
                self.moved(durable::Moved::try_from(answer).unwrap())
            }
            Do::Remove(key) => was(self.timers.remove(self.timer(key))?),
            Do::RemoveIf(key, which) => self.remove(key, self.revision(which), false)?,
            Do::RemovePending(key) => self.remove(key, Precondition::None, true)?,
            Do::Get(key) => {
                let record = self.timers.get(self.timer(key))?;
                let record = record.ok_or(TimerError::NotFound)?;
                Say::Is(
                    record.state.kind().to_string(),
                    after(self.start, record.due),
                )
            }
            Do::List => {
                let page = self.timers.page(&Filter::queue(self.queue.clone()), None)?;
                let keys = page.records.iter().map(|it| it.name.key.to_string());
                Say::Keys(keys.collect())
            }
            Do::Fire(key) => {
                let moved = self.timers.fire(self.timer(key))?;
                self.moved(moved)
            }
            Do::Revive(key, due) => {
                let moved = self.timers.revive(self.timer(key), hours(due))?;
                self.moved(moved)
            }
            Do::Drain(mode) => self.drain(Some(&self.queue), mode)?,
            Do::DrainAll(mode) => {
                self.drain(None, mode)?;
                Say::Done
            }
            Do::Resume => resumed(self.timers.resume(Some(&self.queue))?),
            Do::ResumeAll => resumed(self.timers.resume(None)?),
            Do::Release => {
                self.gate.release();
                Say::Done
            }
            Do::Await(..) => unreachable!("whoever asks waits"),
        })
    }
}

fn was(was: Was) -> Say {
    let state = match was {
        Was::Pending { .. } => "pending",
        Was::Delivering { .. } => "delivering",
        Was::Dead => "dead",
        Was::Unreadable => "unreadable",
    };
    Say::Was(state.to_owned())
}

fn resumed(mode: Option<DrainMode>) -> Say {
    Say::Resumed(mode.map(|mode| mode.to_string()))
}

impl Speaker for Durable {
    fn name(&self) -> &'static str {
        "durable timers"
    }

    fn knows(&self, _: Do, _: &Say) -> bool {
        true
    }

    fn begin(&mut self, queue: &str) {
        self.queue = QueueName::new(queue).unwrap();
        self.start = SystemClock::new().timestamp();
    }

    fn ask(&mut self, what: Do) -> Say {
        self.try_ask(what).unwrap_or_else(|error| {
            Say::No(
                match error {
                    TimerError::NotFound => "not_found",
                    TimerError::Gone { .. } => "gone",
                    TimerError::Conflict { .. } => "conflict",
                    TimerError::Changed { .. } => "revision_mismatch",
                    TimerError::Exists { .. } => "exists",
                    TimerError::Draining { .. } => "draining",
                    other => panic!("{other:?}"),
                }
                .to_owned(),
            )
        })
    }

    fn state(&mut self, key: &str) -> String {
        let record = self.timers.get(self.timer(key)).unwrap();
        record.map_or("gone".to_owned(), |it| it.state.kind().to_string())
    }
}

/// The client and the commands, each with a server of its own.
pub(crate) fn over_http() -> Vec<Box<dyn Speaker>> {
    let service = || {
        let directory = Directory::new();
        let servers = vec![Server::start(&directory.0.join("data"))];
        Bench {
            _directory: Some(directory),
            ..Bench::of(servers)
        }
    };
    vec![client(service()), commands(service())]
}

/// The client of a service of several servers, each of which is asked in its turn.
pub(crate) fn client_of(servers: Vec<Server>) -> Box<dyn Speaker> {
    client(Bench::of(servers))
}

/// The same of the commands.
pub(crate) fn commands_of(servers: Vec<Server>) -> Box<dyn Speaker> {
    commands(Bench::of(servers))
}

fn client(bench: Bench) -> Box<dyn Speaker> {
    let urls = bench.servers.iter();
    let urls = urls.map(|server| format!("http://{}", server.address));
    Box::new(OverClient {
        clients: urls.map(|url| Client::new(&url, None).unwrap()).collect(),
        bench,
        runtime: Runtime::new().unwrap(),
    })
}

fn commands(bench: Bench) -> Box<dyn Speaker> {
    Box::new(Commands { bench })
}

/// Servers that are one service, and what that delivers to.
struct Bench {
    servers: Vec<Server>,
    /// Which of them is asked next.
    turn: Cell<usize>,
    _directory: Option<Directory>,
    receiver: Receiver,
    queue: String,
    start: Timestamp,
    revision: u64,
}

impl Bench {
    fn of(servers: Vec<Server>) -> Self {
        Self {
            servers,
            turn: Cell::new(0),
            _directory: None,
            receiver: Receiver::start(),
            queue: String::new(),
            start: Timestamp::EPOCH,
            revision: 0,
        }
    }

    /// Which server is asked.
    fn turn(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.servers.len());
        turn
    }

    fn begin(&mut self, queue: &str) {
        queue.clone_into(&mut self.queue);
        self.start = SystemClock::new().timestamp();
    }

    fn revision(&self, which: Revision) -> u64 {
        match which {
            Revision::Last => self.revision,
            Revision::Wrong => NO_REVISION,
        }
    }

    fn url(&self, how: Delivery) -> String {
        format!("{}/{}", self.receiver.url, how.name())
    }

    /// What an answer in JSON says: the same for the client and for the commands.
    fn heard(&mut self, what: Do, answer: &Value) -> Say {
        if let Some(revision) = answer["revision"].as_u64() {
            self.revision = revision;
        }
        Say::of(what, answer, self.start)
    }
}

/// The client of the HTTP API.
struct OverClient {
    bench: Bench,
    clients: Vec<Client>,
    runtime: Runtime,
}

impl OverClient {
    fn client(&self) -> &Client {
        &self.clients[self.bench.turn()]
    }

    fn try_ask(&self, what: Do) -> Result<String, ClientError> {
        let (client, queue) = (self.client(), self.bench.queue.as_str());
        let revision =
            |which| Precondition::Revision(durable::Revision(self.bench.revision(which)));
        let timer = |due, how| NewTimer {
            method: Method::POST,
            due: Due::In(hours(due)),
            options: SetOptions::default(),
            endpoint: None,
            url: self.bench.url(how),
            headers: std::collections::BTreeMap::new(),
            timeout: None,
            body: None,
            content_type: None,
            retry: Some(once()),
            tags: Vec::new(),
        };
        let due = |hour| Due::In(hours(hour));
        let (done, free) = (Delivery::Done, Precondition::None);
        self.runtime.block_on(async {
            Ok(match what {
                Do::Set(key, at, how) => json(client.set(queue, key, &timer(at, how), free).await?),
                Do::SetNew(key, at) => {
                    let absent = Precondition::Absent;
                    json(client.set(queue, key, &timer(at, done), absent).await?)
                }
                Do::SetIf(key, at, which) => json(
                    client
                        .set(queue, key, &timer(at, done), revision(which))
                        .await?,
                ),
                Do::MoveTo(key, at) => json(client.move_to(queue, key, due(at), free).await?),
                Do::MoveBy(key, span) => json(client.move_by(queue, key, by(span), free).await?),
                Do::MoveIf(key, at, which) => {
                    json(client.move_to(queue, key, due(at), revision(which)).await?)
                }
                Do::Remove(key) => json(client.remove(queue, key, false, free).await?),
                Do::RemoveIf(key, which) => {
                    json(client.remove(queue, key, false, revision(which)).await?)
                }
                Do::RemovePending(key) => json(client.remove(queue, key, true, free).await?),
                Do::Get(key) => json(client.get(queue, key).await?),
                Do::List => {
                    let filter = countwheel_server::client::Filter::default();
                    json(client.list(queue, &filter, 100, None).await?)
                }
                Do::Fire(key) => json(client.fire(queue, key).await?),
                Do::Revive(key, at) => json(client.revive(queue, key, Some(due(at))).await?),
                Do::Drain(how) => json(client.drain(Some(queue), drain_mode(how)).await?),
                Do::DrainAll(how) => json(client.drain(None, drain_mode(how)).await?),
                Do::Resume => json(client.resume(Some(queue)).await?),
                Do::ResumeAll => json(client.resume(None).await?),
                Do::Release => {
                    self.bench.receiver.gate.release();
                    "null".to_owned()
                }
                Do::Await(..) => unreachable!("whoever asks waits"),
            })
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an answer is read once")]
fn json<T>(answer: Answer<T>) -> String {
    answer.json()
}

impl Speaker for OverClient {
    fn name(&self) -> &'static str {
        "the client"
    }

    fn knows(&self, _: Do, _: &Say) -> bool {
        true
    }

    fn begin(&mut self, queue: &str) {
        self.bench.begin(queue);
    }

    fn ask(&mut self, what: Do) -> Say {
        match self.try_ask(what) {
            Ok(answer) => self
                .bench
                .heard(what, &serde_json::from_str(&answer).unwrap()),
            Err(error) => Say::No(
                error
                    .problem()
                    .unwrap_or_else(|| panic!("{error}"))
                    .code
                    .clone(),
            ),
        }
    }

    fn state(&mut self, key: &str) -> String {
        let timer = self
            .runtime
            .block_on(self.client().get(&self.bench.queue, key));
        timer.map_or("gone".to_owned(), |timer| timer.value.state.to_string())
    }
}

/// The commands.
struct Commands {
    bench: Bench,
}

impl Commands {
    fn run(&self, arguments: &[String]) -> Output {
        let mut command = program();
        let server = &self.bench.servers[self.bench.turn()];
        let server = format!("http://{}", server.address);
        command
            .args(arguments)
            .args(["--json", "--server", &server]);
        command.args(["--queue", &self.bench.queue]);
        command.output().unwrap()
    }

    fn arguments(&self, what: Do) -> Vec<String> {
        let bench = &self.bench;
        let set = |key: &str, at: i64, how| {
            format!(
                "set {key} --in {at}h --post {} --retry fixed:1s --max-attempts 1",
                bench.url(how)
            )
        };
        let done = Delivery::Done;
        let line = match what {
            Do::Set(key, at, how) => set(key, at, how),
            Do::SetNew(key, at) => set(key, at, done) + " --if-absent",
            Do::SetIf(key, at, which) => {
                set(key, at, done) + &format!(" --if-revision {}", bench.revision(which))
            }
            Do::MoveTo(key, at) => format!("move {key} --in {at}h"),
            Do::MoveBy(key, span) => format!("move {key} --by {span}h"),
            Do::MoveIf(key, at, which) => {
                format!(
                    "move {key} --in {at}h --if-revision {}",
                    bench.revision(which)
                )
            }
            Do::Remove(key) => format!("remove {key}"),
            Do::RemoveIf(key, which) => {
                format!("remove {key} --if-revision {}", bench.revision(which))
            }
            Do::RemovePending(key) => format!("remove {key} --only-pending"),
            Do::Get(key) => format!("get {key}"),
            Do::List => "list".to_owned(),
            Do::Fire(key) => format!("fire {key}"),
            Do::Revive(key, at) => format!("revive {key} --in {at}h"),
            Do::Drain(how) => format!("drain --mode {}", how.name()),
            Do::DrainAll(how) => format!("drain --all --mode {}", how.name()),
            Do::Resume => "resume".to_owned(),
            Do::ResumeAll => "resume --all".to_owned(),
            Do::Await(..) | Do::Release => unreachable!("that is no command"),
        };
        line.split(' ').map(str::to_owned).collect()
    }

    /// What a command printed, as the API answers.
    fn answer(what: Do, output: &Output) -> Value {
        let out = std::str::from_utf8(&output.stdout).unwrap();
        let lines: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        match what {
            Do::List => serde_json::json!({ "items": lines }),
            Do::Drain(Mode::Remove) => {
                // The timers alone are on standard output; the rest is told to people.
                let told = std::str::from_utf8(&output.stderr).unwrap();
                let (_, left) = told.split_once("left: ").unwrap();
                let numbers = left.split(|it: char| !it.is_ascii_digit());
                let left: Vec<u64> = numbers.filter_map(|it| it.parse().ok()).collect();
                serde_json::json!({
                    "removed": lines,
                    "left": { "pending": left[0], "delivering": left[1], "dead": left[2] },
                })
            }
            _ => lines.into_iter().next().unwrap_or_default(),
        }
    }
}

impl Speaker for Commands {
    fn name(&self) -> &'static str {
        "the commands"
    }

    fn knows(&self, _: Do, _: &Say) -> bool {
        true
    }

    fn begin(&mut self, queue: &str) {
        self.bench.begin(queue);
    }

    fn ask(&mut self, what: Do) -> Say {
        if what == Do::Release {
            self.bench.receiver.gate.release();
            return Say::Done;
        }
        let output = self.run(&self.arguments(what));
        if output.status.success() {
            let answer = Self::answer(what, &output);
            return self.bench.heard(what, &answer);
        }
        let told = String::from_utf8(output.stderr).unwrap();
        let code = told
            .trim_end()
            .rsplit_once('(')
            .map(|(_, code)| code.trim_end_matches(')'));
        Say::No(code.unwrap_or_else(|| panic!("{told}")).to_owned())
    }

    fn state(&mut self, key: &str) -> String {
        let output = self.run(&["get".to_owned(), key.to_owned()]);
        if !output.status.success() {
            return "gone".to_owned();
        }
        let timer: Value = serde_json::from_slice(&output.stdout).unwrap();
        timer["state"].as_str().unwrap().to_owned()
    }
}
