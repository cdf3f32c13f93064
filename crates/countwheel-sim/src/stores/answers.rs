//! All answers of a store.

use std::collections::BTreeSet;

use countwheel_durable::store::{
    DiskError, DueEntry, DueScan, Filter, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{
    DueClock, QueueName, Record, SettingName, SettingValue, Settings, SettingsVersion, TimerName,
};
use countwheel_time::Timestamp;

/// Everything that a store says of some names, asked in pages, so that their borders are met.
#[derive(Clone, PartialEq, Debug)]
pub struct Answers {
    /// By name, in the order of the names.
    pub records: Vec<Option<Record>>,
    /// By clock, in the order of [`DueClock::ALL`].
    pub due: Vec<Vec<DueEntry>>,
    /// What is due by the middle one of these.
    pub due_until: Vec<Vec<DueEntry>>,
    /// By queue, in the order of the queues.
    pub listed: Vec<Vec<Record>>,
    /// The counts.
    pub counts: Vec<QueueCounts>,
    /// All settings.
    pub settings: Settings,
}

impl Answers {
    /// Asks a store.
    ///
    /// # Errors
    /// What the store says.
    pub fn of(store: &dyn Store, names: &BTreeSet<TimerName>) -> Result<Self, StoreError> {
        let records = names.iter().map(|name| store.get(Shard::ONLY, name));
        let queues: BTreeSet<&QueueName> = names.iter().map(|name| &name.queue).collect();
        let records = records.collect::<Result<_, _>>()?;
        let (mut by_clock, mut due_until) = (Vec::new(), Vec::new());
        for clock in DueClock::ALL {
            let all = due(store, clock)?;
            due_until.push(match middle(&all) {
                None => Vec::new(),
                Some(until) => {
                    let all = DueScan::all(clock);
                    store.due(Shard::ONLY, &DueScan { until, ..all })?.entries
                }
            });
            by_clock.push(all);
        }
        let answers = Self {
            records,
            due: by_clock,
            due_until,
            listed: queues
                .into_iter()
                .map(|queue| listed(store, queue))
                .collect::<Result<_, _>>()?,
            counts: store.counts(Shard::ONLY)?,
            settings: settings(store)?,
        };
        // What it passes over it says.
        let gaps = store.gaps();
        if gaps.dues || gaps.lists {
            return Err(unreadable("a part of an index"));
        }
        Ok(answers)
    }

    /// The same, of a store on a disk of which so many calls have failed. What is due may have entries
    /// of what was replaced while a read fails: whoever reads the record sees that.
    ///
    /// # Errors
    /// What the store says, and one that [says](Self::are_short) that a call failed meanwhile.
    pub fn undisturbed(
        store: &dyn Store,
        names: &BTreeSet<TimerName>,
        struck: impl Fn() -> u64,
    ) -> Result<Self, StoreError> {
        let before = struck();
        let answers = Self::of(store, names)?;
        if struck() > before {
            return Err(unreadable("something, for a moment"));
        }
        Ok(answers)
    }

    /// Whether the error says that the store passed over something that it could not read.
    #[must_use]
    pub fn are_short(error: &StoreError) -> bool {
        matches!(error, StoreError::Disk(DiskError::Corrupt { path, .. }) if path.as_os_str() == A_STORE)
    }

    /// Whether each record is, or is not there, as in one of `states`, which are of the same names.
    #[must_use]
    pub fn is_made_of(&self, states: &[Self]) -> bool {
        let known = |(place, record): (usize, &Option<Record>)| {
            record.is_none() || states.iter().any(|state| state.records[place] == *record)
        };
        let was_set = |(name, value): (&SettingName, &SettingValue)| {
            let was = |state: &Self| state.settings.get(name) == Some(value);
            states.iter().any(was)
        };
        self.records.iter().enumerate().all(known) && self.settings.iter().all(was_set)
    }

    /// Whether they agree among themselves.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        let records: Vec<&Record> = self.listed.iter().flatten().collect();
        let mut by_name: Vec<&Record> = self.records.iter().flatten().collect();
        for listed in &self.listed {
            let order = listed.iter().map(|record| (record.due, record.revision));
            if !order.is_sorted() {
                return Err("listed out of order".to_owned());
            }
        }
        let mut listed = records.clone();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        if listed != by_name {
            return Err(format!(
                "{} records listed, {} found by name",
                listed.len(),
                by_name.len()
            ));
        }
        for (clock, due) in DueClock::ALL.into_iter().zip(&self.due) {
            let awake = records.iter().filter(|record| record.wake_clock() == clock);
            let mut expected: Vec<_> = awake
                .filter_map(|record| Some((record.wake()?, &record.name)))
                .collect();
            expected.sort();
            let found: Vec<_> = due.iter().map(|entry| (entry.wake, &entry.name)).collect();
            if found != expected {
                return Err(format!("{clock:?}: {found:?} due, listed are {expected:?}"));
            }
        }
        for (due, by_then) in self.due.iter().zip(&self.due_until) {
            let until = middle(due);
            let expected = due.iter().filter(|entry| Some(entry.wake.at) <= until);
            if !expected.eq(by_then) {
                return Err(format!("{by_then:?} due by {until:?}, of {due:?}"));
            }
        }
        let mut counts = Vec::new();
        for listed in &self.listed {
            let mut by_state = [0; 4];
            for record in listed {
                by_state[record.state.kind() as usize] += 1;
            }
            counts.extend(listed.first().map(|record| QueueCounts {
                queue: record.name.queue.clone(),
                by_state,
            }));
        }
        if counts != self.counts {
            return Err(format!("counts say {:?}, found {counts:?}", self.counts));
        }
        Ok(())
    }
}

/// In the place of a file.
const A_STORE: &str = "a store";

fn unreadable(what: &str) -> StoreError {
    DiskError::Corrupt {
        path: A_STORE.into(),
        problem: what.to_owned(),
    }
    .into()
}

/// When the middle one is due.
fn middle(due: &[DueEntry]) -> Option<Timestamp> {
    due.get(due.len() / 2).map(|entry| entry.wake.at)
}

/// All settings that there are.
fn settings(store: &dyn Store) -> Result<Settings, StoreError> {
    let settings = match store.settings(SettingsVersion::default()) {
        // As of a record of a list: perhaps for a moment.
        Err(StoreError::Disk(DiskError::Corrupt { problem, .. }))
            if problem.starts_with("a setting cannot be read") =>
        {
            return Err(unreadable("a setting"));
        }
        settings => settings?.unwrap_or_default(),
    };
    match store.settings(settings.version())? {
        None => Ok(settings),
        Some(_) => Err(unreadable("the version of the settings")),
    }
}

fn due(store: &dyn Store, clock: DueClock) -> Result<Vec<DueEntry>, StoreError> {
    let mut scan = DueScan {
        limit: 3,
        scan_limit: 5,
        ..DueScan::all(clock)
    };
    let mut all = Vec::new();
    loop {
        let page = store.due(Shard::ONLY, &scan)?;
        all.extend(page.entries);
        match page.next {
            Some(next) => scan.after = Some(next),
            None => return Ok(all),
        }
    }
}

fn listed(store: &dyn Store, queue: &QueueName) -> Result<Vec<Record>, StoreError> {
    let mut filter = Filter {
        limit: 4,
        ..Filter::queue(queue.clone())
    };
    let mut all = Vec::new();
    loop {
        let page = store.list(Shard::ONLY, &filter)?;
        if page.unreadable > 0 {
            return Err(unreadable("a record of a list"));
        }
        all.extend(page.records);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(all),
        }
        // In turns, the one limit and the other.
        filter.scan_limit ^= Filter::SCAN_LIMIT ^ 3;
    }
}
