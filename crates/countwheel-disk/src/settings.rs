//! Settings as records: those of the shard that no owner has.
//!
//! What keeps records in order, flushes them, checks, repairs and copies them then does so with
//! settings as well. Such a record waits for nothing and is in no index of what is due. Its revision
//! is the version of the change that made it.

use countwheel_time::Timestamp;

use super::Change;
use crate::{
    DeadReason, DueClock, Missed, QueueName, Record, RetryPolicy, Revision, Setting, SettingName,
    SettingValue, SettingsVersion, State, TimerId, TimerName,
};

const QUEUE: &str = "settings";

/// The queue of all settings.
pub(super) fn queue() -> QueueName {
    // Its name is within the rules.
    QueueName::new(QUEUE).unwrap_or_else(|error| unreachable!("{error}"))
}

fn name_of(setting: &SettingName) -> TimerName {
    TimerName {
        queue: queue(),
        key: setting.key().clone(),
    }
}

/// A setting as a record.
pub(super) fn record_of(
    name: &SettingName,
    value: Vec<u8>,
    SettingsVersion(version): SettingsVersion,
) -> Record {
    let (revision, never) = (Revision(version), Timestamp::EPOCH);
    Record {
        name: name_of(name),
        id: TimerId {
            store: 0,
            set: revision,
        },
        revision,
        state: State::Dead {
            at: never,
            reason: DeadReason::Stopped,
            keep_until: None,
        },
        created: never,
        due: never,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: never,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: value,
    }
}

/// The setting of a record; `None` if it is none.
pub(super) fn of_record(record: Record) -> Option<(SettingName, SettingValue)> {
    let name = name_of_record(&record.name)?;
    let version = SettingsVersion(record.revision.0);
    let value = record.payload;
    Some((name, SettingValue { version, value }))
}

/// The name of the setting that a record of this name is.
pub(super) fn name_of_record(name: &TimerName) -> Option<SettingName> {
    let is_setting = name.queue.as_str() == QUEUE;
    is_setting.then(|| SettingName::of_key(name.key.clone()))
}

/// What becomes of the records of [`Shard::SETTINGS`] by the changes of settings among `changes`,
/// made behind `version`.
pub(super) fn changes(changes: &[Change], version: SettingsVersion) -> Vec<Change> {
    let mut version = version;
    let settings = changes.iter().filter_map(|change| match change {
        Change::Setting(setting) => Some(setting),
        _ => None,
    });
    let mut made = Vec::new();
    for Setting { name, value } in settings {
        version.0 = version.0.saturating_add(1);
        match value {
            Some(value) => made.push(Change::put(record_of(name, value.clone(), version))),
            None => {
                made.push(Change::remove(name_of(name)));
                made.push(given(version));
            }
        }
    }
    made
}

/// That versions up to this one were given, though no record shows it.
pub(super) fn given(version: SettingsVersion) -> Change {
    Change::Given(Revision(version.0))
}
