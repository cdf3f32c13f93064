//! Rules of what the status of an answer means: of an endpoint, and of a queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

/// What an answer means for its attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Meaning {
    /// The attempt succeeded.
    Done,
    /// The attempt failed, and the retry policy says what follows.
    Retry,
    /// The timer is dead.
    Stop,
}

impl Meaning {
    const ALL: [Self; 3] = [Self::Done, Self::Retry, Self::Stop];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry => "retry",
            Self::Stop => "stop",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }

    /// What a status means that no rule names.
    fn usual(status: StatusCode) -> Self {
        match status {
            status if status.is_success() => Self::Done,
            StatusCode::GONE => Self::Stop,
            _ => Self::Retry,
        }
    }
}

/// One status, or a class of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Named {
    /// The statuses of this hundred.
    Class(u16),
    /// This status.
    Exact(u16),
}

impl Named {
    /// What a text such as `404` or `4xx` names.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let digits = text.strip_suffix("xx").unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: u16 = digits.parse().ok()?;
        match (digits.len(), text.len()) {
            (1, 3) if (2..=5).contains(&number) => Some(Self::Class(number)),
            (3, 3) if (200..=599).contains(&number) => Some(Self::Exact(number)),
            _ => None,
        }
    }
}

impl From<Named> for String {
    fn from(named: Named) -> Self {
        match named {
            Named::Class(class) => format!("{class}xx"),
            Named::Exact(status) => status.to_string(),
        }
    }
}

impl TryFrom<String> for Named {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text).ok_or("this names no status and no class of them")
    }
}

/// The rules of an endpoint or a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Named, Meaning>", into = "BTreeMap<Named, Meaning>")]
pub(crate) struct Statuses(Arc<BTreeMap<Named, Meaning>>);

impl Statuses {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the rules make of a status, if one of them names it. A status goes before its class.
    fn of(&self, status: StatusCode) -> Option<Meaning> {
        let status = status.as_u16();
        let exact = self.0.get(&Named::Exact(status));
        exact
            .or_else(|| self.0.get(&Named::Class(status / 100)))
            .copied()
    }
}

impl From<BTreeMap<Named, Meaning>> for Statuses {
    fn from(rules: BTreeMap<Named, Meaning>) -> Self {
        Self(Arc::new(rules))
    }
}

impl From<Statuses> for BTreeMap<Named, Meaning> {
    fn from(statuses: Statuses) -> Self {
        Self::clone(&statuses.0)
    }
}

impl FromIterator<(Named, Meaning)> for Statuses {
    fn from_iter<I: IntoIterator<Item = (Named, Meaning)>>(rules: I) -> Self {
        Self(Arc::new(rules.into_iter().collect()))
    }
}

/// What a status means by the rules of the endpoint, then by those of the queue.
pub(crate) fn meaning(status: StatusCode, endpoint: &Statuses, queue: &Statuses) -> Meaning {
    let named = endpoint.of(status).or_else(|| queue.of(status));
    named.unwrap_or_else(|| Meaning::usual(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Statuses {
        serde_json::from_str(text).expect("rules")
    }

    #[test]
    fn a_status_goes_before_its_class_and_an_endpoint_before_its_queue() {
        let endpoint = rules(r#"{"409":"done","4xx":"stop","404":"retry"}"#);
        let queue = rules(r#"{"404":"done","3xx":"done","503":"stop","2xx":"retry"}"#);
        for (status, expected) in [
            (409, Meaning::Done),
            (404, Meaning::Retry),
            (400, Meaning::Stop),
            (410, Meaning::Stop),
            (301, Meaning::Done),
            (503, Meaning::Stop),
            (500, Meaning::Retry),
            (204, Meaning::Retry),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(meaning(status, &endpoint, &queue), expected, "{status}");
        }
        let none = Statuses::default();
        for (status, expected) in [
            (200, Meaning::Done),
            (299, Meaning::Done),
            (301, Meaning::Retry),
            (410, Meaning::Stop),
            (404, Meaning::Retry),
            (599, Meaning::Retry),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(meaning(status, &none, &none), expected, "{status}");
        }
    }

    #[test]
    fn a_rule_names_a_status_of_an_answer_or_a_class() {
        for good in ["200", "599", "404", "2xx", "5xx"] {
            let named = Named::new(good).expect(good);
            assert_eq!(String::from(named), good);
        }
        for bad in [
            "", "xx", "1xx", "6xx", "199", "600", "4XX", "40x", "4x", "0404", "+44", "404 ", "44xx",
        ] {
            assert_eq!(Named::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn rules_are_read_as_they_were_stored_and_nothing_else_is_one() {
        let text = r#"{"4xx":"stop","404":"retry","409":"done"}"#;
        assert_eq!(serde_json::to_string(&rules(text)).unwrap(), text);
        for bad in [
            r#"{"4xx":"halt"}"#,
            r#"{"1xx":"done"}"#,
            r#"{"404":1}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Statuses>(bad).is_err(), "{bad}");
        }
    }
}
