//! A way that can be cut: what is sent on it is held, in one direction or in both, and comes once the way is
//! whole again. So it is where packets are lost and sent again.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::PATIENCE;

/// What of a way is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    Nothing,
    /// What is answered.
    Answers,
    /// What is sent in either direction. No connection comes about.
    All,
}

/// From an address of its own to another one.
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    to: SocketAddr,
    held: Held,
    is_over: bool,
}

impl Way {
    /// From any free port of loopback.
    pub(crate) fn to(port: u16) -> Self {
        Self::between(Ipv4Addr::LOCALHOST, 0, port)
    }

    /// From a port of an address of loopback to a port of its first address.
    pub(crate) fn between(from: Ipv4Addr, from_port: u16, port: u16) -> Self {
        let listener = TcpListener::bind((from, from_port)).expect("it is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                to: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
                held: Held::Nothing,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        let of_all = Arc::clone(&shared);
        let accepting = thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                if of_all.state.lock().is_over {
                    return;
                }
                let shared = Arc::clone(&of_all);
                // Who is not reached is told by the end of the connection.
                thread::spawn(move || drop(pass(&shared, &caller)));
            }
        });
        Self {
            address,
            shared,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn hold(&self, held: Held) {
        self.shared.state.lock().held = held;
        self.shared.changed.notify_all();
    }

    /// Leads to another port of this machine from the next connection on.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.state.lock().to.set_port(port);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.hold(Held::Nothing);
        let _wakes_it = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap_or_default();
        }
    }
}

impl Shared {
    /// Waits until nothing holds what is sent in that direction.
    fn wait(&self, is_answer: bool) {
        let mut state = self.state.lock();
        while match state.held {
            Held::Nothing => false,
            Held::Answers => is_answer,
            Held::All => true,
        } {
            self.changed.wait(&mut state);
        }
    }
}

fn pass(shared: &Arc<Shared>, caller: &TcpStream) -> io::Result<()> {
    shared.wait(false);
    let to = shared.state.lock().to;
    let server = TcpStream::connect_timeout(&to, PATIENCE)?;
    caller.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = (server.try_clone()?, caller.try_clone()?);
    let of_answers = Arc::clone(shared);
    thread::spawn(move || copy(&of_answers, &ends.0, &ends.1, true));
    copy(shared, caller, &server, false);
    Ok(())
}

/// What comes goes on, and so does the end.
fn copy(shared: &Shared, mut from: &TcpStream, mut into: &TcpStream, is_answer: bool) {
    let mut buffer = [0; 16_384];
    loop {
        let bytes = from.read(&mut buffer).unwrap_or(0);
        shared.wait(is_answer);
        if bytes == 0 || into.write_all(&buffer[..bytes]).is_err() {
            // Either may have ended already. What cannot be written is read no more.
            into.shutdown(Shutdown::Write).unwrap_or_default();
            from.shutdown(Shutdown::Read).unwrap_or_default();
            return;
        }
    }
}
