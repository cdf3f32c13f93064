//! What the client asks of the audit log, and what it is answered.

use countwheel_durable::Precondition;
use countwheel_time::Timestamp;
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Answer, Client, ClientError, escape, time};
use crate::time::format_time;

/// Which entries of the audit log to show.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditFilter {
    /// Only those of this time or later.
    pub since: Option<Timestamp>,
    /// Only those before this time.
    pub until: Option<Timestamp>,
    /// Only those of the token with this id or name, or of this kind of caller.
    pub who: Option<String>,
    /// Only those of this operation, such as `putQueue`.
    pub operation: Option<String>,
    /// Whether the oldest come first, and not the newest.
    pub oldest_first: bool,
}

impl Client {
    /// Asks for one page of the audit log: of `limit` entries at the most, 1 to 1,000, behind the cursor `after`. Needs the
    /// scope `admin`.
    ///
    /// ```no_run
    /// use countwheel_client::AuditFilter;
    ///
    /// # async fn doc() -> Result<(), countwheel_client::ClientError> {
    /// let client = countwheel_client::Client::new("http://127.0.0.1:7070", None)?;
    /// let page = client.audit(&AuditFilter::default(), 100, None).await?.value;
    /// for entry in page.entries()? {
    ///     println!("{:?} {} {}", entry.at, entry.who.shown(), entry.about());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        limit: u32,
        after: Option<&str>,
    ) -> Result<Answer<AuditPage>, ClientError> {
        let mut path = format!("/v1/audit?limit={limit}");
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", escape(&value)));
            }
        };
        add("since", filter.since.map(format_time));
        add("until", filter.until.map(format_time));
        add("who", filter.who.clone());
        add("operation", filter.operation.clone());
        add("order", filter.oldest_first.then(|| "oldest".to_owned()));
        add("after", after.map(str::to_owned));
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }
}

/// One page of the audit log.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditPage {
    /// The entries, each as the server wrote it.
    pub items: Vec<Box<RawValue>>,
    /// The cursor of the next page, if there is one. A page with fewer entries than it may have can have one behind it.
    pub next: Option<String>,
    /// How many entries were left out because they cannot be read.
    #[serde(default)]
    pub unreadable: usize,
}

impl AuditPage {
    /// The entries, read.
    ///
    /// # Errors
    /// [`ClientError::Unintelligible`].
    pub fn entries(&self) -> Result<Vec<AuditEntry>, ClientError> {
        let texts = self.items.iter().map(|item| item.get());
        let entries: Result<_, _> = texts.map(serde_json::from_str).collect();
        entries.map_err(|source| ClientError::Unintelligible {
            status: 200,
            source,
        })
    }
}

/// A change, and who has asked for it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct AuditEntry {
    /// The id of the entry.
    pub id: String,
    /// When, by the wall clock of the server.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// Until when the entry is kept.
    #[serde(deserialize_with = "time")]
    pub kept_until: Timestamp,
    /// Who has asked.
    pub who: AuditWho,
    /// The address of the caller, a /64 of IPv6, or the user at a socket.
    #[serde(default)]
    pub from: Option<String>,
    /// The names of the certificate that the caller has shown.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The operation, such as `putQueue`.
    #[serde(default)]
    pub operation: Option<String>,
    /// The id of the request.
    #[serde(default)]
    pub request: Option<String>,
    /// What was done to a timer: `set`, `move`, `remove`, `fire` or `revive`.
    #[serde(default)]
    pub action: Option<String>,
    /// The queue of the timer.
    #[serde(default)]
    pub queue: Option<String>,
    /// The key of the timer.
    #[serde(default)]
    pub key: Option<String>,
    /// The setting: its kind, `/` and its name.
    #[serde(default)]
    pub setting: Option<String>,
    /// How it stood before.
    pub before: Option<Value>,
    /// How it stood after.
    pub after: Option<Value>,
    /// The fields of a setting that changed.
    #[serde(default)]
    pub fields: Vec<AuditField>,
    /// What was asked for, of a job, a purge and a drain.
    #[serde(default)]
    pub details: Option<Value>,
}

impl AuditEntry {
    /// What was changed: the queue and the key of a timer, or a setting.
    #[must_use]
    pub fn about(&self) -> String {
        match (&self.queue, &self.key, &self.setting) {
            (Some(queue), Some(key), _) => format!("{queue}/{key}"),
            (_, _, Some(setting)) => setting.clone(),
            _ => String::new(),
        }
    }
}

/// Who has asked.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct AuditWho {
    /// `token`, `configured`, `anyone`, `service`, or `directory` for a token that was made in the data directory.
    pub kind: String,
    /// The id of the token.
    #[serde(default)]
    pub id: Option<String>,
    /// The name that the token had.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether it was somebody at the pages.
    #[serde(default)]
    pub session: bool,
}

impl AuditWho {
    /// The name of the token, or the kind of caller.
    ///
    /// ```
    /// use countwheel_client::AuditWho;
    ///
    /// let who = AuditWho { kind: "token".to_owned(), id: None, name: Some("ada".to_owned()), session: true };
    /// assert_eq!(who.shown(), "ada (pages)");
    /// ```
    #[must_use]
    pub fn shown(&self) -> String {
        let name = self.name.as_ref().unwrap_or(&self.kind);
        let pages = if self.session { " (pages)" } else { "" };
        format!("{name}{pages}")
    }
}

/// A field of a setting that changed. A value that is long or could be a secret is left out.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct AuditField {
    /// Its name.
    pub field: String,
    /// The value before, if it is shown.
    #[serde(default)]
    pub before: Option<Value>,
    /// The value after, if it is shown.
    #[serde(default)]
    pub after: Option<Value>,
}
