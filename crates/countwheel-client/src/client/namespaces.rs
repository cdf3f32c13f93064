//! What the client asks about namespaces, and what it is answered.

use countwheel_durable::Precondition;
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Answer, Client, ClientError, escape};

impl Client {
    /// Makes a namespace, or replaces its settings.
    ///
    /// ```no_run
    /// use countwheel_client::{NamespaceSettings, Quotas};
    /// use countwheel_durable::Precondition;
    ///
    /// # async fn doc() -> Result<(), countwheel_client::ClientError> {
    /// let client = countwheel_client::Client::new("http://127.0.0.1:7070", None)?;
    /// let quotas = Quotas::default().timers(100_000).rate(500.0, Some(1_000));
    /// let settings = NamespaceSettings::default().quotas(quotas);
    /// let made = client.put_namespace("tenant-7", &settings, Precondition::None).await?;
    /// assert_eq!(made.value.quotas, quotas);
    /// let shown = client.namespace("tenant-7").await?.value;
    /// println!("{} timers", shown.usage.map_or(0, |usage| usage.timers));
    /// println!("{} namespaces", client.namespaces().await?.value.namespaces.len());
    /// client.remove_namespace("tenant-7", shown.revision).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_namespace(
        &self,
        name: &str,
        settings: &NamespaceSettings,
        precondition: Precondition,
    ) -> Result<Answer<NamespaceShown>, ClientError> {
        let body = json!(settings);
        self.send(Method::PUT, &path(name), Some(body), precondition)
            .await
    }

    /// Asks for the quotas of a namespace, and for what it has of each.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn namespace(&self, name: &str) -> Result<Answer<NamespaceShown>, ClientError> {
        self.send(Method::GET, &path(name), None, Precondition::None)
            .await
    }

    /// Asks for the quotas of all namespaces.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn namespaces(&self) -> Result<Answer<Namespaces>, ClientError> {
        self.send(Method::GET, "/v1/namespaces", None, Precondition::None)
            .await
    }

    /// Removes a namespace in which nothing is, if it has this revision.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn remove_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
    ) -> Result<Answer<NamespaceRemoved>, ClientError> {
        let precondition = super::of_revision(revision);
        self.send(Method::DELETE, &path(name), None, precondition)
            .await
    }
}

fn path(name: &str) -> String {
    format!("/v1/namespaces/{}", escape(name))
}

/// What a namespace is given.
///
/// ```
/// use countwheel_client::{NamespaceSettings, Quotas};
///
/// let settings = NamespaceSettings::default().quotas(Quotas::default().timers(10)).audit_timers(true);
/// assert!(settings.audit_timers);
/// assert_eq!(settings.quotas.timers, Some(10));
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct NamespaceSettings {
    /// Its quotas.
    pub quotas: Quotas,
    /// Whether single sets, moves and removals of its timers have entries in the audit log.
    pub audit_timers: bool,
}

impl NamespaceSettings {
    /// With these quotas.
    pub const fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// Whether single sets, moves and removals of its timers have entries in the audit log.
    pub const fn audit_timers(mut self, audit: bool) -> Self {
        self.audit_timers = audit;
        self
    }
}

/// How much a namespace may have. What is not given has no quota.
///
/// ```
/// use countwheel_client::Quotas;
///
/// let quotas = Quotas::default().timers(10).bytes(1_000_000).queues(2).endpoints(1).connections(50).rate(2.5, None);
/// assert_eq!(quotas.timers, Some(10));
/// assert_eq!(quotas.rate.map(|rate| rate.per_second), Some(2.5));
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Quotas {
    /// Timers in all states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timers: Option<u64>,
    /// Bytes of timers, with their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Requests, and lines of batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<QuotaRate>,
    /// Queues with timers or settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<u64>,
    /// Connections of callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
}

/// A quota of requests.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuotaRate {
    /// How many a second.
    pub per_second: f64,
    /// How many of them at once; the server says what it is if nothing was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Quotas {
    /// So many timers, in all states.
    pub const fn timers(mut self, most: u64) -> Self {
        self.timers = Some(most);
        self
    }

    /// So many bytes of timers: of their keys, and of what is stored of their bodies, targets, headers and tags.
    pub const fn bytes(mut self, most: u64) -> Self {
        self.bytes = Some(most);
        self
    }

    /// So many requests a second, and so many at once.
    pub const fn rate(mut self, per_second: f64, burst: Option<u32>) -> Self {
        self.rate = Some(QuotaRate { per_second, burst });
        self
    }

    /// So many queues with timers or settings.
    pub const fn queues(mut self, most: u64) -> Self {
        self.queues = Some(most);
        self
    }

    /// So many endpoints.
    pub const fn endpoints(mut self, most: u64) -> Self {
        self.endpoints = Some(most);
        self
    }

    /// So many connections of callers.
    pub const fn connections(mut self, most: u64) -> Self {
        self.connections = Some(most);
        self
    }
}

/// A namespace.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[non_exhaustive]
pub struct NamespaceShown {
    /// Its name.
    pub namespace: String,
    /// The revision of its quotas; `None` of `default`, if none were put.
    pub revision: Option<u64>,
    /// Its quotas.
    pub quotas: Quotas,
    /// Whether single sets, moves and removals of its timers have entries in the audit log.
    pub audit_timers: bool,
    /// What it has; `None` in a list.
    pub usage: Option<NamespaceUsage>,
}

/// What a namespace has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct NamespaceUsage {
    /// Timers in all states.
    pub timers: u64,
    /// Bytes of timers, as they were counted last, and those set since; `None` without a quota of them, and until they were
    /// counted.
    pub bytes: Option<u64>,
    /// Queues with timers or settings.
    pub queues: u64,
    /// Endpoints.
    pub endpoints: u64,
    /// Connections to the node that answered.
    pub connections: u64,
}

/// All namespaces.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[non_exhaustive]
pub struct Namespaces {
    /// In order of their names.
    pub namespaces: Vec<NamespaceShown>,
}

/// A namespace was removed.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct NamespaceRemoved {
    /// Its name.
    pub namespace: String,
}
