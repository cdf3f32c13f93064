//! The settings of a store with a log: the records of a shard that no owner has.

use super::LogStore;
use crate::settings;
use crate::{DiskError, Filter, Shard, Sorted, StoreError};
use crate::{Settings, SettingsVersion};

/// So many records of settings are read while commits wait.
const READ_AT_ONCE: usize = 256;
/// What the problem begins with if one cannot be read.
const UNREADABLE: &str = "a setting cannot be read";
/// So often they are read while commits go on, which may change them meanwhile.
const TRIES: usize = 3;

impl<B: Sorted> LogStore<B> {
    /// The last change of a setting: the last revision of their shard.
    pub(crate) fn settings_version(&self) -> SettingsVersion {
        let state = self.state();
        let memtable = state.shards.get(&Shard::SETTINGS);
        SettingsVersion(memtable.map_or(0, |memtable| memtable.last_revision.0))
    }

    pub(super) fn read_settings(
        &self,
        after: SettingsVersion,
    ) -> Result<Option<Settings>, StoreError> {
        for _ in 0..TRIES {
            let version = self.settings_version();
            if version <= after {
                return Ok(None);
            }
            let settings = self.settings_of(version)?;
            if self.settings_version() == version {
                return Ok(Some(settings));
            }
        }
        // Somebody changes them all the time.
        let _no_commits = self.writer_whatever();
        let version = self.settings_version();
        self.settings_of(version).map(Some)
    }

    /// All that are there, as of `version` if nobody changes them meanwhile.
    fn settings_of(&self, version: SettingsVersion) -> Result<Settings, StoreError> {
        let mut filter = Filter {
            limit: READ_AT_ONCE,
            ..Filter::queue(settings::queue())
        };
        let mut records = Vec::new();
        loop {
            let page = self.page(Shard::SETTINGS, &filter)?;
            if page.unreadable > 0 {
                return Err(self.unreadable_setting());
            }
            records.extend(page.records);
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
        // A list leaves out what it cannot find, and settings are whole.
        if self.base.gaps().lists {
            return Err(self.unreadable_setting());
        }
        let values = records.into_iter().filter_map(settings::of_record);
        Ok(Settings::new(version, values))
    }

    fn unreadable_setting(&self) -> StoreError {
        DiskError::Corrupt {
            path: self.files.path(),
            problem: format!(
                "{UNREADABLE}, here or in a table beside it: `countwheel check` says where"
            ),
        }
        .into()
    }
}
