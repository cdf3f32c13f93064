//! What every store must pass: test support, for the stores here and for yours.
//!
//! A test hands [`check`] a way to make a fresh store, and gets a panic that tells which
//! property does not hold.
//!
//! ```
//! use countwheel_durable::store::conformance::{self, Reopen};
//! use countwheel_durable::store::{MemoryStore, Store};
//!
//! struct Memory(MemoryStore);
//!
//! impl Reopen for Memory {
//!     fn store(&self) -> &dyn Store {
//!         &self.0
//!     }
//!
//!     fn reopen(&mut self) {
//!         self.0 = self.0.clone();
//!     }
//! }
//!
//! conformance::check(|| Box::new(Memory(MemoryStore::new(7))));
//! ```

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use countwheel_time::{BootId, Instant, Timestamp};

use super::{
    Before, Change, ClockNote, Commit, DueEntry, DueScan, Fence, Filter, Lease, Ownership, Page,
    Position, QueueCounts, Shard, Store, StoreError, Summary,
};
use crate::{
    Answer, AttemptEnd, AttemptRecord, AttemptResult, CronExpression, DeadReason, DueClock, Jitter,
    Missed, Namespace, Overlap, QueueName, Record, Recurrence, Recurring, RetryPolicy, Revision,
    Schedule, Setting, SettingName, Settings, SettingsVersion, Shards, State, StateKind, TimerId,
    TimerName, Wake, Zone,
};
use countwheel_time::Random;

/// In the year 2096: no store forgets by itself what is kept until then.
const FAR: u64 = 4_000_000_000_000_000;

thread_local! {
    /// Whether the store forgets by itself what is done, as its last ownership says.
    static FORGETS: Cell<bool> = const { Cell::new(false) };
}

/// A store that can be closed and opened again.
pub trait Reopen {
    /// The store, open.
    fn store(&self) -> &dyn Store;

    /// Closes the store and opens it again, with everything that was committed.
    fn reopen(&mut self);
}

/// One thing that every store does.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// What it is, as a sentence.
    pub sentence: &'static str,
    /// Panics if it does not hold of a fresh store.
    pub check: fn(&mut dyn Reopen),
}

/// Everything that every store does.
pub const PROPERTIES: &[Property] = &[
    Property {
        sentence: "A record is read back as it was put, also after reopening.",
        check: a_record_is_read_back_as_it_was_put,
    },
    Property {
        sentence: "The answers of attempts survive, and go with the next put that has none.",
        check: the_answers_of_attempts_survive,
    },
    Property {
        sentence: "The last change of a name in a batch wins.",
        check: the_last_change_of_a_name_in_a_batch_wins,
    },
    Property {
        sentence: "A put replaces every trace of what had its name.",
        check: a_put_replaces_every_trace,
    },
    Property {
        sentence: "A removed timer is gone everywhere, and removing nothing is no error.",
        check: a_removed_timer_is_gone_everywhere,
    },
    Property {
        sentence: "A lease that is not the current one changes nothing.",
        check: a_wrong_lease_changes_nothing,
    },
    Property {
        sentence: "Taking a shard grows its fence, and reopening keeps it.",
        check: acquiring_grows_the_fence,
    },
    Property {
        sentence: "The last revision stays when its timer goes.",
        check: the_last_revision_stays,
    },
    Property {
        sentence: "The last note of the clocks stays, and each shard has its own.",
        check: the_last_note_of_the_clocks_stays,
    },
    Property {
        sentence: "Due gives what needs attention, in order, inside its bounds.",
        check: due_keeps_order_and_bounds,
    },
    Property {
        sentence: "List honours each field of its filter.",
        check: list_honours_its_filter,
    },
    Property {
        sentence: "Paging gives each unchanged record once while others change.",
        check: paging_gives_each_record_once,
    },
    Property {
        sentence: "A page that looks at no more entries than it may says where the next begins.",
        check: a_page_looks_at_a_bounded_part_of_the_index,
    },
    Property {
        sentence: "A page ends when its payloads pass the limit.",
        check: a_page_has_a_bounded_size,
    },
    Property {
        sentence: "Payloads of 0 bytes to 1 MiB are kept.",
        check: payloads_of_all_sizes_are_kept,
    },
    Property {
        sentence: "Names of any permitted form are told apart.",
        check: names_are_told_apart,
    },
    Property {
        sentence: "Names of two namespaces are told apart everywhere, also after reopening.",
        check: namespaces_are_told_apart,
    },
    Property {
        sentence: "Times and revisions work up to the last one.",
        check: extreme_times_and_revisions_work,
    },
    Property {
        sentence: "Shards know nothing of each other.",
        check: shards_are_apart,
    },
    Property {
        sentence: "Each shard has an id of its own, and keeps it.",
        check: each_shard_has_an_id_of_its_own,
    },
    Property {
        sentence: "A read of many names gives what reads of each give.",
        check: a_read_of_many_names_gives_what_reads_of_each_give,
    },
    Property {
        sentence: "A put that says that the payload stays leaves what the whole put leaves.",
        check: a_put_of_the_same_payload_leaves_what_the_whole_put_leaves,
    },
    Property {
        sentence: "A shard that is taken again goes on, and the others do not notice.",
        check: a_shard_is_taken_again_while_the_others_go_on,
    },
    Property {
        sentence: "A setting is read back as it was put, and a removed one is gone, also after \
                   reopening.",
        check: a_setting_is_read_back_as_it_was_put,
    },
    Property {
        sentence: "The version of the settings only grows, and says whether one was changed.",
        check: the_version_of_the_settings_only_grows,
    },
    Property {
        sentence: "Settings and timers of one commit come together or not at all.",
        check: settings_come_with_their_timers,
    },
    Property {
        sentence: "Settings are no timers, and nobody owns their shard.",
        check: settings_are_no_timers,
    },
    Property {
        sentence: "Commits made together give what they give one by one.",
        check: commits_made_together_give_what_they_give_one_by_one,
    },
    Property {
        sentence: "Random changes give what a plain map gives.",
        check: random_changes_agree_with_a_plain_map,
    },
    Property {
        sentence: "Readers see whole batches only.",
        check: readers_see_whole_batches,
    },
];

/// Checks every property, each on a store that `make` gives fresh.
///
/// # Panics
/// If one does not hold. The sentence is printed before each is checked.
pub fn check(make: impl Fn() -> Box<dyn Reopen>) {
    for property in PROPERTIES {
        println!("{}", property.sentence);
        (property.check)(&mut *make());
    }
}

fn a_record_is_read_back_as_it_was_put(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let records = varied_records();
    commit(tested.store(), lease, &puts(&records));
    for _ in 0..2 {
        for record in &records {
            assert_eq!(get(tested.store(), &record.name), Some(record.clone()));
        }
        assert_eq!(get(tested.store(), &name("all", "absent")), None);
        assert_eq!(get(tested.store(), &name("absent", "0")), None);
        tested.reopen();
    }
}

fn the_answers_of_attempts_survive(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let mut record = varied_records().swap_remove(11);
    assert!(
        record.content_bytes() > record.payload.len(),
        "it has answers"
    );
    // Attempts come and go, with an answer and without one, and so do all of them.
    for bytes in [Answer::MAX_BYTES, 0, 1, 300, 0] {
        record.revision.0 += 1;
        answer_the_last(&mut record.attempts, bytes);
        commit(tested.store(), lease, &[put(&record)]);
        for _ in 0..2 {
            let read = get(tested.store(), &record.name);
            assert_eq!(read.as_ref(), Some(&record), "{bytes} bytes");
            tested.reopen();
        }
    }
}

fn the_last_change_of_a_name_in_a_batch_wins(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let first = record("q", "a", 1, 10);
    let mut second = record("q", "a", 2, 5);
    second.state = dead(6);
    let gone = record("q", "b", 3, 7);
    let batch = [
        put(&first),
        put(&gone),
        Change::remove(first.name.clone()),
        put(&first),
        put(&second),
        Change::remove(gone.name.clone()),
    ];
    commit(tested.store(), lease, &batch);
    Model::of([second]).assert_same(tested.store());
}

fn a_put_replaces_every_trace(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let states = [
        State::Pending,
        State::Delivering,
        done(50),
        dead(60),
        dead_until(70),
    ];
    let mut revision = 0;
    for before in &states {
        for after in &states {
            for due in [10, 20] {
                let mut old = record("q", "a", revision + 1, 10);
                let mut new = record("q", "a", revision + 2, due);
                revision += 2;
                (old.state, new.state) = (before.clone(), after.clone());
                commit(tested.store(), lease, &[put(&old)]);
                Model::of([old]).assert_same(tested.store());
                commit(tested.store(), lease, &[put(&new)]);
                Model::of([new.clone()]).assert_same(tested.store());
                // The same again, in the same place.
                new.payload.push(1);
                commit(tested.store(), lease, &[put(&new)]);
                Model::of([new]).assert_same(tested.store());
            }
        }
    }
}

fn a_removed_timer_is_gone_everywhere(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let records = varied_records();
    commit(tested.store(), lease, &puts(&records));
    let removes: Vec<_> = records
        .iter()
        .map(|record| Change::remove(record.name.clone()))
        .collect();
    commit(tested.store(), lease, &removes);
    Model::default().assert_same(tested.store());
    commit(tested.store(), lease, &removes);
    tested.reopen();
    Model::default().assert_same(tested.store());
}

fn a_wrong_lease_changes_nothing(tested: &mut dyn Reopen) {
    let never = Lease {
        shard: Shard(9),
        fence: Fence(0),
    };
    assert_fenced(tested.store(), never);
    let old = own(tested.store()).lease;
    let kept = record("q", "kept", 1, 10);
    commit(tested.store(), old, &[put(&kept)]);
    let new = own(tested.store()).lease;
    let mut ahead = new;
    ahead.fence.0 += 1;
    for wrong in [old, ahead] {
        assert_fenced(tested.store(), wrong);
        let mut other = kept.clone();
        other.revision = Revision(2);
        let batch = [
            put(&record("q", "more", 3, 1)),
            put(&other),
            Change::remove(kept.name.clone()),
        ];
        let refused = tested.store().commit(wrong, &batch);
        assert!(matches!(
            refused,
            Err(StoreError::Fenced { shard, ours, current })
                if shard == new.shard && ours == wrong.fence && current == new.fence
        ));
    }
    Model::of([kept.clone()]).assert_same(tested.store());
    commit(tested.store(), new, &[]);
    tested.reopen();
    Model::of([kept]).assert_same(tested.store());
    assert_fenced(tested.store(), old);
    // Nobody took the shard since: the lease holds.
    commit(tested.store(), new, &[]);
    assert_eq!(own(tested.store()).last_revision, Revision(1));
}

fn acquiring_grows_the_fence(tested: &mut dyn Reopen) {
    let first = own(tested.store());
    assert_eq!(first.last_revision, Revision(0));
    let mut last = first.lease.fence;
    for _ in 0..4 {
        tested.reopen();
        for _ in 0..2 {
            let now = own(tested.store());
            assert!(now.lease.fence > last, "a fence grows");
            assert_eq!(now.lease.shard, Shard::ONLY);
            assert_eq!(now.store_id, first.store_id, "a store keeps its id");
            last = now.lease.fence;
        }
    }
}

fn the_last_revision_stays(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let high = record("q", "high", 70, 1);
    commit(tested.store(), lease, &[put(&high)]);
    commit(tested.store(), lease, &[put(&record("q", "low", 60, 2))]);
    commit(tested.store(), lease, &[Change::remove(high.name)]);
    assert_eq!(own(tested.store()).last_revision, Revision(70));
    tested.reopen();
    let lease = own(tested.store()).lease;
    commit(tested.store(), lease, &[Change::Given(Revision(75))]);
    commit(tested.store(), lease, &[Change::Given(Revision(9))]);
    tested.reopen();
    assert_eq!(own(tested.store()).last_revision, Revision(75));
}

fn the_last_note_of_the_clocks_stays(tested: &mut dyn Reopen) {
    let note = |wall: u64| ClockNote {
        wall: Timestamp::from_micros(wall),
        boot_id: wall
            .is_multiple_of(2)
            .then_some(BootId::from_u128(u128::MAX - u128::from(wall))),
        boot: Instant::from_nanos(u64::MAX - wall),
        line: Timestamp::from_micros(wall << 32),
    };
    let ownership = own(tested.store());
    assert_eq!(ownership.clock, None);
    commit(tested.store(), ownership.lease, &[Change::Clock(note(7))]);
    // An earlier reading takes the place of a later one, too: the clock was set back.
    let both = [Change::Clock(note(9)), Change::Clock(note(4))];
    commit(tested.store(), ownership.lease, &both);
    let put = put(&record("q", "a", 1, 1));
    commit(tested.store(), ownership.lease, &[put]);
    let lease = acquire(tested.store(), Shard(3)).lease;
    commit(tested.store(), lease, &[Change::Clock(note(5))]);
    let refused = tested.store().commit(
        Lease {
            fence: Fence(lease.fence.0 - 1),
            ..lease
        },
        &[Change::Clock(note(6))],
    );
    assert!(matches!(refused, Err(StoreError::Fenced { .. })));
    for _ in 0..3 {
        assert_eq!(own(tested.store()).clock, Some(note(4)));
        assert_eq!(acquire(tested.store(), Shard(3)).clock, Some(note(5)));
        assert_eq!(acquire(tested.store(), Shard(4)).clock, None);
        tested.reopen();
    }
}

fn due_keeps_order_and_bounds(tested: &mut dyn Reopen) {
    let store = tested.store();
    let lease = own(store).lease;
    // Equal times, in an order that is not that of the names; several queues.
    let mut records = vec![
        record("b", "z", 1, 100),
        record("a", "y", 2, 100),
        record("a", "x", 3, 50),
        record("c", "w", 4, 200),
        record("c", "v", 5, 300),
        record("c", "u", 6, 300),
        record("c", "t", 7, 1),
    ];
    records[3].state = State::Delivering;
    if FORGETS.get() {
        records[4].due = micros(70);
    } else {
        let (at, keep_until) = (micros(35), micros(70));
        records[4].state = State::Done { at, keep_until };
    }
    records[6].state = dead(2);
    commit(store, lease, &puts(&records));
    let names = |after, until, limit| -> Vec<String> {
        let entries = store.due(
            Shard::ONLY,
            &DueScan {
                after,
                until: micros(until),
                limit,
                ..DueScan::all(DueClock::Wall)
            },
        );
        let entries = entries.expect("a store that works");
        let entries = entries.entries.iter();
        entries.map(|entry| entry.name.to_string()).collect()
    };
    let all = ["a/x", "c/v", "b/z", "a/y", "c/w", "c/u"];
    assert_eq!(names(None, u64::MAX, 100), all);
    assert_eq!(names(None, 100, 100), all[..4], "until is included");
    assert_eq!(names(None, 99, 100), all[..2]);
    assert_eq!(names(None, 0, 100), all[..0]);
    assert_eq!(names(None, u64::MAX, 3), all[..3]);
    assert_eq!(names(None, u64::MAX, 0), all[..0]);
    let wake = |at, revision| {
        Some(Wake {
            at: micros(at),
            revision: Revision(revision),
        })
    };
    assert_eq!(
        names(wake(100, 1), u64::MAX, 100),
        all[3..],
        "after is excluded"
    );
    assert_eq!(names(wake(100, 1), 200, 100), all[3..5]);
    assert_eq!(
        names(wake(150, 9), u64::MAX, 1),
        all[4..5],
        "nobody stands there"
    );
    assert_eq!(names(wake(300, 6), u64::MAX, 100), all[..0]);
    assert_eq!(
        names(wake(200, 4), 100, 100),
        all[..0],
        "the bounds are crossed"
    );
    assert_eq!(names(Some(Wake::MAX), u64::MAX, 100), all[..0]);
}

/// All at once, and in pages that end for either limit: the same, once each.
fn assert_due(store: &dyn Store, shard: Shard, scan: &DueScan<'_>, expected: &[DueEntry]) {
    let page = store.due(shard, scan).expect("a store that works");
    assert_eq!((&*page.entries, page.next), (expected, None));
    for (limit, scan_limit) in [(usize::MAX, 1), (3, 2), (1, 7), (7, usize::MAX)] {
        let mut scan = DueScan {
            limit,
            scan_limit,
            ..*scan
        };
        let mut found = Vec::new();
        loop {
            let page = store.due(shard, &scan).expect("a store that works");
            assert!(
                page.scanned <= scan_limit.max(2),
                "{} for {scan:?}",
                page.scanned
            );
            assert!(page.entries.len() <= limit);
            let is_behind = |wake| scan.after < Some(wake);
            assert!(page.entries.iter().all(|entry| is_behind(entry.wake)));
            assert!(page.next.is_none_or(is_behind), "it goes on");
            let last = page.entries.last().map(|last| last.wake);
            assert!(
                page.next.is_none() || last <= page.next,
                "all before it is there"
            );
            found.extend(page.entries);
            let Some(next) = page.next else { break };
            scan.after = Some(next);
        }
        assert_eq!(found, expected, "{limit} a page, {scan_limit} looked at");
    }
}

fn list_honours_its_filter(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let states = [State::Pending, State::Delivering, done(900), dead(900)];
    let mut records = vec![
        record("other", "a1", 1_000, 20),
        record("lis", "a1", 1_001, 20),
    ];
    for i in 0..40_u64 {
        let prefix = ["a", "ab", "abc", "b"][bounded(i / 4 % 4)];
        // Pairs of equal times.
        let mut record = record("list", &format!("{prefix}{i}"), 100 - i, 10 * (i / 2 % 7));
        record.state = states[bounded(i % 4)].clone();
        records.push(record);
    }
    commit(tested.store(), lease, &puts(&records));
    let model = Model::of(records);
    let positions = [(0, 0), (20, 0), (20, 80), (25, 3), (60, 1_000), (900, 0)];
    let mut checked = 0;
    for state in StateKind::ALL.into_iter().map(Some).chain([None]) {
        for prefix in [
            None,
            Some(""),
            Some("a"),
            Some("ab"),
            Some("abc3"),
            Some("zzz"),
        ] {
            for due_from in [None, Some(0), Some(20), Some(25), Some(1_000)] {
                for due_before in [None, Some(0), Some(20), Some(60), Some(1_000)] {
                    for after in positions.into_iter().map(Some).chain([None]) {
                        let mut filter = Filter::queue(queue("list"));
                        filter.state = state;
                        filter.prefix = prefix.map(str::to_owned);
                        filter.due_from = due_from.map(micros);
                        filter.due_before = due_before.map(micros);
                        filter.after = after.map(|(due, revision)| position(due, revision));
                        filter.limit = [1, 3, 100][checked % 3];
                        checked += 1;
                        assert_eq!(
                            list(tested.store(), &filter),
                            model.list(&filter),
                            "{filter:?}"
                        );
                    }
                }
            }
        }
    }
    let mut filter = Filter::queue(queue("list"));
    filter.limit = 0;
    assert_eq!(list(tested.store(), &filter), model.list(&filter));
    filter = Filter::queue(queue("li"));
    assert_eq!(list(tested.store(), &filter), model.list(&filter));
}

fn paging_gives_each_record_once(tested: &mut dyn Reopen) {
    let store = tested.store();
    let lease = own(store).lease;
    let still: Vec<_> = (0..60)
        .map(|i| record("q", &format!("still-{i}"), i + 1, 10 * (i / 3)))
        .collect();
    commit(store, lease, &puts(&still));
    for limit in [1, 7, 59, 60, 61] {
        let mut seen = BTreeSet::new();
        let mut revision = 1_000;
        let mut filter = Filter::queue(queue("q"));
        filter.limit = limit;
        for round in 0.. {
            let page = list(store, &filter);
            for record in &page.records {
                let first = seen.insert((record.name.clone(), record.revision));
                assert!(first, "{} came twice", record.name);
            }
            // Far before, in the middle, and at the end. One that moved ahead for ever would
            // be met for ever.
            if round < 45 {
                let mut batch = vec![];
                for (i, due) in [0, 105, 190].into_iter().enumerate() {
                    revision += 1;
                    batch.push(put(&record("q", &format!("moving-{i}"), revision, due)));
                }
                batch.push(Change::remove(name("q", "moving-2")));
                commit(store, lease, &batch);
            }
            let Some(next) = page.next else { break };
            filter.after = Some(next);
        }
        for record in &still {
            let found = seen.contains(&(record.name.clone(), record.revision));
            assert!(found, "{} was lost", record.name);
        }
        let clear = (0..3).map(|i| Change::remove(name("q", &format!("moving-{i}"))));
        commit(store, lease, &clear.collect::<Vec<_>>());
    }
    // Full to the last record, a page says that it is the last.
    let mut filter = Filter::queue(queue("q"));
    filter.limit = 60;
    let page = list(store, &filter);
    assert_eq!((page.records.len(), page.next), (60, None));
}

fn a_page_looks_at_a_bounded_part_of_the_index(tested: &mut dyn Reopen) {
    let store = tested.store();
    let lease = own(store).lease;
    let wanted = |i: u64| i % 10 == 7;
    let records: Vec<_> = (0..60)
        .map(|i| {
            let kind = if wanted(i) { "wanted" } else { "other" };
            record("q", &format!("{kind}-{i}"), i + 1, 10 * i)
        })
        .collect();
    // Some lie in one place of the store and some in another, if it has several.
    commit(store, lease, &puts(&records[..30]));
    tested.reopen();
    let store = tested.store();
    let lease = own(store).lease;
    commit(store, lease, &puts(&records[30..]));
    let expected: Vec<_> = (0..60).filter(|&i| wanted(i)).collect();
    for (scan_limit, limit) in [
        (0, 5),
        (1, 1),
        (3, 100),
        (7, 2),
        (10, 100),
        (59, 100),
        (60, 100),
    ] {
        let mut filter = Filter::queue(queue("q"));
        filter.prefix = Some("wanted".to_owned());
        (filter.scan_limit, filter.limit) = (scan_limit, limit);
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let page = list(store, &filter);
            found.extend(page.records.iter().map(|record| record.revision.0 - 1));
            pages += 1;
            assert!(pages <= 61, "scan limit {scan_limit}: it does not get on");
            assert!(page.next.is_none_or(|next| Some(next) > filter.after));
            let Some(next) = page.next else { break };
            filter.after = Some(next);
        }
        assert_eq!(found, expected, "scan limit {scan_limit}, limit {limit}");
        // From both places, as much at the most.
        assert!(
            pages * 2 * scan_limit.max(1) >= 60,
            "scan limit {scan_limit}: {pages} pages"
        );
    }
}

fn a_page_has_a_bounded_size(tested: &mut dyn Reopen) {
    const PAYLOAD: usize = 1 << 20;
    let store = tested.store();
    let lease = own(store).lease;
    for i in 0..10 {
        let mut record = record("q", &format!("{i}"), i + 1, i);
        record.payload = vec![0; PAYLOAD];
        commit(store, lease, &[put(&record)]);
    }
    let mut filter = Filter::queue(queue("q"));
    let page = list(store, &filter);
    assert_eq!(page.records.len(), Filter::PAGE_MAX_BYTES / PAYLOAD);
    filter.after = page.next;
    assert!(filter.after.is_some(), "there are more");
    let page = list(store, &filter);
    assert_eq!((page.records.len(), page.next), (2, None));
}

fn payloads_of_all_sizes_are_kept(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let mut random = Random::new(1);
    let sizes = [0, 1, 127, 128, 4_095, 4_096, 4_097, 65_535, 65_536, 1 << 20];
    let mut records = Vec::new();
    for (size, revision) in sizes.into_iter().zip(1..) {
        let mut record = record("q", &format!("{size}"), revision, 1);
        record.payload = (0..size).map(|_| random_byte(&mut random)).collect();
        records.push(record);
    }
    commit(tested.store(), lease, &puts(&records));
    let model = Model::of(records);
    model.assert_same(tested.store());
    tested.reopen();
    model.assert_same(tested.store());
}

fn names_are_told_apart(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let long = "k".repeat(256);
    let umlauts = "\u{fc}".repeat(128);
    let keys = [
        "a",
        "aa",
        "aaa",
        "A",
        " ",
        "../x",
        "..",
        "/",
        "\\",
        "a/b",
        "b",
        "a:b",
        "%00",
        "'; --",
        "\u{e9}",
        "e\u{301}",
        "\u{feff}",
        "\u{10ffff}",
        "\u{1f600}",
        &long,
        &long[1..],
        &umlauts,
    ];
    let longest_queue = "q".repeat(QueueName::MAX_BYTES);
    let longest_of_all = format!("{}/{longest_queue}", "n".repeat(Namespace::MAX_BYTES));
    let queues = [
        "a",
        "aa",
        "a.",
        "a:b",
        "A",
        "0",
        &longest_queue,
        &longest_queue[1..],
        // Keys have such texts as well.
        "a/b",
        "a/a",
        "aa/a",
        &longest_of_all,
    ];
    let mut records = Vec::new();
    for queue in queues {
        for key in keys {
            let revision = records.len() as u64 + 1;
            records.push(record(queue, key, revision, revision % 5));
        }
    }
    commit(tested.store(), lease, &puts(&records));
    let mut model = Model::of(records.clone());
    model.assert_same(tested.store());
    tested.reopen();
    model.assert_same(tested.store());
    for record in &records {
        if record.revision.0.is_multiple_of(3) {
            commit(
                tested.store(),
                lease,
                &model.apply(&[Change::remove(record.name.clone())]),
            );
        }
    }
    model.assert_same(tested.store());
}

/// The same queue with the same keys in three namespaces, each in another state.
fn namespaces_are_told_apart(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let queues = ["q", "a/q", "b/q"];
    let mut records = Vec::new();
    for key in 0..6 {
        for (queue, state) in queues.into_iter().zip([State::Pending, done(70), dead(80)]) {
            let revision = records.len() as u64 + 1;
            let mut record = record(queue, &key.to_string(), revision, key % 3);
            record.state = state;
            record.clock = DueClock::ALL[bounded(key % 2)];
            records.push(record);
        }
    }
    commit(tested.store(), lease, &puts(&records));
    let mut model = Model::of(records.clone());
    for round in 0..3 {
        model.assert_same(tested.store());
        for (text, number) in queues.into_iter().zip(0_u64..) {
            let queue = queue(text);
            let key = (round + number).to_string();
            // What goes, or changes, in one namespace stays in the others.
            let changes = [
                Change::remove(name(text, &key)),
                put(&record(text, "new", 100 + 3 * round + number, 9)),
            ];
            commit(tested.store(), lease, &model.apply(&changes));
            assert_eq!(get(tested.store(), &name(text, &key)), None);
            model.assert_same(tested.store());
            let page = list(tested.store(), &Filter::queue(queue.clone()));
            assert!(page.records.iter().all(|found| found.name.queue == queue));
        }
        tested.reopen();
        let counts = tested.store().counts(Shard::ONLY);
        let counted: Vec<_> = counts
            .expect("a store that works")
            .into_iter()
            .map(|counts| counts.queue)
            .collect();
        let mut expected = queues.map(queue);
        expected.sort();
        assert_eq!(counted, expected);
    }
}

fn extreme_times_and_revisions_work(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let mut records = Vec::new();
    for (i, due) in [0, 1, 255, 256, 1 << 32, u64::MAX - 1, u64::MAX]
        .into_iter()
        .enumerate()
    {
        for (j, revision) in [0, 1, 255, 256, 1 << 32, u64::MAX].into_iter().enumerate() {
            let mut record = record("q", &format!("{i}-{j}"), revision, due);
            record.state = match (i + j) % 4 {
                0 => done(due),
                1 => State::Delivering,
                _ => State::Pending,
            };
            records.push(record);
        }
    }
    commit(tested.store(), lease, &puts(&records));
    Model::of(records).assert_same(tested.store());
    assert_eq!(own(tested.store()).last_revision, Revision(u64::MAX));
}

fn shards_are_apart(tested: &mut dyn Reopen) {
    let shards = [0, 1, 255, 256, Shards::MAX - 1].map(Shard);
    let records: Vec<_> = (0..5)
        .map(|i| record("q", "same", 100 - i, 10 + i))
        .collect();
    let leases = shards.map(|shard| acquire(tested.store(), shard).lease);
    for (lease, record) in leases.iter().zip(&records) {
        commit(tested.store(), *lease, &[put(record)]);
    }
    tested.reopen();
    for (shard, record) in shards.into_iter().zip(&records) {
        Model::of([record.clone()]).assert_same_in(tested.store(), shard);
        assert_eq!(
            acquire(tested.store(), shard).last_revision,
            record.revision
        );
    }
    let empty = Shard(2);
    Model::default().assert_same_in(tested.store(), empty);
    assert_eq!(acquire(tested.store(), empty).last_revision, Revision(0));
}

fn each_shard_has_an_id_of_its_own(tested: &mut dyn Reopen) {
    let shards = [0, 1, 2, 255, 256, 1_023].map(Shard);
    let ids = shards.map(|shard| acquire(tested.store(), shard).store_id);
    let distinct: BTreeSet<_> = ids.iter().collect();
    // Their revisions are the same, and the ids of their timers must not be.
    assert_eq!(distinct.len(), ids.len(), "{ids:x?}");
    tested.reopen();
    let again = shards.map(|shard| acquire(tested.store(), shard).store_id);
    assert_eq!(again, ids, "a shard keeps its id");
}

fn a_read_of_many_names_gives_what_reads_of_each_give(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let mut records = varied_records();
    commit(tested.store(), lease, &puts(&records));
    for _ in 0..2 {
        let mut names: Vec<_> = records.iter().map(|record| record.name.clone()).collect();
        names.extend([name("all", "absent"), name("absent", "0")]);
        names.extend(names.clone());
        for bytes in [usize::MAX, 1_000, 0] {
            let mut asked = names.clone().into_iter();
            let found = tested.store().get_many(Shard::ONLY, &mut asked, bytes);
            let mut found = found.expect("many names are read");
            for name in &names {
                if let Some(record) = found.take(name) {
                    assert_eq!(record, get(tested.store(), name), "{name}");
                }
            }
            let mut asked = names.clone().into_iter();
            let other = tested.store().get_many(Shard(1), &mut asked, bytes);
            let mut other = other.expect("many names are read");
            assert!(
                names
                    .iter()
                    .all(|name| other.take(name).flatten().is_none())
            );
        }
        // What is read is what was committed last.
        let gone = records.remove(0);
        records[0].payload.push(7);
        let changes = [Change::remove(gone.name.clone()), put(&records[0])];
        commit(tested.store(), lease, &changes);
        let changed = [gone.name, records[0].name.clone()];
        let mut asked = changed.clone().into_iter();
        let found = tested.store().get_many(Shard::ONLY, &mut asked, usize::MAX);
        let mut found = found.expect("many names are read");
        for (name, record) in changed.iter().zip([None, Some(records[0].clone())]) {
            assert!(found.take(name).is_none_or(|it| it == record), "{name}");
        }
        tested.reopen();
    }
}

fn a_put_of_the_same_payload_leaves_what_the_whole_put_leaves(tested: &mut dyn Reopen) {
    let lease = own(tested.store()).lease;
    let states = [State::Delivering, done(50), dead(60), State::Pending];
    let mut records: Vec<_> = [0, 1, 300, 70_000]
        .into_iter()
        .zip(1..)
        .map(|(bytes, i)| {
            let mut record = record("q", &format!("{bytes}"), i, 10 * i);
            record.payload = vec![u8::try_from(i).unwrap_or(0); bytes];
            record
        })
        .collect();
    commit(tested.store(), lease, &puts(&records));
    let mut revision = 10;
    for state in &states {
        for record in &mut records {
            let before = Before::SamePayload(record.state.kind());
            revision += 1;
            (record.state, record.revision) = (state.clone(), Revision(revision));
            record.attempt += 1;
            let record = Box::new(record.clone());
            commit(tested.store(), lease, &[Change::Put { record, before }]);
        }
        Model::of(records.clone()).assert_same(tested.store());
        tested.reopen();
        Model::of(records.clone()).assert_same(tested.store());
    }
    // The payload changes, and stays from there on.
    let changed = &mut records[2];
    changed.payload = b"another".to_vec();
    commit(tested.store(), lease, &[put(changed)]);
    changed.state = State::Delivering;
    let before = Before::SamePayload(StateKind::Pending);
    let record = Box::new(changed.clone());
    commit(tested.store(), lease, &[Change::Put { record, before }]);
    Model::of(records).assert_same(tested.store());
}

fn a_shard_is_taken_again_while_the_others_go_on(tested: &mut dyn Reopen) {
    let mut leases = [0, 1, 2].map(|shard| acquire(tested.store(), Shard(shard)).lease);
    let mut kept: [Vec<Record>; 3] = Default::default();
    for round in 0..9 {
        let taken = bounded(round % 3);
        let lost = leases[taken];
        let ownership = acquire(tested.store(), lost.shard);
        let last = kept[taken].last().map_or(0, |record| record.revision.0);
        assert_eq!(ownership.last_revision, Revision(last));
        leases[taken] = ownership.lease;
        assert_fenced(tested.store(), lost);
        for (lease, kept) in leases.iter().zip(&mut kept) {
            let record = record("q", &format!("{round}"), round + 1, 100 - round);
            commit(tested.store(), *lease, &[put(&record)]);
            kept.push(record);
            Model::of(kept.clone()).assert_same_in(tested.store(), lease.shard);
        }
        if round % 4 == 3 {
            tested.reopen();
        }
    }
}

fn a_setting_is_read_back_as_it_was_put(tested: &mut dyn Reopen) {
    let mut lease = own(tested.store()).lease;
    assert_eq!(settings(tested.store()), Settings::default());
    let longest = "s".repeat(SettingName::MAX_BYTES);
    let names = ["a", "a/b", "\u{fc} \u{1f600}", &longest];
    let sizes = [0, 1, 300, Setting::VALUE_MAX_BYTES];
    let mut expected = Settings::default();
    for round in 0..5_u8 {
        for (at, name) in (0..).zip(names) {
            let size = sizes[(at + usize::from(round)) % sizes.len()];
            // One goes, comes again, and goes at last.
            let is_gone = at == 0 && round % 2 == 0;
            let change = Setting {
                name: setting_name(name),
                value: (!is_gone).then(|| vec![round; size]),
            };
            expected.apply(&change);
            commit(tested.store(), lease, &[Change::Setting(change)]);
            assert_eq!(settings(tested.store()), expected);
        }
        tested.reopen();
        assert_eq!(settings(tested.store()), expected);
        lease = own(tested.store()).lease;
    }
    assert_eq!(expected.get(&setting_name("a")), None);
}

fn the_version_of_the_settings_only_grows(tested: &mut dyn Reopen) {
    let (shard, other) = (own(tested.store()).lease, Shard(9));
    let mut last = SettingsVersion::default();
    assert_eq!(tested.store().settings(last).expect("a store"), None);
    commit(tested.store(), shard, &[put(&record("q", "a", 1, 2))]);
    assert_eq!(tested.store().settings(last).expect("a store"), None);
    // The owner of another shard changes them as well; and what is not there can be removed.
    for (shard, value) in [
        (Shard::ONLY, Some(vec![1])),
        (other, Some(vec![1])),
        (other, None),
        (Shard::ONLY, None),
        (other, None),
        (Shard::ONLY, Some(vec![])),
    ] {
        let lease = acquire(tested.store(), shard).lease;
        let name = setting_name("only");
        let change = Setting { name, value };
        commit(tested.store(), lease, &[Change::Setting(change)]);
        let changed = tested.store().settings(last).expect("a store");
        let now = changed.expect("a change").version();
        assert!(now > last, "{now:?} after {last:?}");
        let unchanged = tested.store().settings(now).expect("a store");
        assert_eq!(unchanged, None);
        last = now;
        tested.reopen();
        assert_eq!(settings(tested.store()).version(), last);
    }
}

fn settings_come_with_their_timers(tested: &mut dyn Reopen) {
    let mut old = own(tested.store()).lease;
    let mut model = Model::default();
    let mut expected = Settings::default();
    let mut random = Random::new(7);
    for round in 0..60_u64 {
        // Some of each, in any order, also of one name.
        let mut changes = Vec::new();
        for _ in 0..1 + below(&mut random, 5) {
            let key = below(&mut random, 3).to_string();
            changes.push(match below(&mut random, 4) {
                0 => Change::remove(name("q", &key)),
                1 => put(&record(
                    "q",
                    &key,
                    10 * round + changes.len() as u64 + 1,
                    round,
                )),
                kind => Change::Setting(Setting {
                    name: setting_name(&key),
                    value: (kind == 2).then(|| vec![0; bounded(below(&mut random, 3_000))]),
                }),
            });
        }
        if round % 7 == 3 {
            let lease = own(tested.store()).lease;
            let refused = tested.store().commit(old, &changes);
            assert!(matches!(refused, Err(StoreError::Fenced { .. })));
            old = lease;
        } else {
            commit(tested.store(), old, &model.apply(&changes));
            for change in &changes {
                if let Change::Setting(setting) = change {
                    expected.apply(setting);
                }
            }
        }
        if round % 10 == 9 {
            tested.reopen();
            old = own(tested.store()).lease;
        }
        assert_eq!(settings(tested.store()), expected);
        model.assert_same(tested.store());
    }
}

fn settings_are_no_timers(tested: &mut dyn Reopen) {
    let reserved = tested.store().acquire(Shard::SETTINGS);
    assert!(
        matches!(reserved, Err(StoreError::Reserved { .. })),
        "{reserved:?}"
    );
    let lease = own(tested.store()).lease;
    let change = |name: &str| {
        Change::Setting(Setting {
            name: setting_name(name),
            value: Some(vec![7; 10]),
        })
    };
    commit(tested.store(), lease, &[change("a"), change("settings")]);
    for fence in [0, 1, 2].map(Fence) {
        let shard = Shard::SETTINGS;
        assert_fenced(tested.store(), Lease { shard, fence });
    }
    Model::default().assert_same(tested.store());
    let record = record("settings", "a", 1, 5);
    commit(tested.store(), lease, &[put(&record), change("b")]);
    let model = Model::of([record]);
    model.assert_same(tested.store());
    tested.reopen();
    model.assert_same(tested.store());
    assert_eq!(settings(tested.store()).iter().len(), 3);
}

fn random_changes_agree_with_a_plain_map(tested: &mut dyn Reopen) {
    let mut random = Random::new(42);
    let shards = [Shard(0), Shard(7)];
    let mut models = [Model::default(), Model::default()];
    let mut leases = shards.map(|shard| acquire(tested.store(), shard).lease);
    let mut revision = 0;
    for round in 0..240 {
        let which = bounded(below(&mut random, 2));
        let batch: Vec<_> = (0..below(&mut random, 9))
            .map(|_| random_change(&mut random, &mut revision))
            .collect();
        commit(tested.store(), leases[which], &models[which].apply(&batch));
        if round % 30 == 29 {
            tested.reopen();
            leases = shards.map(|shard| acquire(tested.store(), shard).lease);
        }
        if round % 10 == 9 {
            for (model, shard) in models.iter().zip(shards) {
                model.assert_same_in(tested.store(), shard);
            }
        }
    }
}

fn commits_made_together_give_what_they_give_one_by_one(tested: &mut dyn Reopen) {
    let mut random = Random::new(43);
    let shards = [0, 3, 5, 900].map(Shard);
    let mut models = shards.map(|_| Model::default());
    let mut known = Settings::default();
    let take = |store: &dyn Store| shards.map(|shard| acquire(store, shard).lease);
    let mut leases = take(tested.store());
    let mut revision = 0;
    for round in 0..120_u8 {
        let store = tested.store();
        // The lease before gives no right any more.
        let replaced = leases[0];
        if round % 5 == 4 {
            leases[0] = acquire(store, shards[0]).lease;
        }
        let mut asked = Vec::new();
        for _ in 0..below(&mut random, 7) {
            let which = bounded(below(&mut random, 4));
            let is_replaced = which == 0 && round % 5 == 4 && below(&mut random, 2) == 0;
            let lease = if is_replaced { replaced } else { leases[which] };
            let mut batch: Vec<_> = (0..below(&mut random, 4))
                .map(|_| random_change(&mut random, &mut revision))
                .collect();
            if below(&mut random, 4) == 0 {
                let name = setting_name(["a", "b"][bounded(below(&mut random, 2))]);
                let value = (below(&mut random, 3) > 0).then(|| vec![round]);
                batch.push(Change::Setting(Setting { name, value }));
            }
            if lease == leases[which] {
                batch = models[which].apply(&batch);
                for change in &batch {
                    if let Change::Setting(setting) = change {
                        known.apply(setting);
                    }
                }
            }
            asked.push((lease, batch, lease == leases[which]));
        }
        let commits: Vec<_> = asked
            .iter()
            .map(|(lease, changes, _)| Commit {
                lease: *lease,
                changes,
            })
            .collect();
        let results = store.commit_all(&commits);
        assert_eq!(results.len(), commits.len());
        for (result, (lease, _, is_current)) in results.iter().zip(&asked) {
            let is_right = match result {
                Ok(()) => *is_current,
                Err(StoreError::Fenced { .. }) => !is_current,
                Err(_) => false,
            };
            assert!(is_right, "{lease:?}: {result:?}");
        }
        if round % 30 == 29 {
            tested.reopen();
            leases = take(tested.store());
        }
        if round % 10 == 9 {
            for (model, shard) in models.iter().zip(shards) {
                model.assert_same_in(tested.store(), shard);
            }
            let found = settings(tested.store());
            assert!(found.iter().eq(known.iter()), "{found:?}, not {known:?}");
        }
    }
}

fn readers_see_whole_batches(tested: &mut dyn Reopen) {
    const SIZE: u64 = 8;
    let store = tested.store();
    let lease = own(store).lease;
    let batch = |number: u64| -> Vec<Change> {
        // Every other batch removes half of the names.
        let changes = (0..SIZE).map(|i| {
            let mut record = record("q", &format!("{i}"), number * SIZE + i, i);
            record.payload = number.to_be_bytes().to_vec();
            match number.is_multiple_of(2) || i < SIZE / 2 {
                true => put(&record),
                false => Change::remove(record.name),
            }
        });
        changes.collect()
    };
    let size = |number: u64| {
        if number.is_multiple_of(2) {
            SIZE
        } else {
            SIZE / 2
        }
    };
    let batch_of = |revision: Revision| revision.0 / SIZE;
    commit(store, lease, &batch(1));
    let finished = AtomicBool::new(false);
    let read = || {
        let mut newest = 0;
        let mut last_round = false;
        while !last_round {
            last_round = finished.load(Ordering::Acquire);
            let due = store.due(Shard::ONLY, &DueScan::all(DueClock::Wall));
            let due = due.expect("a store that works").entries;
            let number = batch_of(due[0].wake.revision);
            assert!(
                due.iter()
                    .all(|entry| batch_of(entry.wake.revision) == number)
            );
            assert_eq!(due.len() as u64, size(number), "a part of batch {number}");
            assert!(number >= newest, "time goes one way");
            let page = list(store, &Filter::queue(queue("q")));
            newest = batch_of(page.records[0].revision);
            assert!(newest >= number, "time goes one way");
            assert_eq!(
                page.records.len() as u64,
                size(newest),
                "a part of {newest}"
            );
            let whole = |record: &Record| record.payload == newest.to_be_bytes();
            assert!(page.records.iter().all(whole), "a part of {newest}");
            let counts = store.counts(Shard::ONLY).expect("a store that works");
            let pending = counts[0].of(StateKind::Pending);
            assert!(
                pending == SIZE || pending == SIZE / 2,
                "{pending} of a batch"
            );
        }
        newest
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        for number in 2..=60 {
            commit(store, lease, &batch(number));
        }
        finished.store(true, Ordering::Release);
        for reader in readers {
            let newest = reader.join().expect("a reader that saw whole batches");
            assert_eq!(newest, 60, "a read after a commit sees it");
        }
    });
}

/// The plainest store: a map, and everything else worked out anew.
#[derive(Clone, Default, Debug)]
struct Model(BTreeMap<TimerName, Record>);

impl Model {
    fn of(records: impl IntoIterator<Item = Record>) -> Self {
        let named = |record: Record| (record.name.clone(), record);
        Self(records.into_iter().map(named).collect())
    }

    /// Applies the changes and hands them on.
    fn apply(&mut self, changes: &[Change]) -> Vec<Change> {
        for change in changes {
            match change {
                Change::Put { record, .. } => {
                    self.0.insert(record.name.clone(), (**record).clone())
                }
                Change::Remove { name, .. } => self.0.remove(name),
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
            };
        }
        changes.to_vec()
    }

    fn due(&self, clock: DueClock, queue: Option<&QueueName>) -> Vec<DueEntry> {
        let entry = |record: &Record| {
            let wanted = record.wake_clock() == clock
                && queue.is_none_or(|queue| record.name.queue == *queue);
            let is_left = FORGETS.get() && record.state.kind() == StateKind::Done;
            if !wanted || is_left {
                return None;
            }
            Some(DueEntry {
                wake: record.wake()?,
                name: record.name.clone(),
                kind: Some(record.state.kind()),
            })
        };
        let mut due: Vec<_> = self.0.values().filter_map(entry).collect();
        due.sort_by_key(|entry| entry.wake);
        due
    }

    fn list(&self, filter: &Filter) -> Page {
        let wanted = |record: &&Record| {
            let key = record.name.key.as_str();
            record.name.queue == filter.queue
                && filter.state.is_none_or(|kind| record.state.kind() == kind)
                && filter
                    .prefix
                    .iter()
                    .all(|prefix| key.starts_with(prefix.as_str()))
                && filter.due_from.is_none_or(|from| record.due >= from)
                && filter.due_before.is_none_or(|before| record.due < before)
                && filter.after.is_none_or(|after| place(record) > after)
        };
        let mut records: Vec<_> = self.0.values().filter(wanted).cloned().collect();
        records.sort_by_key(place);
        let more = records.len() > filter.limit;
        records.truncate(filter.limit);
        let next = records.last().filter(|_| more).map(place);
        Page {
            records,
            unreadable: 0,
            next,
        }
    }

    fn counts(&self) -> Vec<QueueCounts> {
        let mut counts: BTreeMap<QueueName, [u64; 4]> = BTreeMap::new();
        for record in self.0.values() {
            let queue = counts.entry(record.name.queue.clone()).or_default();
            queue[record.state.kind() as usize] += 1;
        }
        let counts = counts.into_iter();
        counts
            .map(|(queue, by_state)| QueueCounts { queue, by_state })
            .collect()
    }

    fn assert_same(&self, store: &dyn Store) {
        self.assert_same_in(store, Shard::ONLY);
    }

    /// Compares every answer with the store's.
    fn assert_same_in(&self, store: &dyn Store, shard: Shard) {
        for (name, record) in &self.0 {
            let found = store.get(shard, name).expect("a store that works");
            assert_eq!(found.as_ref(), Some(record));
        }
        for clock in DueClock::ALL {
            let all = DueScan::all(clock);
            assert_due(store, shard, &all, &self.due(clock, None));
            for queue in self
                .0
                .keys()
                .map(|name| name.queue.clone())
                .collect::<BTreeSet<_>>()
            {
                let scan = DueScan {
                    queue: Some(&queue),
                    ..DueScan::all(clock)
                };
                assert_due(store, shard, &scan, &self.due(clock, Some(&queue)));
            }
        }
        let counts = store.counts(shard).expect("a store that works");
        assert_eq!(counts, self.counts());
        self.check_summary(store, shard);
        for QueueCounts { queue, .. } in counts {
            for state in StateKind::ALL.into_iter().map(Some).chain([None]) {
                let mut filter = Filter::queue(queue.clone());
                filter.state = state;
                filter.limit = usize::MAX;
                let page = store.list(shard, &filter).expect("a store that works");
                assert_eq!(page, self.list(&filter));
            }
        }
    }

    /// The counts in pages, their sums, and those of the queues that are asked for first.
    fn check_summary(&self, store: &dyn Store, shard: Shard) {
        let counts = self.counts();
        let page = |after, limit| {
            let page = store.counts_after(shard, after, limit);
            page.expect("a store that works")
        };
        for (at, last) in counts.iter().enumerate() {
            let behind = &counts[at + 1..];
            assert_eq!(page(Some(&last.queue), usize::MAX), behind);
            assert_eq!(page(Some(&last.queue), 1), &behind[..behind.len().min(1)]);
        }
        assert_eq!(page(None, 2), &counts[..counts.len().min(2)]);
        let dead = |counts: &QueueCounts| counts.of(StateKind::Dead);
        let nowhere = QueueName::new("nowhere").expect("a good name");
        let last = counts.last().map(|last| last.queue.clone());
        let first: Vec<_> = last.clone().into_iter().chain([nowhere]).collect();
        let (mut expected, rest): (Vec<_>, Vec<_>) = counts
            .iter()
            .cloned()
            .partition(|counts| Some(&counts.queue) == last.as_ref());
        let (mut with_dead, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|counts| dead(counts) > 0);
        with_dead.sort_by_key(|counts| Reverse(dead(counts)));
        expected.extend(with_dead);
        expected.extend(others);
        for limit in 0..expected.len() + 2 {
            let summary = store.summary(shard, &first, limit);
            let Summary { totals, queues } = summary.expect("a store that works");
            assert_eq!(queues, &expected[..limit.min(expected.len())]);
            assert_eq!(totals.queues, counts.len() as u64);
            for state in StateKind::ALL {
                let sum: u64 = counts.iter().map(|counts| counts.of(state)).sum();
                assert_eq!(totals.of(state), sum);
            }
        }
    }
}

fn place(record: &Record) -> Position {
    Position {
        due: record.due,
        revision: record.revision,
    }
}

fn acquire(store: &dyn Store, shard: Shard) -> Ownership {
    let ownership = store.acquire(shard).expect("a store that works");
    FORGETS.set(ownership.forgets_done);
    ownership
}

fn own(store: &dyn Store) -> Ownership {
    acquire(store, Shard::ONLY)
}

fn commit(store: &dyn Store, lease: Lease, changes: &[Change]) {
    store.commit(lease, changes).expect("a store that works");
}

/// All settings that there are.
fn settings(store: &dyn Store) -> Settings {
    let settings = store.settings(SettingsVersion::default());
    settings.expect("a store that works").unwrap_or_default()
}

fn setting_name(name: &str) -> SettingName {
    SettingName::new(name).expect("a name within the rules")
}

fn get(store: &dyn Store, name: &TimerName) -> Option<Record> {
    store.get(Shard::ONLY, name).expect("a store that works")
}

fn list(store: &dyn Store, filter: &Filter) -> Page {
    store.list(Shard::ONLY, filter).expect("a store that works")
}

fn assert_fenced(store: &dyn Store, lease: Lease) {
    let refused = store.commit(lease, &[]);
    assert!(
        matches!(refused, Err(StoreError::Fenced { .. })),
        "{lease:?} is no lease"
    );
}

fn put(record: &Record) -> Change {
    Change::put(record.clone())
}

fn puts(records: &[Record]) -> Vec<Change> {
    records.iter().map(put).collect()
}

fn micros(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn position(due: u64, revision: u64) -> Position {
    Position {
        due: micros(due),
        revision: Revision(revision),
    }
}

fn queue(queue: &str) -> QueueName {
    QueueName::from_text(queue).expect("a name within the rules")
}

fn name(queue: &str, key: &str) -> TimerName {
    TimerName::from_text(queue, key).expect("a name within the rules")
}

/// Kept for so much longer than until [`FAR`], or until then if that is later: no two come to one.
fn done(keep_until: u64) -> State {
    State::Done {
        at: micros(keep_until / 2),
        keep_until: micros(FAR.checked_add(keep_until).unwrap_or(keep_until)),
    }
}

fn dead(at: u64) -> State {
    State::Dead {
        at: micros(at),
        reason: DeadReason::Exhausted,
        keep_until: None,
    }
}

/// Dead, and kept until then.
fn dead_until(keep_until: u64) -> State {
    State::Dead {
        at: micros(keep_until / 2),
        reason: DeadReason::Stopped,
        keep_until: Some(micros(keep_until)),
    }
}

/// A pending timer.
fn record(queue: &str, key: &str, revision: u64, due: u64) -> Record {
    Record {
        name: name(queue, key),
        id: TimerId {
            store: 0xfeed,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: micros(due / 2),
        due: micros(due),
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: micros(due),
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: key.as_bytes().to_vec(),
    }
}

/// Every variant of everything that a record can hold. One that is small comes second.
///
/// # Panics
/// Never: each policy of them can be built.
#[must_use]
pub fn varied_records() -> Vec<Record> {
    let seconds = Duration::from_secs;
    let policies = [
        RetryPolicy::list((1..=1_000).map(seconds)).expect("it has delays"),
        RetryPolicy::wechat(),
        RetryPolicy::fixed(Duration::from_nanos(1_500_000)),
        RetryPolicy::exponential(seconds(1), 1.0 + f64::EPSILON)
            .expect("a factor of more than 1")
            .cap(seconds(365 * 86_400)),
        RetryPolicy::linear(seconds(3), seconds(5)).cap(seconds(60)),
        RetryPolicy::eureka(),
    ];
    let reasons = [
        DeadReason::Exhausted,
        DeadReason::TooOld,
        DeadReason::Stopped,
        DeadReason::Interrupted,
        DeadReason::Missed,
    ];
    let dead = reasons.map(|reason| State::Dead {
        at: micros(8),
        reason,
        keep_until: None,
    });
    let kept = State::Dead {
        at: micros(8),
        reason: DeadReason::Stopped,
        keep_until: Some(micros(10)),
    };
    let states = [State::Pending, State::Delivering, done(9)]
        .into_iter()
        .chain(dead)
        .chain([kept]);
    let results = [
        AttemptResult::Done,
        AttemptResult::Failed,
        AttemptResult::Stopped,
        AttemptResult::Interrupted,
    ];
    let mut records = Vec::new();
    for state in states {
        for policy in &policies {
            let number = records.len() as u64;
            let mut record = record("all", &format!("{number}"), number + 1, number % 6);
            record.state = state.clone();
            record.clock = DueClock::ALL[bounded(number / 4 % 2)];
            record.missed = [
                Missed::Fire,
                Missed::Collapse,
                Missed::SkipIfOlderThan(seconds(number)),
            ][bounded(number % 3)];
            record.recurring = varied_recurring(number).map(Box::new);
            let jitter = [Jitter::None, Jitter::Full, Jitter::Equal][bounded(number % 3)];
            record.policy = policy.clone().jitter(jitter);
            if number.is_multiple_of(2) {
                record.policy = record.policy.repeat_last().max_retries(9_999);
            }
            if number.is_multiple_of(3) {
                record.policy = record.policy.max_age(seconds(number + 1));
            }
            (record.failures, record.interruptions, record.attempt) = (1, 2, u32::MAX);
            let attempts = (1..).zip(results).map(|(number, result)| AttemptRecord {
                number,
                due: micros(1),
                started: micros(2),
                held: Duration::from_nanos(u64::from(number) * 1_001),
                ended: (number != 2).then(|| AttemptEnd {
                    at: micros(u64::MAX),
                    result,
                    detail: "\u{2717}".repeat(66),
                    answer: None,
                }),
            });
            record.attempts = attempts.cycle().take(bounded(number % 33)).collect();
            if number % 4 == 3 {
                let bytes = [1, 100, Answer::MAX_BYTES][bounded(number / 4 % 3)];
                answer_the_last(&mut record.attempts, bytes);
            }
            records.push(record);
        }
    }
    records
}

/// Gives the last attempts answers of so many bytes, as many as the engine keeps.
fn answer_the_last(attempts: &mut [AttemptRecord], bytes: usize) {
    let ends = attempts.iter_mut().rev().take(Answer::KEPT);
    for (number, end) in (0..).zip(ends.filter_map(|attempt| attempt.ended.as_mut())) {
        end.answer = Answer::new(vec![number; bytes]);
    }
}

/// Every variant of a schedule, and none.
fn varied_recurring(number: u64) -> Option<Recurring> {
    let every = Duration::from_nanos(100_000_001);
    let schedule = match number % 5 {
        0 => Schedule::FixedRate {
            every,
            anchor: Some(micros(number)),
        },
        1 => Schedule::FixedDelay { every },
        2 => Schedule::FixedRate {
            every,
            anchor: None,
        },
        3 => Schedule::Cron {
            expression: CronExpression::new("*/7 0 9-17 LW * MON#1,FRIL").expect("an expression"),
            zone: Zone::new("Australia/Lord_Howe").expect("a zone"),
        },
        _ => return None,
    };
    Some(Recurring {
        recurrence: Recurrence {
            repeats: std::num::NonZeroU32::new(bounded_u32(number % 2)),
            until: Some(Timestamp::MAX).filter(|_| number.is_multiple_of(2)),
            jitter: Duration::from_nanos(number),
            overlap: Overlap::ALL[bounded(number / 5 % 2)],
            ..Recurrence::new(schedule)
        },
        run: u32::MAX,
        nominal: micros(number),
        moved: Some(micros(3)).filter(|_| number.is_multiple_of(3)),
        origin: micros(1),
        busy_since: Some(micros(2)).filter(|_| number.is_multiple_of(2)),
        missed: u64::MAX,
        overlapped: 1,
        dead: number,
    })
}

fn bounded_u32(number: u64) -> u32 {
    u32::try_from(number).expect("a small number")
}

fn random_change(random: &mut Random, revision: &mut u64) -> Change {
    let queue = ["q", "qq", "r/q"][bounded(below(random, 3))];
    let key = format!("key-{}", below(random, 12));
    if below(random, 4) == 0 {
        return Change::remove(name(queue, &key));
    }
    *revision += 1;
    let mut record = record(queue, &key, *revision, below(random, 20));
    record.state = match below(random, 5) {
        0 => State::Delivering,
        1 => done(below(random, 20)),
        2 => match below(random, 20) {
            at if at % 2 == 0 => dead(at),
            at => dead_until(at),
        },
        _ => State::Pending,
    };
    record.clock = DueClock::ALL[bounded(below(random, 2))];
    let size = [0, 10, 300, 9_000][bounded(below(random, 4))];
    record.payload = (0..size).map(|_| random_byte(random)).collect();
    put(&record)
}

/// Uniform from zero to `end`, which is excluded.
fn below(random: &mut Random, end: u64) -> u64 {
    let drawn = random.micros_up_to(Duration::from_micros(end - 1));
    u64::try_from(drawn.as_micros()).expect("less than `end`")
}

fn random_byte(random: &mut Random) -> u8 {
    u8::try_from(below(random, 256)).expect("less than 256")
}

/// A small number as an index.
fn bounded(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}
