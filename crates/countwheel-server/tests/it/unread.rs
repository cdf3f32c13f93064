//! Callers who do not read.

use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::routing::get;
use countwheel_server::server::accept;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// More than the system keeps for somebody who does not read.
const ANSWER_BYTES: usize = 64 << 20;

/// An answer that nobody read was kept as long as its connection, and the connection for ever.
#[tokio::test(start_paused = true)]
async fn who_does_not_read_his_answer_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { vec![7_u8; ANSWER_BYTES] }));
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(accept(listener, router, 8, stopped));
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(REQUEST).await.unwrap();
    // Nobody else wants its place.
    tokio::time::sleep(Duration::from_secs(61)).await;
    let mut rest = Vec::new();
    let cut_off = match silent.read_to_end(&mut rest).await {
        Ok(read) => read < ANSWER_BYTES,
        Err(_) => true,
    };
    assert!(cut_off, "{} bytes", rest.len());
    stop.send(true).unwrap();
    tokio::time::timeout(Duration::from_secs(60), serving)
        .await
        .unwrap()
        .unwrap();
}

/// In HTTP/2 the system has room for more, and the caller says that it has none.
#[tokio::test(start_paused = true)]
async fn who_does_not_read_his_answer_over_http_2_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { vec![7_u8; ANSWER_BYTES] }));
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(accept(listener, router, 8, stopped));
    let stream = TcpStream::connect(address).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    let driving = tokio::spawn(connection);
    let mut send = send.ready().await.unwrap();
    let request = Request::get(format!("http://{address}/")).body(()).unwrap();
    let (answer, _) = send.send_request(request, true).unwrap();
    let (head, mut body) = answer.await.unwrap().into_parts();
    assert_eq!(head.status, 200);
    // The window is never opened again.
    tokio::time::sleep(Duration::from_secs(61)).await;
    let mut read = 0;
    let cut_off = loop {
        match body.data().await {
            Some(Ok(piece)) => read += piece.len(),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(cut_off && read < ANSWER_BYTES, "{read} bytes");
    drop(send);
    drop(driving.await);
    stop.send(true).unwrap();
    tokio::time::timeout(Duration::from_secs(60), serving)
        .await
        .unwrap()
        .unwrap();
}
