//! The API described: the document, the reference for people, and what each code of a problem means.

use askama::Template;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::operations::{self, Operation, Parameter, Request};
use super::{Field, Kind, Shape, openapi};
use crate::VERSION;
use crate::api::answer;
use crate::api::problem::{Code, Problem};
use crate::api::request::{Query, text_segment};
use crate::dashboard::{html, wants_html};

/// What is the same for everybody may be kept. Another version of the program has another one, at the same address.
fn asked() -> HeaderValue {
    HeaderValue::from_static("no-cache")
}

/// The document of OpenAPI. Nothing in it is of this service alone, so no token is asked for.
pub(in crate::api) async fn document(uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &operations::OPENAPI.query_names())?;
    let json = HeaderValue::from_static("application/json");
    let text = openapi::TEXT.as_str();
    let headers = [
        (header::CONTENT_TYPE, json),
        (header::CACHE_CONTROL, asked()),
    ];
    Ok((headers, text).into_response())
}

/// What a code means.
#[derive(Serialize)]
struct ProblemBody {
    r#type: String,
    code: &'static str,
    status: u16,
    title: &'static str,
    when: &'static str,
    #[serde(rename = "do")]
    advice: &'static str,
}

impl From<Code> for ProblemBody {
    fn from(code: Code) -> Self {
        let (when, advice) = code.advice();
        Self {
            r#type: format!("/problems/{}", code.name()),
            code: code.name(),
            status: code.status(),
            title: code.title(),
            when,
            advice,
        }
    }
}

#[derive(Template)]
#[template(path = "problems.html")]
struct ProblemsPage {
    title: &'static str,
    version: &'static str,
    problems: Vec<ProblemBody>,
}

/// All codes.
pub(in crate::api) async fn problems(uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        problems: Vec<ProblemBody>,
    }
    Query::of(&uri, &operations::PROBLEMS.query_names())?;
    let mut codes = Code::ALL;
    codes.sort_by_key(|code| (code.status(), code.name()));
    let problems = codes.map(ProblemBody::from).into();
    if !wants_html(&headers) {
        return Ok(varied(answer(StatusCode::OK, &Answer { problems })));
    }
    let page = ProblemsPage {
        title: "Problems",
        version: VERSION,
        problems,
    };
    html(StatusCode::OK, &page).map(varied)
}

/// The code that the path names.
pub(in crate::api) async fn problem(uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    const CODE: usize = 2; // /problems/{code}
    Query::of(&uri, &operations::PROBLEM.query_names())?;
    let code = text_segment(&uri, CODE).and_then(|name| Code::from_name(&name));
    let code = code.ok_or_else(|| Problem::new(Code::NotFound, "there is no such code"))?;
    let body = ProblemBody::from(code);
    if !wants_html(&headers) {
        return Ok(varied(answer(StatusCode::OK, &body)));
    }
    let page = ProblemsPage {
        title: body.title,
        version: VERSION,
        problems: vec![body],
    };
    html(StatusCode::OK, &page).map(varied)
}

/// The same for whoever keeps answers: another Accept has another one.
fn varied(mut response: Response) -> Response {
    let accept = HeaderValue::from_static("accept");
    let headers = response.headers_mut();
    headers.insert(header::VARY, accept);
    headers.entry(header::CACHE_CONTROL).or_insert_with(asked);
    response
}

#[derive(Template)]
#[template(path = "reference.html")]
struct ReferencePage {
    version: &'static str,
    groups: Vec<Group>,
    shapes: Vec<ShapeRow>,
}

/// The operations about one thing.
struct Group {
    name: &'static str,
    operations: Vec<OperationRow>,
}

struct OperationRow {
    id: &'static str,
    method: &'static str,
    path: &'static str,
    doc: &'static str,
    parameters: Vec<ParameterRow>,
    body: String,
    answers: Vec<AnswerRow>,
    codes: Vec<&'static str>,
}

struct ParameterRow {
    name: &'static str,
    place: &'static str,
    kind: String,
    default: &'static str,
    doc: &'static str,
}

struct AnswerRow {
    status: u16,
    doc: &'static str,
}

struct ShapeRow {
    name: &'static str,
    doc: &'static str,
    fields: Vec<FieldRow>,
}

struct FieldRow {
    name: &'static str,
    kind: String,
    default: &'static str,
    doc: &'static str,
}

/// The same for people, on one page.
pub(in crate::api) async fn reference(uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &operations::REFERENCE.query_names())?;
    let mut groups: Vec<Group> = Vec::new();
    for operation in operations::ALL {
        let row = OperationRow::of(operation);
        match groups.iter_mut().find(|it| it.name == operation.group) {
            Some(group) => group.operations.push(row),
            None => groups.push(Group {
                name: operation.group,
                operations: vec![row],
            }),
        }
    }
    let page = ReferencePage {
        version: VERSION,
        groups,
        shapes: requested().into_iter().map(ShapeRow::of).collect(),
    };
    html(StatusCode::OK, &page)
}

/// The objects of requests, each once, in the order in which operations name them.
fn requested() -> Vec<&'static Shape> {
    let mut shapes = Vec::new();
    for operation in operations::ALL {
        match operation.request {
            Request::None => {}
            Request::Needed(shape) | Request::Optional(shape) => gather(shape, &mut shapes),
            Request::NeededEither(kinds) => {
                kinds.iter().for_each(|kind| gather_of(*kind, &mut shapes));
            }
            Request::Lines(lines) => lines.iter().for_each(|shape| gather(shape, &mut shapes)),
        }
    }
    shapes
}

fn gather(shape: &'static Shape, into: &mut Vec<&'static Shape>) {
    if into.iter().any(|known| known.name == shape.name) {
        return;
    }
    into.push(shape);
    shape.all().for_each(|field| gather_of(field.kind, into));
}

fn gather_of(kind: Kind, into: &mut Vec<&'static Shape>) {
    match kind {
        Kind::Object(shape) => gather(shape, into),
        Kind::List { of, .. }
        | Kind::Set { of, .. }
        | Kind::Map { of, .. }
        | Kind::Nullable(of) => gather_of(*of, into),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| gather_of(*kind, into)),
        Kind::Named(named) => gather_of(named.kind, into),
        _ => {}
    }
}

impl OperationRow {
    fn of(operation: &'static Operation) -> Self {
        let row = |place| move |it: &'static Parameter| ParameterRow::of(it, place);
        let path = operation.path_parameters().map(row("path"));
        let query = operation.query.iter().map(row("query"));
        let headers = operation.headers.iter().copied().map(row("header"));
        let body = match operation.request {
            Request::None => String::new(),
            Request::Needed(shape) => shape.name.to_owned(),
            Request::Optional(shape) => format!("{}, or none", shape.name),
            Request::NeededEither(kinds) => Kind::Either(kinds).words(),
            Request::Lines(_) => "one operation a line".to_owned(),
        };
        let answers = operation.answers.iter();
        Self {
            id: operation.id,
            method: operation.method,
            path: operation.path,
            doc: operation.doc,
            parameters: path.chain(query).chain(headers).collect(),
            body,
            answers: answers
                .map(|answer| AnswerRow {
                    status: answer.status,
                    doc: answer.doc,
                })
                .collect(),
            codes: operation.codes().into_iter().map(Code::name).collect(),
        }
    }
}

impl ParameterRow {
    fn of(parameter: &'static Parameter, place: &'static str) -> Self {
        Self {
            name: parameter.name,
            place,
            kind: parameter.kind.words(),
            default: parameter.default,
            doc: parameter.doc,
        }
    }
}

impl ShapeRow {
    fn of(shape: &'static Shape) -> Self {
        let fields = shape.all().map(|field: &'static Field| FieldRow {
            name: field.name,
            kind: field.kind.words(),
            default: if field.is_required {
                "required"
            } else {
                field.default
            },
            doc: field.doc,
        });
        Self {
            name: shape.name,
            doc: shape.doc,
            fields: fields.collect(),
        }
    }
}

impl Kind {
    /// What the value may be, for people.
    fn words(self) -> String {
        match self {
            Self::Any => "any value".to_owned(),
            Self::Text { most, .. } if most < usize::MAX => format!("text, at most {most}"),
            Self::Text { .. } => "text".to_owned(),
            Self::Words(words) => words.join(" | "),
            Self::Whole { least, most } if most < i64::MAX.unsigned_abs() => {
                format!("{least} to {most}")
            }
            Self::Whole { .. } => "whole number".to_owned(),
            Self::Number { least, most } => format!("number, {least} to {most}"),
            Self::Truth => "true | false".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::Shift => "signed duration".to_owned(),
            Self::Object(shape) => shape.name.to_owned(),
            Self::List { of, most, .. } | Self::Set { of, most, .. } if most < usize::MAX => {
                format!("at most {most} of: {}", of.words())
            }
            Self::List { of, .. } | Self::Set { of, .. } => format!("list of: {}", of.words()),
            Self::Map { of, .. } => format!("names to: {}", of.words()),
            Self::Nullable(kind) => format!("{} | null", kind.words()),
            Self::Either(kinds) => {
                let words: Vec<_> = kinds.iter().map(|kind| kind.words()).collect();
                words.join(" | ")
            }
            Self::Named(named) => match named.kind {
                Self::Duration | Self::Shift => named.kind.words(),
                _ => named.name.to_owned(),
            },
        }
    }
}
