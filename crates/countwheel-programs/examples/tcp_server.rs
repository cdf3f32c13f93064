//! A TCP server on tokio: requests have a time limit, a quiet connection gets heartbeats, and a peer that says nothing
//! is cut off: `cargo run -p countwheel-programs --example tcp_server`.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{IdleKind, IdleLimits, IdleWatch};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn Error + Send + Sync>;

const LIMIT: Duration = Duration::from_millis(50);
const HEARTBEAT: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_millis(500);

/// Serves one connection until its peer leaves or says nothing for too long.
async fn serve(
    mut socket: TcpStream,
    timer: Timer,
    idle: IdleWatch<SocketAddr>,
) -> Result<&'static str, Failure> {
    let limits = IdleLimits::NONE.reader(SILENCE).writer(HEARTBEAT);
    let watched = idle.watch(socket.peer_addr()?, limits)?;
    let (read, mut write) = socket.split();
    let mut lines = BufReader::new(read).lines();
    loop {
        tokio::select! {
            biased;
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok("left") };
                watched.read();
                let millis = Duration::from_millis(line.parse()?);
                let work = timer.timeout(LIMIT, timer.sleep(millis)).await;
                let answer = if work.is_ok() { "done\n" } else { "too slow\n" };
                write.write_all(answer.as_bytes()).await?;
                watched.wrote();
            }
            event = watched.idle() => match event?.kind {
                IdleKind::Writer => {
                    write.write_all(b"heartbeat\n").await?;
                    watched.wrote();
                }
                _ => return Ok("was cut off"),
            },
        }
    }
}

/// A client that asks for so many milliseconds of work each, 200 ms apart, and reads what comes.
async fn ask(address: SocketAddr, requests: &[&str]) -> Result<String, Failure> {
    let mut socket = TcpStream::connect(address).await?;
    for request in requests {
        socket.write_all(format!("{request}\n").as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut heard = String::new();
    socket.read_to_string(&mut heard).await?;
    Ok(heard)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let timer = Timer::on_tokio()?;
    let idle = IdleWatch::new(timer.clone(), |_: &SocketAddr, _| {});
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let serving = serve(socket, timer.clone(), idle.clone());
            tokio::spawn(async move { println!("{peer}: {:?}", serving.await) });
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
