//! How long every attempt at an endpoint has failed, as far as this process has seen: an endpoint may ask to be disabled
//! then.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_durable::SettingsVersion;
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;

use super::endpoint::EndpointName;

/// After how long an endpoint may be disabled.
pub(crate) const AUTO_DISABLE_MIN: Duration = Duration::from_secs(60);
pub(crate) const AUTO_DISABLE_MAX: Duration = Duration::from_secs(30 * 86_400);
/// An endpoint that could not be disabled is tried again so often.
const AGAIN: Duration = Duration::from_secs(10);
/// So many endpoints are known at a time. Those of which no more can be known are never disabled.
pub(crate) const KNOWN_MAX: usize = 65_536;

/// An endpoint at which every attempt has failed.
#[derive(Debug)]
struct Stretch {
    /// Of the endpoint, to which the attempts were made.
    revision: SettingsVersion,
    since: Instant,
    /// When it was last said that the endpoint is to be disabled.
    said: Option<Instant>,
}

/// All such endpoints that ask to be disabled after a while.
#[derive(Debug, Default)]
pub(crate) struct Failing(Mutex<BTreeMap<EndpointName, Stretch>>);

impl Failing {
    /// An attempt at this revision of an endpoint has failed. Whether the endpoint is to be disabled: each attempt
    /// since one that ended `after` ago or earlier has failed.
    pub(crate) fn failed(
        &self,
        name: &EndpointName,
        revision: SettingsVersion,
        after: Duration,
        clock: &dyn Clock,
    ) -> bool {
        let mut known = self.0.lock();
        let now = clock.now();
        let begun = Stretch {
            revision,
            since: now,
            said: None,
        };
        let is_full = known.len() >= KNOWN_MAX;
        match known.get_mut(name) {
            None if is_full => false,
            None => {
                known.insert(name.clone(), begun);
                false
            }
            // An attempt at what the endpoint was before says nothing of it.
            Some(stretch) if stretch.revision > revision => false,
            Some(stretch) if stretch.revision < revision => {
                *stretch = begun;
                false
            }
            Some(stretch) => {
                let is_over = now.saturating_since(stretch.since) >= after;
                let was_said = stretch
                    .said
                    .is_some_and(|said| now.saturating_since(said) < AGAIN);
                let is_due = is_over && !was_said;
                if is_due {
                    stretch.said = Some(now);
                }
                is_due
            }
        }
    }

    /// An attempt at this revision of an endpoint has not failed.
    pub(crate) fn succeeded(&self, name: &EndpointName, revision: SettingsVersion) {
        let mut known = self.0.lock();
        if known.get(name).is_some_and(|it| it.revision <= revision) {
            known.remove(name);
        }
    }

    /// The endpoint is another by now, or gone.
    pub(crate) fn forget(&self, name: &EndpointName) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use countwheel_time::ManualClock;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn an_endpoint_is_to_be_disabled_once_every_attempt_of_a_while_has_failed() {
        let (failing, clock) = (Failing::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        let (old, now) = (SettingsVersion(3), SettingsVersion(4));
        let failed = |revision| failing.failed(&shop, revision, 5 * HOUR, &clock);
        assert!(!failed(now));
        clock.advance(5 * HOUR - Duration::from_micros(1));
        assert!(!failed(now));
        // One that succeeds in between begins it anew; one at what the endpoint was before does not count.
        failing.succeeded(&shop, old);
        clock.advance(Duration::from_micros(1));
        assert!(!failed(old));
        assert!(failed(now));
        assert!(!failed(now), "it is said once, and again after a while");
        clock.advance(AGAIN);
        assert!(failed(now));
        failing.succeeded(&shop, now);
        assert!(!failed(now));
        clock.advance(5 * HOUR);
        // A change of the endpoint begins it anew as well.
        assert!(!failed(SettingsVersion(5)));
        clock.advance(5 * HOUR);
        assert!(failed(SettingsVersion(5)));
        failing.forget(&shop);
        assert!(!failed(SettingsVersion(5)));
    }
}
