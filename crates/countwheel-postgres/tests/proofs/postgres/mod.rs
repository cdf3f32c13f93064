mod conformance;
mod exchanges;
mod failover;
mod histories;
mod locks;
mod moving;
mod nodes;
mod plans;
mod refusals;
mod restored;
mod ring;
mod rows;
mod snapshots;
mod tls;
mod upgrade;

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use countwheel_postgres::testing::Server;

/// One server for all tests that run: each has a schema of its own. It ends with the last of them.
fn server() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Server::start(&[]).expect("the stage has installed it");
        let server = Arc::new(server);
        *shared = Arc::downgrade(&server);
        server
    })
}

/// A transaction that keeps a snapshot until it is dropped.
struct Pinned {
    session: Child,
    ending: Command,
}

impl Pinned {
    fn start(server: &Server) -> Self {
        const TEXT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT pg_sleep(600)";
        const OTHERS: &str = "FROM pg_stat_activity WHERE query LIKE 'BEGIN ISOLATION LEVEL R%' \
                              AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()";
        let mut psql = server.psql(TEXT);
        psql.stdout(Stdio::null()).stderr(Stdio::null());
        let pinned = Self {
            session: psql.spawn().expect("it is installed"),
            ending: server.psql(&format!("SELECT pg_terminate_backend(pid, 10000) {OTHERS}")),
        };
        let counted = format!("SELECT count(*) {OTHERS}");
        while server
            .execute(&counted)
            .expect("the server is there")
            .trim()
            != "1"
        {
            wait(Duration::from_millis(20));
        }
        pinned
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.ending.stdout(Stdio::null()).status();
        let _ = self.session.wait();
    }
}

/// How often something is done: as a variable says.
fn count(variable: &str, usual: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.map_or(usual, |text| text.parse().expect("a number"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server is waited for in real time"
)]
fn wait(span: Duration) {
    std::thread::sleep(span);
}
