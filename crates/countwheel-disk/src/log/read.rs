//! Reads of the log and of the sorted store as of one.

use std::cell::Cell;
use std::ops::Bound;

use parking_lot::RwLockWriteGuard;

use super::memtable::{LogPlace, MemtableEntry};
use super::merge::Pages;
use super::{LogStore, State, damaged, refused};
use crate::codec;
use crate::page::{PageBuilder, Reach, begins_with, position};
use crate::planted::planted;
use crate::{
    DiskError, DueEntry, DuePage, DueScan, Filter, Page, Position, Shard, Sorted, StoreError,
};
use crate::{Record, Revision, TimerName, Trouble, TroubleReason, Wake};

/// As many entries at least are asked of the sorted store at once, unless fewer are wanted at
/// all: some may be hidden.
const SCAN_MIN: usize = 64;
/// So many slots of a queue that was never listed are put in order while commits wait.
const LISTED_AT_ONCE: usize = 1_024;

impl<B: Sorted> LogStore<B> {
    /// The record that stands at `at`. With the state held, so that its segment is not freed.
    fn record(&self, state: &State, at: LogPlace) -> Result<Record, StoreError> {
        let Some(segment) = state.segments.get(&at.segment) else {
            return Err(DiskError::Corrupt {
                path: self.files.path(),
                problem: format!("segment {} is gone", at.segment),
            }
            .into());
        };
        let mut bytes = vec![0; at.len as usize];
        let read = segment.file.read_at(at.offset, &mut bytes);
        read.map_err(|source| refused(&*self.files, segment, source))?;
        codec::decode(&bytes).map_err(|error| damaged(&*self.files, segment, at.offset, &error))
    }

    pub(super) fn find(
        &self,
        shard: Shard,
        name: &TimerName,
    ) -> Result<Option<Record>, StoreError> {
        let state = self.state();
        match state
            .shards
            .get(&shard)
            .and_then(|memtable| memtable.get(name))
        {
            Some(MemtableEntry { kind: None, .. }) => Ok(None),
            Some(entry) => self.noted(name, self.record(&state, entry.at).map(Some)),
            None => {
                // What is committed meanwhile may or may not be seen.
                drop(state);
                self.noted(name, self.base.get(shard, name))
            }
        }
    }

    /// What a read of the name's record came to: one that failed is a trouble until one succeeds, or
    /// until something else has the name.
    fn noted<T>(&self, name: &TimerName, read: Result<T, StoreError>) -> Result<T, StoreError> {
        match &read {
            Err(error) if error.is_unreadable() => {
                let mut trouble = Trouble::of(TroubleReason::UnreadableRecord, error);
                trouble.detail = format!("{name}: {}", trouble.detail);
                self.troubles.note(trouble);
            }
            _ => self.is_mended([name]),
        }
        read
    }

    /// These names have other records from now on, or can be read.
    pub(super) fn is_mended<'a>(&self, names: impl IntoIterator<Item = &'a TimerName>) {
        // Once for all of them: mostly there is nothing.
        if self.troubles.has(TroubleReason::UnreadableRecord) {
            for name in names {
                self.troubles.clear_name(name);
            }
        }
    }

    pub(super) fn scan(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        let limit = scan.limit;
        let state = self.state();
        let memtable = state.shards.get(&shard);
        let of_queue = |slot| {
            let queue = memtable.map(|memtable| memtable.queue_of(slot));
            scan.queue.is_none() || scan.queue == queue
        };
        let low_water = memtable
            .map(|memtable| memtable.low_water)
            .unwrap_or_default();
        // Behind this nothing was looked at.
        let end = Cell::new(None);
        let end_at = |last: Wake| {
            let before = end.get().unwrap_or(last);
            end.set(Some(last.min(before)));
        };
        // Each comes further, however little the other leaves.
        let of_memtable = scan.scan_limit / 2;
        let mut left = (scan.scan_limit - of_memtable).max(1);
        let mut reach = Reach::new(of_memtable);
        let scanned = Cell::new(0);
        let looks = |entries: usize| scanned.set(scanned.get() + entries);
        let mut in_memtable = memtable
            .into_iter()
            .flat_map(|memtable| memtable.due_after(scan.clock, scan.after))
            .take_while(|(wake, _)| wake.at <= scan.until)
            .filter(|(wake, _)| wake.at < scan.until || !planted!(LogScanEndsEarly))
            .take_while(|&(wake, _)| match reach.come_to(wake) {
                Ok(()) => {
                    looks(1);
                    true
                }
                Err(last) => {
                    end_at(last.unwrap_or(wake));
                    false
                }
            })
            .filter(|&(_, slot)| of_queue(slot))
            .peekable();
        let mut sorted = Pages::new(low_water.after(scan.clock, scan.after), |after, size| {
            let of_base = DueScan {
                after,
                limit: size,
                scan_limit: left,
                ..*scan
            };
            let page = self.base.due(shard, &of_base)?;
            looks(page.scanned);
            left = left.saturating_sub(page.scanned);
            let has_looked = left == 0 || page.entries.len() < size;
            if has_looked && let Some(next) = page.next {
                end_at(next);
            }
            Ok((page.entries, page.next.filter(|_| !has_looked)))
        });
        let is_hidden =
            |entry: &DueEntry| memtable.is_some_and(|memtable| memtable.get(&entry.name).is_some());
        let mut page = DuePage::default();
        loop {
            if page.entries.len() >= limit {
                let last = page.entries.last().map(|last| last.wake);
                page.next = Some(last.or(scan.after).unwrap_or_default());
                break;
            }
            let size = (limit - page.entries.len()).max(SCAN_MIN.min(limit));
            let first_sorted = sorted.peek(size, is_hidden)?.map(|entry| entry.wake);
            let first_memtable = in_memtable.peek().map(|&(wake, _)| wake);
            let first = first_sorted.into_iter().chain(first_memtable).min();
            if let Some(end) = end.get()
                && first.is_none_or(|first| first > end)
            {
                page.next = Some(end);
                break;
            }
            match (first_memtable, first_sorted) {
                (None, None) => break,
                (Some(wake), other) if other.is_none_or(|other| wake < other) => {
                    let slot = in_memtable
                        .next()
                        .zip(memtable)
                        .map(|((_, slot), memtable)| (slot, memtable));
                    let entry = slot.and_then(|(slot, memtable)| {
                        let (name, kind) = (memtable.name(slot)?, memtable.slot(slot).kind);
                        Some(DueEntry { wake, name, kind })
                    });
                    page.entries.extend(entry);
                }
                _ => page.entries.extend(sorted.take()),
            }
        }
        page.scanned = scanned.get();
        self.look_after_gaps();
        Ok(page)
    }

    /// What the sorted store left out can be made anew.
    fn look_after_gaps(&self) {
        let gaps = self.base.gaps();
        if gaps.dues || gaps.lists {
            self.may_advance_low_water();
        }
    }

    pub(super) fn page(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let mut state = self.state();
        let memtable = state.shards.get(&shard);
        let mut is_listed = memtable.is_none_or(|memtable| memtable.is_listed(&filter.queue));
        while !is_listed {
            drop(state);
            let mut changing = self.state_mut();
            if let Some(memtable) = changing.shards.get_mut(&shard) {
                memtable.keep_listed(&filter.queue, LISTED_AT_ONCE);
            }
            RwLockWriteGuard::unlock_fair(changing);
            state = self.state();
            let memtable = state.shards.get(&shard);
            is_listed = memtable.is_none_or(|memtable| memtable.is_listed(&filter.queue));
        }
        let Some(memtable) = state.shards.get(&shard) else {
            drop(state);
            return self.base.list(shard, filter);
        };
        let left_out = Cell::new(0);
        // Behind this nothing was looked at.
        let end = Cell::new(None);
        let end_at = |last: Position| {
            let before = end.get().unwrap_or(last);
            end.set(Some(last.min(before)));
        };
        let from = filter.due_from.map(|due| Position {
            due,
            revision: Revision(0),
        });
        let start = match (filter.after, from) {
            (Some(after), from) if from.is_none_or(|from| from <= after) => Bound::Excluded(after),
            (_, Some(from)) => Bound::Included(from),
            (_, None) => Bound::Unbounded,
        };
        let of_prefix = |slot| {
            filter.prefix.is_none()
                || memtable
                    .name(slot)
                    .is_some_and(|name| begins_with(&name, filter.prefix.as_deref()))
        };
        let mut reach = Reach::new(filter.scan_limit);
        let mut in_memtable = memtable
            .listed_after(&filter.queue, start)
            .take_while(|&(position, _)| {
                filter.due_before.is_none_or(|before| position.due < before)
            })
            .take_while(|&(position, _)| match reach.come_to(position) {
                Ok(()) => true,
                Err(last) => {
                    end_at(last.unwrap_or(position));
                    false
                }
            })
            .filter(|&(_, slot)| {
                let kind = memtable.slot(slot).kind;
                filter.state.is_none_or(|wanted| kind == Some(wanted)) && of_prefix(slot)
            })
            .peekable();
        let mut left = filter.scan_limit;
        let mut sorted = Pages::new(filter.after, |after, size| {
            let of_base = Filter {
                after,
                limit: size,
                scan_limit: left,
                ..filter.clone()
            };
            let is_hidden = |name: &TimerName| memtable.get(name).is_some();
            let page = self.base.list_behind(shard, &of_base, &is_hidden)?;
            let read = page.records.len();
            left_out.set(left_out.get() + page.unreadable);
            // What it went by for that is not known; many such pages are not read.
            left = left.saturating_sub(read.max(filter.scan_limit / 8));
            let is_last = read < size || left == 0;
            let next = page.next.filter(|_| !is_last);
            if is_last && let Some(last) = page.next {
                end_at(last);
            }
            Ok((page.records, next))
        });
        let is_hidden =
            |record: &Record| memtable.get(&record.name).is_some() && !planted!(LogListsHidden);
        let mut page = PageBuilder::new(filter);
        // What is hidden mostly has more of it behind.
        let mut size = filter.limit.saturating_add(1);
        loop {
            let first_sorted = sorted.peek(size, is_hidden)?.map(position);
            size = size.max(SCAN_MIN);
            let first_memtable = in_memtable.peek().map(|&(position, _)| position);
            let first = first_sorted.into_iter().chain(first_memtable).min();
            if let Some(end) = end.get()
                && first.is_none_or(|first| first > end)
            {
                page.end_at(end);
                break;
            }
            let more = match (first_memtable, first_sorted) {
                (None, None) => break,
                (Some(ours), other) if other.is_none_or(|other| ours < other) => {
                    let Some((_, slot)) = in_memtable.next() else {
                        continue;
                    };
                    let read = || {
                        let record = self.record(&state, memtable.slot(slot).at);
                        match memtable.name(slot) {
                            Some(name) => self.noted(&name, record),
                            None => record,
                        }
                    };
                    match page.take(read) {
                        Err(error) if error.is_unreadable() && !planted!(ListEndsAtDamage) => {
                            page.leave_out(ours);
                            true
                        }
                        taken => taken?,
                    }
                }
                _ => {
                    let Some(record) = sorted.take() else {
                        continue;
                    };
                    page.take(|| Ok::<_, StoreError>(record))?
                }
            };
            if !more {
                break;
            }
        }
        page.left_out(left_out.get());
        self.look_after_gaps();
        Ok(page.finish())
    }
}
