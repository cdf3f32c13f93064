//! A connection of the benchmark's own.

use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

/// No statement takes longer.
const LIMIT: Duration = Duration::from_secs(3_600);

pub(crate) struct Connection {
    runtime: Runtime,
    client: Client,
}

impl Connection {
    pub(crate) fn open(url: &str) -> anyhow::Result<Self> {
        // Who asks drives the connection.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, connection) = runtime
            .block_on(tokio_postgres::connect(url, NoTls))
            .with_context(|| format!("no connection to {url}"))?;
        // It ends with the client.
        runtime.spawn(connection);
        let connection = Self { runtime, client };
        connection.run(&format!("SET statement_timeout = '{}s'", LIMIT.as_secs()))?;
        Ok(connection)
    }

    /// Runs statements that have no answer.
    pub(crate) fn run(&self, statements: &str) -> anyhow::Result<()> {
        self.runtime
            .block_on(self.client.batch_execute(statements))
            .with_context(|| statements.to_owned())
    }

    /// The one number that a query gives, as `float8`.
    pub(crate) fn number(&self, query: &str) -> anyhow::Result<f64> {
        let row = self.runtime.block_on(self.client.query_one(query, &[]));
        Ok(row.with_context(|| query.to_owned())?.try_get(0)?)
    }

    /// The one text that a query gives.
    pub(crate) fn text(&self, query: &str) -> anyhow::Result<String> {
        let row = self.runtime.block_on(self.client.query_one(query, &[]));
        Ok(row.with_context(|| query.to_owned())?.try_get(0)?)
    }

    pub(crate) fn prepare(&self, text: &str) -> anyhow::Result<Statement> {
        let prepared = self.runtime.block_on(self.client.prepare(text));
        prepared.with_context(|| text.to_owned())
    }

    /// How many rows the statement has changed or given.
    pub(crate) fn execute(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> anyhow::Result<u64> {
        Ok(self
            .runtime
            .block_on(self.client.execute(statement, params))?)
    }
}
