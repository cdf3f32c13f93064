//! The options of every command: the server, the queue, the form of output.

use std::path::PathBuf;

use crate::client::{Client, ClientError, roots};

/// Which server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Service {
    /// The server's URL, or unix:/path of a socket at which it listens without TLS
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
    /// Trust the authorities of this file in PEM too, beside those of the system and those that come with the program;
    /// may be given more than once
    #[arg(long, value_name = "FILE", env = "COUNTWHEEL_SERVER_CA")]
    pub(crate) server_ca: Vec<PathBuf>,
    /// The certificate (PEM) to show to the server
    #[arg(
        long,
        value_name = "FILE",
        env = "COUNTWHEEL_CLIENT_CERT",
        requires = "client_key"
    )]
    pub(crate) client_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "COUNTWHEEL_CLIENT_KEY",
        requires = "client_cert"
    )]
    pub(crate) client_key: Option<PathBuf>,
}

impl Service {
    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        let client = Client::new(&self.server, token)?;
        let shows = self.client_cert.as_deref().zip(self.client_key.as_deref());
        if self.server_ca.is_empty() && shows.is_none() {
            return Ok(client);
        }
        Ok(client.with_tls(roots::from_files(&self.server_ca, shows)?))
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
