//! The server of `tcp_server` with tokio's own timers:
//! `cargo run -p countwheel-programs --example tcp_server_usual`.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

type Failure = Box<dyn Error + Send + Sync>;

const LIMIT: Duration = Duration::from_millis(50);
const HEARTBEAT: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_millis(500);

/// Serves one connection until its peer leaves or says nothing for too long.
async fn serve(mut socket: TcpStream) -> Result<&'static str, Failure> {
    let (read, mut write) = socket.split();
    let mut lines = BufReader::new(read).lines();
    let (mut silence, mut heartbeat) = (pin!(sleep(SILENCE)), pin!(sleep(HEARTBEAT)));
    loop {
        tokio::select! {
            biased;
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok("left") };
                silence.as_mut().reset(Instant::now() + SILENCE);
                let millis = Duration::from_millis(line.parse()?);
                let work = timeout(LIMIT, sleep(millis)).await;
                let answer = if work.is_ok() { "done\n" } else { "too slow\n" };
                write.write_all(answer.as_bytes()).await?;
                heartbeat.as_mut().reset(Instant::now() + HEARTBEAT);
            }
            () = &mut silence => return Ok("was cut off"),
            () = &mut heartbeat => {
                write.write_all(b"heartbeat\n").await?;
                heartbeat.as_mut().reset(Instant::now() + HEARTBEAT);
            }
        }
    }
}

/// A client that asks for so many milliseconds of work each, 200 ms apart, and reads what comes.
async fn ask(address: SocketAddr, requests: &[&str]) -> Result<String, Failure> {
    let mut socket = TcpStream::connect(address).await?;
    for request in requests {
        socket.write_all(format!("{request}\n").as_bytes()).await?;
        sleep(Duration::from_millis(200)).await;
    }
    let mut heard = String::new();
    socket.read_to_string(&mut heard).await?;
    Ok(heard)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            tokio::spawn(async move { println!("{peer}: {:?}", serve(socket).await) });
        }
    });
    let (busy, silent) = tokio::join!(ask(address, &["1", "9999", "1"]), ask(address, &[]));
    let (busy, silent) = (busy?, silent?);
    println!("busy heard   {busy:?}\nsilent heard {silent:?}");
    assert_eq!(busy.matches("done").count(), 2);
    assert_eq!(busy.matches("too slow").count(), 1);
    assert!(silent.starts_with("heartbeat"), "{silent}");
    Ok(())
}
