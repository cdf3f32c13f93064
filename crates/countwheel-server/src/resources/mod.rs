//! Queues, endpoints and tokens as stored things: each is a setting of the store, and all of them are in memory, parsed once
//! for each of their versions.

pub(crate) mod blocked;
pub(crate) mod breaker;
pub(crate) mod ceilings;
pub(crate) mod cloudevents;
pub(crate) mod endpoint;
pub(crate) mod expiring;
pub(crate) mod failing;
pub(crate) mod flows;
pub(crate) mod loans;
pub(crate) mod namespace;
pub(crate) mod queue;
pub(crate) mod route;
pub(crate) mod rules;
pub(crate) mod sealed;
pub(crate) mod sessions;
pub(crate) mod signature;
pub(crate) mod statuses;
pub(crate) mod token;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::{
    Keep, QueueName, Request, Retention, RetryPolicy, SettingName, SettingPrecondition, Settings,
    SettingsVersion, Timers,
};
use countwheel_time::{Clock, Instant, Timestamp};
use parking_lot::{Mutex, RwLock};
use rustls::RootCertStore;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use self::blocked::Blocked;
use self::breaker::{Breakers, Health};
use self::ceilings::Ceilings;
use self::endpoint::{Endpoint, EndpointName, Opened};
use self::failing::Failing;
use self::namespace::{NAMESPACE, Quotas, StoredNamespace};
use self::queue::{Mode, Queue};
use self::sealed::Vault;
use self::sessions::{SESSIONS, StoredSessions};
use self::token::{StoredToken, TOKEN, TokenId};
use crate::api::events::Changed;
use crate::api::json::{self, Field};
use crate::api::retry;
use crate::pull::LEASE_DEFAULT;
use crate::time::parse_duration;

/// How long what is known counts as known, where looking again asks no store.
const LOOKED_FOR: Duration = Duration::from_millis(20);
/// The same where a look asks the store: of a process that owns no shard.
const READ_FOR: Duration = Duration::from_millis(500);
/// A node that has not reached the store for so long takes no tokens that are stored there.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// How long a look at the store may take.
const LOOKS_FOR: Duration = Duration::from_secs(5);
/// What the settings of endpoints begin with.
const ENDPOINT: &str = "endpoint/";
/// What the settings of queues begin with.
const QUEUE: &str = "queue/";

/// The setting of an endpoint.
pub(crate) fn setting_of_endpoint(name: &EndpointName) -> Option<SettingName> {
    SettingName::new(format!("{ENDPOINT}{name}")).ok()
}

/// Which queue or endpoint a setting is about, if it is about one.
pub(crate) fn changed_by(name: &SettingName) -> Option<Changed<'_>> {
    let name = name.as_str();
    if let Some(queue) = name.strip_prefix(QUEUE) {
        return Some(Changed::Queue(Some(queue)));
    }
    if let Some(endpoint) = name.strip_prefix(ENDPOINT) {
        return Some(Changed::Endpoint(endpoint));
    }
    let drained = name.strip_prefix("drain")?;
    match drained.strip_prefix('/') {
        Some(queue) => Some(Changed::Queue(Some(queue))),
        None => drained.is_empty().then_some(Changed::Queue(None)),
    }
}

/// The setting of a queue.
pub(crate) fn setting_of_queue(queue: &QueueName) -> Option<SettingName> {
    SettingName::new(format!("{QUEUE}{queue}")).ok()
}

/// A stored duration: nothing, or what a text says. `None` if the text says none.
#[expect(
    clippy::option_option,
    reason = "the outer one is whether it could be read"
)]
fn read_span(text: Option<&str>) -> Option<Option<Duration>> {
    text.map_or(Some(None), |text| parse_duration(text).map(Some))
}

/// A stored retry policy: nothing, or what is written. `None` if that is no policy.
#[expect(
    clippy::option_option,
    reason = "the outer one is whether it could be read"
)]
fn read_policy(value: Option<&Value>) -> Option<Option<RetryPolicy>> {
    let Some(value) = value else {
        return Some(None);
    };
    let text = value.to_string();
    let parsed = json::parse(text.as_bytes()).ok()?;
    retry::read(&Field::root(parsed)).ok().map(Some)
}

/// One of the things that are stored.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) version: SettingsVersion,
    /// `None` if a later version of the program has written it, or nobody: nothing is made of it.
    pub(crate) what: Option<Arc<T>>,
}

impl<T> Entry<T> {
    /// What is known, if that is of this version; else what is read.
    fn of(
        known: Option<&Self>,
        version: SettingsVersion,
        read: impl FnOnce() -> Option<T>,
    ) -> Self {
        let known = known.filter(|it| it.version == version).cloned();
        known.unwrap_or_else(|| Self {
            version,
            what: read().map(Arc::new),
        })
    }
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self {
            version: self.version,
            what: self.what.clone(),
        }
    }
}

/// All queues and endpoints as of one version of the settings.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    version: SettingsVersion,
    endpoints: BTreeMap<EndpointName, Entry<Opened>>,
    queues: BTreeMap<QueueName, Entry<Queue>>,
    tokens: BTreeMap<TokenId, Entry<StoredToken>>,
    namespaces: BTreeMap<Box<str>, Entry<StoredNamespace>>,
    /// The sessions of the pages, by who has begun them.
    sessions: BTreeMap<Box<str>, Entry<StoredSessions>>,
    /// Whether something is stored as a token, whether it can be read or not.
    has_tokens: bool,
    /// Whose certificate has which name.
    certificates: BTreeMap<String, TokenId>,
}

/// A token that was shown, and its id.
type Known<'a> = (&'a TokenId, &'a Arc<StoredToken>);

impl Resources {
    /// Those of the settings. What `before` has in the same version is taken from there.
    fn of(settings: &Settings, before: &Self, vault: &Vault, roots: &Arc<RootCertStore>) -> Self {
        let mut now = Self {
            version: settings.version(),
            ..Self::default()
        };
        for (setting, value) in settings.iter() {
            let (text, version) = (setting.as_str(), value.version);
            if let Some(name) = text.strip_prefix(ENDPOINT) {
                let Ok(name) = EndpointName::new(name) else {
                    continue;
                };
                let entry = Entry::of(before.endpoints.get(&name), version, || {
                    let read = Endpoint::of_value(&value.value);
                    let opened = read.map(|it| it.open(&name, version, vault, roots));
                    if let Some(Err(reason)) = opened.as_ref().map(|it| &it.means) {
                        tracing::error!(endpoint = %name, %reason, "nothing is delivered there");
                    }
                    opened
                });
                now.endpoints.insert(name, entry);
            } else if let Some(queue) = text.strip_prefix(QUEUE) {
                let Ok(queue) = QueueName::from_text(queue) else {
                    continue;
                };
                let read = || Queue::of_value(&value.value);
                let entry = Entry::of(before.queues.get(&queue), version, read);
                now.queues.insert(queue, entry);
            } else if let Some(id) = text.strip_prefix(TOKEN) {
                now.has_tokens = true;
                let Some(id) = TokenId::new(id) else {
                    continue;
                };
                let what = StoredToken::of_value(&value.value).map(Arc::new);
                let certificate = what.as_ref().and_then(|it| it.certificate.clone());
                if let Some(name) = certificate {
                    now.certificates.insert(name, id.clone());
                }
                now.tokens.insert(id, Entry { version, what });
            } else if let Some(name) = text.strip_prefix(NAMESPACE) {
                let what = StoredNamespace::of_value(&value.value).map(Arc::new);
                now.namespaces.insert(name.into(), Entry { version, what });
            } else if let Some(who) = text.strip_prefix(SESSIONS) {
                let read = || StoredSessions::of_value(&value.value);
                let entry = Entry::of(before.sessions.get(who), version, read);
                now.sessions.insert(who.into(), entry);
            }
        }
        now
    }

    /// Those with this token alone.
    #[cfg(test)]
    pub(crate) fn with_token(id: TokenId, token: StoredToken) -> Self {
        let entry = Entry {
            version: SettingsVersion(1),
            what: Some(Arc::new(token)),
        };
        Self {
            tokens: [(id, entry)].into(),
            has_tokens: true,
            ..Self::default()
        }
    }

    /// That of all settings.
    pub(crate) fn version(&self) -> SettingsVersion {
        self.version
    }

    /// Whether there are tokens: then one has to be shown.
    pub(crate) fn has_tokens(&self) -> bool {
        self.has_tokens
    }

    /// The token with that id.
    pub(crate) fn token(&self, id: &TokenId) -> Option<&Entry<StoredToken>> {
        self.tokens.get(id)
    }

    /// All tokens, in order of id.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (&TokenId, &Entry<StoredToken>)> {
        self.tokens.iter()
    }

    /// The namespace of that name.
    pub(crate) fn namespace(&self, name: &str) -> Option<&Entry<StoredNamespace>> {
        self.namespaces.get(name)
    }

    /// The namespaces that are stored, in order of name.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&str, &Entry<StoredNamespace>)> {
        self.namespaces.iter().map(|(name, entry)| (&**name, entry))
    }

    /// The quotas of that namespace, if it has any.
    pub(crate) fn quotas(&self, namespace: &str) -> Option<&Quotas> {
        let stored = self.namespaces.get(namespace)?.what.as_deref()?;
        Some(&stored.quotas)
    }

    /// Whether a token is for the certificate with this name.
    pub(crate) fn has_certificate(&self, name: &str) -> bool {
        self.certificates.contains_key(name)
    }

    /// The token with that id, if it has a secret with this hash, and counts now.
    pub(crate) fn shown_token(
        &self,
        id: &TokenId,
        hash: &str,
        now: Timestamp,
    ) -> Option<Known<'_>> {
        let (id, entry) = self.tokens.get_key_value(id)?;
        let token = entry.what.as_ref()?;
        token.has_secret(hash, now).then_some((id, token))
    }

    /// The token with that id, if it has a secret and counts now.
    pub(crate) fn valid_token(&self, id: &TokenId, now: Timestamp) -> Option<Known<'_>> {
        let (id, entry) = self.tokens.get_key_value(id)?;
        let token = entry.what.as_ref()?;
        (token.certificate.is_none() && token.counts(now)).then_some((id, token))
    }

    /// The token of whoever has shown a certificate with this name, if it counts now.
    pub(crate) fn token_of_certificate(&self, name: &str, now: Timestamp) -> Option<Known<'_>> {
        let id = self.certificates.get(name)?;
        let (id, entry) = self.tokens.get_key_value(id)?;
        let token = entry.what.as_ref()?;
        token.counts(now).then_some((id, token))
    }

    /// The endpoint of that name.
    pub(crate) fn endpoint(&self, name: &EndpointName) -> Option<&Entry<Opened>> {
        self.endpoints.get(name)
    }

    /// The endpoint of that name, if timers of this queue may go there: it is in the same namespace.
    pub(crate) fn endpoint_of(&self, queue: &QueueName, name: &str) -> Option<&Entry<Opened>> {
        let name = EndpointName::new(name).ok()?;
        let found = self.endpoints.get(&name)?;
        (name.namespace() == queue.namespace()).then_some(found)
    }

    /// The endpoints behind a name, in order of name.
    pub(crate) fn endpoints_after(
        &self,
        after: Option<&EndpointName>,
    ) -> impl Iterator<Item = (&EndpointName, &Entry<Opened>)> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.endpoints.range((from, Bound::Unbounded))
    }

    /// The settings of that queue.
    pub(crate) fn queue(&self, queue: &QueueName) -> Option<&Entry<Queue>> {
        self.queues.get(queue)
    }

    /// Where the timers go that leave it to their queues, and which queues workers fetch from.
    fn places_of_queues(&self) -> BTreeMap<&QueueName, (Option<&str>, Mode)> {
        let queues = self.queues.iter().filter_map(|(queue, entry)| {
            let known = entry.what.as_ref()?;
            let place = (known.endpoint.as_deref(), known.mode);
            (place != (None, Mode::Push)).then_some((queue, place))
        });
        queues.collect()
    }

    /// Whether workers fetch the timers of this queue, and for how long they have each if they do not say it.
    pub(crate) fn pulled(&self, queue: &QueueName) -> Option<Duration> {
        let known = self.queue(queue)?.what.as_ref()?;
        let lease = known.lease.unwrap_or(LEASE_DEFAULT);
        (known.mode == Mode::Pull).then_some(lease)
    }

    /// The queues with settings, in order of name.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&QueueName, &Entry<Queue>)> {
        self.queues.iter()
    }
}

/// The queues and endpoints that this process knows, of the settings of one store.
#[derive(Debug)]
pub(crate) struct Catalogue {
    known: RwLock<Arc<Resources>>,
    /// When the settings were looked at last. Whoever holds the lock looks.
    looked: Mutex<Option<Instant>>,
    /// When the store was last known to have nothing newer. `None` where nobody else changes it.
    confirmed: Mutex<Option<Instant>>,
    /// Tells that what is known is not what was known before.
    changed: watch::Sender<()>,
    vault: Vault,
    roots: Arc<RootCertStore>,
    clock: Arc<dyn Clock>,
    breakers: Breakers,
    blocked: Blocked,
    failing: Failing,
    ceilings: Ceilings,
}

/// How long a queue keeps what has ended, as its settings are when it ends.
impl Retention for Catalogue {
    fn keep(&self, queue: &QueueName) -> Keep {
        let known = self.known();
        let settings = known.queue(queue).and_then(|entry| entry.what.as_deref());
        let kept = settings.and_then(|settings| self.ceilings.retention_of(settings));
        kept.map_or_else(Keep::default, |kept| Keep {
            done: kept.done,
            dead: kept.dead,
        })
    }
}

impl Catalogue {
    /// Knows nothing yet. `roots` are trusted where an endpoint names none.
    pub(crate) fn new(vault: Vault, roots: Arc<RootCertStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            known: RwLock::default(),
            looked: Mutex::default(),
            confirmed: Mutex::default(),
            changed: watch::Sender::new(()),
            vault,
            roots,
            clock,
            breakers: Breakers::default(),
            blocked: Blocked::default(),
            failing: Failing::default(),
            ceilings: Ceilings::default(),
        }
    }

    /// The same, with other ceilings than those of the defaults of the flags.
    pub(crate) fn with_ceilings(mut self, ceilings: Ceilings) -> Self {
        self.ceilings = ceilings;
        self
    }

    /// How far settings may go here.
    pub(crate) fn ceilings(&self) -> &Ceilings {
        &self.ceilings
    }

    /// What this process has seen of the endpoints.
    pub(crate) fn breakers(&self) -> &Breakers {
        &self.breakers
    }

    /// The places to which no delivery goes just now.
    pub(crate) fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// How long every attempt at an endpoint has failed.
    pub(crate) fn failing(&self) -> &Failing {
        &self.failing
    }

    /// The present time of the clock that those go by.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// What is to be told to other nodes of endpoints.
    pub(crate) fn say(&self) -> Vec<breaker::Said> {
        let known = self.known();
        let version = |name: &EndpointName| Some(known.endpoint(name)?.version.0);
        self.breakers.say(&*self.clock, version)
    }

    /// What another node says of endpoints. Says whether limits change.
    pub(crate) fn hear(&self, from: NodeId, said: Vec<breaker::Said>) -> bool {
        let known = self.known();
        let version = |name: &EndpointName| Some(known.endpoint(name)?.version.0);
        self.breakers.hear(from, said, &*self.clock, version)
    }

    /// Looks for pauses that are over. Says whether limits change.
    pub(crate) fn half_open(&self) -> bool {
        self.breakers.half_open_all(&*self.clock)
    }

    /// The health of an endpoint, as this process sees it.
    pub(crate) fn health(&self, name: &EndpointName, is_disabled: bool) -> Health {
        self.breakers.health(name, is_disabled, &*self.clock)
    }

    pub(crate) fn vault(&self) -> &Vault {
        &self.vault
    }

    pub(crate) fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    /// Tells whoever waits that what is known has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What is known just now.
    pub(crate) fn known(&self) -> Arc<Resources> {
        Arc::clone(&self.known.read())
    }

    /// What is known, after a look that asks no store if the last one is some time ago. `None` if only the
    /// store could tell.
    pub(crate) fn current(&self, timers: &Timers) -> Option<Arc<Resources>> {
        let now = self.clock.now();
        // Whoever looks already looks for all.
        if let Some(mut looked) = self.looked.try_lock() {
            let since = looked.map(|at| now.saturating_since(at));
            if since.is_none_or(|since| since >= LOOKED_FOR) {
                if !timers.owned().is_empty() {
                    let seen = timers.settings();
                    // The owner that has seen the newest may have given its shard away: what is known stays known.
                    if seen.version() > self.known().version {
                        self.learn(timers, &seen);
                    }
                    *looked = Some(now);
                } else if since.is_none_or(|since| since >= READ_FOR) {
                    return None;
                }
            }
        }
        Some(self.known())
    }

    /// What the settings say now. Of a process that owns no shard, and of one whose owners know less than is known, this
    /// reads the store; blocks.
    pub(crate) fn refresh(&self, timers: &Timers) -> Arc<Resources> {
        let mut looked = self.looked.lock();
        let known = self.known().version;
        let seen = (!timers.owned().is_empty()).then(|| timers.settings());
        match seen {
            Some(seen) if seen.version() > known => self.learn(timers, &seen),
            Some(seen) if seen.version() == known => {}
            // Versions become smaller where a database has forgotten changes.
            _ => match timers.stored_settings(known) {
                Ok(stored) => stored.iter().for_each(|stored| self.learn(timers, stored)),
                Err(error) => {
                    tracing::warn!(%error, "the settings cannot be read: what was known stays");
                }
            },
        }
        *looked = Some(self.clock.now());
        drop(looked);
        self.known()
    }

    /// What the settings say now, with all that other nodes have changed until now: an owner looks at the store.
    pub(crate) async fn look_at_store(self: &Arc<Self>, timers: Timers) -> Arc<Resources> {
        // No endpoint has this name, so nothing is changed. An engine looks at the store before it says so.
        if let Ok(name) = SettingName::new(ENDPOINT) {
            let (send, receive) = oneshot::channel();
            let nothing = Request::Configure {
                name,
                value: None,
                precondition: SettingPrecondition::Version(SettingsVersion(u64::MAX)),
            };
            timers.submit(nothing, move |_| {
                // Whoever has asked may have gone.
                send.send(()).unwrap_or_default();
            });
            // Without an answer, what is known has to do.
            drop(tokio::time::timeout(LOOKS_FOR, receive).await);
        }
        let catalogue = Arc::clone(self);
        let looked = tokio::task::spawn_blocking(move || catalogue.refresh(&timers)).await;
        looked.unwrap_or_else(|_| self.known())
    }

    /// Asks the store for what is newer than what is known. Blocks, for as long as the store does not answer.
    pub(crate) fn confirm(&self, timers: &Timers) {
        let (now, known) = (self.clock.now(), self.known().version);
        if let Ok(newer) = timers.stored_settings(known) {
            if let Some(newer) = newer {
                let _looks = self.looked.lock();
                if newer.version() > self.known().version {
                    self.learn(timers, &newer);
                }
            }
            *self.confirmed.lock() = Some(now);
        }
    }

    /// Whether other nodes may have changed anything for so long that this one does not know of. Tokens may have been revoked.
    pub(crate) fn is_stale(&self) -> bool {
        let confirmed = *self.confirmed.lock();
        confirmed.is_some_and(|at| self.clock.now().saturating_since(at) > STALE_AFTER)
    }

    /// Knows what is stored before the first timer starts, or is given up and asks how long it is kept.
    pub(crate) fn begin(&self, settings: &Settings) {
        let now = Resources::of(settings, &self.known(), &self.vault, &self.roots);
        *self.known.write() = Arc::new(now);
    }

    /// Takes the place of what was known. Only who holds the lock of looks does that.
    fn learn(&self, timers: &Timers, settings: &Settings) {
        let before = self.known();
        let now = Resources::of(settings, &before, &self.vault, &self.roots);
        let is_elsewhere = now.places_of_queues() != before.places_of_queues();
        let now = Arc::new(now);
        *self.known.write() = Arc::clone(&now);
        self.changed.send_replace(());
        // A changed endpoint may be another receiver: what was seen of it counts no more. Only once the change is
        // known, or an attempt of before could be noted again.
        for (name, entry) in &before.endpoints {
            let now = now.endpoints.get(name);
            if now.is_none_or(|now| now.version != entry.version) {
                self.breakers.forget(name);
                self.failing.forget(name);
            }
        }
        timers.flows_changed();
        if is_elsewhere {
            timers.routes_changed();
        }
    }
}
