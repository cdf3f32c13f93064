//! A proxy that delays what passes, or cuts a connection after a given byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use countwheel_time::{Clock, Instant, SystemClock};
use parking_lot::Mutex;
use tokio_postgres::config::Host;

use crate::PostgresOptions;

/// So many pieces are on their way on a connection.
const KEPT: usize = 1_024;

/// Where a connection is cut, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// After so many bytes that the caller sent from now on.
    Sent(u64),
    /// After so many bytes that the server answered from now on.
    Answered(u64),
}

/// Stands between a store and its server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Mutex<(String, u16)>,
    delay_micros: AtomicU64,
    cut: Mutex<Option<Cut>>,
    sent: AtomicU64,
    answered: AtomicU64,
    is_closed: AtomicBool,
    refuses: AtomicBool,
}

impl Proxy {
    /// Listens on loopback, and leads to the server of these options.
    ///
    /// # Errors
    /// If the URL is none or names no host and port, and if the system gives no port or no thread.
    pub fn before(options: &PostgresOptions) -> io::Result<Self> {
        let config: tokio_postgres::Config = options.url.parse().map_err(io::Error::other)?;
        let Some(Host::Tcp(host)) = config.get_hosts().first() else {
            return Err(io::Error::other("the URL names no host"));
        };
        let port = config.get_ports().first().copied().unwrap_or(5_432);
        Self::to(host, port)
    }

    /// Listens on loopback, and leads to `port` there.
    ///
    /// # Errors
    /// If the system gives no port or no thread.
    pub fn start(port: u16) -> io::Result<Self> {
        Self::to("127.0.0.1", port)
    }

    fn to(host: &str, server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            server: Mutex::new((host.to_owned(), server)),
            delay_micros: AtomicU64::new(0),
            cut: Mutex::new(None),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
        });
        let of_all = Arc::clone(&shared);
        let accepting = thread::Builder::new().spawn(move || {
            for caller in listener.incoming().flatten() {
                if of_all.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                if of_all.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let _not_reached = pass(&of_all, &caller);
            }
        })?;
        Ok(Self {
            port,
            shared,
            accepting: Some(accepting),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads to another server on this machine from the next connection on.
    pub fn lead_to(&self, server: u16) {
        *self.shared.server.lock() = ("127.0.0.1".to_owned(), server);
    }

    /// Closes each new connection at once, or takes them again.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Adds so much to each way of what passes.
    pub fn delay(&self, each_way: Duration) {
        let micros = u64::try_from(each_way.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Cuts the connection on which that byte passes, and no other.
    pub fn cut(&self, cut: Cut) {
        let mut planned = self.shared.cut.lock();
        self.shared.sent.store(0, Ordering::SeqCst);
        self.shared.answered.store(0, Ordering::SeqCst);
        *planned = Some(cut);
    }

    /// Whether the planned cut is still to come; it is given up with this.
    pub fn take_cut(&self) -> Option<Cut> {
        self.shared.cut.lock().take()
    }

    /// How many bytes were sent and answered since the last plan of a cut.
    #[must_use]
    pub fn passed(&self) -> (u64, u64) {
        let shared = &self.shared;
        (
            shared.sent.load(Ordering::SeqCst),
            shared.answered.load(Ordering::SeqCst),
        )
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let _wakes_it = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ended = accepting.join();
        }
    }
}

/// What was read and is not written yet.
struct Passing {
    /// When it is.
    at: Instant,
    bytes: Vec<u8>,
    /// The connection is cut behind it.
    is_last: bool,
}

fn pass(shared: &Arc<Shared>, caller: &TcpStream) -> io::Result<()> {
    let (host, port) = shared.server.lock().clone();
    let server = TcpStream::connect((host.as_str(), port))?;
    for stream in [caller, &server] {
        stream.set_nodelay(true)?;
    }
    let clock = SystemClock::new();
    for is_answer in [false, true] {
        let shared = Arc::clone(shared);
        let (mut from, mut to) = match is_answer {
            false => (caller.try_clone()?, server.try_clone()?),
            true => (server.try_clone()?, caller.try_clone()?),
        };
        // A delay adds to the way of each byte and holds up none that come after it, so what is read is
        // kept for a thread that writes it in its time.
        let (keep, kept) = mpsc::sync_channel::<Passing>(KEPT);
        let ends = [from.try_clone()?, to.try_clone()?];
        thread::Builder::new().spawn(move || {
            for passing in kept {
                thread::sleep(passing.at.saturating_since(clock.now()));
                if to.write_all(&passing.bytes).is_err() || passing.is_last {
                    break;
                }
            }
            for stream in ends {
                let _closed_already = stream.shutdown(Shutdown::Both);
            }
        })?;
        thread::Builder::new().spawn(move || {
            let mut buffer = [0; 16_384];
            while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                let (passes, is_last) = shared.count(bytes, is_answer);
                let delay = Duration::from_micros(shared.delay_micros.load(Ordering::SeqCst));
                let passing = Passing {
                    at: clock.now() + delay,
                    bytes: buffer[..passes].to_vec(),
                    is_last,
                };
                if keep.send(passing).is_err() || is_last {
                    break;
                }
            }
        })?;
    }
    Ok(())
}

impl Shared {
    /// How many of so many bytes pass, and whether the connection is cut behind them.
    fn count(&self, bytes: usize, is_answer: bool) -> (usize, bool) {
        let mut planned = self.cut.lock();
        let counter = if is_answer {
            &self.answered
        } else {
            &self.sent
        };
        let before = counter.fetch_add(bytes as u64, Ordering::SeqCst);
        let ((Some(Cut::Sent(at)), false) | (Some(Cut::Answered(at)), true)) =
            (*planned, is_answer)
        else {
            return (bytes, false);
        };
        if before + (bytes as u64) < at {
            return (bytes, false);
        }
        *planned = None;
        let passes = usize::try_from(at.saturating_sub(before)).unwrap_or(bytes);
        (passes.min(bytes), true)
    }
}
