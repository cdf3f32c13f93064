//! The timers that may be why the process ends, and their times to start.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_durable::{Config, Revision};
use countwheel_time::Timestamp;

use super::Verdicts;

/// The rule, and the suspects that run.
#[derive(Clone, Debug)]
pub(super) struct Suspects {
    pub(super) rule: Rule,
    running: BTreeMap<Revision, u32>,
}

/// What the documents say of timers whose attempts the end of the process interrupted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// When the process began, by the boot clock.
    pub(super) opened: Timestamp,
    /// So many interruptions in a row make a timer dead.
    pub(super) most: u32,
    hold: Duration,
}

impl Rule {
    /// From two in a row on; from one, if the second makes it dead.
    fn first(self) -> u32 {
        if self.most <= 2 { 1 } else { 2 }
    }

    pub(super) fn is_suspect(self, interruptions: u32) -> bool {
        interruptions >= self.first()
    }

    /// A suspect does not start before this time of the boot clock: one hold for the first
    /// number of interruptions, twice as much for each more, never more than 128.
    pub(super) fn starts_from(self, interruptions: u32) -> Timestamp {
        let mut holds = 1;
        for _ in self.first()..interruptions {
            holds *= 2;
            if holds == 128 {
                break;
            }
        }
        self.opened + self.hold * holds
    }

    /// How many run together: one where the next interruption is the last.
    fn together(self, interruptions: u32) -> usize {
        let left = self.most - 1 - interruptions.min(self.most - 1);
        if left >= 7 { 128 } else { 1 << left }
    }
}

impl Suspects {
    pub(super) fn new(config: &Config, opened: Timestamp) -> Self {
        Self {
            rule: Rule {
                opened,
                most: config.max_interruptions,
                hold: config.suspect_hold,
            },
            running: BTreeMap::new(),
        }
    }

    /// Whether one more may run.
    pub(super) fn has_place(&self, interruptions: u32) -> bool {
        let most = self.running.values().copied().max().unwrap_or(0);
        self.running.len() < self.rule.together(interruptions.max(most))
    }

    /// Checks the start of an attempt of a timer that was interrupted so often, and notes it.
    pub(super) fn start(
        &mut self,
        now: Timestamp,
        revision: Revision,
        interruptions: u32,
    ) -> Verdicts {
        if !self.rule.is_suspect(interruptions) {
            return Ok(());
        }
        let from = self.rule.starts_from(interruptions);
        ensure!(
            now >= from,
            "a suspect after {interruptions} interruptions started at {now:?}, before {from:?}"
        );
        ensure!(
            self.has_place(interruptions),
            "a suspect after {interruptions} interruptions started beside {:?}",
            self.running
        );
        self.running.insert(revision, interruptions);
        Ok(())
    }

    pub(super) fn end(&mut self, revision: Revision) {
        self.running.remove(&revision);
    }

    pub(super) fn crash(&mut self) {
        self.running.clear();
    }
}
