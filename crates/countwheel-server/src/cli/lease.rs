//! `countwheel lease`.

use std::time::Duration;

use super::arguments::{duration, queue};
use super::connection::Service;
use super::{Exit, Failure, Terminal};
use crate::client::{LeasesAsked, one_line};

/// `countwheel lease`.
#[derive(Clone, Debug, clap::Args)]
pub struct Lease {
    /// The queues, of mode pull
    #[arg(required = true, value_name = "QUEUE", value_parser = queue)]
    queues: Vec<String>,
    /// How many leases at the most: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: u32,
    /// How long each lasts: 1s to 12h; as the queue says unless given
    #[arg(long, value_name = "D", value_parser = duration)]
    lease: Option<Duration>,
    /// How long to wait if nothing is due: at most 60s
    #[arg(long, value_name = "D", value_parser = duration)]
    wait: Option<Duration>,
    /// The name of the worker
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    #[command(flatten)]
    service: Service,
}

impl Lease {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let asked = LeasesAsked {
            queues: self.queues.clone(),
            max: self.max,
            lease: self.lease,
            wait: self.wait.unwrap_or_default(),
            worker: self.worker.clone(),
        };
        for lease in client.lease(&asked).await?.value.leases {
            writeln!(terminal.out, "{}", one_line(&lease))?;
        }
        Ok(Exit::Done)
    }
}
