//! A page of a list or of due timers, for authors of a store: the end of the page, and the
//! beginning of the next one.
//!
//! ```
//! use countwheel_durable::QueueName;
//! use countwheel_durable::store::{Filter, Position, page};
//!
//! let filter = Filter::queue(QueueName::new("orders")?);
//! let mut page = page::PageBuilder::new(&filter);
//! let mut entries = Vec::<Position>::new().into_iter(); // of the store's index
//! while let Some(position) = entries.next() {
//!     if !page.come_to(position) {
//!         break;
//!     }
//! }
//! assert_eq!(page.finish().next, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{DueEntry, DuePage, DueScan, Filter, Page, Position};
use crate::planted::planted;
use crate::{Record, TimerName, Wake};

/// Where a record stands in the list of its queue.
#[must_use]
pub fn position(record: &Record) -> Position {
    Position {
        due: record.due,
        revision: record.revision,
    }
}

/// Whether the key begins with the prefix of a filter, if that has one.
#[must_use]
pub fn begins_with(name: &TimerName, prefix: Option<&str>) -> bool {
    prefix.is_none_or(|prefix| name.key.as_str().starts_with(prefix))
}

/// How far into an index a page looks.
#[derive(Debug)]
pub struct Reach<P> {
    left: usize,
    last: Option<P>,
}

impl<P: Copy> Reach<P> {
    /// Looks at so many entries, and at one at least.
    #[must_use]
    pub fn new(scan_limit: usize) -> Self {
        Self {
            left: scan_limit.max(1),
            last: None,
        }
    }

    /// Comes to the next entry.
    ///
    /// # Errors
    /// The last entry before this one, if this one is one too many.
    pub fn come_to(&mut self, position: P) -> Result<(), Option<P>> {
        self.left = self.left.checked_sub(1).ok_or(self.last)?;
        self.last = Some(position);
        Ok(())
    }
}

/// Collects a page of what is due up to the limits of its scan.
#[derive(Debug)]
pub struct DueBuilder {
    limit: usize,
    reach: Reach<Wake>,
    page: DuePage,
}

impl DueBuilder {
    /// An empty page of this scan.
    #[must_use]
    pub fn new(scan: &DueScan<'_>) -> Self {
        Self {
            limit: scan.limit,
            reach: Reach::new(scan.scan_limit),
            page: DuePage {
                // Nothing is known behind it, if nothing is asked for.
                next: (scan.limit == 0).then(|| scan.after.unwrap_or_default()),
                ..DuePage::default()
            },
        }
    }

    /// Whether there is no room for another entry.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.page.entries.len() >= self.limit
    }

    /// Comes to the next entry of the index, wanted or not. False when the page looks no further:
    /// then there is a next page.
    pub fn come_to(&mut self, wake: Wake) -> bool {
        match self.reach.come_to(wake) {
            Ok(()) => {
                self.page.scanned += 1;
                true
            }
            Err(last) => {
                self.page.next = last.filter(|_| !planted!(DuePageForgetsRest));
                false
            }
        }
    }

    /// What has been read for the entry counts as so many more that were looked at.
    pub fn costs(&mut self, entries: usize) {
        self.reach.left = self.reach.left.saturating_sub(entries);
    }

    /// Takes the entry that was come to. False when the page is full: then there is a next page.
    pub fn take(&mut self, entry: DueEntry) -> bool {
        let wake = entry.wake;
        self.page.entries.push(entry);
        if self.is_full() {
            self.page.next = Some(wake);
        }
        !self.is_full()
    }

    /// The page.
    #[must_use]
    pub fn finish(self) -> DuePage {
        self.page
    }
}

/// Collects a page up to the limits of its filter.
#[derive(Debug)]
pub struct PageBuilder {
    limit: usize,
    bytes: usize,
    reach: Reach<Position>,
    /// Where the last record stands that was taken or left out.
    last: Option<Position>,
    page: Page,
}

impl PageBuilder {
    /// An empty page of this filter.
    #[must_use]
    pub fn new(filter: &Filter) -> Self {
        Self {
            limit: filter.limit,
            bytes: 0,
            reach: Reach::new(filter.scan_limit),
            last: None,
            page: Page {
                records: Vec::new(),
                unreadable: 0,
                next: None,
            },
        }
    }

    /// Comes to the next entry of the index, wanted or not. False when the page looks no further:
    /// then there is a next page.
    pub fn come_to(&mut self, position: Position) -> bool {
        match self.reach.come_to(position) {
            Ok(()) => true,
            Err(last) => {
                self.page.next = last;
                false
            }
        }
    }

    /// Ends the page before it is full: the next one begins after `last`.
    pub fn end_at(&mut self, last: Position) {
        self.page.next = Some(last);
    }

    /// Offers the next record that the filter wants, which is read only if there is room.
    /// False when the page is full: then there is a next page.
    ///
    /// # Errors
    /// That of the read.
    pub fn take<E>(&mut self, read: impl FnOnce() -> Result<Record, E>) -> Result<bool, E> {
        if self.page.records.len() >= self.limit || self.bytes >= Filter::PAGE_MAX_BYTES {
            self.page.next = self.last;
            return Ok(false);
        }
        let record = read()?;
        self.bytes += record.content_bytes();
        self.last = Some(position(&record));
        self.page.records.push(record);
        Ok(true)
    }

    /// Leaves out the record at `at`, which cannot be read.
    pub fn leave_out(&mut self, at: Position) {
        self.last = Some(at);
        self.page.unreadable += 1;
    }

    /// Adds what was left out of pages that this one is made of.
    pub fn left_out(&mut self, records: usize) {
        self.page.unreadable += records;
    }

    /// The page.
    #[must_use]
    pub fn finish(self) -> Page {
        self.page
    }
}
