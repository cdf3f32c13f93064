//! Namespaces as they are stored: the quotas of each.

use countwheel_durable::{Namespace, SettingName};
use serde::{Deserialize, Serialize};

use super::endpoint::Rate;

/// What the settings of namespaces begin with.
pub(super) const NAMESPACE: &str = "namespace/";
/// How many namespaces may have settings.
pub(crate) const NAMESPACES_MAX: usize = 1_000;
/// The version of the stored form.
const FORMAT: u32 = 1;

/// How much a namespace may have of what it shares with others; `None` for as much as there is.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Quotas {
    /// Timers in all states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timers: Option<u64>,
    /// Bytes of timers, with their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Requests and lines of batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<Rate>,
    /// Queues with timers or settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints: Option<u64>,
    /// Connections of callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u64>,
}

/// A namespace as it is stored.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct StoredNamespace {
    pub(crate) quotas: Quotas,
    /// Whether single sets, moves and removals of its timers are in the audit log.
    pub(crate) audit_timers: bool,
}

/// The stored form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u32,
    #[serde(default)]
    quotas: Quotas,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    audit_timers: bool,
}

impl StoredNamespace {
    /// What is stored; `None` if this version cannot read it.
    pub(crate) fn of_value(value: &[u8]) -> Option<Self> {
        let form: Form = serde_json::from_slice(value).ok()?;
        (form.format == FORMAT).then_some(Self {
            quotas: form.quotas,
            audit_timers: form.audit_timers,
        })
    }

    pub(crate) fn to_value(self) -> Vec<u8> {
        let form = Form {
            format: FORMAT,
            quotas: self.quotas,
            audit_timers: self.audit_timers,
        };
        // Numbers can always be written.
        serde_json::to_vec(&form).unwrap_or_default()
    }
}

/// The setting of a namespace.
pub(crate) fn setting_of_namespace(namespace: &Namespace) -> Option<SettingName> {
    SettingName::new(format!("{NAMESPACE}{namespace}")).ok()
}

/// What the names of its queues and endpoints begin with; nothing in `default`, whose names have no slash.
pub(crate) fn prefix_of(namespace: &str) -> String {
    if namespace == Namespace::DEFAULT_NAME {
        String::new()
    } else {
        format!("{namespace}/")
    }
}

/// The namespace of a name of a queue or an endpoint, whatever else is wrong with it.
pub(crate) fn namespace_in(name: &str) -> &str {
    let parts = name.split_once('/');
    parts.map_or(Namespace::DEFAULT_NAME, |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again() {
        let stored = StoredNamespace {
            quotas: Quotas {
                timers: Some(7),
                rate: Some(Rate {
                    per_second: 2.5,
                    burst: 3,
                }),
                ..Quotas::default()
            },
            audit_timers: true,
        };
        let value = stored.to_value();
        assert_eq!(StoredNamespace::of_value(&value), Some(stored));
        let later = String::from_utf8(value).unwrap().replace(":1", ":2");
        assert_eq!(StoredNamespace::of_value(later.as_bytes()), None);
    }

    #[test]
    fn a_name_without_a_slash_is_in_default() {
        assert_eq!(namespace_in("orders"), "default");
        assert_eq!(namespace_in("tenant-7/orders"), "tenant-7");
        assert_eq!(namespace_in("/orders"), "");
    }
}
