//! Checks and repairs of damaged stores: whatever was damaged, a repair keeps only written records,
//! and a timer that it does not report as lost or stale is as it was after one of the last commits.

use std::collections::{BTreeMap, BTreeSet};

use countwheel_disk::simulated::Disk;
use countwheel_disk::{LogStore, Loss, TableStore, check_files, repair_files};
use countwheel_durable::store::{DiskError, Shard, Store, StoreError};
use countwheel_durable::{Record, SettingName, TimerName};

use super::answers::Answers;
use crate::machine::Machine;

/// What a check and a repair said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rescued {
    /// Nothing is wrong with it.
    Sound,
    /// It was repaired.
    Repaired,
    /// It is of another version, as far as anybody can tell.
    Refused,
}

/// Checks and repairs a store with tables. `states` are what it held after each commit, the last
/// one last; `shows_end` says whether it can be seen where the log ended.
pub(super) fn run(
    machine: &Machine,
    names: &BTreeSet<TimerName>,
    states: &[Answers],
    shows_end: bool,
) -> Result<Rescued, String> {
    let text = |what: &str, error: &StoreError| format!("{what}: {error}");
    let (id, log_options, table_options) = machine.layout();
    let (log, tables) = (machine.disk.files("log"), machine.disk.files("tables"));
    let mut found = String::new();
    let is_sound = match check_files(&log, &tables, id) {
        Ok(report) => {
            let problems = report.problems.iter().map(|problem| format!("{problem}; "));
            found.extend(problems);
            report.is_sound()
        }
        Err(StoreError::Disk(DiskError::NotAStore { .. })) => return Ok(Rescued::Refused),
        Err(error) => return Err(text("a check", &error)),
    };

    let disk = Disk::new(id);
    let open = || {
        let base = TableStore::open(disk.files("tables"), id, table_options)?;
        LogStore::open(base, disk.files("log"), id, log_options)
    };
    let into = open().map_err(|error| text("a new store", &error))?;
    let (mut stale, mut said) = (BTreeSet::new(), String::new());
    let mut stale_settings = BTreeSet::new();
    let repaired = repair_files(&log, &tables, id, &into, &mut |loss| {
        match loss {
            Loss::Stale { name, .. } => drop(stale.insert(name)),
            Loss::StaleSetting { name, .. } => drop(stale_settings.insert(name)),
            other => said.push_str(&format!("{other}; ")),
        }
        Ok(())
    });
    let repaired = repaired.map_err(|error| text("a repair", &error))?;
    if is_sound && repaired.problems > 0 {
        return Err("a repair found what a check did not".to_owned());
    }
    drop(into);
    disk.restart();
    let made = open().map_err(|error| text("a repaired store", &error))?;
    let report = check_files(&disk.files("log"), &disk.files("tables"), id);
    let report = report.map_err(|error| text("a check of a repaired store", &error))?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("a repaired store is damaged: {problem}"));
    }
    let kept = Answers::of(&made, names).map_err(|error| text("a repaired store", &error))?;
    kept.check()?;
    let there = kept.records.iter().flatten().count() as u64;
    if (there, report.timers) != (repaired.timers, Some(there)) {
        return Err(format!("{there} timers, and {} repaired", repaired.timers));
    }
    let settings = kept.settings.iter().len() as u64;
    if settings != repaired.settings {
        let said = repaired.settings;
        return Err(format!("{settings} settings, and {said} repaired"));
    }
    let version = kept.settings.version();
    if kept
        .settings
        .iter()
        .any(|(_, value)| value.version > version)
    {
        return Err("a version of the settings would be given twice".to_owned());
    }
    let owner = made.acquire(Shard::ONLY);
    let owner = owner.map_err(|error| text("a repaired store", &error))?;
    let highest = kept.records.iter().flatten().map(|record| record.revision);
    if highest
        .max()
        .is_some_and(|highest| owner.last_revision < highest)
    {
        return Err("a revision would be given twice".to_owned());
    }
    let stale = Stale {
        timers: stale,
        settings: stale_settings,
    };
    let judged = judge(&kept, names, states, shows_end, &said, &stale);
    judged.map_err(|wrong| format!("{wrong}; a check said: {found}"))?;
    Ok(if is_sound {
        Rescued::Sound
    } else {
        Rescued::Repaired
    })
}

/// What a repair is not sure of.
struct Stale {
    timers: BTreeSet<TimerName>,
    settings: BTreeSet<SettingName>,
}

fn judge(
    kept: &Answers,
    names: &BTreeSet<TimerName>,
    states: &[Answers],
    shows_end: bool,
    problems: &str,
    stale: &Stale,
) -> Result<(), String> {
    let mut ever: BTreeMap<&TimerName, Vec<&Record>> = BTreeMap::new();
    for record in states
        .iter()
        .flat_map(|state| state.records.iter().flatten())
    {
        ever.entry(&record.name).or_default().push(record);
    }
    for record in kept.records.iter().flatten() {
        if !ever
            .get(&record.name)
            .is_some_and(|ever| ever.contains(&record))
        {
            return Err(format!("{} was never written so", record.name));
        }
    }
    let was = |state: &Answers, name, value| state.settings.get(name) == Some(value);
    for (name, value) in kept.settings.iter() {
        if !states.iter().any(|state| was(state, name, value)) {
            return Err(format!("setting {name} was never written so"));
        }
    }
    if !shows_end {
        // What had been flushed by then is as it was later, and what a lost commit replaced had not
        // been flushed.
        return Ok(());
    }
    let settings_fit = |state: &Answers| {
        let as_then = |(name, value)| stale.settings.contains(name) || was(state, name, value);
        let is_there = |(name, _): (&SettingName, _)| kept.settings.get(name).is_some();
        kept.settings.iter().all(as_then)
            && (state.settings.iter().all(is_there) || !problems.is_empty())
    };
    let fits = |state: &Answers| {
        let pairs = kept.records.iter().zip(&state.records);
        names
            .iter()
            .zip(pairs)
            .all(|(name, (kept, was))| match kept {
                Some(_) => kept == was || stale.timers.contains(name),
                None => was.is_none() || !problems.is_empty(),
            })
            && settings_fit(state)
    };
    // Without the last commit, which looks like one that was torn: the documented limit.
    if !states.iter().rev().take(2).any(fits) {
        return Err(format!(
            "what is kept, but for {} stale ones, was never there at one time: {problems}",
            stale.timers.len() + stale.settings.len()
        ));
    }
    Ok(())
}
