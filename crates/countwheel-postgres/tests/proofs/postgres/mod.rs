mod conformance;
mod exchanges;
mod failover;
mod histories;
mod locks;
mod refusals;
mod ring;
mod rows;
mod snapshots;
mod tls;
mod upgrade;

use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// How often something is done: as a variable says.
fn count(variable: &str, usual: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.map_or(usual, |text| text.parse().expect("a number"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server is waited for in real time"
)]
fn wait(span: std::time::Duration) {
    std::thread::sleep(span);
}
