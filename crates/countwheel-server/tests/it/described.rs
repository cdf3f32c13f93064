//! What is answered is what the document says: every answer of every test here is held against it, and so is what the
//! service refuses.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::support::{Answer, Client, Directory, Server};

/// The copy of the document, which a test of the program holds equal to what is served.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../../docs/openapi.json");
    serde_json::from_str(text).unwrap()
});
/// The schemas, with no more fields than they name: a later version may have more, and this one has not.
static CLOSED: LazyLock<Value> = LazyLock::new(|| {
    let mut schemas = DOCUMENT["components"]["schemas"].clone();
    close(&mut schemas);
    schemas
});
/// By the text of the schema.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

fn close(value: &mut Value) {
    match value {
        Value::Object(object) => {
            // Not below `not`, where no property is described.
            let is_object = object.get("type") == Some(&json!("object"));
            if is_object && object.contains_key("properties") {
                object.entry("additionalProperties").or_insert(json!(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(elements) => elements.iter_mut().for_each(close),
        _ => {}
    }
}

/// What the document says of a path, whatever is asked of it.
fn path_of(path: &str) -> Option<(&'static str, &'static Map<String, Value>)> {
    let path = path.split('?').next().unwrap_or_default();
    let paths = DOCUMENT["paths"].as_object()?;
    let found = paths.iter().filter(|(template, _)| fits(template, path));
    // Of several, the one with the most that is fixed: a verb behind a name.
    let fixed = |template: &str| {
        let parts = template.split(['{', '}']).step_by(2);
        parts.map(str::len).sum::<usize>()
    };
    let (template, methods) = found.max_by_key(|(template, _)| fixed(template))?;
    Some((template, methods.as_object()?))
}

fn fits(template: &str, path: &str) -> bool {
    let (templates, parts) = (template.split('/'), path.split('/'));
    if templates.clone().count() != parts.clone().count() {
        return false;
    }
    templates.zip(parts).all(|(template, part)| {
        let Some((before, rest)) = template.split_once('{') else {
            return template == part;
        };
        let (_, behind) = rest.split_once('}').unwrap();
        part.len() > before.len() + behind.len()
            && part.starts_with(before)
            && part.ends_with(behind)
    })
}

/// Panics if the document has no such answer.
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    let Some((template, methods)) = path_of(path) else {
        return;
    };
    let Some(operation) = methods.get(&method.to_lowercase()) else {
        return;
    };
    let status = answer.status.to_string();
    let what = format!("{method} {template}: {status}");
    // The document does not say it of each answer: none leaves it to a cache.
    assert!(answer.header("cache-control").is_some(), "{what}");
    let said = &operation["responses"][&status];
    assert!(
        said.is_object(),
        "{what} is not in the document: {answer:?}"
    );
    let said = match said["$ref"].as_str() {
        Some(place) => DOCUMENT.pointer(place.trim_start_matches('#')).unwrap(),
        None => said,
    };
    let Some(content) = said["content"].as_object() else {
        assert!(answer.body.is_empty(), "{what} has a body: {answer:?}");
        return;
    };
    let media = answer.header("content-type").unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default();
    let known = content.get(media);
    let schema = &known.unwrap_or_else(|| panic!("{what} is no {media} in the document"))["schema"];
    match media {
        "application/json" | "application/problem+json" => hold(&what, schema, &answer.json()),
        "application/x-ndjson" => {
            let line = json!({"$ref": "#/components/schemas/BatchAnswerLine"});
            let text = String::from_utf8_lossy(&answer.body);
            for text in text.lines() {
                hold(&what, &line, &serde_json::from_str(text).unwrap());
            }
        }
        _ => {}
    }
    for (name, header) in said["headers"].as_object().into_iter().flatten() {
        let Some(value) = answer.header(&name.to_lowercase()) else {
            continue;
        };
        if header["schema"].is_object() {
            hold(&format!("{what}, {name}"), &header["schema"], &json!(value));
        }
    }
}

fn hold(what: &str, schema: &Value, value: &Value) {
    let text = schema.to_string();
    let known = VALIDATORS.lock().unwrap().get(&text).map(Arc::clone);
    let validator = known.unwrap_or_else(|| {
        let mut whole = schema.clone();
        whole["components"] = json!({ "schemas": *CLOSED });
        let validator = jsonschema::draft202012::options()
            .should_validate_formats(true)
            .build(&whole);
        let validator = Arc::new(validator.unwrap());
        let mut validators = VALIDATORS.lock().unwrap();
        validators.insert(text, Arc::clone(&validator));
        validator
    });
    if let Err(error) = validator.validate(value) {
        let place = error.instance_path().to_string();
        panic!("{what}: {error} at {place:?}: {value}");
    }
}

/// The path of an operation, with names that are there or not.
fn filled(template: &str) -> String {
    let names = [
        ("{queue}", "orders"),
        ("{key}", "order-1"),
        ("{name}", "shop"),
        ("{id}", "1"),
        ("{token}", "0123456789ab"),
        ("{namespace}", "tenant-7"),
        ("{node}", "a"),
        ("{shard}", "0"),
        ("{code}", "malformed"),
    ];
    names
        .iter()
        .fold(template.to_owned(), |path, (name, value)| {
            path.replace(name, value)
        })
}

fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

#[test]
fn each_operation_takes_the_parameters_of_the_document_and_no_other() {
    let directory = Directory::new();
    let server = Server::start(&directory.0);
    let mut client = server.client();
    let ndjson = [("content-type", "application/x-ndjson")];
    for (path, method, operation) in operations() {
        let (method, filled) = (method.to_uppercase(), filled(path));
        // Health and metrics are asked for by probes that add what they like.
        if ["/healthz", "/livez", "/readyz", "/startz", "/metrics"].contains(&path) {
            continue;
        }
        let headers: &[_] = if path == "/v1/batch" { &ndjson } else { &[] };
        let mut ask = |query: &str| {
            let answer = client.send(&method, &format!("{filled}?{query}"), headers, b"");
            String::from_utf8_lossy(&answer.body).into_owned()
        };
        let said = ask("nothing=1");
        let refusal = r#"the query parameter \"nothing\" is unknown"#;
        assert!(said.contains(refusal), "{method} {filled}: {said}");
        let parameters = operation["parameters"].as_array();
        for parameter in parameters.into_iter().flatten() {
            if parameter["in"] == "query" {
                let name = parameter["name"].as_str().unwrap();
                // A stream would go on: it is refused for something else.
                let besides = if path == "/v1/events" {
                    "&nothing=1"
                } else {
                    ""
                };
                let said = ask(&format!("{name}={besides}"));
                let unknown = format!(r#"the query parameter \"{name}\" is unknown"#);
                assert!(!said.contains(&unknown), "{method} {filled}: {said}");
            }
        }
    }
}

/// Answers about timers said nothing of caches.
#[test]
fn nobody_keeps_an_answer_that_does_not_say_so() {
    let directory = Directory::new();
    let server = Server::start(&directory.0);
    let mut client = server.client();
    let put = client.json(
        "PUT",
        "/v1/endpoints/shop",
        r#"{"url": "http://127.0.0.1:9/"}"#,
    );
    put.expect(201);
    let timer = r#"{"in": "9d", "target": {"endpoint": "shop"}}"#;
    client
        .json("PUT", "/v1/queues/orders/timers/order-1", timer)
        .expect(201);
    // What is the same for everybody.
    let kept = ["/openapi.json", "/problems", "/problems/{code}"];
    let mut seen = 0;
    for (path, method, _) in operations() {
        let method = method.to_uppercase();
        // A stream would go on: it is refused.
        let query = if path == "/v1/events" {
            "?nothing=1"
        } else {
            ""
        };
        let answer = client.send(&method, &format!("{}{query}", filled(path)), &[], b"");
        let said = answer.header("cache-control");
        let wanted = if kept.contains(&path) {
            "no-cache"
        } else {
            "no-store"
        };
        assert_eq!(said, Some(wanted), "{method} {path}: {}", answer.status);
        seen += 1;
    }
    assert!(seen > 60, "{seen}");
    // One of them has removed it.
    let set = client.json("PUT", "/v1/queues/orders/timers/order-1", timer);
    assert_eq!(set.status, 201);
    let html = ("accept", "text/html");
    let tag = ("if-none-match", "*");
    for (method, path, header, status) in [
        ("GET", "/", html, 200),
        ("GET", "/dead", html, 200),
        ("GET", "/queue?name=orders", html, 200),
        ("GET", "/timer?queue=orders&key=order-1", html, 200),
        ("GET", "/queue", html, 400),
        ("GET", "/login", html, 303),
        ("GET", "/reference", html, 200),
        ("GET", "/problems", html, 200),
        ("GET", "/v1/queues/orders/timers/order-1", tag, 304),
        ("OPTIONS", "/v1/queues/orders", html, 204),
        ("GET", "/none", html, 404),
    ] {
        let answer = client.send(method, path, &[header], b"");
        let said = (answer.status, answer.header("cache-control"));
        assert_eq!(said, (status, Some("no-store")), "{method} {path}");
    }
    for path in ["/page/style.css", "/page/live.js", "/page/icon.svg"] {
        let answer = client.get(path);
        assert_eq!(answer.header("cache-control"), Some("no-cache"), "{path}");
    }
}

/// What is no request in due form, a line each: what is asked, and the refusal.
#[test]
fn the_reader_refuses_each_of_the_corpus_as_it_says() {
    let directory = Directory::new();
    let server = Server::start(&directory.0);
    let mut client = server.client();
    let queue = client.json("PUT", "/v1/queues/jobs", r#"{"mode": "pull"}"#);
    assert_eq!(queue.status, 201);
    let endpoint = client.json(
        "PUT",
        "/v1/endpoints/shop",
        r#"{"url": "http://127.0.0.1:9/"}"#,
    );
    assert_eq!(endpoint.status, 201);
    let queue = client.json("PUT", "/v1/queues/orders", r#"{"endpoint": "shop"}"#);
    assert_eq!(queue.status, 201);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/refused");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let lines = std::fs::read_to_string(&file).unwrap();
        for (number, line) in lines.lines().enumerate() {
            let at = format!("{}:{}", file.display(), number + 1);
            let case: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{at}: {error}"));
            refused(&mut client, &at, &case);
            count += 1;
        }
    }
    assert!(count >= 150, "there are {count} only");
}

fn refused(client: &mut Client, at: &str, case: &Value) {
    let (method, path) = case["ask"].as_str().unwrap().split_once(' ').unwrap();
    let text = match &case["body"] {
        // As it stands: what is no JSON, or has a name twice.
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let media = match path.starts_with("/v1/batch") {
        true => "application/x-ndjson",
        false => "application/json",
    };
    let media = case["content-type"].as_str().unwrap_or(media);
    let mut headers = vec![("content-type", media)];
    for (name, value) in case["headers"].as_object().into_iter().flatten() {
        headers.push((name, value.as_str().unwrap()));
    }
    if text.is_empty() && case["content-type"].is_null() {
        headers.remove(0);
    }
    let answer = client.send(method, path, &headers, text.as_bytes());
    let (status, code) = answer.problem();
    let body = answer.json();
    let said = json!({"status": status, "code": code, "pointer": body["errors"][0]["pointer"]});
    let wanted =
        json!({"status": case["status"], "code": case["code"], "pointer": case["pointer"]});
    assert_eq!(said, wanted, "{at}: {body}");
    if let Some(word) = case["says"].as_str() {
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(word), "{at}: {detail}");
    }
}
