//! How requests reach the nodes that have the timers now.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Request, Uri, header};
use axum::response::{IntoResponse, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::RwLock;

use crate::api::App;
use crate::api::problem::{Code, Problem};
use crate::api::request::body;

/// How long a node may take for an answer: longer than it holds a request itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// How long a node is looked for.
const LOOKING: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// What is about one connection, or about who asks from where: the node has its own.
const LEFT_OUT: [HeaderName; 11] = [
    header::HOST,
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::CONTENT_LENGTH,
    header::ORIGIN,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("sec-fetch-site"),
];

/// Sends requests to any of some nodes.
#[derive(Debug)]
pub(crate) struct Forward {
    client: Client<HttpConnector, Full<Bytes>>,
    nodes: RwLock<Vec<String>>,
    next: AtomicUsize,
}

impl Default for Forward {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            nodes: RwLock::default(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Forward {
    /// Where the nodes are: `http://host:port`.
    pub(crate) fn set(&self, nodes: Vec<String>) {
        *self.nodes.write() = nodes;
    }

    /// Asks a node and hands its answer on. One that cannot be reached has done nothing, and the next is asked.
    pub(crate) async fn answer(&self, app: &App, request: Request<Body>) -> Response {
        let path = request.uri().path_and_query();
        let path = path.map_or("/", |path| path.as_str()).to_owned();
        let (method, mut headers) = (request.method().clone(), request.headers().clone());
        strip(&mut headers);
        let body = match body(app, request).await {
            Ok(body) => Bytes::copy_from_slice(&body),
            Err(problem) => return problem.into_response(),
        };
        let request = |node: &str| {
            let mut request = Request::new(Full::from(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = format!("{node}{path}").parse::<Uri>().ok()?;
            *request.headers_mut() = headers.clone();
            Some(request)
        };
        let began = app.clock.now();
        while app.clock.now().saturating_since(began) < LOOKING {
            for request in self.in_turn().iter().filter_map(|node| request(node)) {
                match tokio::time::timeout(ANSWER_WITHIN, self.client.request(request)).await {
                    Ok(Ok(response)) => {
                        let (mut parts, body) = response.into_parts();
                        strip(&mut parts.headers);
                        return Response::from_parts(parts, Body::new(body));
                    }
                    Ok(Err(error)) if error.is_connect() => {}
                    failed => {
                        tracing::debug!(?failed, "a node gave no answer");
                        let detail = "a node of the cluster was asked and gave no answer: what was \
                                      asked is done whole or not at all, and GET shows which";
                        return Problem::new(Code::Unknown, detail).into_response();
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
        let detail =
            "no node answers of the cluster that has the timers: start one (serve --store)";
        Problem::new(Code::ShardUnavailable, detail).into_response()
    }

    fn in_turn(&self) -> Vec<String> {
        let mut nodes = self.nodes.read().clone();
        if !nodes.is_empty() {
            let first = self.next.fetch_add(1, Ordering::Relaxed) % nodes.len();
            nodes.rotate_left(first);
        }
        nodes
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in LEFT_OUT {
        headers.remove(name);
    }
}
