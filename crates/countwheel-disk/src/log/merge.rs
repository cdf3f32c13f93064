//! What the sorted store has, page after page, without what the log hides.

use std::collections::VecDeque;

use crate::StoreError;

/// Reads one page after a position, of so many at most, and says after which the next one comes,
/// if there is one.
pub(super) struct Pages<T, P, R> {
    read: R,
    page: VecDeque<T>,
    /// After what to read on; `None` once everything was read.
    next: Option<Option<P>>,
}

impl<T, P, R> Pages<T, P, R>
where
    R: FnMut(Option<P>, usize) -> Result<(Vec<T>, Option<P>), StoreError>,
{
    pub(super) fn new(after: Option<P>, read: R) -> Self {
        Self {
            read,
            page: VecDeque::new(),
            next: Some(after),
        }
    }

    /// The next that is not hidden, if there is one. A page read for it has at most `size`.
    pub(super) fn peek(
        &mut self,
        size: usize,
        is_hidden: impl Fn(&T) -> bool,
    ) -> Result<Option<&T>, StoreError> {
        loop {
            while self.page.front().is_some_and(&is_hidden) {
                self.page.pop_front();
            }
            if !self.page.is_empty() {
                return Ok(self.page.front());
            }
            let Some(after) = self.next.take() else {
                return Ok(None);
            };
            let (page, next) = (self.read)(after, size)?;
            self.page = page.into();
            self.next = next.map(Some);
        }
    }

    /// The one that was peeked at.
    pub(super) fn take(&mut self) -> Option<T> {
        self.page.pop_front()
    }
}
