//! Strict reading of JSON: the reader refuses unknown parts and never ignores them.
//!
//! `serde_json` reads the grammar. This module adds the demands of an API: no doubled names at any
//! depth, no unknown names, a bound on the depth, numbers as they were written, and a pointer to
//! the fault.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::described::{self, Shape};
use super::problem::Problem;

/// How many arrays and objects may enclose each other.
pub(crate) const MAX_DEPTH: usize = 64;

/// The body of a request, read in full: grammar, depth, names, escapes.
///
/// O(length of the text), without recursion.
pub(crate) fn parse(text: &[u8]) -> Result<&RawValue, Problem> {
    parse_named("the body", text)
}

/// As [`parse`], of a text that errors call by this name.
pub(crate) fn parse_named<'a>(what: &str, text: &'a [u8]) -> Result<&'a RawValue, Problem> {
    let text = std::str::from_utf8(text)
        .map_err(|_| Problem::malformed(format!("{what} is not UTF-8")))?;
    let value: &RawValue = serde_json::from_str(text)
        .map_err(|error| Problem::malformed(format!("{what} is not JSON: {error}")))?;
    scan(what, value.get())?;
    Ok(value)
}

/// An object or an array around a position of [`scan`].
enum Around<'a> {
    /// The names seen in it, the last of them last.
    Object(Names<'a>),
    /// How many elements are before the position.
    Array(usize),
}

impl<'a> Around<'a> {
    /// Notes a name, and says whether it was there before.
    fn has_twice(&mut self, name: Cow<'a, str>) -> bool {
        match self {
            Self::Object(names) => names.has_twice(name),
            Self::Array(_) => false,
        }
    }
}

/// The names in an object, in their order.
#[derive(Default)]
struct Names<'a> {
    all: Vec<Cow<'a, str>>,
    /// Once there are many.
    many: HashSet<Cow<'a, str>>,
}

impl<'a> Names<'a> {
    /// So few are compared one by one.
    const FEW: usize = 16;

    fn has_twice(&mut self, name: Cow<'a, str>) -> bool {
        if self.all.len() == Self::FEW {
            self.many.extend(self.all.iter().cloned());
        }
        let is_there = if self.all.len() < Self::FEW {
            self.all.contains(&name)
        } else {
            !self.many.insert(name.clone())
        };
        self.all.push(name);
        is_there
    }

    fn last(&self) -> &str {
        self.all.last().map_or("", |name| name)
    }
}

/// The JSON pointer of where a scan is.
fn pointer(around: &[Around<'_>]) -> String {
    let parts = around.iter().map(|around| match around {
        Around::Object(names) => format!("/{}", escape(names.last())),
        Around::Array(index) => format!("/{index}"),
    });
    parts.collect()
}

/// Walks over well-formed JSON and refuses what its grammar allows and we do not.
fn scan(what: &str, text: &str) -> Result<(), Problem> {
    let bytes = text.as_bytes();
    let mut around: Vec<Around<'_>> = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        match bytes[position] {
            b'[' => around.push(Around::Array(0)),
            b'{' => around.push(Around::Object(Names::default())),
            b']' | b'}' => {
                around.pop();
            }
            b',' => {
                if let Some(Around::Array(index)) = around.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let end = string_end(bytes, position);
                let token = &text[position..end];
                let decoded: Cow<'_, str> = decode(token).ok_or_else(|| {
                    Problem::malformed(format!(
                        "a text in {what} has an escape that is no character"
                    ))
                })?;
                let is_name = bytes[end..]
                    .iter()
                    .find(|byte| !byte.is_ascii_whitespace())
                    .is_some_and(|&byte| byte == b':');
                if is_name
                    && let Some(inner) = around.last_mut()
                    && inner.has_twice(decoded)
                {
                    let twice = format!("the name {token} occurs twice in one object");
                    return Err(Problem::malformed(twice).at(pointer(&around)));
                }
                position = end;
                continue;
            }
            _ => {}
        }
        if around.len() > MAX_DEPTH {
            return Err(Problem::malformed(format!(
                "{what} is deeper than {MAX_DEPTH} levels"
            )));
        }
        position += 1;
    }
    Ok(())
}

/// The position after the text that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut position = start + 1;
    while position < bytes.len() {
        match bytes[position] {
            b'"' => return position + 1,
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
    bytes.len()
}

/// What a text token says; `None` if an escape in it is half a surrogate pair.
fn decode(token: &str) -> Option<Cow<'_, str>> {
    if token.contains('\\') {
        serde_json::from_str::<String>(token).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(&token[1..token.len() - 1]))
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    raw: &'a str,
    pointer: String,
}

/// What kind of value it is, with numbers as they were written.
pub(crate) enum Kind<'a> {
    Null,
    Bool,
    Number(&'a str),
    Text(Cow<'a, str>),
    Array,
    Object,
}

impl<'a> Field<'a> {
    /// The whole text.
    pub(crate) fn root(value: &'a RawValue) -> Self {
        Self {
            raw: value.get(),
            pointer: String::new(),
        }
    }

    /// The value exactly as it was sent.
    pub(crate) fn raw(&self) -> &'a str {
        self.raw
    }

    pub(crate) fn pointer(&self) -> &str {
        &self.pointer
    }

    pub(crate) fn kind(&self) -> Kind<'a> {
        match self.raw.as_bytes().first() {
            Some(b'"') => Kind::Text(decode(self.raw).unwrap_or_default()),
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            _ => Kind::Number(whole_of(self.raw)),
        }
    }

    /// A refusal that points here.
    pub(crate) fn malformed(&self, detail: impl Into<String>) -> Problem {
        Problem::malformed(detail).at(self.pointer())
    }

    pub(crate) fn text(&self) -> Result<Cow<'a, str>, Problem> {
        match self.kind() {
            Kind::Text(text) => Ok(text),
            _ => Err(self.malformed("must be a text")),
        }
    }

    /// A whole number without sign or exponent. What is no number at all is malformed,
    /// what is another number is `None`.
    pub(crate) fn whole(&self) -> Result<Option<u64>, Problem> {
        match self.kind() {
            Kind::Number(number) => Ok(number.parse().ok()),
            _ => Err(self.malformed("must be a number")),
        }
    }

    pub(crate) fn truth(&self) -> Result<bool, Problem> {
        match self.kind() {
            Kind::Bool => Ok(self.raw == "true"),
            _ => Err(self.malformed("must be true or false")),
        }
    }

    pub(crate) fn elements(&self) -> Result<Vec<Field<'a>>, Problem> {
        let Kind::Array = self.kind() else {
            return Err(self.malformed("must be an array"));
        };
        let elements: Vec<&RawValue> =
            serde_json::from_str(self.raw).map_err(|error| self.malformed(error.to_string()))?;
        let field = |(index, value): (usize, &'a RawValue)| Field {
            raw: value.get(),
            pointer: format!("{}/{index}", self.pointer),
        };
        Ok(elements.into_iter().enumerate().map(field).collect())
    }

    /// An object of this shape: what the table does not have is refused, before anything is read.
    pub(crate) fn object_of(&self, shape: &'static Shape) -> Result<Object<'a>, Problem> {
        self.object()?.shaped(shape)
    }

    pub(crate) fn object(&self) -> Result<Object<'a>, Problem> {
        let Kind::Object = self.kind() else {
            return Err(self.malformed("must be an object"));
        };
        let Members(members) = serde_json::Deserializer::from_str(self.raw)
            .deserialize_map(MembersVisitor)
            .map_err(|error| self.malformed(error.to_string()))?;
        Ok(Object {
            members: members
                .into_iter()
                .map(|(name, value)| {
                    let pointer = [self.pointer.as_str(), "/", &escape(&name)].concat();
                    let raw = value.get();
                    (name, Field { raw, pointer })
                })
                .collect(),
            pointer: self.pointer.clone(),
            shape: None,
        })
    }
}

/// A number without a fraction that is nothing: `5.0` is the whole number 5, as in a schema.
fn whole_of(number: &str) -> &str {
    let whole = number.split_once('.').filter(|(_, fraction)| {
        let mut digits = fraction.bytes();
        digits.all(|digit| digit == b'0')
    });
    match whole.map_or(number, |(whole, _)| whole) {
        "-0" => "0",
        whole => whole,
    }
}

/// A name as part of a JSON pointer (RFC 6901).
fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) {
        Cow::Owned(name.replace('~', "~0").replace('/', "~1"))
    } else {
        Cow::Borrowed(name)
    }
}

/// An object whose members are taken one by one; what is left at the end is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    members: Vec<(Cow<'a, str>, Field<'a>)>,
    pointer: String,
    /// What the table says of it, where it is one of the table.
    shape: Option<&'static Shape>,
}

impl<'a> Object<'a> {
    /// The same as one of this shape. First are the names that it does not have, then the values of a wrong type, then what
    /// is missing.
    pub(crate) fn shaped(self, shape: &'static Shape) -> Result<Self, Problem> {
        let unknown = |(name, _): &&(Cow<'_, str>, Field<'_>)| shape.field(name).is_none();
        if let Some((name, field)) = self.members.iter().find(unknown) {
            return Err(field.malformed(format!("the field {name:?} is unknown")));
        }
        for (name, field) in &self.members {
            let described = shape.field(name);
            if let Some(described) = described.filter(|it| !it.kind.takes(field.raw)) {
                return Err(field.malformed(described.kind.must_be()));
            }
        }
        let is_missing = |field: &&described::Field| {
            field.is_required && self.members.iter().all(|(name, _)| name != field.name)
        };
        if let Some(field) = shape.all().find(is_missing) {
            return Err(self.missing(field.name));
        }
        Ok(Self {
            shape: Some(shape),
            ..self
        })
    }

    /// Whether the table has the name, as far as it has the object.
    fn is_described(&self, name: &str) -> bool {
        self.shape.is_none_or(|shape| shape.field(name).is_some())
    }

    /// A member that stays.
    pub(crate) fn peek(&self, name: &str) -> Option<Field<'a>> {
        let found = self.members.iter().find(|(member, _)| member == name);
        found.map(|(_, field)| field.clone())
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Field<'a>> {
        debug_assert!(self.is_described(name), "{name} is not in the table");
        let found = self.members.iter().position(|(member, _)| member == name)?;
        Some(self.members.swap_remove(found).1)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        debug_assert!(self.is_described(name), "{name} is not in the table");
        self.members.iter().any(|(member, _)| member == name)
    }

    pub(crate) fn require(&mut self, name: &str) -> Result<Field<'a>, Problem> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    /// A refusal because of a field that is not there.
    pub(crate) fn missing(&self, name: &str) -> Problem {
        Problem::malformed(format!("the field {name:?} is missing"))
            .at(format!("{}/{name}", self.pointer))
    }

    /// The one of `names` that is there.
    pub(crate) fn one_of<'n>(
        &mut self,
        names: &[&'n str],
    ) -> Result<(&'n str, Field<'a>), Problem> {
        let mut found = names
            .iter()
            .filter_map(|&name| self.take(name).map(|field| (name, field)))
            .collect::<Vec<_>>();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            _ => {
                let needed = format!("exactly one of {} is needed", names.join(", "));
                Err(self.malformed(needed))
            }
        }
    }

    /// The one of `names` that is there, if there is one.
    pub(crate) fn at_most_one_of<'n>(
        &mut self,
        names: &[&'n str],
    ) -> Result<Option<(&'n str, Field<'a>)>, Problem> {
        let there = |name: &&&str| self.members.iter().any(|(member, _)| member == **name);
        if names.iter().filter(there).count() == 0 {
            return Ok(None);
        }
        match self.one_of(names) {
            Ok(one) => Ok(Some(one)),
            Err(_) => Err(self.malformed(format!("only one of {} may be given", names.join(", ")))),
        }
    }

    /// Every member that is left, by name.
    pub(crate) fn into_members(self) -> Vec<(String, Field<'a>)> {
        let members = self.members.into_iter();
        members
            .map(|(name, field)| (name.into_owned(), field))
            .collect()
    }

    /// Refuses if there is anything that was not taken.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.members.first() {
            Some((name, field)) => Err(field.malformed(format!("the field {name:?} is unknown"))),
            None => Ok(()),
        }
    }

    /// A refusal that points to the object.
    pub(crate) fn malformed(&self, detail: impl Into<String>) -> Problem {
        Problem::malformed(detail).at(self.pointer.as_str())
    }
}

struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A name, as it stands if it has no escape.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::super::described::requests;
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:?}", parse(text.as_bytes()).expect_err(text))
    }

    #[test]
    fn doubled_names_are_refused_at_any_depth() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":{"b":[{"c":1,"d":{},"c":2}]}}"#,
            r#"{"a":1,"\u0061":1}"#,
            "{\"a\" \n\t:1,\"a\" :1}",
        ] {
            assert!(refused(text).contains("twice"), "{text}");
        }
        let text = r#"{"a":{"a":["a","a",{"a":"a"}]},"b":"a"}"#;
        assert!(parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_doubled_name_is_told_with_its_pointer() {
        for (text, pointer) in [
            (r#"{"a":1,"b":[1,2],"a":1}"#, "/a"),
            (
                r#"{"a":{"b":[{"x":1},[0,","],{"c":1,"d":{},"c":2}]}}"#,
                "/a/b/2/c",
            ),
            (r#"{"retry":{"fixed":"5s","fixed":"6s"}}"#, "/retry/fixed"),
            (r#"{"a/b~":1,"a\u002fb~":1}"#, "/a~1b~0"),
            (r#"[[],{"a":1,"a":1}]"#, "/1/a"),
        ] {
            let problem = parse(text.as_bytes()).unwrap_err();
            assert_eq!(problem.pointer(), Some(pointer), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_without_recursion() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(64).as_bytes()).is_ok());
        assert!(refused(&nested(65)).contains("deeper"));
        assert!(refused(&nested(100_000)).contains("deeper"));
        assert!(refused(&"[".repeat(100_000)).contains("not JSON"));
        assert!(refused(&"{\"a\":".repeat(100_000)).contains("not JSON"));
        // Brackets in a text are no depth.
        assert!(parse(format!("\"{}\"", "[".repeat(999)).as_bytes()).is_ok());
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "", " ", "{", "NaN", "Infinity", "01", "+1", "1.", "{a:1}", "[1,]", "1 2",
        ] {
            assert!(refused(text).contains("not JSON"), "{text}");
        }
        assert!(refused(r#""\ud800""#).contains("escape"));
        assert!(parse(b"\"\xff\"").is_err());
        assert!(parse(b"1e400").is_ok());
        assert!(parse(r#""\ud83d\ude00 \\" "#.as_bytes()).is_ok());
    }

    #[test]
    fn an_object_gives_each_member_once_and_names_the_rest() {
        let value = parse(br#"{"key": 1e400, "x/y": [true, "t"]}"#).unwrap();
        let mut object = Field::root(value).object().unwrap();
        assert_eq!(object.take("key").unwrap().raw(), "1e400");
        assert!(object.take("key").is_none());
        let rest = format!("{:?}", object.finish().expect_err("x/y is left"));
        assert!(rest.contains("/x~1y"), "{rest}");
    }

    #[test]
    fn a_fraction_that_is_nothing_makes_no_other_number() {
        let whole = |text: &str| {
            Field::root(parse(text.as_bytes()).unwrap())
                .whole()
                .unwrap()
        };
        for (text, number) in [("5.0", 5), ("5.000", 5), ("0.0", 0), ("-0", 0), ("-0.0", 0)] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in ["5.5", "5.01", "5.0e1", "-1", "-1.0", "1e400"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn what_the_table_does_not_have_is_refused_first() {
        let said = |text: &[u8]| {
            let root = Field::root(parse(text).unwrap());
            let problem = root
                .object_of(&requests::PUT_ENDPOINT)
                .expect_err("it is wrong");
            (
                problem.pointer().unwrap().to_owned(),
                problem.parts().2.to_owned(),
            )
        };
        let unknown = |name: &str| (format!("/{name}"), format!("the field {name:?} is unknown"));
        assert_eq!(said(br#"{"timeout": 1, "ulr": 2}"#), unknown("ulr"));
        // A name that other objects have is as unknown here.
        assert_eq!(said(br#"{"url": 1, "key": 2}"#), unknown("key"));
        let missing = ("/url".to_owned(), "the field \"url\" is missing".to_owned());
        assert_eq!(said(br#"{"timeout": 1}"#), missing);
        let (pointer, detail) = said(br#"{"timeout": true}"#);
        assert_eq!(pointer, "/timeout");
        assert!(
            detail.contains("must be a number of milliseconds"),
            "{detail}"
        );
    }
}
