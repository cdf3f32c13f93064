//! Queues that are drained: they take no new timer, and what they hold goes out, is held, or is taken out. And
//! queues that are paused: they take new timers, and start none.
//!
//! A drain is a setting of the store, so it outlives the process, and every owner of a shard sees it.

use std::collections::BTreeMap;
use std::fmt;

use countwheel_time::Timestamp;

use crate::{QueueName, SettingName, Settings};

/// What becomes of the timers of a drained or paused queue.
///
/// ```
/// use countwheel_durable::DrainMode;
/// use countwheel_time::Timestamp;
///
/// let until = Some(Timestamp::from_micros(1_700_000_000_000_000));
/// assert_eq!(DrainMode::Fire { until }.to_string(), "fire");
/// assert_eq!(DrainMode::Hold.to_string(), "hold");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DrainMode {
    /// What is due goes out, with its retries and runs, until this time of the wall clock. From then on
    /// nothing starts.
    Fire {
        /// When it ends; `None` for never.
        until: Option<Timestamp>,
    },
    /// Nothing starts. Attempts that run come to their end.
    Hold,
    /// Nothing starts, and the timers are removed and handed back. See
    /// [`Timers::drain`](crate::Timers::drain).
    Remove,
    /// Nothing starts until this time of the wall clock, and new timers are taken all the same. See
    /// [`Timers::pause`](crate::Timers::pause).
    Pause {
        /// When it ends; `None` for never.
        until: Option<Timestamp>,
    },
}

impl DrainMode {
    /// Whether nothing starts at this time.
    fn holds(self, wall: Timestamp) -> bool {
        match self {
            Self::Fire { until } => until.is_some_and(|until| wall >= until),
            Self::Hold | Self::Remove => true,
            Self::Pause { until } => until.is_none_or(|until| wall < until),
        }
    }

    /// Whether this is a pause that has ended by this time of the wall clock.
    ///
    /// ```
    /// use countwheel_durable::DrainMode;
    /// use countwheel_time::Timestamp;
    ///
    /// let until = Some(Timestamp::from_micros(5));
    /// assert!(DrainMode::Pause { until }.is_over(Timestamp::from_micros(5)));
    /// assert!(!DrainMode::Fire { until }.is_over(Timestamp::from_micros(5)));
    /// ```
    #[must_use]
    pub fn is_over(self, wall: Timestamp) -> bool {
        matches!(self, Self::Pause { .. }) && !self.holds(wall)
    }

    /// Whether sets are refused: all modes do so but a pause.
    ///
    /// ```
    /// use countwheel_durable::DrainMode;
    ///
    /// assert!(DrainMode::Hold.refuses_sets());
    /// assert!(!DrainMode::Pause { until: None }.refuses_sets());
    /// ```
    #[must_use]
    pub fn refuses_sets(self) -> bool {
        !matches!(self, Self::Pause { .. })
    }

    /// The value of the setting that says so.
    pub(crate) fn to_value(self) -> Vec<u8> {
        let text = match self {
            Self::Fire { until: Some(until) } | Self::Pause { until: Some(until) } => {
                format!("{self} until {}", until.as_micros())
            }
            mode => mode.to_string(),
        };
        text.into_bytes()
    }

    /// The mode of a setting. A value of another version that is not known here starts nothing: that
    /// loses nothing, and a resume ends it.
    fn of_value(value: &[u8]) -> Self {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let (word, until) = match text.split_once(" until ") {
            None => (text, None),
            Some((word, micros)) => match micros.parse() {
                Ok(micros) => (word, Some(Timestamp::from_micros(micros))),
                Err(_) => return Self::Hold,
            },
        };
        match (word, until) {
            ("fire", until) => Self::Fire { until },
            ("pause", until) => Self::Pause { until },
            ("remove", None) => Self::Remove,
            _ => Self::Hold,
        }
    }
}

impl fmt::Display for DrainMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fire { .. } => "fire",
            Self::Hold => "hold",
            Self::Remove => "remove",
            Self::Pause { .. } => "pause",
        })
    }
}

/// Which queues are drained or paused, and how.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_time::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Attempt, Config, DrainMode, Drains, Outcome, QueueName, Timers};
///
/// # let handler = |_: &Attempt| Outcome::done();
/// # let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
/// let orders = QueueName::new("orders")?;
/// timers.drain(Some(&orders), DrainMode::Hold)?;
///
/// let drains: Drains = timers.drains();
/// assert_eq!(drains.of(&orders), Some(DrainMode::Hold));
/// assert_eq!((drains.all(), drains.iter().count()), (None, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Drains {
    all: Option<DrainMode>,
    queues: BTreeMap<QueueName, DrainMode>,
}

/// The setting that drains all queues; with a queue's text behind a slash, one of them.
const SETTING: &str = "drain";

/// The setting of a drain; `None` names all queues.
pub(crate) fn setting_of(queue: Option<&QueueName>) -> Result<SettingName, crate::SettingError> {
    match queue {
        None => SettingName::new(SETTING),
        Some(queue) => SettingName::new(format!("{SETTING}/{queue}")),
    }
}

/// Whether a setting is one of drains.
pub(crate) fn is_drain(name: &SettingName) -> bool {
    let rest = name.as_str().strip_prefix(SETTING);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Drains {
    /// Those that the settings of a store name.
    ///
    /// ```
    /// use countwheel_durable::{Drains, Settings};
    ///
    /// let drains = Drains::of_settings(&Settings::default());
    /// assert_eq!(drains, Drains::default());
    /// ```
    #[must_use]
    pub fn of_settings(settings: &Settings) -> Self {
        let mut drains = Self::default();
        for (name, value) in settings.iter().filter(|(name, _)| is_drain(name)) {
            drains.change(name, Some(&value.value));
        }
        drains
    }

    /// A setting of drains has changed.
    pub(crate) fn change(&mut self, name: &SettingName, value: Option<&[u8]>) {
        let mode = value.map(DrainMode::of_value);
        let Some(text) = name.as_str().strip_prefix(SETTING) else {
            return;
        };
        match (text.strip_prefix('/'), mode) {
            (None, mode) => self.all = mode,
            (Some(queue), mode) => {
                let Ok(queue) = QueueName::from_text(queue) else {
                    return;
                };
                match mode {
                    Some(mode) => drop(self.queues.insert(queue, mode)),
                    None => drop(self.queues.remove(&queue)),
                }
            }
        }
    }

    /// The drain of all queues.
    #[must_use]
    pub fn all(&self) -> Option<DrainMode> {
        self.all
    }

    /// The drain of this queue: its own, or that of all.
    #[must_use]
    pub fn of(&self, queue: &QueueName) -> Option<DrainMode> {
        self.own(queue).or(self.all)
    }

    /// The queue's own drain.
    #[must_use]
    pub fn own(&self, queue: &QueueName) -> Option<DrainMode> {
        self.queues.get(queue).copied()
    }

    /// The queues with a drain of their own, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&QueueName, DrainMode)> {
        self.queues.iter().map(|(queue, mode)| (queue, *mode))
    }

    /// The mode for which sets of this queue are refused: its own, or that of all.
    pub(crate) fn refusal(&self, queue: &QueueName) -> Option<DrainMode> {
        let modes = self.own(queue).into_iter().chain(self.all);
        modes.into_iter().find(|mode| mode.refuses_sets())
    }

    /// When the next pause ends that goes on.
    pub(crate) fn next_end(&self, wall: Timestamp) -> Option<Timestamp> {
        let modes = self.queues.values().copied().chain(self.all);
        let ends = modes.filter_map(|mode| match mode {
            DrainMode::Pause { until } => until.filter(|until| *until > wall),
            DrainMode::Fire { .. } | DrainMode::Hold | DrainMode::Remove => None,
        });
        ends.min()
    }

    /// Whether nothing of this queue starts: its own drain holds it, or that of all.
    pub(crate) fn holds(&self, queue: &QueueName, wall: Timestamp) -> bool {
        self.holds_all(wall) || (self.queues.get(queue)).is_some_and(|mode| mode.holds(wall))
    }

    /// Whether nothing starts at all.
    pub(crate) fn holds_all(&self, wall: Timestamp) -> bool {
        self.all.is_some_and(|mode| mode.holds(wall))
    }

    /// The queues of which nothing starts by their own drain.
    pub(crate) fn held(&self, wall: Timestamp) -> impl Iterator<Item = &QueueName> {
        let held = self.queues.iter().filter(move |(_, mode)| mode.holds(wall));
        held.map(|(queue, _)| queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_was_written_and_an_unknown_one_holds() {
        let until = Some(Timestamp::from_micros(1_700_000_000_000_001));
        let modes = [
            DrainMode::Fire { until: None },
            DrainMode::Fire { until },
            DrainMode::Hold,
            DrainMode::Remove,
            DrainMode::Pause { until: None },
            DrainMode::Pause { until },
        ];
        for mode in modes {
            assert_eq!(DrainMode::of_value(&mode.to_value()), mode);
        }
        for unknown in [
            "",
            "sell",
            "fire until",
            "fire until x",
            "fire until -1",
            "remove until 1",
            "pause until 1 until 2",
        ] {
            assert_eq!(DrainMode::of_value(unknown.as_bytes()), DrainMode::Hold);
        }
        assert_eq!(DrainMode::of_value(&[0xff]), DrainMode::Hold);
    }

    #[test]
    fn a_drain_of_all_and_one_of_a_queue_hold_whichever_holds() {
        let orders = QueueName::new("orders").unwrap();
        let at = Timestamp::from_micros;
        let mut drains = Drains::default();
        let own = setting_of(Some(&orders)).unwrap();
        let all = setting_of(None).unwrap();
        assert!(is_drain(&own) && is_drain(&all));
        drains.change(&all, Some(b"fire until 5"));
        assert!(!drains.holds(&orders, at(4)) && drains.holds(&orders, at(5)));
        drains.change(&own, Some(b"hold"));
        assert!(drains.holds(&orders, at(4)) && !drains.holds_all(at(4)));
        drains.change(&own, None);
        drains.change(&all, None);
        assert_eq!(drains, Drains::default());
    }

    #[test]
    fn a_pause_ends_at_its_time_and_hides_no_drain() {
        let orders = QueueName::new("orders").unwrap();
        let at = Timestamp::from_micros;
        let mut drains = Drains::default();
        drains.change(&setting_of(Some(&orders)).unwrap(), Some(b"pause until 5"));
        assert!(drains.holds(&orders, at(4)) && !drains.holds(&orders, at(5)));
        assert_eq!(
            (drains.next_end(at(4)), drains.next_end(at(5))),
            (Some(at(5)), None)
        );
        assert_eq!(drains.refusal(&orders), None);
        drains.change(&setting_of(None).unwrap(), Some(b"hold"));
        assert!(drains.holds(&orders, at(5)));
        assert_eq!(drains.refusal(&orders), Some(DrainMode::Hold));
    }

    #[test]
    fn other_settings_are_no_drains() {
        for name in ["drains", "drainage/orders", "queue/drain", "Drain"] {
            assert!(!is_drain(&SettingName::new(name).unwrap()), "{name}");
        }
    }
}
