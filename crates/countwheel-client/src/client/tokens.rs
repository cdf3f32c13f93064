//! What the client asks about tokens, and what it is answered.

use std::fmt;
use std::time::Duration;

use countwheel_durable::Precondition;
use countwheel_time::Timestamp;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Client, ClientError, escape, maybe_time, time};
use crate::time::format_duration;

impl Client {
    /// Makes a token.
    ///
    /// ```no_run
    /// use countwheel_client::NewToken;
    ///
    /// # async fn doc() -> Result<(), countwheel_client::ClientError> {
    /// let client = countwheel_client::Client::new("http://127.0.0.1:7070", None)?;
    /// let made = client.create_token(&NewToken::new("deploys", &["read", "write"])).await?;
    /// println!("{}", made.token().expect("no certificate stands for it"));
    /// let rotated = client.rotate_token(&made.shown.id, None).await?;
    /// assert_ne!(rotated.token(), made.token());
    /// assert_eq!(client.token(&made.shown.id).await?.value.name, "deploys");
    /// println!("{} tokens", client.tokens().await?.value.tokens.len());
    /// client.revoke_token(&made.shown.id, None).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_token(&self, token: &NewToken) -> Result<TokenMade, ClientError> {
        let body = token.to_json();
        let made: Answer<TokenMade> = self
            .send(Method::POST, "/v1/tokens", Some(body), Precondition::None)
            .await?;
        Ok(made.value)
    }

    /// Asks for all tokens, without their secrets.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn tokens(&self) -> Result<Answer<Tokens>, ClientError> {
        self.send(Method::GET, "/v1/tokens", None, Precondition::None)
            .await
    }

    /// Asks for one token, without its secret.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn token(&self, id: &str) -> Result<Answer<TokenShown>, ClientError> {
        self.send(Method::GET, &path(id), None, Precondition::None)
            .await
    }

    /// Gives a token another secret. The one before counts for `overlap` still, by default not at all.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn rotate_token(
        &self,
        id: &str,
        overlap: Option<Duration>,
    ) -> Result<TokenMade, ClientError> {
        let body = match overlap {
            Some(span) => json!({ "overlap": format_duration(span) }),
            None => json!({}),
        };
        let path = format!("{}:rotate", path(id));
        let made: Answer<TokenMade> = self
            .send(Method::POST, &path, Some(body), Precondition::None)
            .await?;
        Ok(made.value)
    }

    /// Revokes a token, if it has this revision.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn revoke_token(
        &self,
        id: &str,
        revision: Option<u64>,
    ) -> Result<Answer<TokenRevoked>, ClientError> {
        self.send(
            Method::DELETE,
            &path(id),
            None,
            super::of_revision(revision),
        )
        .await
    }
}

fn path(id: &str) -> String {
    format!("/v1/tokens/{}", escape(id))
}

/// A token to be made.
///
/// ```
/// use std::time::Duration;
/// use countwheel_client::NewToken;
///
/// let day = Duration::from_secs(86_400);
/// let for_workers = NewToken::new("workers", &["deliver"]).expires_in(90 * day);
/// let of_tenant = NewToken::new("tenant 7", &["read", "write"]).namespace("tenant-7");
/// assert_eq!(of_tenant.to_json()["namespace"], "tenant-7");
/// let by_certificate = NewToken::new("metrics", &["metrics"]).certificate("dns:prometheus.example");
/// assert_ne!(for_workers, by_certificate);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct NewToken {
    name: String,
    scopes: Vec<String>,
    expires_in: Option<Duration>,
    certificate: Option<String>,
    namespace: Option<String>,
}

impl NewToken {
    /// A token for what `name` says, 1 to 128 bytes, that opens what the scopes say: `read`, `write`, `deliver`, `metrics` or
    /// `admin`, which is all of them. It does not expire.
    pub fn new(name: &str, scopes: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
            expires_in: None,
            certificate: None,
            namespace: None,
        }
    }

    /// The token opens nothing any more after so long, 1 s to 3,650 days.
    pub fn expires_in(mut self, span: Duration) -> Self {
        self.expires_in = Some(span);
        self
    }

    /// The token has no secret. Whoever shows a certificate with this name has it: `dns:`, `uri:` or `cn:` and the name.
    pub fn certificate(mut self, name: &str) -> Self {
        self.certificate = Some(name.to_owned());
        self
    }

    /// The token opens what is in this namespace, and nothing else.
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// The body of the request that makes it.
    ///
    /// ```
    /// use countwheel_client::NewToken;
    ///
    /// let body = NewToken::new("ci", &["read"]).to_json();
    /// assert_eq!(body.to_string(), r#"{"name":"ci","scopes":["read"]}"#);
    /// ```
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut body = json!({ "name": self.name, "scopes": self.scopes });
        if let Some(span) = self.expires_in {
            body["expires_in"] = Value::String(format_duration(span));
        }
        if let Some(name) = &self.certificate {
            body["certificate"] = json!(name);
        }
        if let Some(name) = &self.namespace {
            body["namespace"] = json!(name);
        }
        body
    }
}

/// A token, without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct TokenShown {
    /// Its id.
    pub id: String,
    /// Its revision.
    pub revision: u64,
    /// What it is for.
    pub name: String,
    /// What it opens.
    pub scopes: Vec<String>,
    /// The name of the certificate that stands for its secret.
    pub certificate: Option<String>,
    /// The namespace that it is of; `None`: of the whole service.
    pub namespace: Option<String>,
    /// When it was made.
    #[serde(deserialize_with = "time")]
    pub created: Timestamp,
    /// When it ends.
    #[serde(default, deserialize_with = "maybe_time")]
    pub expires: Option<Timestamp>,
    /// Until when the secret before the last rotation counts.
    #[serde(default, deserialize_with = "maybe_time")]
    pub before_until: Option<Timestamp>,
}

/// A token with its secret. Its `Debug` leaves the secret out.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TokenMade {
    /// What may be shown.
    #[serde(flatten)]
    pub shown: TokenShown,
    token: Option<String>,
}

impl TokenMade {
    /// The token itself, which the server says once; `None` where a certificate stands for it.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

impl fmt::Debug for TokenMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMade")
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}

/// All tokens.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct Tokens {
    /// In order of their ids.
    pub tokens: Vec<TokenShown>,
}

/// A token was revoked.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct TokenRevoked {
    /// Its id.
    pub id: String,
}
