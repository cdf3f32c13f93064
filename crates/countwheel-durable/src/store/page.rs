//! A page of a list: where it ends, and where the next one begins.

use super::{Filter, Page, Position};
use crate::{Record, TimerName};

pub(super) fn position(record: &Record) -> Position {
    Position {
        due: record.due,
        revision: record.revision,
    }
}

pub(super) fn begins_with(name: &TimerName, prefix: Option<&str>) -> bool {
    prefix.is_none_or(|prefix| name.key.as_str().starts_with(prefix))
}

/// Collects a page up to the limits of its filter. Shared by the stores, so that a page
/// ends at the same record everywhere.
#[derive(Debug)]
pub(super) struct PageBuilder {
    limit: usize,
    bytes: usize,
    page: Page,
}

impl PageBuilder {
    pub(super) fn new(filter: &Filter) -> Self {
        Self {
            limit: filter.limit,
            bytes: 0,
            page: Page {
                records: Vec::new(),
                next: None,
            },
        }
    }

    /// Offers the next record that the filter wants, which is read only if there is room.
    /// False when the page is full: then there is a next page.
    pub(super) fn take<E>(&mut self, read: impl FnOnce() -> Result<Record, E>) -> Result<bool, E> {
        if self.page.records.len() >= self.limit || self.bytes >= Filter::PAGE_MAX_BYTES {
            self.page.next = self.page.records.last().map(position);
            return Ok(false);
        }
        let record = read()?;
        self.bytes += record.payload.len();
        self.page.records.push(record);
        Ok(true)
    }

    pub(super) fn finish(self) -> Page {
        self.page
    }
}
