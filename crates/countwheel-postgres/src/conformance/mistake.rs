//! Mistakes in the statements that a proof must find.

/// One mistake in what is sent to the server. A proof plants it to show that it would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mistake {
    /// Nothing is compared, locked or inserted before the timers are written.
    NoFence,
    /// The token is not compared: who was replaced still writes.
    NoToken,
    /// The shard's row is not locked: a new owner does not wait for what is under way.
    NoLock,
    /// The turn before is not looked for: a lost tail is not noticed.
    NoTurnBefore,
    /// The timers are written whether the turn was inserted or not.
    NotJoined,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NoFence,
        Self::NoToken,
        Self::NoLock,
        Self::NoTurnBefore,
        Self::NotJoined,
    ];

    /// What stands in the statement of a turn, and what the mistake makes of it.
    pub(crate) fn edits(self) -> &'static [(&'static str, &'static str)] {
        const TOKEN: (&str, &str) = (" AND s.token = e.token", "");
        const LOCK: (&str, &str) = ("ORDER BY s.shard FOR SHARE OF s", "");
        const BEFORE: (&str, &str) = (
            "EXISTS (SELECT FROM @turn p WHERE p.shard = e.shard AND p.seq = e.seq - 1 OFFSET 0)",
            "true",
        );
        match self {
            Self::NoFence => &[
                TOKEN,
                LOCK,
                BEFORE,
                (
                    "INSERT INTO @turn (shard, token, seq, last_revision, clock, timeline, writes, lows) \
                     SELECT * FROM l ON CONFLICT DO NOTHING RETURNING shard",
                    "SELECT shard FROM l",
                ),
            ],
            Self::NoToken => &[TOKEN],
            Self::NoLock => &[LOCK],
            Self::NoTurnBefore => &[BEFORE],
            Self::NotJoined => &[("IN (SELECT shard FROM f)", "IN (SELECT shard FROM e)")],
        }
    }

    /// The statement with the mistake.
    pub(crate) fn planted(self, text: &str) -> String {
        let edits = self.edits().iter();
        edits.fold(text.to_owned(), |text, (right, wrong)| {
            assert!(text.contains(right), "the statement has changed: {right}");
            text.replace(right, wrong)
        })
    }
}
