//! The process: opens the store, listens, and stops cleanly.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use countwheel::{Clock, Instant, SystemClock};
use countwheel_durable::store::{DiskOptions, DiskStore, StoreError};
use countwheel_durable::{Config, Health, StateKind, Timers};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use crate::VERSION;
use crate::api::{App, Token, router};
use crate::config::{Convert, Dev, Serve};
use crate::deliver::{HttpHandler, Targets};
use crate::shutdown::{Cause, Signals};

/// How many connections are open at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 4_096;
/// Files that are neither connections of callers nor of deliveries: the store, the runtime's
/// own, names being looked up.
const FILES_RESERVED: usize = 128;
/// How long the head of a request may take, and a connection may idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long a caller may read nothing of an answer that does not fit the system's buffers.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 64;
/// Room for the longest path, and 16 KiB of headers.
const HEAD_MAX_BYTES: usize = 24 << 10;
/// How long answers may take to leave when the service stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// How long deliveries may take to end when `dev` stops: nobody misses them.
const DEV_GRACE: Duration = Duration::from_secs(1);
const STORE_FAILED: u8 = 3;

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The command asks for what is not allowed.
    #[error("{listen} can be reached from other machines: set a token with {how}")]
    OpenToAll {
        /// Where it should listen.
        listen: SocketAddr,
        /// How to set a token.
        how: &'static str,
    },
    /// What was given as a token is none.
    #[error("{origin} holds no token: one is printable ASCII without spaces")]
    Token {
        /// Where it was found.
        origin: String,
    },
    /// The port is taken, or the address is not this machine's.
    #[error("cannot listen on {listen}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A file or directory could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system refused something else.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl StartError {
    /// Whether another command line would help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::OpenToAll { .. })
    }
}

/// Runs `countwheel serve` to its end.
///
/// # Errors
/// [`StartError`] if it could not start.
pub fn serve(args: &Serve) -> Result<ExitCode, StartError> {
    let token = args.token()?;
    let service = Service {
        data: args.data.clone(),
        disk: args.disk(),
        listen: args.listen,
        token,
        targets: if args.allow_private_targets {
            Targets::Any
        } else {
            Targets::Public
        },
        limits: args.limits(random()?),
        grace: args.shutdown_grace,
        snapshots: args.snapshot_dir.clone(),
        dev: None,
    };
    service.run()
}

/// Runs `countwheel convert` to its end.
///
/// # Errors
/// [`StartError`] if one of the directories cannot be used; then the new one is as good as empty.
pub fn convert(args: &Convert) -> Result<ExitCode, StartError> {
    drop(DiskStore::convert(&args.from, &args.into, args.disk())?);
    say(&format!("converted {}", args.into.display()));
    Ok(ExitCode::SUCCESS)
}

/// Runs `countwheel dev` to its end.
///
/// # Errors
/// [`StartError`] if it could not start.
pub fn dev(args: &Dev) -> Result<ExitCode, StartError> {
    let token = args.token()?;
    let data = TemporaryDirectory::new()?;
    let service = Service {
        data: data.0.join("data"),
        disk: args.disk(),
        listen: args.listen,
        token,
        targets: Targets::Any,
        limits: Config {
            seed: random()?,
            ..Config::default()
        },
        grace: DEV_GRACE,
        snapshots: None,
        dev: Some(data),
    };
    service.run()
}

fn random() -> Result<u64, StartError> {
    getrandom::u64().map_err(|error| io::Error::other(error).into())
}

/// A service to run.
struct Service {
    data: PathBuf,
    disk: DiskOptions,
    listen: SocketAddr,
    token: Option<Token>,
    targets: Targets,
    limits: Config,
    grace: Duration,
    /// Where snapshots go.
    snapshots: Option<PathBuf>,
    /// In `dev`, the directory to remove at the end.
    dev: Option<TemporaryDirectory>,
}

impl Service {
    fn run(self) -> Result<ExitCode, StartError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let began = clock.now();
        let runtime = Runtime::new()?;
        let result = runtime.block_on(self.run_on(&clock, began));
        // A name that is still being resolved holds up nobody.
        runtime.shutdown_timeout(Duration::from_millis(100));
        result
    }

    async fn run_on(self, clock: &Arc<dyn Clock>, began: Instant) -> Result<ExitCode, StartError> {
        let mut signals = Signals::listen()?;
        // Before the store is touched: a port that is taken is the likeliest mistake.
        let listener =
            TcpListener::bind(self.listen)
                .await
                .map_err(|source| StartError::Listen {
                    listen: self.listen,
                    source,
                })?;
        let address = listener.local_addr()?;
        let handler = HttpHandler::new(Handle::current(), self.targets, Arc::clone(clock));
        let store = DiskStore::open(&self.data, random()?, self.disk)?;
        let timers = Timers::open(store, handler, Arc::clone(clock), self.limits.clone())?;

        let (failed, mut failure) = mpsc::unbounded_channel();
        timers.on_failure(move |reason| {
            // Nobody listens any more if the service has stopped.
            failed.send(reason.to_owned()).unwrap_or_default();
        });
        let with_token = self.token.is_some();
        let app = App::new(
            timers.clone(),
            Arc::clone(clock),
            self.token.clone(),
            self.dev.is_some(),
        );
        let app = Arc::new(app.with_snapshots(self.snapshots));
        let (stop, stopped) = watch::channel(false);
        let connections = connections_max(self.limits.max_in_flight);
        let serving = tokio::spawn(accept(
            listener,
            router(Arc::clone(&app)),
            connections,
            stopped,
        ));

        let pending: u64 = timers
            .counts()?
            .iter()
            .map(|counts| counts.of(StateKind::Pending) + counts.of(StateKind::Delivering))
            .sum();
        let took = clock.now().saturating_since(began).as_millis();
        if self.dev.is_some() {
            say(&banner(address, took, with_token));
        } else {
            say(&format!(
                "ready http://{address} pending={pending} opened_in_ms={took}"
            ));
        }

        let cause = tokio::select! {
            (name, _) = signals.next() => Cause::Signal(name),
            Some(reason) = failure.recv() => Cause::StoreFailed(reason),
        };
        let temporary = self.dev.as_ref().map(|data| data.0.clone());
        tokio::spawn(async move {
            let (name, code) = signals.next().await;
            tracing::warn!("{name} again: not waiting any longer");
            if let Some(path) = temporary {
                remove(&path);
            }
            std::process::exit(code);
        });
        match &cause {
            Cause::Signal(_) => tracing::info!(%cause, grace = ?self.grace, "stopping"),
            Cause::StoreFailed(_) => {
                tracing::error!(%cause, "stopping: open the store again to go on");
            }
        }
        let grace = self.grace;
        let stopping = timers.clone();
        let running = tokio::task::spawn_blocking(move || stopping.stop(grace)).await;
        match running {
            Ok(0) => tracing::info!("stopped"),
            Ok(running) => tracing::warn!(running, "stopped: these attempts will be repeated"),
            Err(error) => tracing::error!(%error, "the scheduler did not stop cleanly"),
        }
        // The accepting side waits for its connections itself; if it is gone, so are they.
        stop.send(true).unwrap_or_default();
        serving.await.unwrap_or_default();
        // It may have failed while it stopped, with the outcomes that were recorded last.
        let failed = matches!(timers.health(), Health::Failed(_));
        Ok(if failed {
            ExitCode::from(STORE_FAILED)
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// How many connections of callers there may be, so that they never take the files that
/// deliveries need. Raises this process's limit as far as it may.
fn connections_max(max_in_flight: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it was");
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let left = files.saturating_sub(max_in_flight + FILES_RESERVED);
    // With too few for both, callers and deliveries have half each.
    left.max(files / 2).clamp(1, CONNECTIONS_MAX)
}

/// Answers the connections of `listener`, at most `connections` at a time, until `stopped` says so,
/// then lets the answers under way leave. Cuts off who does not send or read for half a minute.
pub async fn accept(
    listener: TcpListener,
    router: Router,
    connections: usize,
    mut stopped: watch::Receiver<bool>,
) {
    let for_connections = stopped.clone();
    let permits = Arc::new(Semaphore::new(connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            () = told(&mut stopped) => break,
            Some(_) = connections.join_next() => {}
            (permit, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = answer(stream, router.clone(), for_connections.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: some will be free again soon.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, ended).await.is_err() {
        tracing::warn!("some connections were cut off");
    }
}

async fn answer(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>) {
    // An answer is one packet or a few: send it at once. If that fails, it is only slower.
    stream.set_nodelay(true).unwrap_or_default();
    let mut stream = Box::pin(TimeoutStream::new(stream));
    stream
        .as_mut()
        .set_write_timeout_pinned(Some(ANSWER_DEADLINE));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_MAX_BYTES)
        .max_buf_size(4 * HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            () = told(&mut stopped), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Waits until `stopped` says so, or can never say it again.
async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|&stopped| stopped).await);
}

/// What `dev` says when it is ready.
fn banner(address: SocketAddr, took_ms: u128, with_token: bool) -> String {
    // Whoever started this through cargo has no `countwheel` on the path.
    let through_cargo = std::env::var_os("CARGO").is_some();
    let program = if through_cargo {
        "cargo run --release --"
    } else {
        "countwheel"
    };
    let server = if address.port() == 7070 && address.ip().is_loopback() {
        String::new()
    } else {
        format!(" --server http://{address}")
    };
    let token = if with_token { "as set" } else { "not needed" };
    format!(
        "countwheel {VERSION}, for development: timers vanish when this ends, \
         and may be sent to this machine\n\
         \n\
         api        http://{address}/v1      token: {token}\n\
         dashboard  http://{address}/\n\
         echo       http://{address}/echo    answers 200; with ?fail=3, 503 three times first\n\
         \n\
         ready in {took_ms} ms. Try: {program} set order-42 --in 5s \
         --post http://{address}/echo --watch{server}"
    )
}

/// Prints for whoever started us. That nobody reads it is no reason to fail.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .unwrap_or_default();
}

/// A directory of our own, removed when dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> Result<Self, StartError> {
        let path = std::env::temp_dir().join(format!("countwheel-dev-{:016x}", random()?));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|source| StartError::File {
                path: path.clone(),
                source,
            })?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::warn!(%error, path = %path.display(), "the temporary data was not removed");
    }
}
