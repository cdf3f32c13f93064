//! The receivers: listeners of this process that note when a delivery's head arrives.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use countwheel_time::{Clock as _, SystemClock, Timestamp};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::http::{Messages, find};

/// The name before the number in a body.
const NUMBER: &[u8] = b"\"n\":";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// How long a slow receiver takes.
const SLOW: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// How a receiver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Answers at once.
    Good,
    /// Accepts, and never answers.
    Hanging,
    /// Answers after five seconds.
    Slow,
    /// The port is bound, and nobody listens.
    Refusing,
}

/// A delivery that came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) number: usize,
    pub(crate) at: Timestamp,
}

#[derive(Default)]
struct Arrivals {
    all: Vec<Arrival>,
    /// The numbers that came to good receivers.
    good: HashSet<usize>,
}

/// Receivers, each with a port of its own.
pub(crate) struct Sink {
    ports: Vec<u16>,
    arrivals: Arc<Mutex<Arrivals>>,
    listeners: Vec<JoinHandle<()>>,
    /// Sockets that are bound, so that nothing else gets their ports.
    _refusing: Vec<TcpSocket>,
}

impl Sink {
    pub(crate) fn open(manners: &[Manner]) -> anyhow::Result<Self> {
        let arrivals = Arc::new(Mutex::new(Arrivals::default()));
        let (mut ports, mut listeners, mut refusing) = (Vec::new(), Vec::new(), Vec::new());
        for &manner in manners {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            ports.push(socket.local_addr()?.port());
            if manner == Manner::Refusing {
                refusing.push(socket);
            } else {
                let listener = socket.listen(BACKLOG).context("a receiver")?;
                listeners.push(tokio::spawn(accept(
                    listener,
                    manner,
                    Arc::clone(&arrivals),
                )));
            }
        }
        Ok(Self {
            ports,
            arrivals,
            listeners,
            _refusing: refusing,
        })
    }

    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// How many timers came to good receivers.
    fn good(&self) -> usize {
        locked(&self.arrivals).good.len()
    }

    /// All deliveries that came so far.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        locked(&self.arrivals).all.clone()
    }

    /// Waits until so many came to good receivers, or none came for `patience` after `until`.
    pub(crate) async fn wait_for(&self, count: usize, until: Timestamp, patience: Duration) {
        let clock = SystemClock::new();
        let (mut seen, mut since) = (self.good(), until);
        while self.good() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = clock.timestamp();
            if self.good() != seen {
                (seen, since) = (self.good(), now.max(until));
            }
            if now > since && now.saturating_since(since) > patience {
                return;
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.abort();
        }
    }
}

async fn accept(listener: TcpListener, manner: Manner, arrivals: Arc<Mutex<Arrivals>>) {
    // The connections end with their listener.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, manner, Arc::clone(&arrivals)));
        while connections.try_join_next().is_some() {}
    }
}

fn locked(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until the other side closes. A message that cannot be read closes the connection.
async fn serve(
    mut stream: TcpStream,
    manner: Manner,
    arrivals: Arc<Mutex<Arrivals>>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let clock = SystemClock::new();
    let mut messages = Messages::new();
    while messages.head(&mut stream).await.ok()? {
        let at = clock.timestamp();
        let message = messages.rest(&mut stream).await.ok()?;
        if let Some(number) = number_of(message) {
            let mut arrivals = locked(&arrivals);
            arrivals.all.push(Arrival { number, at });
            if manner == Manner::Good {
                arrivals.good.insert(number);
            }
        }
        match manner {
            Manner::Good => {}
            Manner::Slow => tokio::time::sleep(SLOW).await,
            Manner::Hanging | Manner::Refusing => continue,
        }
        stream.write_all(ANSWER).await.ok()?;
    }
    Some(())
}

/// The number in a body that [`body`] made.
fn number_of(message: &[u8]) -> Option<usize> {
    let from = find(message, NUMBER)? + NUMBER.len();
    let digits = message[from..].iter().take_while(|it| it.is_ascii_digit());
    let digits: Vec<u8> = digits.copied().collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

/// A body of 100 bytes with a number.
pub(crate) fn body(number: usize) -> String {
    const BYTES: usize = 100;
    let begin = format!("{{\"n\":{number},\"p\":\"");
    let rest = "x".repeat(BYTES - begin.len() - 2);
    format!("{begin}{rest}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_hundred_bytes_and_its_number() {
        for number in [0, 7, 1_234_567] {
            let body = body(number);
            assert_eq!(body.len(), 100);
            let message = format!("POST / HTTP/1.1\r\nx: y\r\n\r\n{body}");
            assert_eq!(number_of(message.as_bytes()), Some(number));
        }
    }
}
