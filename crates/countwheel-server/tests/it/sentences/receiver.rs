//! What deliveries go to: a function, or a peer that speaks HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::support::PATIENCE;

/// Holds deliveries back until they are released, one for each release. A delivery may come after its
/// release: a timer is delivering from its claim on. So the release waits for it: on a machine with much
/// else to do, the delivery of the next sentence once took the release of the one before. Clones are the
/// same one.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<u64>, Condvar)>);

impl Gate {
    /// Waits for a release.
    pub(crate) fn wait(&self) {
        let (releases, released) = &*self.0;
        let mut releases = releases.lock();
        let waited = released.wait_while_for(&mut releases, |left| *left == 0, PATIENCE);
        assert!(!waited.timed_out(), "a delivery was never released");
        *releases -= 1;
        released.notify_all();
    }

    pub(crate) fn release(&self) {
        let (releases, released) = &*self.0;
        let mut releases = releases.lock();
        *releases += 1;
        released.notify_all();
        let waited = released.wait_while_for(&mut releases, |left| *left > 0, PATIENCE);
        assert!(!waited.timed_out(), "no delivery came to be released");
    }
}

/// A peer to which timers are delivered: the path says how that goes.
pub(crate) struct Receiver {
    pub(crate) url: String,
    pub(crate) gate: Gate,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gate = Gate::default();
        let shared = gate.clone();
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let gate = shared.clone();
                std::thread::spawn(move || serve(&peer, &gate));
            }
        });
        Self { url, gate }
    }
}

/// Answers one request after another.
fn serve(peer: &TcpStream, gate: &Gate) {
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut reader = BufReader::new(peer);
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(target) = line.strip_prefix("post ") {
                path = target.split(' ').next().unwrap_or_default().to_owned();
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        if std::io::Read::read_exact(&mut reader, &mut body).is_err() {
            return;
        }
        let status = match path.as_str() {
            "/fails" => "500 Internal Server Error",
            "/hangs" => {
                gate.wait();
                "200 OK"
            }
            _ => "200 OK",
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let mut peer = peer;
        if peer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
