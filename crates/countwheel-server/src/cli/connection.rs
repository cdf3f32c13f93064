//! The options of every command: the server, the queue, the form of output.

use crate::client::{Client, ClientError};

/// Which server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Service {
    /// The server's URL
    #[arg(
        long,
        value_name = "URL",
        env = "COUNTWHEEL_SERVER",
        default_value = "http://127.0.0.1:7070"
    )]
    pub(crate) server: String,
    /// The token that the server asks for
    #[arg(
        long,
        value_name = "TOKEN",
        env = "COUNTWHEEL_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
}

impl Service {
    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        Client::new(&self.server, token)
    }
}

/// Which server, which queue, which form.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    #[command(flatten)]
    service: Service,
    /// The queue
    #[arg(long, value_name = "QUEUE", default_value = "default")]
    pub(crate) queue: String,
    /// Print the server's JSON, one line for each result
    #[arg(long)]
    pub(crate) json: bool,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        self.service.client()
    }
}
