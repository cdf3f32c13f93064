//! The sessions of the pages that people have begun with a token, as all nodes know them: a setting for each token.

use std::collections::BTreeMap;

use countwheel_durable::{SettingName, SettingsVersion};
use serde::{Deserialize, Serialize};

use super::{Entry, Resources};

/// What the settings of sessions begin with.
pub(super) const SESSIONS: &str = "session/";
/// How many sessions of one token are stored. One more ends the one that was begun first.
pub(crate) const SESSIONS_MAX: usize = 32;
/// The version of the stored form.
const FORMAT: u32 = 1;

/// One session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct StoredSession {
    /// In microseconds since 1970: several may begin within a second.
    pub(crate) begun: u64,
    /// It counts before that second since 1970.
    pub(crate) until: u64,
    /// The address from which it was begun, if that is known.
    pub(crate) from: Option<String>,
}

/// The sessions of one token, by nonce. Nobody makes a cookie of a nonce without the key of the nodes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct StoredSessions {
    format: u32,
    sessions: BTreeMap<String, StoredSession>,
}

impl StoredSessions {
    /// The setting of the sessions that somebody has begun.
    pub(crate) fn setting(who: &str) -> Option<SettingName> {
        SettingName::new(format!("{SESSIONS}{who}")).ok()
    }

    /// What is stored; `None` if this version cannot read it.
    pub(super) fn of_value(value: &[u8]) -> Option<Self> {
        let form: Self = serde_json::from_slice(value).ok()?;
        (form.format == FORMAT).then_some(form)
    }

    /// As it is stored; `None` if there is no session.
    pub(crate) fn to_value(&self) -> Option<Vec<u8>> {
        // Texts and numbers can always be written.
        let value = || serde_json::to_vec(self).unwrap_or_default();
        (!self.sessions.is_empty()).then(value)
    }

    /// Those that count still, and one more.
    pub(crate) fn with(&self, nonce: &str, session: StoredSession, now: u64) -> Self {
        let mut all = self.still(now);
        let first = all.sessions.iter().min_by_key(|(_, it)| it.begun);
        let first = first.map(|(nonce, _)| nonce.clone());
        if let Some(first) = first.filter(|_| all.sessions.len() >= SESSIONS_MAX) {
            all.sessions.remove(&first);
        }
        all.sessions.insert(nonce.to_owned(), session);
        all
    }

    /// Those that count still, without this one; `None` for all.
    pub(crate) fn without(&self, nonce: Option<&str>, now: u64) -> Self {
        let mut left = self.still(now);
        left.sessions
            .retain(|it, _| nonce.is_some_and(|nonce| nonce != it));
        left
    }

    /// Those that count still.
    pub(crate) fn still(&self, now: u64) -> Self {
        let all = self.sessions.iter();
        let counting = all.filter(|(_, it)| now < it.until);
        Self {
            format: FORMAT,
            sessions: counting
                .map(|(nonce, it)| (nonce.clone(), it.clone()))
                .collect(),
        }
    }

    pub(crate) fn get(&self, nonce: &str) -> Option<&StoredSession> {
        self.sessions.get(nonce)
    }

    /// All of them, in order of nonce.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &StoredSession)> {
        self.sessions.iter().map(|(nonce, it)| (&**nonce, it))
    }
}

impl Resources {
    /// The sessions of `who`. None where a later version has written them.
    pub(crate) fn sessions(&self, who: &str) -> Option<&StoredSessions> {
        self.sessions.get(who)?.what.as_deref()
    }

    /// Which change has made the sessions of `who` what they are.
    pub(crate) fn version_of_sessions(&self, who: &str) -> Option<SettingsVersion> {
        self.sessions.get(who).map(|entry| entry.version)
    }

    /// Somebody of whose sessions none counts any more, if there is anybody.
    pub(crate) fn over(&self, now: u64) -> Option<&str> {
        let is_over = |entry: &Entry<StoredSessions>| {
            let mut sessions = entry.what.iter().flat_map(|it| it.sessions.values());
            entry.what.is_some() && sessions.all(|it| it.until <= now)
        };
        let mut all = self.sessions.iter();
        all.find(|(_, entry)| is_over(entry)).map(|(who, _)| &**who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_772_366_400;

    fn session(begun: u64) -> StoredSession {
        StoredSession {
            begun: begun * 1_000_000,
            until: begun + 100,
            from: Some("192.0.2.1".to_owned()),
        }
    }

    #[test]
    fn what_is_stored_of_a_token_is_bounded_and_ends_with_its_sessions() {
        let mut all = StoredSessions::default();
        for number in 0..=SESSIONS_MAX as u64 {
            // Begun within a second, and the last one before the others in the order of nonces.
            let mut session = session(NOW);
            session.begun += number;
            let nonce = SESSIONS_MAX as u64 - number;
            all = all.with(&format!("{nonce:032x}"), session, NOW);
            let value = all.to_value().unwrap();
            assert!(value.len() < 8 << 10);
            assert_eq!(StoredSessions::of_value(&value).as_ref(), Some(&all));
        }
        // The first one has made room for the last one.
        assert_eq!(all.iter().count(), SESSIONS_MAX);
        let nonce = |number: usize| format!("{:032x}", SESSIONS_MAX - number);
        assert!(all.get(&nonce(0)).is_none() && all.get(&nonce(SESSIONS_MAX)).is_some());
        let left = all.without(Some(&nonce(1)), NOW);
        assert!(left.get(&nonce(1)).is_none() && left.get(&nonce(2)).is_some());
        // What is over goes with the next change, and nothing is stored of nothing.
        assert_eq!(left.without(Some("x"), NOW + 200).to_value(), None);
        assert_eq!(all.without(None, NOW).to_value(), None);
    }

    #[test]
    fn what_a_later_version_has_written_is_no_session() {
        let form = StoredSessions::default().with("a", session(NOW), NOW);
        let later = String::from_utf8(form.to_value().unwrap()).unwrap();
        let later = later.replace("\"format\":1", "\"format\":2");
        assert_eq!(StoredSessions::of_value(later.as_bytes()), None);
    }
}
