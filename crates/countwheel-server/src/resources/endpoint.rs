//! Endpoints: where deliveries go, and what goes with each of them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Uri;
use countwheel_durable::{NameError, QueueName, RetryPolicy, SettingsVersion};
use countwheel_time::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::breaker::Breaker;
use super::sealed::{Kept, NoKey, Vault};
use super::signature::SigningKey;
use super::statuses::Statuses;
use super::{read_policy, read_span};
use crate::api::retry;
use crate::egress::EgressProxy;
use crate::guard::{AllowedTarget, RefusedTarget, Targets};
use crate::pool::HTTP2;
use crate::time::format_duration;

/// How many secrets an endpoint may have at a time.
pub(crate) const SECRETS_MAX: usize = 8;
/// How many places an endpoint may allow.
pub(crate) const ALLOW_MAX: usize = 64;
/// How many attempts at a time, and how many a second, a limit may name.
pub(crate) const LIMIT_MAX: u32 = 1_000_000;
/// How long a text in PEM of certificates may be, in bytes.
pub(crate) const CERTIFICATES_MAX_BYTES: usize = 16 << 10;
/// How long a text in PEM of a key may be, in bytes.
pub(crate) const KEY_MAX_BYTES: usize = 8 << 10;
/// The version of the stored form.
const FORMAT: u32 = 1;

/// The name of an endpoint. The rules are those of a queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EndpointName(QueueName);

impl EndpointName {
    pub(crate) fn new(name: &str) -> Result<Self, NameError> {
        QueueName::from_text(name).map(Self)
    }

    /// The namespace of the endpoint.
    pub(crate) fn namespace(&self) -> &str {
        self.0.namespace()
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many attempts may start.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Rate {
    /// A second, in the long run.
    pub(crate) per_second: f64,
    /// At once, after a pause.
    pub(crate) burst: u32,
}

/// Which versions of HTTP a target is offered where there is TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Versions {
    /// HTTP/2, and HTTP/1.1 if that is not taken.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    One,
}

impl Versions {
    /// The versions of that name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "1.1" => Some(Self::One),
            _ => None,
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
    pub(crate) fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// TLS that offers them.
    pub(crate) fn offered(self, mut tls: ClientConfig) -> ClientConfig {
        tls.alpn_protocols = match self {
            Self::Auto => vec![HTTP2.to_vec(), b"http/1.1".to_vec()],
            // No offer is what all servers know.
            Self::One => Vec::new(),
        };
        tls
    }
}

/// A secret that signs deliveries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Secret {
    pub(crate) id: String,
    /// When the secret was given, by the wall clock.
    #[serde(with = "micros")]
    pub(crate) created: Timestamp,
    pub(crate) kept: Kept,
}

/// What the service shows of itself in TLS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ClientCertificate {
    /// In PEM.
    pub(crate) certificate: String,
    /// The key, in PEM.
    pub(crate) key: Kept,
}

/// Why the service has disabled an endpoint, and when, by the wall clock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DisabledBy {
    pub(crate) reason: String,
    #[serde(with = "micros")]
    pub(crate) at: Timestamp,
}

/// An endpoint as it was asked for, or as the service has disabled it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    /// In the order in which they were sent, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) rate: Option<Rate>,
    pub(crate) disabled: bool,
    /// It is disabled once every attempt has failed for so long.
    pub(crate) auto_disable: Option<Duration>,
    /// If that has happened.
    pub(crate) disabled_by: Option<DisabledBy>,
    /// When it is left alone for a while.
    pub(crate) breaker: Option<Breaker>,
    /// What the statuses of answers mean.
    pub(crate) statuses: Statuses,
    /// The only places where its deliveries go; no place is named where they go wherever the service allows.
    pub(crate) allow: Vec<AllowedTarget>,
    /// The proxy through which its deliveries leave, in place of the service's.
    pub(crate) egress_proxy: Option<EgressProxy>,
    pub(crate) versions: Versions,
    /// The authorities to trust in place of those of the service, in PEM.
    pub(crate) ca: Option<String>,
    pub(crate) client_certificate: Option<ClientCertificate>,
}

/// The stored form.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    url: String,
    headers: Vec<(String, String)>,
    timeout: Option<String>,
    secrets: Vec<Secret>,
    retry: Option<Value>,
    concurrency: Option<u32>,
    rate: Option<Rate>,
    disabled: bool,
    ca: Option<String>,
    client_certificate: Option<ClientCertificate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    breaker: Option<Breaker>,
    #[serde(default, skip_serializing_if = "Statuses::is_empty")]
    statuses: Statuses,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auto_disable: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disabled_by: Option<DisabledBy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    egress_proxy: Option<String>,
    #[serde(default, skip_serializing_if = "Versions::is_auto")]
    http: Versions,
}

/// A time as microseconds since 1970.
mod micros {
    use countwheel_time::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.as_micros())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        u64::deserialize(from).map(Timestamp::from_micros)
    }
}

impl Endpoint {
    /// The value of the setting that is this endpoint.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        let stored = Stored {
            format: FORMAT,
            url: self.url.clone(),
            headers: self.headers.clone(),
            timeout: self.timeout.map(format_duration),
            secrets: self.secrets.clone(),
            retry: self.retry.as_ref().map(retry::show),
            concurrency: self.concurrency,
            rate: self.rate,
            disabled: self.disabled,
            ca: self.ca.clone(),
            client_certificate: self.client_certificate.clone(),
            breaker: self.breaker,
            statuses: self.statuses.clone(),
            auto_disable: self.auto_disable.map(format_duration),
            disabled_by: self.disabled_by.clone(),
            allow: self.allow.iter().map(ToString::to_string).collect(),
            egress_proxy: self.egress_proxy.as_ref().map(ToString::to_string),
            http: self.versions,
        };
        // A text, numbers and lists of them are always JSON.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// The endpoint of a setting; `None` if a later version has written it, or nobody.
    pub(crate) fn of_value(value: &[u8]) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(value).ok()?;
        if stored.format != FORMAT {
            return None;
        }
        let allow = stored.allow.iter().map(|place| place.parse().ok());
        let proxy = stored.egress_proxy.map(|proxy| proxy.parse());
        Some(Self {
            url: stored.url,
            headers: stored.headers,
            timeout: read_span(stored.timeout.as_deref())?,
            secrets: stored.secrets,
            retry: read_policy(stored.retry.as_ref())?,
            concurrency: stored.concurrency,
            rate: stored.rate,
            disabled: stored.disabled,
            auto_disable: read_span(stored.auto_disable.as_deref())?,
            disabled_by: stored.disabled_by,
            statuses: stored.statuses,
            allow: allow.collect::<Option<_>>()?,
            egress_proxy: proxy.transpose().ok()?,
            versions: stored.http,
            ca: stored.ca,
            client_certificate: stored.client_certificate,
            breaker: stored.breaker,
        })
    }

    /// The same endpoint, which the service has disabled.
    pub(crate) fn disabled_by(&self, disabled_by: DisabledBy) -> Self {
        Self {
            disabled: true,
            disabled_by: Some(disabled_by),
            ..self.clone()
        }
    }

    /// Whether all that is secret is sealed; `None` if nothing is secret.
    pub(crate) fn is_sealed(&self) -> Option<bool> {
        let mut kept = self.all_kept().peekable();
        kept.peek()?;
        Some(kept.all(Kept::is_sealed))
    }

    fn all_kept(&self) -> impl Iterator<Item = &Kept> {
        let secrets = self.secrets.iter().map(|secret| &secret.kept);
        let key = self.client_certificate.iter().map(|it| &it.key);
        secrets.chain(key)
    }

    /// Whether all that is secret is stored as a new secret would be.
    pub(crate) fn is_current(&self, vault: &Vault) -> bool {
        self.all_kept().all(|kept| vault.is_current(kept))
    }

    /// The same endpoint with all that is secret stored as a new one would be; `None` if it is so already, or
    /// cannot be opened.
    pub(crate) fn resealed(&self, name: &EndpointName, vault: &Vault) -> Option<Self> {
        if self.is_current(vault) {
            return None;
        }
        let again = |purpose: &str, kept: &Kept| {
            let secret = vault.open(purpose, kept).ok()?;
            vault.seal(purpose, &secret).ok()
        };
        let mut resealed = self.clone();
        for secret in &mut resealed.secrets {
            secret.kept = again(&of_secret(name, &secret.id), &secret.kept)?;
        }
        if let Some(client) = &mut resealed.client_certificate {
            client.key = again(&of_key(name), &client.key)?;
        }
        Some(resealed)
    }

    /// Opens what an attempt needs.
    pub(crate) fn open(
        self,
        name: &EndpointName,
        revision: SettingsVersion,
        vault: &Vault,
        roots: &Arc<RootCertStore>,
    ) -> Opened {
        let means = self.means(name, vault, roots);
        Opened {
            revision,
            settings: self,
            means,
        }
    }

    fn means(
        &self,
        name: &EndpointName,
        vault: &Vault,
        roots: &Arc<RootCertStore>,
    ) -> Result<Means, Fault> {
        let key = |secret: &Secret| {
            let text = vault.open(&of_secret(name, &secret.id), &secret.kept);
            let text = text.map_err(|error| format!("secret {}: {error}", secret.id))?;
            SigningKey::new(&text).ok_or_else(|| format!("secret {}: it is none", secret.id))
        };
        let keys = self.secrets.iter().map(key);
        let keys = keys.collect::<Result<Vec<_>, String>>();
        let keys = keys.map_err(Fault::Secret)?;
        let key = self.client_certificate.as_ref().map(|client| {
            let key = vault.open(&of_key(name), &client.key);
            key.map_err(|error| Fault::Secret(format!("client_certificate: {error}")))
        });
        let key = key.transpose()?;
        let certificate = self.client_certificate.as_ref().zip(key.as_deref());
        let certificate = certificate.map(|(client, key)| (client.certificate.as_str(), key));
        let tls = tls(self.ca.as_deref(), certificate, roots);
        let tls = tls.map_err(|BadTls { part, problem }| {
            let part = match part {
                TlsPart::Authorities => "ca",
                TlsPart::Certificate | TlsPart::Key => "client_certificate",
            };
            Fault::Tls(format!("{part}: {problem}"))
        })?;
        let way = Way {
            number: 0,
            tls: tls.map(|tls| Arc::new(self.versions.offered(tls))),
            allow: (!self.allow.is_empty()).then(|| self.allow.clone().into()),
            proxy: self.egress_proxy.clone(),
            versions: self.versions,
        };
        Ok(Means {
            keys: keys.into(),
            way: way.numbered(),
        })
    }
}

/// What a sealed secret is for.
fn of_secret(name: &EndpointName, id: &str) -> String {
    format!("endpoint/{name} secret/{id}")
}

/// What a sealed key is for.
fn of_key(name: &EndpointName) -> String {
    format!("endpoint/{name} client-key")
}

/// Seals a secret of an endpoint.
pub(crate) fn seal_secret(
    vault: &Vault,
    name: &EndpointName,
    id: &str,
    secret: &str,
) -> Result<Kept, NoKey> {
    vault.seal(&of_secret(name, id), secret)
}

/// The secret of an endpoint sealed as a new one would be; `None` if it cannot be opened, or not be sealed.
pub(crate) fn seal_again(vault: &Vault, name: &EndpointName, secret: &Secret) -> Option<Kept> {
    if vault.is_current(&secret.kept) {
        return Some(secret.kept.clone());
    }
    let purpose = of_secret(name, &secret.id);
    let opened = vault.open(&purpose, &secret.kept).ok()?;
    vault.seal(&purpose, &opened).ok()
}

/// Whether this is the secret that is kept.
pub(crate) fn is_same_secret(
    vault: &Vault,
    name: &EndpointName,
    kept: &Secret,
    secret: &str,
) -> bool {
    let opened = vault.open(&of_secret(name, &kept.id), &kept.kept);
    opened.is_ok_and(|opened| opened == secret)
}

/// Seals the key of a client certificate.
pub(crate) fn seal_key(vault: &Vault, name: &EndpointName, key: &str) -> Result<Kept, NoKey> {
    vault.seal(&of_key(name), key)
}

/// The key of a client certificate, if it can be opened.
pub(crate) fn open_key(vault: &Vault, name: &EndpointName, key: &Kept) -> Option<String> {
    vault.open(&of_key(name), key).ok()
}

/// An endpoint with what an attempt needs.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) revision: SettingsVersion,
    pub(crate) settings: Endpoint,
    /// Or why no attempt can be made.
    pub(crate) means: Result<Means, Fault>,
}

/// What is wrong with an endpoint as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A secret or a key cannot be opened.
    #[error("{0}")]
    Secret(String),
    /// The authorities, or the certificate with its key, cannot be read.
    #[error("{0}")]
    Tls(String),
}

/// What signs deliveries, and how they leave.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    pub(crate) keys: Arc<[SigningKey]>,
    pub(crate) way: Way,
}

/// Why nothing leaves for a URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NoWay {
    #[error(transparent)]
    Target(RefusedTarget),
    #[error("its proxy: {0}")]
    Proxy(RefusedTarget),
}

/// How deliveries leave, as far as their endpoint says it. The default is the way of all whose endpoints say nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// Another number for whatever else an endpoint has said: no connection serves two of them. The default is 0.
    pub(crate) number: u64,
    /// How an endpoint is trusted, and shown who calls, in place of the service's own TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The only places, if there are any.
    pub(crate) allow: Option<Arc<[AllowedTarget]>>,
    /// The proxy in place of the service's.
    pub(crate) proxy: Option<EgressProxy>,
    pub(crate) versions: Versions,
}

impl Way {
    /// Those of the targets to which deliveries go on this way.
    pub(crate) fn narrowed<'t>(&self, targets: &'t Targets) -> Cow<'t, Targets> {
        match &self.allow {
            Some(places) => Cow::Owned(targets.clone().within(Arc::clone(places))),
            None => Cow::Borrowed(targets),
        }
    }

    /// Whether deliveries may go where a URL leads by itself, and leave by the proxy of this way, if it has one.
    /// Without one, they leave by that of the service, if `is_proxied`.
    pub(crate) fn check(
        &self,
        url: &Uri,
        targets: &Targets,
        is_proxied: bool,
    ) -> Result<(), NoWay> {
        if let Some(proxy) = &self.proxy {
            targets.check(proxy.uri()).map_err(NoWay::Proxy)?;
        }
        let narrowed = self.narrowed(targets);
        let checked = if is_proxied || self.proxy.is_some() {
            narrowed.check_proxied(url)
        } else {
            narrowed.check(url)
        };
        checked.map_err(NoWay::Target)
    }

    /// The same with a number of its own, if it is not the way of all.
    fn numbered(self) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_of_all = self.tls.is_none()
            && self.allow.is_none()
            && self.proxy.is_none()
            && self.versions.is_auto();
        if is_of_all {
            return self;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, ..self }
    }
}

/// What part of the settings for TLS is wrong, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadTls {
    pub(crate) part: TlsPart,
    pub(crate) problem: String,
}

/// A part of the settings for TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsPart {
    Authorities,
    Certificate,
    Key,
}

/// The TLS of an endpoint that has its own: authorities in place of the service's, a certificate, or both.
pub(crate) fn tls(
    ca: Option<&str>,
    client: Option<(&str, &str)>,
    roots: &Arc<RootCertStore>,
) -> Result<Option<ClientConfig>, BadTls> {
    if ca.is_none() && client.is_none() {
        return Ok(None);
    }
    let bad = |part, problem: String| BadTls { part, problem };
    let roots = match ca {
        None => Arc::clone(roots),
        Some(ca) => {
            let mut own = RootCertStore::empty();
            for authority in certificates(ca).map_err(|it| bad(TlsPart::Authorities, it))? {
                let added = own.add(authority);
                added.map_err(|error| bad(TlsPart::Authorities, error.to_string()))?;
            }
            Arc::new(own)
        }
    };
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some((certificate, key)) = client else {
        return Ok(Some(config.with_no_client_auth()));
    };
    let chain = certificates(certificate).map_err(|it| bad(TlsPart::Certificate, it))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let key = key.map_err(|_| bad(TlsPart::Key, "it has no key in PEM".to_owned()))?;
    // What the library says of a key could have parts of it.
    let config = config.with_client_auth_cert(chain, key);
    let wrong = |_| {
        let problem = "it cannot be used with the certificate".to_owned();
        bad(TlsPart::Key, problem)
    };
    config.map(Some).map_err(wrong)
}

/// The certificates of a text in PEM, one at least.
fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Err(error) => Err(error.to_string()),
        Ok(found) if found.is_empty() => Err("it has no certificate in PEM".to_owned()),
        Ok(found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::{Jitter, Preset};

    use super::super::statuses::{Meaning, Named};
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            url: "https://example.com/hooks".to_owned(),
            headers: vec![
                ("x-b".to_owned(), "1".to_owned()),
                ("x-a".to_owned(), "é".to_owned()),
            ],
            timeout: Some(Duration::from_nanos(100_000_001)),
            secrets: vec![Secret {
                id: "a".to_owned(),
                created: Timestamp::from_micros(1_700_000_000_000_001),
                kept: Kept::Plain("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()),
            }],
            retry: Some(Preset::Wechat.policy().jitter(Jitter::Full)),
            concurrency: Some(7),
            rate: Some(Rate {
                per_second: 0.5,
                burst: 3,
            }),
            disabled: true,
            auto_disable: Some(Duration::from_secs(432_000)),
            disabled_by: Some(DisabledBy {
                reason: "every attempt failed for 120h: 503".to_owned(),
                at: Timestamp::from_micros(1_700_000_000_000_002),
            }),
            breaker: Some(Breaker::default()),
            statuses: [(Named::Exact(409), Meaning::Done)].into_iter().collect(),
            allow: vec!["10.0.0.0/8".parse().unwrap(), "*.lan:8443".parse().unwrap()],
            egress_proxy: Some("http://proxy.lan:3128".parse().unwrap()),
            versions: Versions::One,
            ca: Some("x".to_owned()),
            client_certificate: Some(ClientCertificate {
                certificate: "y".to_owned(),
                key: Kept::Plain("z".to_owned()),
            }),
        }
    }

    #[test]
    fn an_endpoint_is_read_as_it_was_stored_and_nothing_else_is_one() {
        let bare = Endpoint {
            headers: Vec::new(),
            timeout: None,
            secrets: Vec::new(),
            retry: None,
            concurrency: None,
            rate: None,
            disabled: false,
            auto_disable: None,
            disabled_by: None,
            breaker: None,
            statuses: Statuses::default(),
            allow: Vec::new(),
            egress_proxy: None,
            versions: Versions::Auto,
            ca: None,
            client_certificate: None,
            ..endpoint()
        };
        for endpoint in [endpoint(), bare] {
            let value = endpoint.to_value();
            assert_eq!(Endpoint::of_value(&value).as_ref(), Some(&endpoint));
            let text = String::from_utf8(value).unwrap();
            let later = text.replace(r#""format":1"#, r#""format":2"#);
            for other in ["", "{}", "fire", &later, &text[1..]] {
                assert_eq!(Endpoint::of_value(other.as_bytes()), None, "{other}");
            }
        }
    }

    /// Programs of before wrote and read nothing of these.
    #[test]
    fn what_an_endpoint_does_not_say_is_not_stored() {
        let said = String::from_utf8(endpoint().to_value()).unwrap();
        let silent = Endpoint {
            allow: Vec::new(),
            egress_proxy: None,
            versions: Versions::Auto,
            ..endpoint()
        };
        let stored = String::from_utf8(silent.to_value()).unwrap();
        for name in ["allow", "egress_proxy", "http"] {
            let member = format!("\"{name}\":");
            assert!(
                said.contains(&member) && !stored.contains(&member),
                "{name}"
            );
        }
        assert_eq!(Endpoint::of_value(stored.as_bytes()), Some(silent));
        let wrong = said.replace("http://proxy.lan:3128", "ftp://proxy.lan");
        assert_eq!(Endpoint::of_value(wrong.as_bytes()), None);
    }

    #[test]
    fn only_what_is_as_for_all_shares_its_connections() {
        let (vault, roots) = (Vault::without_key(true), Arc::new(RootCertStore::empty()));
        let bare = Endpoint {
            secrets: Vec::new(),
            allow: Vec::new(),
            egress_proxy: None,
            versions: Versions::Auto,
            ca: None,
            client_certificate: None,
            ..endpoint()
        };
        let narrowed = Endpoint {
            allow: endpoint().allow,
            ..bare.clone()
        };
        let name = EndpointName::new("shop").unwrap();
        let number = |endpoint: &Endpoint| {
            let opened = endpoint
                .clone()
                .open(&name, SettingsVersion(1), &vault, &roots);
            opened.means.unwrap().way.number
        };
        assert_eq!(number(&bare), 0);
        let numbers = [number(&narrowed), number(&narrowed)];
        assert!(numbers[0] != numbers[1] && !numbers.contains(&0));
    }

    #[test]
    fn secrets_are_resealed_once_the_first_key_is_another() {
        let name = EndpointName::new("shop").unwrap();
        let vault = Vault::without_key(true);
        assert_eq!(endpoint().resealed(&name, &vault), None);
        assert_eq!(endpoint().is_sealed(), Some(false));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "07".repeat(32)).unwrap();
        let vault = Vault::of_file(file.path()).unwrap();
        let sealed = endpoint().resealed(&name, &vault).expect("a plain secret");
        assert_eq!(sealed.is_sealed(), Some(true));
        assert_eq!(sealed.resealed(&name, &vault), None);
        let text = String::from_utf8(sealed.to_value()).unwrap();
        assert!(!text.contains("MfKQ9r8G"), "{text}");
        let secret = &sealed.secrets[0];
        let opened = vault.open("endpoint/shop secret/a", &secret.kept).unwrap();
        assert!(opened.ends_with("LaLaSw"));
        // Under another name nothing opens.
        let other = EndpointName::new("other").unwrap();
        let roots = Arc::new(RootCertStore::empty());
        let version = SettingsVersion(1);
        let opened = sealed.clone().open(&other, version, &vault, &roots);
        let fault = opened.means.unwrap_err();
        assert!(
            matches!(&fault, Fault::Secret(it) if it.starts_with("secret a: ")),
            "{fault}"
        );
        // What an earlier build took may be refused by this one.
        let unread = Endpoint {
            secrets: Vec::new(),
            client_certificate: None,
            ..endpoint()
        };
        let opened = unread.open(&name, version, &vault, &roots);
        let fault = opened.means.unwrap_err();
        assert!(
            matches!(&fault, Fault::Tls(it) if it.starts_with("ca: ")),
            "{fault}"
        );
    }
}
