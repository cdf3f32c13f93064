//! HTTP/1.1 as far as both sides of a benchmark need it: heads, bodies with a length, connections that stay.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// No message of a benchmark is longer.
const MESSAGE_MAX: usize = 1024 * 1024;

/// Reads messages one after the other.
pub(crate) struct Messages {
    buffer: Vec<u8>,
    /// The length of the message that is read, with its head.
    length: usize,
}

impl Messages {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Vec::with_capacity(4_096),
            length: 0,
        }
    }

    /// Reads until a whole head is there, and returns whether there is one: the other side may have closed.
    pub(crate) async fn head(&mut self, stream: &mut TcpStream) -> anyhow::Result<bool> {
        self.buffer.drain(..self.length);
        self.length = 0;
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                self.length = end + 4 + content_length(&self.buffer[..end])?;
                ensure!(self.length <= MESSAGE_MAX, "a message is too long");
                return Ok(true);
            }
            ensure!(self.buffer.len() <= MESSAGE_MAX, "a head is too long");
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Reads the rest of the message, and returns all of it.
    pub(crate) async fn rest(&mut self, stream: &mut TcpStream) -> anyhow::Result<&[u8]> {
        while self.buffer.len() < self.length {
            ensure!(
                stream.read_buf(&mut self.buffer).await? > 0,
                "a message breaks off"
            );
        }
        Ok(&self.buffer[..self.length])
    }
}

fn content_length(head: &[u8]) -> anyhow::Result<usize> {
    let head = std::str::from_utf8(head)?;
    for line in head.split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(value.trim().parse()?);
        }
        ensure!(
            !name.eq_ignore_ascii_case("transfer-encoding"),
            "a body without a length"
        );
    }
    Ok(0)
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|it| it == wanted)
}

/// A caller's connection.
pub(crate) struct Caller {
    stream: TcpStream,
    messages: Messages,
    request: Vec<u8>,
    /// The line that shows a token, if there is one.
    authorization: String,
}

impl Caller {
    pub(crate) async fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = connect(port).await?;
        let (messages, request) = (Messages::new(), Vec::new());
        Ok(Self {
            stream,
            messages,
            request,
            authorization: String::new(),
        })
    }

    /// The same, with a token in each request.
    pub(crate) async fn connect_with(port: u16, token: &str) -> anyhow::Result<Self> {
        let mut caller = Self::connect(port).await?;
        caller.authorization = format!("authorization: Bearer {token}\r\n");
        Ok(caller)
    }

    /// Sends a request with a body in JSON, and waits for the answer. An answer that is no success is an error.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<()> {
        self.ask(method, path, body).await.map(drop)
    }

    /// The same, and returns the body of the answer.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<&[u8]> {
        let (status, answer) = self.exchange(method, path, body).await?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {}", String::from_utf8_lossy(answer));
        }
        let body = find(answer, b"\r\n\r\n").context("an answer has no body")?;
        Ok(&answer[body + 4..])
    }

    /// Sends a request with a body in JSON. The status and the whole answer, whatever the status is.
    pub(crate) async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<(u16, &[u8])> {
        use std::io::Write as _;
        self.request.clear();
        write!(
            self.request,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             {}content-length: {}\r\n\r\n{body}",
            self.authorization,
            body.len()
        )?;
        self.stream.write_all(&self.request).await?;
        ensure!(
            self.messages.head(&mut self.stream).await?,
            "the service closed the connection"
        );
        let answer = self.messages.rest(&mut self.stream).await?;
        let status = answer.strip_prefix(b"HTTP/1.1 ").and_then(|it| it.get(..3));
        let status = std::str::from_utf8(status.context("an answer without a status")?)?;
        Ok((status.parse()?, answer))
    }
}

/// Connects to a port of this machine.
pub(crate) async fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("no connection to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_found_by_a_name_in_any_case() {
        let length = |head: &str| content_length(head.as_bytes());
        assert_eq!(length("GET / HTTP/1.1\r\nhost: x").unwrap(), 0);
        assert_eq!(length("POST / HTTP/1.1\r\nContent-LENGTH: 12").unwrap(), 12);
        assert!(length("POST / HTTP/1.1\r\nTransfer-Encoding: chunked").is_err());
    }
}
