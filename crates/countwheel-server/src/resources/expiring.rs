//! Notice of tokens before they end: in the log, in the metrics, and in answers to who shows one.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_time::{Instant, Timestamp};

use super::Resources;
use super::token::{StoredToken, TokenId};

/// How long before its end a token has notice.
const SOON: Duration = Duration::from_secs(7 * 86_400);
/// After how long a token has notice in the log again.
const AGAIN: Duration = Duration::from_secs(86_400);

/// Whether what counts now ends soon.
pub(crate) fn is_soon(ends: Timestamp, now: Timestamp) -> bool {
    now < ends && ends.saturating_since(now) <= SOON
}

/// The tokens that count now and end soon, and when.
pub(crate) fn soon(
    known: &Resources,
    now: Timestamp,
) -> impl Iterator<Item = (&TokenId, &StoredToken, Timestamp)> {
    known.tokens().filter_map(move |(id, entry)| {
        let token = entry.what.as_deref()?;
        let ends = token.expires.filter(|&ends| is_soon(ends, now))?;
        Some((id, token, ends))
    })
}

/// When each token that ends soon had notice last.
#[derive(Default, Debug)]
pub(crate) struct Notices(BTreeMap<TokenId, Instant>);

impl Notices {
    /// Gives notice of the tokens that end soon and have had none within a day. Forgets the others. How many they are.
    pub(crate) fn give(&mut self, known: &Resources, wall: Timestamp, now: Instant) -> usize {
        let mut given = 0;
        let mut noticed = BTreeMap::new();
        for (id, token, ends) in soon(known, wall) {
            let before = self.0.get(id);
            let before = before.filter(|&&at| now.saturating_since(at) < AGAIN);
            if before.is_none() {
                let (name, expires) = (&*token.name, crate::time::format_time(ends));
                tracing::warn!(token = id.as_str(), name, expires, "a token expires soon");
                given += 1;
            }
            noticed.insert(id.clone(), before.copied().unwrap_or(now));
        }
        self.0 = noticed;
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::token::Scope;

    const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
    const DAY: u64 = 86_400;

    fn known(expires: Option<Timestamp>) -> Resources {
        let token = StoredToken {
            name: "ops".to_owned(),
            hash: String::new(),
            before: None,
            certificate: None,
            namespace: None,
            scopes: vec![Scope::Read],
            created: NOON,
            expires,
        };
        Resources::with_token(TokenId::new("0123456789ab").unwrap(), token)
    }

    fn wall(seconds: u64) -> Timestamp {
        Timestamp::from_micros(NOON.as_micros() + seconds * 1_000_000)
    }

    #[test]
    fn a_token_ends_soon_in_its_last_seven_days() {
        let known = known(Some(wall(8 * DAY)));
        let count = |at| soon(&known, wall(at)).count();
        assert_eq!((count(0), count(DAY - 1), count(DAY)), (0, 0, 1));
        assert_eq!((count(8 * DAY - 1), count(8 * DAY)), (1, 0));
        let lasts = self::known(None);
        assert_eq!(soon(&lasts, wall(0)).count(), 0);
    }

    #[test]
    fn a_token_has_one_notice_a_day() {
        let known = known(Some(wall(8 * DAY)));
        let mut notices = Notices::default();
        let start = Instant::from_nanos(7);
        // Each hour, for nine days.
        let given = (0..9 * 24).map(|hour| {
            let seconds = hour * 3_600;
            let now = start + Duration::from_secs(seconds);
            notices.give(&known, wall(seconds), now)
        });
        let given: Vec<_> = given.collect();
        let days = given.chunks(24).map(|day| day.iter().sum::<usize>());
        assert_eq!(days.collect::<Vec<_>>(), [0, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert!(notices.0.is_empty(), "what is over is forgotten");
    }
}
