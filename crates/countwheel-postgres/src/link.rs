//! One connection, used by one thread at a time.
//!
//! The thread that asks drives the connection itself, on a runtime of the link's own: an exchange
//! costs no hand-over to another thread. Between two exchanges nobody drives the connection.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::time::timeout;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::PostgresError;
use crate::session::{Failure, NO_ANSWER, Refusal};

/// What every session of this store has set. Plans are made once: the arrays of a statement differ in
/// length from turn to turn, and the index of names is right for every length.
pub(crate) const SESSION: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
                       SET jit = off; SET client_min_messages = warning; \
                       SET idle_in_transaction_session_timeout = '10s'";

/// A statement, and under which name a link keeps it prepared.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where the server is, and how it is known.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) config: Arc<tokio_postgres::Config>,
    pub(crate) tls: MakeRustlsConnect,
    /// How many connections a store has there.
    pub(crate) needed: usize,
}

pub(crate) struct Link {
    /// Taken out when the link is dropped.
    runtime: Option<Runtime>,
    route: Route,
    within: Duration,
    /// How long a statement waits for a lock, if not for as long as it may last.
    lock_within: Option<Duration>,
    live: Option<Live>,
}

struct Live {
    client: Client,
    notices: Notices,
    prepared: HashMap<&'static str, Statement>,
}

type Notices = Arc<Mutex<Vec<DbError>>>;

/// What an exchange gave, and what the server warned of meanwhile.
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) warnings: Vec<DbError>,
}

impl Link {
    /// A link that connects when it is first used, and gives up an exchange after `within`.
    pub(crate) fn new(route: Route, within: Duration) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self {
            runtime: Some(runtime),
            route,
            within,
            lock_within: None,
            live: None,
        })
    }

    /// The same, where a statement waits for a lock for so long at the most.
    pub(crate) fn with_lock_within(mut self, within: Duration) -> Self {
        self.lock_within = Some(within);
        self
    }

    /// Another link by the same route.
    pub(crate) fn another(&self) -> std::io::Result<Self> {
        Self::new(self.route.clone(), self.within)
    }

    /// Whether a connection is open. What came from the server since the last exchange is read first.
    fn is_open(&self) -> bool {
        let live = self.live.as_ref();
        if live.is_some() {
            block_on(self.runtime.as_ref(), tokio::task::yield_now());
        }
        live.is_some_and(|live| !live.client.is_closed())
    }

    /// Drops the connection. The server ends what runs on it when it next writes to it.
    pub(crate) fn close(&mut self) {
        self.live = None;
        // The task of the connection ends, and closes the socket.
        block_on(self.runtime.as_ref(), tokio::task::yield_now());
    }

    /// Waits before the next try.
    pub(crate) fn pause(&self, pause: Duration) {
        block_on(self.runtime.as_ref(), async {
            tokio::time::sleep(pause).await;
        });
    }

    /// Connects, if no connection is open.
    pub(crate) fn connect(&mut self) -> Result<(), Failure> {
        let opened = self.opened();
        opened.map_err(|unopened| Failure::Away(unopened.reason()))
    }

    /// The same for an opening, which says what its caller can do.
    pub(crate) fn open(&mut self) -> Result<(), PostgresError> {
        let opened = self.opened();
        let (config, needed) = (&self.route.config, self.route.needed);
        opened.map_err(|unopened| PostgresError::unopened(&unopened, config, needed))
    }

    fn opened(&mut self) -> Result<(), Unopened> {
        if self.is_open() {
            return Ok(());
        }
        self.live = None;
        let opened = block_on(self.runtime.as_ref(), async {
            let connecting = timeout(
                self.within,
                self.route.config.connect(self.route.tls.clone()),
            );
            let (client, mut connection) = connecting
                .await
                .map_err(|_| Unopened::Late("no connection in time"))?
                .map_err(Unopened::Driver)?;
            let notices = Notices::default();
            let heard = Arc::clone(&notices);
            // It ends with the client, or when the server closes the connection.
            tokio::spawn(poll_fn(move |context: &mut Context<'_>| {
                loop {
                    match connection.poll_message(context) {
                        Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                            heard.lock().push(notice);
                        }
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            }));
            let mut session = format!("{SESSION}; {}", limited_to(self.within));
            if let Some(within) = self.lock_within {
                session += &format!("; SET lock_timeout = '{}ms'", within.as_millis());
            }
            match timeout(self.within, client.batch_execute(&session)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Unopened::Driver(error)),
                Err(_) => return Err(Unopened::Late(NO_ANSWER)),
            }
            Ok(Live {
                client,
                notices,
                prepared: HashMap::new(),
            })
        });
        self.live = Some(opened?);
        Ok(())
    }

    /// Runs a statement that is kept prepared.
    pub(crate) fn query(&mut self, sql: &Sql, params: Params<'_>) -> Result<Answer, Failure> {
        self.connect()?;
        match self.query_once(sql, params) {
            // The connection ended before the statement was sent.
            Err(Failure::Away(_)) => {
                self.connect()?;
                self.query_once(sql, params)
            }
            asked => asked,
        }
    }

    fn query_once(&mut self, sql: &Sql, params: Params<'_>) -> Result<Answer, Failure> {
        let Some(live) = &mut self.live else {
            return Err(Failure::Away("not connected".to_owned()));
        };
        let within = self.within;
        let asked = block_on(self.runtime.as_ref(), async {
            let statement = match live.prepared.get(sql.name) {
                Some(statement) => statement.clone(),
                None => {
                    let prepared = timeout(within, live.client.prepare(&sql.text)).await;
                    let prepared = prepared
                        .map_err(|_| Failure::Away(NO_ANSWER.to_owned()))?
                        .map_err(|error| match sent(&error) {
                            // It was read, and not done.
                            Failure::Broken(reason) => Failure::Away(reason),
                            error => error,
                        })?;
                    live.prepared.insert(sql.name, prepared.clone());
                    prepared
                }
            };
            live.notices.lock().clear();
            let rows = timeout(within, live.client.query(&statement, params)).await;
            rows.map_err(|_| Failure::Broken(NO_ANSWER.to_owned()))?
                .map_err(|error| sent(&error))
        });
        match asked {
            Ok(rows) => {
                let warnings = std::mem::take(&mut *live.notices.lock());
                Ok(Answer { rows, warnings })
            }
            Err(error) => {
                // A server that ends the session closes the connection.
                if matches!(error, Failure::Away(_) | Failure::Broken(_)) {
                    self.close();
                }
                Err(error)
            }
        }
    }

    /// Runs statements without parameters, in one transaction of their own if they do not
    /// say otherwise.
    pub(crate) fn execute(&mut self, text: &str, within: Duration) -> Result<(), Failure> {
        let (limit, usual) = (limited_to(within), limited_to(self.within));
        self.batch(&format!("{limit}; {text}; {usual}"), within)
    }

    /// Runs a statement that no transaction may have.
    pub(crate) fn execute_alone(&mut self, text: &str, within: Duration) -> Result<(), Failure> {
        self.batch(&limited_to(within), self.within)?;
        let done = self.batch(text, within);
        // A connection that ended has no limits any more, and its successor has the usual one.
        self.batch(&limited_to(self.within), self.within)?;
        done
    }

    fn batch(&mut self, text: &str, within: Duration) -> Result<(), Failure> {
        self.connect()?;
        let Some(live) = &self.live else {
            return Err(Failure::Away("not connected".to_owned()));
        };
        let done = block_on(self.runtime.as_ref(), async {
            let done = timeout(within, live.client.batch_execute(text)).await;
            done.map_err(|_| Failure::Broken(NO_ANSWER.to_owned()))?
                .map_err(|error| sent(&error))
        });
        if matches!(done, Err(Failure::Broken(_))) {
            self.close();
        }
        done
    }
}

/// Also where another runtime is: nothing is waited for.
impl Drop for Link {
    fn drop(&mut self) {
        self.live = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Drives the connection until `future` is ready, also on a thread of another runtime.
fn block_on<T>(runtime: Option<&Runtime>, future: impl Future<Output = T>) -> T {
    let runtime = runtime.expect("a link has its runtime until it is dropped");
    let is_worker = Handle::try_current()
        .is_ok_and(|other| other.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_worker {
        tokio::task::block_in_place(|| runtime.block_on(future))
    } else {
        runtime.block_on(future)
    }
}

/// The server ends a statement before its answer is given up: then it is known that it was not done.
fn limited_to(within: Duration) -> String {
    format!(
        "SET statement_timeout = '{}ms'",
        within.as_millis() * 9 / 10
    )
}

/// Why there is no connection.
pub(crate) enum Unopened {
    Late(&'static str),
    Driver(tokio_postgres::Error),
}

impl Unopened {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Late(reason) => (*reason).to_owned(),
            Self::Driver(error) => said(error),
        }
    }
}

/// What a failure after the statement was sent says.
fn sent(error: &tokio_postgres::Error) -> Failure {
    let reason = said(error);
    match error.as_db_error() {
        // The server ends the session, perhaps after the statement was done.
        Some(refused) if !is_uncertain(refused) => Failure::Refused(Refusal {
            code: refused.code().code().to_owned(),
            message: refused.message().to_owned(),
        }),
        _ => Failure::Broken(reason),
    }
}

/// The error with what is behind it, on one line.
fn said(error: &tokio_postgres::Error) -> String {
    if let Some(refused) = error.as_db_error() {
        return format!("{} ({})", refused.message(), refused.code().code());
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether the server may have done a statement although it says so: it ended the session.
fn is_uncertain(error: &DbError) -> bool {
    let code = error.code();
    [
        &SqlState::ADMIN_SHUTDOWN,
        &SqlState::CRASH_SHUTDOWN,
        &SqlState::IDLE_SESSION_TIMEOUT,
    ]
    .contains(&code)
        || code.code().starts_with("08")
}
