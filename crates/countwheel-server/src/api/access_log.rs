//! The access log: a line for each request, with who has asked for what, from where, and how it was answered. Reads have
//! lines as changes do.
//!
//! A line is made of names that were checked, of numbers, and of words of the program. Nothing else of a request gets into
//! it: neither the path as it came, nor the query of the API, nor a header, nor a byte of a body. So each line is bounded.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::MatchedPath;
use axum::http::{Request, Uri};
use axum::response::Response;
use countwheel_durable::{Key, Namespace, QueueName};
use countwheel_time::{Clock, Instant};
use hyper::body::{Bytes, Frame, SizeHint};

use super::access::{self, Identity};
use super::audit::{self, Who};
use super::request::{Query, decode};
use super::{App, Barred, label};
use crate::callers::{Caller, Peer};
use crate::config::is_node_name;
use crate::dashboard::login::Viewer;
use crate::resources::endpoint::EndpointName;
use crate::resources::token::TokenId;

/// The target of all lines of the access log, and of no other line.
pub(crate) const TARGET: &str = "countwheel::access";

/// How the secrets that the service knows begin. A name with one of these in it may be a secret at the wrong place.
const SECRETS: [&str; 2] = ["cwt_", "whsec_"];

/// Whether the path is one by which the service is watched. Such requests come every few seconds, and show no data.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/startz" | "/readyz")
}

/// What a path names. What is no such name is not there, and neither is what may be a secret.
#[derive(Default, Debug)]
struct Names {
    queue: Option<QueueName>,
    key: Option<Key>,
    endpoint: Option<EndpointName>,
    namespace: Option<Namespace>,
    job: Option<u64>,
    /// The token that the request is about.
    of_token: Option<TokenId>,
    node: Option<String>,
    shard: Option<u16>,
}

impl Names {
    /// Those at the places where `template` has its parameters.
    fn of(app: &App, template: &str, uri: &Uri) -> Self {
        let mut names = Self::default();
        for (wanted, found) in template.split('/').zip(uri.path().split('/')) {
            let parameter = wanted.strip_prefix('{').and_then(|it| it.split_once('}'));
            let Some((parameter, verb)) = parameter else {
                continue;
            };
            if let Some(text) = found.strip_suffix(verb).and_then(decode) {
                names.note_unless_secret(app, parameter, &text);
            }
        }
        names.note_page(app, uri);
        names
    }

    /// What the query of a page about one timer or one queue names.
    fn note_page(&mut self, app: &App, uri: &Uri) {
        let parameters: &[_] = match uri.path() {
            "/timer" | access::REVIVE => &[("queue", "queue"), ("key", "key")],
            "/queue" => &[("name", "queue")],
            _ => return,
        };
        let Ok(query) = Query::of(uri, &["queue", "key", "name", "state", "after"]) else {
            return;
        };
        for (parameter, kind) in parameters {
            if let Some(text) = query.get(parameter) {
                self.note_unless_secret(app, kind, text);
            }
        }
    }

    fn note_unless_secret(&mut self, app: &App, parameter: &str, text: &str) {
        let is_secret = SECRETS.iter().any(|secret| text.contains(secret));
        if !is_secret && !app.access.is_configured(text) {
            self.note(parameter, text);
        }
    }

    fn note(&mut self, parameter: &str, text: &str) {
        match parameter {
            "queue" => self.queue = QueueName::from_text(text).ok(),
            "key" => self.key = Key::new(text).ok(),
            "name" => self.endpoint = EndpointName::new(text).ok(),
            "namespace" => self.namespace = Namespace::new(text).ok(),
            "id" => self.job = text.parse().ok(),
            "token" => self.of_token = TokenId::new(text),
            "node" => self.node = is_node_name(text).then(|| text.to_owned()),
            "shard" => self.shard = text.parse().ok(),
            _ => {}
        }
    }
}

/// The line of a request. One that is dropped before there is an answer says that the request was given up.
#[derive(Debug)]
pub(super) struct Line {
    clock: Arc<dyn Clock>,
    began: Instant,
    request: String,
    /// Of a head that was refused, it is not known.
    method: Option<&'static str>,
    operation: Option<&'static str>,
    route: Option<MatchedPath>,
    names: Names,
    /// Not there of who has shown nothing that counts, and of a request that is refused before it is looked at that.
    who: Option<Who>,
    certificate: Option<String>,
    caller: Option<Caller>,
    is_answered: bool,
}

impl Line {
    /// That of a request of which it is known who asks, if whoever it is has shown anything. `None` without an access log,
    /// and of a probe.
    pub(super) fn of(app: &App, request: &Request<Body>, id: &str, began: Instant) -> Option<Self> {
        let (uri, extensions) = (request.uri(), request.extensions());
        if !app.has_access_log || is_probe(uri.path()) {
            return None;
        }
        let operation = audit::operation(request.method(), uri.path());
        let route = extensions.get::<MatchedPath>().cloned();
        let template = operation.map(|operation| operation.path);
        let template = template.or(route.as_ref().map(MatchedPath::as_str));
        let is_of_session = extensions.get().is_some_and(Viewer::has_session);
        let who = extensions.get().map(|asks| Who::of(asks, is_of_session));
        let is_head = !matches!(extensions.get::<Barred>(), Some(Barred::Framing(_)));
        Some(Self {
            clock: Arc::clone(&app.clock),
            began,
            request: id.to_owned(),
            method: is_head.then(|| label(request.method())),
            operation: operation.map(|operation| operation.id),
            names: template.map_or_else(Names::default, |it| Names::of(app, it, uri)),
            route,
            who,
            certificate: extensions.get::<Peer>().and_then(audit::certificate),
            caller: extensions.get().copied(),
            is_answered: false,
        })
    }

    /// Writes the line. An answer whose length is not known has another line at its end.
    pub(super) fn answered(mut self, response: Response) -> Response {
        // Of a login: the token is in the form.
        if let Some(asks) = response.extensions().get::<Identity>() {
            self.who = Some(Who::of(asks, false));
        }
        self.is_answered = true;
        let status = response.status().as_u16();
        let bytes = match self.method {
            // The body that is here is dropped on its way.
            Some("HEAD") => Some(0),
            _ => response.body().size_hint().exact(),
        };
        self.write("a request was answered", Some(status), bytes);
        if bytes.is_some() {
            return response;
        }
        response.map(|body| {
            Body::new(Counted {
                body,
                bytes: 0,
                status,
                line: self,
            })
        })
    }

    fn write(&self, what: &'static str, status: Option<u16>, bytes: Option<u64>) {
        let took = self.clock.now().saturating_since(self.began);
        let (names, who) = (&self.names, self.who.as_ref());
        tracing::info!(
            target: TARGET,
            request = self.request.as_str(),
            operation = self.operation,
            method = self.method,
            route = self.route.as_ref().map(MatchedPath::as_str),
            queue = names.queue.as_ref().map(QueueName::as_str),
            key = names.key.as_ref().map(Key::as_str),
            endpoint = names.endpoint.as_ref().map(EndpointName::as_str),
            namespace = names.namespace.as_ref().map(Namespace::as_str),
            job = names.job,
            of_token = names.of_token.as_ref().map(TokenId::as_str),
            node = names.node.as_deref(),
            shard = names.shard,
            status,
            bytes,
            took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            who = who.map(|who| &*who.kind),
            token = who.and_then(|who| who.id.as_deref()),
            session = who.filter(|who| who.session).map(|_| true),
            certificate = self.certificate.as_deref(),
            address = self.caller.as_ref().map(tracing::field::display),
            "{what}"
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.is_answered {
            self.write("a request was given up", None, None);
        }
    }
}

/// The body of an answer whose length is not known before its end.
struct Counted {
    body: Body,
    /// How many bytes have gone to the connection.
    bytes: u64,
    status: u16,
    line: Line,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.bytes = self.bytes.saturating_add(length as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (status, bytes) = (Some(self.status), Some(self.bytes));
        self.line.write("an answer has ended", status, bytes);
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::header;
    use axum::routing::get;
    use tower_service::Service;

    use super::super::surrounded;
    use super::super::tests::{self, Log};
    use super::*;
    use crate::framing::Fault;

    /// The lines of the access log since the last look, without what is in front of the message.
    fn lines(log: &Log) -> Vec<String> {
        let text = log.take();
        let lines = text.lines().filter_map(|line| line.split_once(TARGET));
        lines.map(|(_, line)| line[2..].to_owned()).collect()
    }

    fn app(token: Option<&str>) -> App {
        tests::app(token).with_access_log(true)
    }

    fn asked(path: &str) -> Request<Body> {
        let asked = Request::builder()
            .uri(path)
            .header(header::HOST, "localhost");
        asked.body(Body::empty()).expect("it is a request")
    }

    /// A caller that hangs up left no trace of what it had asked for.
    #[test]
    fn a_request_that_is_given_up_or_refused_before_its_route_has_a_line() {
        let log = Log::default();
        let _heard = log.hears();
        let routes = Router::new()
            .route("/v1/queues/{queue}", get(std::future::pending::<Response>))
            .route("/livez", get(async || ()));
        let mut router = surrounded(Arc::new(app(None)), routes);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("it is made");
        let mut answering = Box::pin(router.call(asked("/v1/queues/orders")));
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = &mut answering => panic!("nothing answers"),
                () = tokio::task::yield_now() => {}
            }
        });
        assert_eq!(lines(&log), Vec::<String>::new());
        drop(answering);
        let found = lines(&log);
        let [line] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(line.starts_with("a request was given up request="));
        assert!(line.contains("operation=\"getQueue\"") && line.contains("queue=\"orders\""));
        assert!(!line.contains("status="), "{line}");
        for (barred, path, has_method) in [
            (Barred::NoPlace, "/v1/queues/orders", true),
            (Barred::Framing(Fault::TooLarge), "/v1/queues/orders", false),
        ] {
            let mut asked = asked(path);
            asked.extensions_mut().insert(barred);
            let answer = runtime.block_on(router.call(asked)).expect("it answers");
            let status = answer.status().as_u16();
            let found = lines(&log);
            let [line] = &found[..] else {
                panic!("{found:?}")
            };
            assert!(line.starts_with("a request was answered request="));
            assert!(line.contains(&format!(" status={status} ")), "{line}");
            assert_eq!(line.contains("method="), has_method, "{line}");
            assert!(!line.contains("who="), "{line}");
        }
        let answer = runtime.block_on(router.call(asked("/livez")));
        assert_eq!(answer.expect("it answers").status(), 200);
        assert_eq!(lines(&log), Vec::<String>::new());
    }

    #[test]
    fn a_path_names_what_is_a_name_and_no_secret() {
        let app = app(Some("of-the-operator"));
        let names = |template: &str, path: &str| {
            let uri: Uri = path.parse().expect("it is a path");
            let names = Names::of(&app, template, &uri);
            [
                names.queue.map(|it| it.to_string()),
                names.key.map(|it| it.as_str().to_owned()),
                names.endpoint.map(|it| it.to_string()),
                names.namespace.map(|it| it.to_string()),
                names.job.map(|it| it.to_string()),
                names.of_token.map(|it| it.as_str().to_owned()),
                names.node,
                names.shard.map(|it| it.to_string()),
            ]
        };
        const TIMER: &str = "/v1/queues/{queue}/timers/{key}:fire";
        for (template, path, place, name) in [
            ("/v1/queues/{queue}", "/v1/queues/orders", 0, "orders"),
            ("/v1/queues/{queue}", "/v1/queues/t-7%2Fa", 0, "t-7/a"),
            ("/v1/queues/{queue}:pause", "/v1/queues/a:pause", 0, "a"),
            ("/v1/endpoints/{name}:test", "/v1/endpoints/e:test", 2, "e"),
            ("/v1/namespaces/{namespace}", "/v1/namespaces/t-7", 3, "t-7"),
            ("/v1/jobs/{id}:cancel", "/v1/jobs/7:cancel", 4, "7"),
            (
                "/v1/tokens/{token}",
                "/v1/tokens/0123abcd4567",
                5,
                "0123abcd4567",
            ),
            (
                "/v1/cluster/nodes/{node}/drain",
                "/v1/cluster/nodes/a:1/drain",
                6,
                "a:1",
            ),
            (
                "/v1/cluster/shards/{shard}/move",
                "/v1/cluster/shards/63/move",
                7,
                "63",
            ),
        ] {
            let mut expected = [const { None }; 8];
            expected[place] = Some(name.to_owned());
            assert_eq!(names(template, path), expected, "{path}");
        }
        for path in ["/timer?queue=q&key=a%20b", "/timer/revive?queue=q&key=a+b"] {
            let both = names("/timer", path);
            assert_eq!(both[..2], [Some("q".to_owned()), Some("a b".to_owned())]);
        }
        let of_queue = names("/queue", "/queue?name=q&state=dead");
        assert_eq!(of_queue[0].as_deref(), Some("q"));
        for path in [
            "/dead?queue=q&key=k",
            "/timer?key=cwt_0123abcd4567_secret",
            "/timer?queue=of-the-operator&key=%00",
            "/timer?queue=q&key=k&what=x",
            "/queue?queue=q",
        ] {
            assert_eq!(names("/timer", path), [const { None }; 8], "{path}");
        }
        let both = names(TIMER, "/v1/queues/q/timers/a%2520%0Cb:fire");
        assert_eq!(both[..2], [Some("q".to_owned()), None]);
        let both = names(TIMER, "/v1/queues/q/timers/a%2520%E2%80%A8b:fire");
        assert_eq!(both[1].as_deref(), Some("a%20\u{2028}b"));
        for (template, path) in [
            ("/v1/queues/{queue}", "/v1/queues/a%20b"),
            ("/v1/queues/{queue}", "/v1/queues/%FF"),
            ("/v1/queues/{queue}", "/v1/queues/cwt_0123abcd4567_secret"),
            ("/v1/queues/{queue}", "/v1/queues/%63wt_0123abcd4567_secret"),
            ("/v1/queues/{queue}", "/v1/queues/of-the-operator"),
            (
                "/v1/queues/{queue}:pause",
                "/v1/queues/of-the-operator:pause",
            ),
            ("/v1/endpoints/{name}", "/v1/endpoints/whsec_c2VjcmV0"),
            ("/v1/jobs/{id}", "/v1/jobs/seven"),
            ("/v1/tokens/{token}", "/v1/tokens/0123"),
            ("/v1/tokens/{token}", "/v1/tokens/of-the-operator"),
            (
                "/v1/cluster/shards/{shard}/move",
                "/v1/cluster/shards/65536/move",
            ),
            ("/problems/{code}", "/problems/forbidden"),
        ] {
            assert_eq!(names(template, path), [const { None }; 8], "{path}");
        }
    }
}
