//! How many bytes the timers of a namespace have.
//!
//! No store keeps a sum of bytes. A **weighing** reads the timers of a namespace page by page, and adds up their bytes. What this
//! process has admitted since the weighing began is on top of the sum, whether the weighing came by it or not. So the sum is too
//! large rather than too small: what was removed or replaced is in it until the next weighing. What was moved to an earlier
//! time while a weighing read may be left out of that one.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Cursor, Filter};
use countwheel_durable::{Key, Record, SettingsVersion, Timers};
use countwheel_time::Instant;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Usage, Used, share};
use crate::api::App;
use crate::api::problem::Problem;

/// A namespace without room is weighed again after so long at the soonest.
const AGAIN: Duration = Duration::from_millis(100);
/// Weighing for room takes one part in so many of the time at the most.
const SHARE: u32 = 10;
/// What others admit is seen after so long at the soonest, and takes one part in so many of the time.
const AGES: Duration = Duration::from_secs(60);
const SHARE_OF_AGES: u32 = 100;
/// How long a set waits for a weighing.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often it is looked whether a wish may be granted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many timers one read has.
const PAGE: usize = 1_000;

/// The bytes of a timer that count: what is stored of its body, target, headers and tags, and its key.
pub(crate) fn bytes_of(key: &Key, payload: &[u8]) -> u64 {
    (key.as_str().len() + payload.len()) as u64
}

/// The same of a stored timer.
pub(super) fn bytes_of_record(record: &Record) -> u64 {
    bytes_of(&record.name.key, &record.payload)
}

/// The bytes of a namespace, as far as they are known.
#[derive(Default, Debug)]
pub(super) struct Weight {
    /// What the last weighing came to.
    weighed: Option<u64>,
    /// What was admitted since it began, or was under way then.
    since: u64,
    /// The same of the weighing that goes on.
    during: Option<u64>,
    /// The revision of the quotas, and that under which the weighing that goes on began.
    revision: Option<SettingsVersion>,
    begun_under: Option<SettingsVersion>,
    /// What is admitted and not answered yet.
    under_way: u64,
    /// When the last weighing began, whatever became of it, and how long it took.
    last: Option<(Instant, Duration)>,
    is_wanted: bool,
}

impl Weight {
    /// The quotas have this revision. Those of another may have left out what was set, so it is weighed anew.
    pub(super) fn under(&mut self, revision: Option<SettingsVersion>) -> &mut Self {
        if revision > self.revision {
            self.revision = revision;
            (self.weighed, self.last) = (None, None);
        }
        self
    }

    /// The sum, at least; `None` if it was never weighed.
    pub(super) fn sum(&self) -> Option<u64> {
        self.weighed.map(|weighed| weighed + self.since)
    }

    pub(super) fn has_room(&self, most: u64, bytes: u64, nodes: u64) -> bool {
        let left = most.saturating_sub(self.weighed.unwrap_or_default());
        self.since.saturating_add(bytes) <= share(left, nodes)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.since += bytes;
        self.during = self.during.map(|during| during + bytes);
        self.under_way += bytes;
    }

    /// What was admitted is stored, or may be; or it is not.
    pub(super) fn end(&mut self, bytes: u64, is_stored: bool) {
        self.under_way -= bytes;
        if !is_stored {
            self.since -= bytes;
            self.during = self.during.map(|during| during - bytes);
        }
    }

    fn begin(&mut self) {
        self.is_wanted = false;
        self.during = Some(self.under_way);
        self.begun_under = self.revision;
    }

    /// The weighing has ended; `None` if it has failed.
    fn finish(&mut self, sum: Option<u64>, began: Instant, now: Instant) {
        let during = self.during.take();
        if self.begun_under != self.revision {
            return;
        }
        if let Some(sum) = sum {
            self.weighed = Some(sum);
            self.since = during.unwrap_or(self.since);
        }
        let took = now.saturating_since(began);
        // What fails at once is not tried all the time.
        let took = if sum.is_some() { took } else { took.max(AGAIN) };
        self.last = Some((began, took));
    }

    /// Whether a weighing that is asked for now has ended within [`PATIENCE`], if it takes as long as the last.
    fn comes_soon(&self, now: Instant) -> bool {
        self.last.is_none_or(|(began, took)| {
            let begins = now.max(began + AGAIN.max(took * SHARE));
            let begins = if self.during.is_some() { now } else { begins };
            begins + took <= now + PATIENCE
        })
    }

    /// Whether a weighing is to come as soon as it may.
    fn is_asked(&self) -> bool {
        self.during.is_none() && (self.is_wanted || self.weighed.is_none())
    }

    /// Whether it is to be weighed now.
    fn is_due(&self, now: Instant) -> bool {
        let Some((began, took)) = self.last else {
            return self.during.is_none();
        };
        let since = now.saturating_since(began);
        (self.is_asked() && since >= AGAIN.max(took * SHARE))
            || (self.during.is_none() && self.since > 0 && since >= AGES.max(took * SHARE_OF_AGES))
    }
}

/// Weighs the namespaces that have a quota of bytes, until the runtime ends.
pub(crate) async fn run(app: Arc<App>) {
    let usage = app.usage();
    let mut changes = app.catalogue().changes();
    let mut weighings = JoinSet::new();
    loop {
        changes.borrow_and_update();
        while weighings.try_join_next().is_some() {}
        let known = app.catalogue().known();
        let (mut is_idle, mut is_asked) = (true, false);
        for (namespace, entry) in known.namespaces() {
            let quotas = known.quotas(namespace);
            if quotas.is_none_or(|it| it.bytes.is_none()) {
                continue;
            }
            is_idle = false;
            let used = usage.of(namespace);
            let mut state = used.state.lock();
            let weight = state.weight.under(Some(entry.version));
            if weight.is_due(usage.clock.now()) {
                weight.begin();
                let (app, used) = (Arc::clone(&app), Arc::clone(&used));
                let namespace = namespace.to_owned();
                weighings.spawn(async move { weigh(&app, &namespace, &used).await });
            }
            is_asked |= weight.is_asked();
        }
        if is_asked {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        tokio::select! {
            () = usage.wishes.notified() => {}
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGES / 4), if !is_idle => {}
        }
    }
}

/// Counts the bytes of a namespace, whose weighing has begun.
async fn weigh(app: &App, namespace: &str, used: &Used) {
    let clock = &app.usage().clock;
    let began = clock.now();
    let sum = sum(app, namespace).await;
    if let Err(problem) = &sum {
        tracing::warn!(
            namespace,
            error = problem.parts().2,
            "the bytes of a namespace are not known, and are counted again"
        );
    }
    let mut state = used.state.lock();
    state.weight.finish(sum.ok(), began, clock.now());
    drop(state);
    used.weighed.notify_waiters();
    // It may have been asked for meanwhile.
    app.usage().wishes.notify_one();
}

/// Reads the timers of a namespace, and pauses after each page for as long as it took.
async fn sum(app: &App, namespace: &str) -> Result<u64, Problem> {
    let clock = &app.usage().clock;
    let counted = app.measure(|timers| timers.counted().map_err(|error| Problem::from(&error)));
    let queues = counted.await?.queues.into_iter().map(|it| it.queue);
    let mut sum = 0;
    for queue in queues.filter(|queue| queue.namespace() == namespace) {
        let mut filter = Filter::queue(queue);
        filter.limit = PAGE;
        let mut after = None;
        loop {
            let began = clock.now();
            let wanted = filter.clone();
            let (bytes, next) = app
                .measure(move |timers| page(timers, &wanted, after))
                .await?;
            sum += bytes;
            after = next;
            if after.is_none() {
                break;
            }
            tokio::time::sleep(clock.now().saturating_since(began)).await;
        }
    }
    Ok(sum)
}

fn page(
    timers: &Timers,
    filter: &Filter,
    after: Option<Cursor>,
) -> Result<(u64, Option<Cursor>), Problem> {
    let page = timers.page(filter, after);
    let page = page.map_err(|error| Problem::from(&error))?;
    Ok((page.records.iter().map(bytes_of_record).sum(), page.next))
}

/// Asks for a weighing, and waits for it if it comes soon.
pub(super) async fn wait(usage: &Usage, used: &Used) {
    let weighed = used.weighed.notified();
    tokio::pin!(weighed);
    // From here on it is heard.
    weighed.as_mut().enable();
    let comes_soon = {
        let mut state = used.state.lock();
        state.weight.is_wanted = true;
        state.weight.comes_soon(usage.clock.now())
    };
    usage.wishes.notify_one();
    if !comes_soon {
        return;
    }
    // A large namespace takes longer. What is known by then counts.
    let _ = timeout(PATIENCE, weighed).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1) + Duration::from_millis(millis)
    }

    #[test]
    fn what_is_admitted_while_it_is_weighed_counts_until_the_next_weighing() {
        let mut weight = Weight::default();
        assert_eq!(weight.sum(), None);
        // Before the first weighing, what is admitted counts alone.
        weight.take(40);
        weight.end(40, true);
        assert!(weight.has_room(100, 60, 1) && !weight.has_room(100, 61, 1));
        weight.take(5);
        weight.begin();
        weight.take(20);
        weight.take(7);
        // Of these, one began before the weighing, and one is not stored.
        weight.end(5, true);
        weight.end(7, false);
        weight.finish(Some(45), at(0), at(10));
        assert_eq!(weight.sum(), Some(45 + 5 + 20));
        assert!(weight.has_room(100, 30, 1) && !weight.has_room(100, 31, 1));
        weight.end(20, false);
        assert_eq!(weight.sum(), Some(50));
        weight.begin();
        weight.finish(Some(30), at(200), at(210));
        assert_eq!(weight.sum(), Some(30));
        // Of two nodes, each may admit a half of what was left.
        assert!(weight.has_room(100, 35, 2) && !weight.has_room(100, 36, 2));
    }

    #[test]
    fn what_was_under_way_when_a_weighing_began_is_given_back_whole() {
        let mut weight = Weight::default();
        weight.take(5);
        weight.begin();
        weight.end(5, false);
        weight.finish(Some(0), at(0), at(1));
        assert_eq!(weight.sum(), Some(0));
        weight.take(8);
        weight.begin();
        weight.finish(Some(0), at(0), at(1));
        weight.end(8, false);
        assert_eq!(weight.sum(), Some(0));
    }

    #[test]
    fn a_change_of_the_quotas_has_it_weighed_anew() {
        let mut weight = Weight::default();
        let revision = |number| Some(SettingsVersion(number));
        weight.under(revision(1)).begin();
        weight.finish(Some(10), at(0), at(1));
        assert_eq!(weight.under(revision(1)).sum(), Some(10));
        assert_eq!(weight.under(revision(2)).sum(), None);
        assert!(weight.is_due(at(2)));
        weight.begin();
        // What began before the change does not count after it.
        assert_eq!(weight.under(revision(3)).sum(), None);
        weight.finish(Some(20), at(2), at(3));
        assert_eq!(weight.sum(), None);
        assert!(weight.is_due(at(3)));
    }

    #[test]
    fn a_weighing_that_fails_leaves_the_sum() {
        let mut weight = Weight::default();
        weight.begin();
        weight.finish(Some(10), at(0), at(1));
        weight.take(3);
        weight.end(3, true);
        weight.begin();
        weight.take(4);
        weight.finish(None, at(200), at(201));
        assert_eq!(weight.sum(), Some(17));
    }

    #[test]
    fn weighing_takes_a_tenth_of_the_time_if_it_is_wanted_and_a_hundredth_if_not() {
        let mut weight = Weight::default();
        assert!(weight.is_due(at(0)));
        weight.begin();
        weight.finish(Some(10), at(0), at(1_000));
        assert!(!weight.is_due(at(1_000_000)));
        weight.is_wanted = true;
        assert!(!weight.is_due(at(9_999)) && weight.is_due(at(10_000)));
        weight.begin();
        weight.finish(Some(10), at(10_000), at(11_000));
        weight.take(1);
        assert!(!weight.is_due(at(109_999)) && weight.is_due(at(110_000)));
        // What takes no time is not done all the time.
        weight.begin();
        weight.finish(Some(10), at(110_000), at(110_000));
        weight.is_wanted = true;
        assert!(!weight.is_due(at(110_099)) && weight.is_due(at(110_100)));
    }
}
