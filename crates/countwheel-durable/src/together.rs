//! One commit for the turns of several shards, where the store takes them together.
//!
//! The first thread leads: it commits its turn, and later turns wait meanwhile. The first of the
//! waiting threads leads next, and commits all waiting turns. So one sync of the disk serves all
//! shards whose turns came during the sync before. RocksDB's write groups are the model.

use std::mem;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::engine::Turn;
use crate::store::{Commit, Store, StoreError};

type Committed = (Turn, Result<(), StoreError>);

/// Where the threads of the shards meet that have something to commit.
pub(crate) struct Together {
    store: Arc<dyn Store>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Whether somebody commits. Nobody waits if not.
    is_led: bool,
    waiting: Vec<Waiting>,
}

impl Queue {
    /// Takes turns with at most so many changes together, and the first in any case.
    fn take(&mut self, most: usize) -> Vec<Waiting> {
        let mut changes = 0;
        let fitting = self.waiting.iter().take_while(|waiting| {
            let is_first = changes == 0;
            changes += waiting.turn.changes().len();
            is_first || changes <= most
        });
        let count = fitting.count();
        self.waiting.drain(..count).collect()
    }
}

/// A turn that waits for its commit.
struct Waiting {
    turn: Turn,
    place: Arc<WaitingThread>,
}

/// Where a thread waits.
#[derive(Default)]
struct WaitingThread {
    word: Mutex<Option<Word>>,
    came: Condvar,
}

/// What a thread that waits is told.
enum Word {
    /// To commit what waits, its own turn among it.
    Lead,
    Ended(Box<Committed>),
}

impl WaitingThread {
    fn tell(&self, word: Word) {
        *self.word.lock() = Some(word);
        self.came.notify_one();
    }

    fn wait(&self) -> Word {
        let mut word = self.word.lock();
        loop {
            if let Some(word) = word.take() {
                return word;
            }
            self.came.wait(&mut word);
        }
    }
}

impl Together {
    pub(crate) fn of(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            queue: Mutex::default(),
        }
    }

    /// Commits the changes of a turn, with those of others, and gives the turn back.
    pub(crate) fn commit(&self, turn: Turn) -> Committed {
        if turn.changes().is_empty() {
            return (turn, Ok(()));
        }
        let mut queue = self.queue.lock();
        if !queue.is_led {
            queue.is_led = true;
            drop(queue);
            let next = Next(self);
            let committed = self.store.commit(turn.lease(), turn.changes());
            drop(next);
            return (turn, committed);
        }
        let place = Arc::<WaitingThread>::default();
        queue.waiting.push(Waiting {
            turn,
            place: Arc::clone(&place),
        });
        drop(queue);
        loop {
            match place.wait() {
                Word::Lead => self.lead(),
                Word::Ended(committed) => return *committed,
            }
        }
    }

    /// Commits what waits, as far as the store makes it together.
    fn lead(&self) {
        let most = self.store.changes_together();
        let waiting = self.queue.lock().take(most);
        let next = Next(self);
        let mut led = Led {
            waiting,
            results: Vec::new(),
        };
        let commits: Vec<_> = led.waiting.iter().map(Waiting::commit).collect();
        led.results = self.store.commit_all(&commits);
        drop(next); // whoever leads next need not wait until all are told
        drop(led);
    }
}

impl Waiting {
    fn commit(&self) -> Commit<'_> {
        Commit {
            lease: self.turn.lease(),
            changes: self.turn.changes(),
        }
    }
}

/// Makes the next thread lead, also if the store panics.
struct Next<'a>(&'a Together);

impl Drop for Next<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        match queue.waiting.first() {
            Some(first) => first.place.tell(Word::Lead),
            None => queue.is_led = false,
        }
    }
}

/// Turns that are committed together. Each thread is told what became of its own, also if the store
/// panics: that is as unknown as after any failure.
struct Led {
    waiting: Vec<Waiting>,
    results: Vec<Result<(), StoreError>>,
}

impl Drop for Led {
    fn drop(&mut self) {
        let mut results = mem::take(&mut self.results).into_iter();
        for Waiting { turn, place } in self.waiting.drain(..) {
            let result = results.next().unwrap_or(Err(StoreError::Poisoned));
            place.tell(Word::Ended(Box::new((turn, result))));
        }
    }
}
