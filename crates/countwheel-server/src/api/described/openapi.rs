//! The document of OpenAPI 3.1, written from the table.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::operations::{self, Answer, AnswerBody, Operation, Parameter, Request};
use super::{Field, Kind, Rule, Shape, answers};
use crate::VERSION;
use crate::api::problem::Code;

/// The document as it is served.
pub(crate) static TEXT: LazyLock<String> = LazyLock::new(|| {
    let text = serde_json::to_string_pretty(&document());
    // There is nothing in it that JSON cannot have.
    text.unwrap_or_default() + "\n"
});

/// What the groups of operations are about.
const GROUPS: [(&str, &str); 13] = [
    (
        "timers",
        "Set, move, remove, get, list, fire, revive and resend timers.",
    ),
    ("batches", "Many operations in one request."),
    (
        "queues",
        "Counts, settings, pauses, drains and purges of queues.",
    ),
    ("leases", "Workers fetch the timers of queues of mode pull."),
    ("endpoints", "Places for deliveries that have names."),
    (
        "tokens",
        "Tokens, and what each opens: read, write, deliver, metrics or all (admin).",
    ),
    ("jobs", "Changes of many timers in the background."),
    (
        "figures",
        "How many timers there are, and when they are due.",
    ),
    ("simulation", "When attempts and runs would come."),
    ("cluster", "Nodes and shards."),
    ("operation", "Health, metrics and snapshots."),
    ("description", "The API described."),
    ("events", "What happens, as it happens."),
];

/// No duration is longer: 36,525 days in milliseconds.
const LONGEST_MS: u64 = 36_525 * 86_400_000;

fn document() -> Value {
    let mut writer = Writer::default();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations::ALL {
        let written = writer.operation(operation);
        let path = paths
            .entry(operation.path)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(methods) = path {
            methods.insert(operation.method.to_lowercase(), written);
        }
    }
    let used = operations::ALL.map(|operation| operation.group);
    let groups = GROUPS.iter().filter(|(name, _)| used.contains(name));
    let groups = groups.map(|(name, doc)| json!({"name": name, "description": doc}));
    let request_id = Writer::default().header(&operations::REQUEST_ID);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Countwheel",
            "summary": "Durable timers over HTTP.",
            "description": "What the service refuses, it refuses as a Problem (RFC 9457). The document is written from the \
                            table that its strict reader goes by.",
            "version": VERSION,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": groups.collect::<Vec<_>>(),
        "security": [],
        "paths": paths,
        "components": {
            "schemas": writer.schemas,
            "responses": writer.refusals,
            "headers": {"X-Request-Id": request_id},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of the service, where one is configured, or one of /v1/tokens with the scope that the operation wants.",
                },
            },
        },
    })
}

/// The name of a variant: that of the object and of the field that makes it.
fn variant_name(shape: &Shape, field: &str) -> String {
    let mut name = shape.name.to_owned();
    for part in field.split('_') {
        let mut letters = part.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

#[derive(Default)]
struct Writer {
    /// The schemas that are named, by name.
    schemas: BTreeMap<String, Value>,
    /// The refusals, by status and codes.
    refusals: BTreeMap<String, Value>,
}

impl Writer {
    fn operation(&mut self, operation: &Operation) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("operationId", operation.id.into());
        put("tags", json!([operation.group]));
        put("summary", operation.doc.into());
        if operation.wants_token() {
            // Only where a token is configured is one asked for.
            put("security", json!([{"token": []}, {}]));
        }
        let paths = operation.path_parameters();
        let paths = paths.map(|parameter| self.parameter("path", parameter));
        let mut parameters: Vec<_> = paths.collect();
        parameters.extend(operation.query.iter().map(|it| self.parameter("query", it)));
        let headers = operation.headers.iter();
        parameters.extend(headers.map(|it| self.parameter("header", it)));
        if !parameters.is_empty() {
            put("parameters", parameters.into());
        }
        if let Some(body) = self.request(operation.request) {
            put("requestBody", body);
        }
        let mut responses = Map::new();
        for answer in operation.answers {
            responses.insert(answer.status.to_string(), self.answer(answer));
        }
        let codes = operation.codes();
        for group in codes.chunk_by(|one, next| one.status() == next.status()) {
            let status = group[0].status();
            responses.insert(status.to_string(), self.refusal(group));
        }
        put("responses", responses.into());
        Value::Object(object)
    }

    fn parameter(&mut self, place: &str, parameter: &Parameter) -> Value {
        let mut doc = parameter.doc.to_owned();
        if !parameter.default.is_empty() {
            doc = format!("{doc} Default: {}.", parameter.default);
        }
        let mut object = json!({
            "name": parameter.name,
            "in": place,
            "description": doc,
            "schema": self.kind(parameter.kind),
        });
        if place == "path" {
            object["required"] = true.into();
        }
        object
    }

    fn header(&mut self, header: &Parameter) -> Value {
        json!({"description": header.doc, "schema": self.kind(header.kind)})
    }

    fn request(&mut self, request: Request) -> Option<Value> {
        let object = |shape| Kind::Object(shape);
        let (media, schema, is_required) = match request {
            Request::None => return None,
            Request::Needed(shape) => ("application/json", self.kind(object(shape)), true),
            Request::NeededEither(kinds) => {
                ("application/json", self.kind(Kind::Either(kinds)), true)
            }
            Request::Optional(shape) => ("application/json", self.kind(object(shape)), false),
            Request::Lines(shapes) => {
                let lines = shapes.iter().map(|shape| self.kind(object(shape)));
                let lines: Vec<_> = lines.collect();
                self.schemas
                    .insert("BatchOperation".to_owned(), json!({"oneOf": lines}));
                let doc = "One BatchOperation a line.";
                (
                    "application/x-ndjson",
                    json!({"type": "string", "description": doc}),
                    true,
                )
            }
        };
        Some(json!({"required": is_required, "content": {media: {"schema": schema}}}))
    }

    fn answer(&mut self, answer: &Answer) -> Value {
        let mut headers = Map::new();
        let request_id = json!({"$ref": "#/components/headers/X-Request-Id"});
        headers.insert("X-Request-Id".to_owned(), request_id);
        for header in answer.headers {
            headers.insert(header.name.to_owned(), self.header(header));
        }
        let mut object = json!({"description": answer.doc, "headers": headers});
        match answer.body {
            AnswerBody::Nothing => {}
            AnswerBody::Json(kind) => {
                object["content"] = json!({"application/json": {"schema": self.kind(kind)}});
            }
            AnswerBody::Lines(kinds) => {
                let lines: Vec<_> = kinds.iter().map(|kind| self.kind(*kind)).collect();
                let [line, end, whole] = &lines[..] else {
                    return object;
                };
                self.schemas
                    .insert("BatchAnswerLine".to_owned(), json!({"anyOf": [line, end]}));
                let doc = "One BatchAnswerLine a line.";
                object["content"] = json!({
                    "application/x-ndjson": {"schema": {"type": "string", "description": doc}},
                    "application/json": {"schema": whole},
                });
            }
            AnswerBody::Events(kinds) => {
                let data: Vec<_> = kinds.iter().map(|kind| self.kind(*kind)).collect();
                self.schemas
                    .insert("EventData".to_owned(), json!({"anyOf": data}));
                let doc = "Events whose data is one EventData.";
                let schema = json!({"type": "string", "description": doc});
                object["content"] = json!({"text/event-stream": {"schema": schema}});
            }
            AnswerBody::Of(media) => {
                let media = media.iter();
                let content = media.map(|media| {
                    let schema = json!({"schema": {"type": "string"}});
                    ((*media).to_owned(), schema)
                });
                object["content"] = Value::Object(content.collect());
            }
            AnswerBody::Page(kind) => {
                object["content"] = json!({
                    "application/json": {"schema": self.kind(kind)},
                    "text/html": {"schema": {"type": "string"}},
                });
            }
        }
        object
    }

    /// The refusals of one status.
    fn refusal(&mut self, codes: &[Code]) -> Value {
        let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
        let name = format!("{}-{}", codes[0].status(), names.join("-"));
        let place = json!({"$ref": format!("#/components/responses/{name}")});
        if self.refusals.contains_key(&name) {
            return place;
        }
        let doc = format!("Refused: {}.", names.join(", "));
        let mut headers = json!({"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}});
        if codes.iter().any(|code| code.retry_after().is_some()) {
            headers["Retry-After"] = self.header(&operations::RETRY_AFTER);
        }
        let schema = self.kind(Kind::Object(&answers::PROBLEM));
        let written = json!({
            "description": doc,
            "headers": headers,
            "content": {"application/problem+json": {"schema": schema}},
        });
        self.refusals.insert(name, written);
        place
    }

    /// The schema of a kind, or where it is.
    fn kind(&mut self, kind: Kind) -> Value {
        match kind {
            Kind::Any => json!({}),
            Kind::Text {
                least,
                most,
                pattern,
                format,
            } => {
                let mut schema = json!({"type": "string"});
                if least > 0 {
                    schema["minLength"] = least.into();
                }
                if most < usize::MAX {
                    schema["maxLength"] = most.into();
                }
                if !pattern.is_empty() {
                    schema["pattern"] = pattern.into();
                }
                if !format.is_empty() {
                    schema["format"] = format.into();
                }
                schema
            }
            Kind::Words(words) => json!({"type": "string", "enum": words}),
            Kind::Whole { least, most } => {
                let mut schema = json!({"type": "integer"});
                if least > i64::MIN {
                    schema["minimum"] = least.into();
                }
                if most < i64::MAX.unsigned_abs() {
                    schema["maximum"] = most.into();
                }
                schema
            }
            Kind::Number { least, most } => {
                json!({"type": "number", "minimum": least, "maximum": most})
            }
            Kind::Truth => json!({"type": "boolean"}),
            Kind::Duration => json!({"anyOf": [
                {"type": "integer", "minimum": 0, "maximum": LONGEST_MS},
                {"type": "string", "format": "duration-text"},
            ]}),
            Kind::Shift => json!({"anyOf": [
                {"type": "integer", "maximum": LONGEST_MS},
                {"type": "string", "format": "signed-duration-text"},
            ]}),
            Kind::Object(shape) => self.shape(shape),
            Kind::List { of, least, most } => {
                let mut schema = json!({"type": "array", "items": self.kind(*of)});
                if least > 0 {
                    schema["minItems"] = least.into();
                }
                if most < usize::MAX {
                    schema["maxItems"] = most.into();
                }
                schema
            }
            Kind::Set { of, least, most } => {
                let mut schema = self.kind(Kind::List { of, least, most });
                schema["uniqueItems"] = true.into();
                schema
            }
            Kind::Map { of, most, pattern } => {
                let mut schema = json!({"type": "object", "additionalProperties": self.kind(*of)});
                if most < usize::MAX {
                    schema["maxProperties"] = most.into();
                }
                if !pattern.is_empty() {
                    schema["propertyNames"] = json!({"type": "string", "pattern": pattern});
                }
                schema
            }
            Kind::Nullable(kind) => json!({"anyOf": [self.kind(*kind), {"type": "null"}]}),
            Kind::Either(kinds) => {
                let schemas: Vec<_> = kinds.iter().map(|kind| self.kind(*kind)).collect();
                json!({"anyOf": schemas})
            }
            Kind::Named(named) => {
                if !self.schemas.contains_key(named.name) {
                    let mut schema = self.kind(named.kind);
                    schema["description"] = named.doc.into();
                    self.schemas.insert(named.name.to_owned(), schema);
                }
                reference(named.name)
            }
        }
    }

    fn shape(&mut self, shape: &'static Shape) -> Value {
        if !self.schemas.contains_key(shape.name) {
            // It may be in itself.
            self.schemas.insert(shape.name.to_owned(), Value::Null);
            let schema = self.object(shape);
            self.schemas.insert(shape.name.to_owned(), schema);
        }
        reference(shape.name)
    }

    fn object(&mut self, shape: &'static Shape) -> Value {
        for rule in shape.rules {
            let Rule::Exactly(names) = rule else {
                continue;
            };
            let variants = names.iter().map(|name| {
                let variant = variant_name(shape, name);
                let fields = shape.all();
                let is_of = |field: &&Field| field.name == *name || !names.contains(&field.name);
                let fields: Vec<_> = fields.filter(is_of).collect();
                let mut schema = self.fields(shape, &fields, &[name]);
                schema["title"] = variant.as_str().into();
                self.schemas.insert(variant.clone(), schema);
                reference(&variant)
            });
            let variants: Vec<_> = variants.collect();
            return json!({"description": shape.doc, "oneOf": variants});
        }
        let fields: Vec<_> = shape.all().collect();
        let mut schema = self.fields(shape, &fields, &[]);
        let wrong: Vec<Value> = shape.rules.iter().map(wrong).collect();
        match &wrong[..] {
            [] => {}
            [one] => schema["not"] = one.clone(),
            _ => schema["not"] = json!({"anyOf": wrong}),
        }
        schema
    }

    fn fields(&mut self, shape: &Shape, fields: &[&Field], needed: &[&str]) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in fields {
            let mut schema = self.kind(field.kind);
            let mut doc = field.doc.to_owned();
            if !field.default.is_empty() {
                doc = format!("{doc} Default: {}.", field.default);
            }
            schema["description"] = doc.into();
            properties.insert(field.name.to_owned(), schema);
            if field.is_required || needed.contains(&field.name) {
                required.push(field.name);
            }
        }
        let mut schema = json!({
            "type": "object",
            "description": shape.doc,
            "properties": properties,
        });
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        if !shape.is_open {
            schema["additionalProperties"] = false.into();
        }
        schema
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Properties that are not there.
fn absent(names: &[&str]) -> Value {
    let absent = names.iter().map(|name| ((*name).to_owned(), false.into()));
    Value::Object(absent.collect())
}

/// What an object is that breaks a rule.
fn wrong(rule: &Rule) -> Value {
    let required = |names: &[&str]| json!({"required": names});
    match rule {
        Rule::AnyOf(names) | Rule::Exactly(names) => {
            json!({"properties": absent(names)})
        }
        Rule::AtMostOne(names) => {
            let pairs = names.iter().enumerate().flat_map(|(at, one)| {
                let others = names[at + 1..].iter();
                others.map(move |other| json!({"required": [one, other]}))
            });
            match &pairs.collect::<Vec<_>>()[..] {
                [pair] => pair.clone(),
                pairs => json!({"anyOf": pairs}),
            }
        }
        Rule::NotWith(name, other, words) => {
            let mut schema = required(&[name, other]);
            schema["properties"] = json!({*other: {"enum": words}});
            schema
        }
        Rule::With(name, other, word) => {
            let mut schema = required(&[other]);
            schema["properties"] = json!({*other: {"const": word}, *name: false});
            schema
        }
        Rule::NotBoth(pair, others) => {
            let mut schema = required(*pair);
            schema["properties"] = absent(others);
            schema
        }
        Rule::Needs(name, others) => {
            let mut schema = required(&[name]);
            schema["properties"] = absent(others);
            schema
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever changes the table changes the copy with it: the test says where the new one is.
    #[test]
    fn the_copy_in_docs_is_what_is_served() {
        let copy = include_str!("../../../../../docs/openapi.json");
        if *TEXT != copy {
            let written = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/openapi.json");
            std::fs::write(written, &*TEXT).expect("it can be written");
            panic!("copy target/openapi.json to docs/openapi.json");
        }
    }
}
