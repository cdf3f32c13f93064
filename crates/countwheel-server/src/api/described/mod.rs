//! The API as one table: every object of requests and answers with its fields, every parameter, every operation.
//!
//! The strict reader goes by it ([`Object::shaped`](super::json::Object::shaped), [`Query::of`](super::request::Query::of)),
//! and `/openapi.json`, `/reference` and `/problems` are written from it. So a field that the table does not have is refused,
//! and one that it has is described.

pub(crate) mod answers;
pub(crate) mod openapi;
pub(crate) mod operations;
pub(crate) mod pages;
mod problems;
pub(crate) mod requests;

/// An object of JSON.
#[derive(Debug)]
pub(crate) struct Shape {
    /// As the document calls it, in one word.
    pub(crate) name: &'static str,
    /// What it is, in one line.
    pub(crate) doc: &'static str,
    /// Other objects whose fields this one has as well.
    pub(crate) with: &'static [&'static Shape],
    pub(crate) fields: &'static [Field],
    pub(crate) rules: &'static [Rule],
    /// Whether a later version may have more fields: of answers.
    pub(crate) is_open: bool,
}

/// What holds for several fields of an object at once.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Exactly one of these is there, and the document has an object for each.
    Exactly(&'static [&'static str]),
    /// At least one of these is there.
    AnyOf(&'static [&'static str]),
    /// No two of these are there.
    AtMostOne(&'static [&'static str]),
    /// The first is not there without one of the others.
    Needs(&'static str, &'static [&'static str]),
    /// These two are not there together without one of the others.
    NotBoth(&'static [&'static str; 2], &'static [&'static str]),
    /// The first is not there if the second is one of these words.
    NotWith(&'static str, &'static str, &'static [&'static str]),
    /// The first is there if the second is this word.
    With(&'static str, &'static str, &'static str),
}

/// A member of an object.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_required: bool,
    /// What counts if it is not there; empty for nothing in particular.
    pub(crate) default: &'static str,
    /// What it is, in one line.
    pub(crate) doc: &'static str,
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Any value of JSON.
    Any,
    /// A text of so many characters. The pattern is a regular expression for the whole, or empty; the format says what the
    /// text is, or is empty.
    Text {
        least: usize,
        most: usize,
        pattern: &'static str,
        format: &'static str,
    },
    /// One of these texts.
    Words(&'static [&'static str]),
    /// A whole number.
    Whole { least: i64, most: u64 },
    /// A number.
    Number { least: f64, most: f64 },
    /// `true` or `false`.
    Truth,
    /// Milliseconds or a text.
    Duration,
    /// The same with a sign.
    Shift,
    /// An object of these fields.
    Object(&'static Shape),
    /// An array of so many values.
    List {
        of: &'static Kind,
        least: usize,
        most: usize,
    },
    /// The same, no two of them alike.
    Set {
        of: &'static Kind,
        least: usize,
        most: usize,
    },
    /// An object whose names are free, within a pattern if it is not empty.
    Map {
        of: &'static Kind,
        most: usize,
        pattern: &'static str,
    },
    /// This, or `null`.
    Nullable(&'static Kind),
    /// One of these.
    Either(&'static [Kind]),
    /// A kind that many fields have.
    Named(&'static Named),
}

/// A kind with a name of its own.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) kind: Kind,
}

/// A field that has to be there.
const fn need(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field {
        name,
        kind,
        is_required: true,
        default: "",
        doc,
    }
}

/// A field that may be there.
const fn may(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field {
        is_required: false,
        ..need(name, kind, doc)
    }
}

impl Field {
    /// The same with what counts if it is not there.
    const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }
}

impl Shape {
    /// All fields, those of other objects first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Field> + '_ {
        let others = self.with.iter().flat_map(|shape| shape.fields);
        others.chain(self.fields)
    }

    /// The field of that name.
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.all().find(|field| field.name == name)
    }
}

/// The kinds of values that JSON tells apart, as bits.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NULL: Self = Self(1);
    const TRUTH: Self = Self(2);
    const NUMBER: Self = Self(4);
    const TEXT: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    const ANY: Self = Self(63);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// That of a value, by its first byte.
    fn of(raw: &str) -> Self {
        match raw.as_bytes().first() {
            Some(b'"') => Self::TEXT,
            Some(b'{') => Self::OBJECT,
            Some(b'[') => Self::ARRAY,
            Some(b't' | b'f') => Self::TRUTH,
            Some(b'n') => Self::NULL,
            _ => Self::NUMBER,
        }
    }
}

impl Kind {
    /// A text of any length.
    pub(crate) const TEXT: Self = Self::text(0, usize::MAX);
    /// A whole number of any size.
    pub(crate) const COUNT: Self = Self::Whole {
        least: 0,
        most: u64::MAX,
    };

    pub(crate) const fn text(least: usize, most: usize) -> Self {
        Self::Text {
            least,
            most,
            pattern: "",
            format: "",
        }
    }

    pub(crate) const fn whole(least: i64, most: u64) -> Self {
        Self::Whole { least, most }
    }

    fn types(self) -> Types {
        match self {
            Self::Any => Types::ANY,
            Self::Text { .. } | Self::Words(_) => Types::TEXT,
            Self::Whole { .. } | Self::Number { .. } => Types::NUMBER,
            Self::Truth => Types::TRUTH,
            Self::Duration | Self::Shift => Types::NUMBER.and(Types::TEXT),
            Self::Object(_) | Self::Map { .. } => Types::OBJECT,
            Self::List { .. } | Self::Set { .. } => Types::ARRAY,
            Self::Nullable(kind) => kind.types().and(Types::NULL),
            Self::Either(kinds) => {
                let types = kinds.iter().map(|kind| kind.types());
                types.fold(Types(0), Types::and)
            }
            Self::Named(named) => named.kind.types(),
        }
    }

    /// Whether a value of JSON is of the right type, whatever it says.
    pub(crate) fn takes(self, raw: &str) -> bool {
        self.types().0 & Types::of(raw).0 != 0
    }

    /// What a value of another type should have been.
    pub(crate) fn must_be(self) -> String {
        match self {
            Self::Duration => "must be a number of milliseconds or a text such as 30m".to_owned(),
            Self::Shift => "must be a number of milliseconds or a text such as -5m".to_owned(),
            Self::Named(named) => named.kind.must_be(),
            _ => {
                let all = [
                    (Types::TEXT, "a text"),
                    (Types::NUMBER, "a number"),
                    (Types::TRUTH, "true or false"),
                    (Types::ARRAY, "an array"),
                    (Types::OBJECT, "an object"),
                    (Types::NULL, "null"),
                ];
                let types = self.types();
                let words = all.iter().filter(|(it, _)| types.0 & it.0 != 0);
                let words: Vec<_> = words.map(|(_, words)| *words).collect();
                format!("must be {}", words.join(" or "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::{Method, Request as Asked, header};
    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::{Attempt, Config, Outcome, Timers};
    use countwheel_time::{Clock, SystemClock};
    use tower_service::Service;

    use super::operations::{ALL, Operation};
    use super::*;
    use crate::api::{App, router};

    const CONTRACT: &str = include_str!("../../../../../docs/api.md");

    /// The route of a path: what it ends in behind a name is for the handler.
    fn route(operation: &Operation) -> &'static str {
        match operation.path.rsplit_once("}:") {
            Some((before, _)) => &operation.path[..=before.len()],
            None => operation.path,
        }
    }

    /// The paths of `router`, as it is written, with the names that they give to their parts.
    fn routes() -> BTreeSet<&'static str> {
        let text = include_str!("../mod.rs");
        let (_, text) = text.split_once("\npub fn router(").expect("it is there");
        let (text, _) = text.split_once("\n}\n").expect("it ends");
        let paths = text.split(".route(").skip(1);
        let paths = paths.filter_map(|rest| rest.split('"').nth(1));
        paths.filter(|path| *path != "/echo").collect()
    }

    #[test]
    fn the_table_has_every_route_with_its_methods_and_no_other() {
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for operation in ALL {
            let methods = wanted.entry(route(operation)).or_default();
            methods.insert(operation.method);
            if operation.method == "GET" {
                methods.insert("HEAD");
            }
        }
        assert_eq!(wanted.keys().copied().collect::<BTreeSet<_>>(), routes());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (store, handler) = (MemoryStore::new(1), |_: &Attempt| Outcome::done());
        let timers = Timers::open(store, handler, Arc::clone(&clock), Config::default());
        let app = App::new(timers.expect("it is in memory"), clock, None, false);
        let mut router = router(Arc::new(app));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("it is made");
        for (path, methods) in wanted {
            let asked = Asked::builder()
                .method(Method::OPTIONS)
                .uri(path.replace(['{', '}'], ""));
            let asked = asked.header(header::HOST, "localhost").body(Body::empty());
            let answer = runtime.block_on(router.call(asked.expect("it is a request")));
            let answer = answer.expect("it answers");
            let allowed = answer.headers()[header::ALLOW].to_str().expect("text");
            let allowed: BTreeSet<_> = allowed.split(',').collect();
            assert_eq!(allowed, methods, "{path}");
        }
    }

    #[test]
    fn every_part_of_a_path_has_a_parameter_and_every_operation_a_name_of_its_own() {
        let names: BTreeSet<_> = ALL.iter().map(|operation| operation.id).collect();
        assert_eq!(names.len(), ALL.len());
        for operation in ALL {
            let parts = operation.path.matches('{').count();
            assert_eq!(
                operation.path_parameters().count(),
                parts,
                "{}",
                operation.path
            );
            assert!(!operation.answers.is_empty(), "{}", operation.id);
        }
    }

    /// The names in backticks in the first column of the tables below a heading, up to the next one.
    fn named(heading: &str) -> BTreeSet<String> {
        let (_, text) = CONTRACT
            .split_once(&format!("\n{heading}"))
            .expect("it is there");
        let text = text.split("\n## ").next().expect("it is there");
        let text = text.split("\n### ").next().expect("it is there");
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        let first = rows.filter_map(|row| row.split(" | ").next());
        let names = first.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.map(str::to_owned).collect()
    }

    /// The fields of a shape, those of objects in it with a dot.
    fn fields(shape: &Shape, deep: &[&str]) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for field in shape.all() {
            match field.kind {
                Kind::Object(inner) if deep.contains(&field.name) => {
                    let inner = inner.all();
                    all.extend(inner.map(|it| format!("{}.{}", field.name, it.name)));
                    if field.name != "target" {
                        all.insert(field.name.to_owned());
                    }
                }
                _ => drop(all.insert(field.name.to_owned())),
            }
        }
        all
    }

    #[test]
    fn the_contract_and_the_table_have_the_same_fields() {
        let endpoints = "## Endpoints: `GET /v1/endpoints`";
        assert_eq!(named(endpoints), fields(&requests::PUT_ENDPOINT, &[]));
        let queue = "## A queue: `GET /v1/queues/{queue}`";
        assert_eq!(named(queue), fields(&requests::PUT_QUEUE, &[]));
        let purge = "## Purge: `POST /v1/queues/{queue}:purge`";
        assert_eq!(named(purge), fields(&requests::PURGE, &[]));
        let jobs = "## Jobs: `/v1/jobs`";
        assert_eq!(named(jobs), fields(&requests::JOB, &["filter"]));
        // Of a set, more tables follow.
        let mut set = named("## Set: `PUT /v1/queues/{queue}/timers/{key}`");
        let recurring = named("### Recurring timers");
        let recurring = recurring
            .iter()
            .map(|name| name.split(['"', ':']).find(|it| !it.is_empty()));
        set.extend(recurring.flatten().map(str::to_owned));
        let mut described = fields(&requests::SET, &["target"]);
        // They are in the text, and not in a table.
        for name in ["zone", "adaptive"] {
            assert!(
                CONTRACT.contains(&format!("`\"{name}\"")) && described.remove(name),
                "{name}"
            );
        }
        assert_eq!(set, described);
    }

    #[test]
    fn a_value_of_another_type_is_told_what_it_must_be() {
        for (kind, takes, must_be) in [
            (Kind::TEXT, r#""a""#, "must be a text"),
            (Kind::COUNT, "1", "must be a number"),
            (Kind::Truth, "true", "must be true or false"),
            (requests::TAGS, "[]", "must be an array"),
            (requests::HEADERS, "{}", "must be an object"),
            (
                Kind::Nullable(&Kind::TEXT),
                "null",
                "must be a text or null",
            ),
            (requests::MISSED, "{}", "must be a text or an object"),
            (
                requests::DURATION,
                "1",
                "must be a number of milliseconds or a text such as 30m",
            ),
        ] {
            assert!(kind.takes(takes), "{kind:?}");
            assert_eq!(kind.must_be(), must_be);
            let others = [r#""a""#, "1", "true", "[]", "{}", "null"];
            let others = others.iter().filter(|other| kind.takes(other)).count();
            assert!((1..=2).contains(&others), "{kind:?}");
        }
        assert!(Kind::Any.takes("null") && Kind::Any.takes("{}"));
    }
}
