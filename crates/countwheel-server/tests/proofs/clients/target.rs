//! What the timers of the sentences are delivered to: the path says how that goes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Kills;
use crate::harness::caller::Caller;
use crate::harness::{PATIENCE, micros, now_us, pause};

/// The queues whose deliveries hang no more.
type Gate = (Mutex<BTreeSet<String>>, Condvar);

/// A peer that speaks HTTP. What hangs there hangs until its queue is released.
pub(super) struct Target {
    pub(super) url: String,
    gate: Arc<Gate>,
}

impl Target {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gate = Arc::<Gate>::default();
        let shared = Arc::clone(&gate);
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let gate = Arc::clone(&shared);
                std::thread::spawn(move || serve(&peer, &gate));
            }
        });
        Self { url, gate }
    }

    pub(super) fn release(&self, queue: &str) {
        let (released, changed) = &*self.gate;
        released.lock().insert(queue.to_owned());
        changed.notify_all();
    }
}

/// Answers one request after another.
fn serve(peer: &TcpStream, gate: &Gate) -> Option<()> {
    peer.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    let mut reader = BufReader::new(peer);
    loop {
        let (mut path, mut queue, mut length) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(target) = line.strip_prefix("POST ") {
                path = target.split(' ').next()?.to_owned();
            }
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(("timer-queue", value)) => value.clone_into(&mut queue),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut reader, &mut body).ok()?;
        if path.ends_with("/hangs") {
            let (released, changed) = gate;
            let mut released = released.lock();
            changed.wait_while_for(
                &mut released,
                |released| !released.contains(&queue),
                PATIENCE,
            );
        }
        let status = if path.ends_with("/fails") {
            "500 X"
        } else {
            "200 OK"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let mut peer = peer;
        peer.write_all(answer.as_bytes()).ok()?;
    }
}

/// Ends the drain of all queues, if there is one.
pub(super) fn resume(server: SocketAddr, kills: &Kills) {
    let end = now_us() + micros(PATIENCE);
    loop {
        let caller = Caller::connect(server);
        let reply = caller.and_then(|mut it| it.ask("POST", "/v1/queues:resume", None));
        if reply.is_some_and(|reply| reply.status == 200) {
            return;
        }
        assert!(now_us() < end, "no resume after {} kills", kills.count());
        pause();
    }
}
