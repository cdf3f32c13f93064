//! The server as a process that is killed and started again, on the same data and port.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::caller::Caller;
use super::{Random, now_us, wait_until};

/// The program, to be given arguments.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countwheel"));
    command
        .env_remove("COUNTWHEEL_TOKEN")
        .env_remove("COUNTWHEEL_SERVER");
    command
}

/// A running server.
pub(crate) struct Server {
    data: std::path::PathBuf,
    pub(crate) address: SocketAddr,
    child: Child,
    /// When it was killed, and when it was ready again, in microseconds since 1970.
    pub(crate) outages: Vec<(u64, u64)>,
    /// How long each start but the first took until the server was ready, in microseconds.
    pub(crate) restarts_us: Vec<u64>,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        let address = free_address();
        let child = spawn(data, address);
        let mut server = Self {
            data: data.to_owned(),
            address,
            child,
            outages: Vec::new(),
            restarts_us: Vec::new(),
        };
        server.wait_until_ready();
        server
    }

    /// `kill -9`. Returns when the process is gone.
    pub(crate) fn kill(&mut self) {
        self.outages.push((now_us(), u64::MAX));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after a kill.
    pub(crate) fn restart(&mut self) {
        let spawned = now_us();
        self.child = spawn(&self.data, self.address);
        self.wait_until_ready();
        let ready = now_us();
        self.restarts_us.push(ready - spawned);
        self.outages.last_mut().expect("it was killed").1 = ready;
    }

    /// A connection to the server, which is up.
    pub(crate) fn caller(&self) -> Caller {
        Caller::connect(self.address).expect("the server listens")
    }

    fn wait_until_ready(&mut self) {
        wait_until("the server is ready", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended by itself: {ended:?}");
            let reply = Caller::connect(self.address)
                .and_then(|mut caller| caller.ask("GET", "/readyz", None));
            reply.is_some_and(|reply| reply.status == 200)
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

fn spawn(data: &Path, address: SocketAddr) -> Child {
    program()
        .args(["serve", "--allow-private-targets", "--log-level", "warn"])
        .args(["--listen", &address.to_string()])
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// An address that is free now and stays so while the server is down: below the ports that
/// the system hands out to whoever connects.
fn free_address() -> SocketAddr {
    let mut random = Random::new(getrandom::u64().unwrap());
    loop {
        let port = u16::try_from(random.between(10_000, 32_000)).expect("a port");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
