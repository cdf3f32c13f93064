//! A server to test, a caller that can say anything, and a receiver that says what it is
//! told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::described;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of its own for each test.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("it-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// The program, to be given arguments.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countwheel"));
    command
        .env_remove("COUNTWHEEL_TOKEN")
        .env_remove("CARGO")
        .env("http_proxy", "http://127.0.0.1:1")
        .env("HTTP_PROXY", "http://127.0.0.1:1");
    command
}

/// The program as somebody who may not do everything, and has `directory` for his own.
pub(crate) fn unprivileged(directory: &Path) -> Command {
    /// Nobody, on most systems.
    const NOBODY: u32 = 65_534;
    let mut command = program();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// What it said when it ended; `None` if it is ready instead, and has to be ended.
pub(crate) fn output_of_refusal(mut command: Command) -> Option<Output> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    if !ready.is_empty() {
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    child.wait_with_output().ok()
}

/// A running service.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// What it printed when it was ready.
    pub(crate) ready: String,
}

impl Server {
    /// Serves `data`, with deliveries to this machine allowed.
    pub(crate) fn start(data: &Path) -> Self {
        Self::with(data, &["--allow-private-targets"])
    }

    pub(crate) fn with(data: &Path, arguments: &[&str]) -> Self {
        let mut command = program();
        command
            .args([
                "serve",
                "--log-segment-mib",
                "1",
                "--listen",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data)
            .args(arguments);
        Self::spawn(command)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::inherit());
        Self::logging(command)
    }

    /// The same of a command that says where its log goes.
    pub(crate) fn logging(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !ready.contains("ready") {
            assert_ne!(out.read_line(&mut ready).unwrap(), 0, "it ended: {ready}");
        }
        // One that listens on sockets alone has no address.
        let address = ready.split_once("://").map_or("", |(_, address)| address);
        let address = address.split(['/', ' ', '\n']).next().unwrap().to_owned();
        Self {
            child,
            address,
            ready,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(&self.address)
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Asks it to stop and waits for its end.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// A caller on one connection, opened anew when the server closes it.
pub(crate) struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    /// Sent with every request.
    pub(crate) headers: Vec<(String, String)>,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn to(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            stream: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// Sends JSON.
    pub(crate) fn json(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let json = [("content-type", "application/json")];
        self.send(method, path, &json, body.as_bytes())
    }

    /// Sends JSON to one who may end before he answers.
    pub(crate) fn try_json(&mut self, method: &str, path: &str, body: &str) -> Option<Answer> {
        let json = [("content-type", "application/json")];
        self.try_send(method, path, &json, body.as_bytes())
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.try_send(method, path, headers, body)
            .unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        let own = self.headers.iter();
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), body].concat();
        // A kept connection may have been closed meanwhile: then it is tried once more.
        let answer = (0..2).find_map(|_| self.exchange(&request, method == "HEAD"))?;
        // Whatever is tested, the document has the answer.
        described::check(method, path, &answer);
        Some(answer)
    }

    /// Sends JSON, and closes the connection before the answer can come.
    pub(crate) fn hang_up_after(&mut self, method: &str, path: &str, body: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        pause();
    }

    /// Sends these very bytes and reads the answer, if there is one.
    pub(crate) fn exchange(&mut self, request: &[u8], is_head: bool) -> Option<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.address).ok()?;
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                BufReader::new(stream)
            }
        };
        // Refused early, it may not be read to its end.
        stream.get_mut().write_all(request).unwrap_or_default();
        let answer = read_answer(&mut stream, is_head)?;
        if answer.header("connection") != Some("close") {
            self.stream = Some(stream);
        }
        Some(answer)
    }
}

/// Reads an answer with a length or in chunks, if there is one.
pub(crate) fn read_answer(stream: &mut impl BufRead, is_head: bool) -> Option<Answer> {
    let (status, headers) = read_head(stream)?;
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if answer.header("transfer-encoding") == Some("chunked") && !is_head {
        answer.body = read_chunks(stream)?;
        return Some(answer);
    }
    let length = answer.header("content-length");
    let length = length.map_or(0, |length| length.parse().unwrap());
    answer.body = vec![0; if is_head { 0 } else { length }];
    stream.read_exact(&mut answer.body).ok()?;
    Some(answer)
}

/// A body in chunks; `None` if it breaks off.
fn read_chunks(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let begin = body.len();
        body.resize(begin + length + 2, 0);
        stream.read_exact(&mut body[begin..]).ok()?;
        body.truncate(begin + length);
        if length == 0 {
            return Some(body);
        }
    }
}

fn read_head(stream: &mut impl BufRead) -> Option<(u16, Vec<(String, String)>)> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let status = line.split(' ').nth(1).unwrap().parse().unwrap_or(0);
    Some((status, read_headers(stream)))
}

fn read_headers(stream: &mut impl BufRead) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => return headers,
        }
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Checks the status and gives the body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        self.json()
    }

    /// Checks that this is a refusal in due form and gives its code.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String) {
        let content_type = self.header("content-type");
        assert_eq!(content_type, Some("application/problem+json"), "{self:?}");
        let body = self.json();
        let code = body["code"].as_str().unwrap().to_owned();
        assert_eq!(body["type"], format!("/problems/{code}"));
        assert_eq!(body["status"], self.status);
        assert!(body["title"].is_string() && body["detail"].is_string());
        assert!(self.header("x-request-id").is_some());
        (self.status, code)
    }
}

/// One delivery as it arrived.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) request_line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Delivery {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut found = self.headers.iter().filter(|(header, _)| header == name);
        let (_, value) = found
            .next()
            .unwrap_or_else(|| panic!("no {name}: {self:?}"));
        assert!(found.next().is_none(), "{name} twice: {self:?}");
        value
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(header, _)| header == name)
    }
}

/// A receiver of deliveries.
pub(crate) struct Target {
    pub(crate) url: String,
    deliveries: Receiver<Delivery>,
}

impl Target {
    /// Answers the n-th delivery, from 0, with what `answer` says: status line, headers and
    /// body as they are sent; nothing at all closes the connection.
    pub(crate) fn start(answer: impl Fn(usize) -> String + Send + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// The same on a socket that listens.
    pub(crate) fn on(
        listener: TcpListener,
        answer: impl Fn(usize) -> String + Send + 'static,
    ) -> Self {
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (send, deliveries) = channel();
        std::thread::spawn(move || {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept() else {
                    return;
                };
                let mut stream = BufReader::new(stream);
                let mut request_line = String::new();
                stream.read_line(&mut request_line).unwrap_or_default();
                let headers = read_headers(&mut stream);
                let length = headers.iter().find(|(name, _)| name == "content-length");
                let length = length.map_or(0, |(_, length)| length.parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap_or_default();
                let delivery = Delivery {
                    request_line: request_line.trim_end().to_owned(),
                    headers,
                    body,
                };
                if send.send(delivery).is_err() {
                    return;
                }
                let answer = answer(number);
                stream
                    .get_mut()
                    .write_all(answer.as_bytes())
                    .unwrap_or_default();
            }
        });
        Self { url, deliveries }
    }

    /// Always this status, without a body.
    pub(crate) fn answering(status: &'static str) -> Self {
        Self::start(move |_| reply(status, ""))
    }

    /// The next delivery.
    #[track_caller]
    pub(crate) fn next(&self) -> Delivery {
        self.deliveries.recv_timeout(PATIENCE).expect("a delivery")
    }

    /// Whether nothing comes within `span`.
    pub(crate) fn quiet_for(&self, span: Duration) -> bool {
        self.deliveries.recv_timeout(span).is_err()
    }
}

/// An answer of a target.
pub(crate) fn reply(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: 0\r\n\r\n")
}

/// Asks for a timer until it is in `state`.
#[track_caller]
pub(crate) fn wait_for_state(client: &mut Client, path: &str, state: &str) -> Value {
    for _ in 0..2_000 {
        let timer = client.get(path).expect(200);
        if timer["state"] == state {
            return timer;
        }
        pause();
    }
    panic!("{path} never is {state}");
}

#[expect(clippy::disallowed_methods, reason = "polls another process")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}
