//! The admission of operations: past others of their key, and past the bound.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::{Effects, Operation, RetryBooks, Slot, Turned};
use crate::GiveUp;
use crate::retry::{Refusal, RetryRule, WhenFull};
use countwheel::Instant;

impl<K, T, E> RetryBooks<K, T, E> {
    /// Takes on an operation, and gives back the one whose place it takes, if that one waited.
    pub(in crate::retry) fn submit(
        &mut self,
        (hash, key): (u64, Arc<K>),
        mut operation: Operation<T, E>,
        rule: RetryRule,
        verdict: Result<(), GiveUp>,
        now: Instant,
        effects: &mut Effects<K, T, E>,
    ) -> Result<Option<T>, Turned<K, T, E>>
    where
        K: Eq,
    {
        if !self.is_open() {
            self.stats.refused += 1;
            return Err((Refusal::Closed, key, operation));
        }
        let mut replaced = None;
        let number = if let Some(number) = self.find(hash, &key) {
            if rule == RetryRule::IfAbsent && self.look(hash, &key).is_some() {
                self.stats.refused += 1;
                return Err((Refusal::Present, key, operation));
            }
            let waits = |slot: &Slot<K, T, E>| slot.operation.is_some();
            if rule == RetryRule::InPlace && self.slots.get(&number).is_some_and(waits) {
                return Ok(self.swap(number, key, operation, effects));
            }
            replaced = self.overtake(number, effects);
            effects.keys.push(key);
            number
        } else {
            if verdict.is_ok()
                && self.slots.len() >= self.limits.max_pending
                && let Err((refusal, reason)) = self.make_room(effects)
            {
                return self.without_room(refusal, reason, key, operation, effects);
            }
            let number = self.next_number();
            self.index.insert(hash, number);
            let slot = Slot {
                key,
                hash,
                operation: None,
                flight: None,
            };
            self.slots.insert(number, slot);
            number
        };
        // Those that have waited longer for an attempt to end come first.
        self.fill(effects);
        self.stats.submitted += 1;
        operation.serial = self.next_number();
        match verdict {
            Ok(()) => self.place(number, operation, now, effects),
            Err(reason) => {
                self.stats.given_up += 1;
                self.write_letter(number, operation, reason, effects);
            }
        }
        self.sweep(number, effects);
        Ok(replaced.map(|old| self.leave(old, effects)))
    }

    /// Keeps where an operation is, and how far it has come; only its value is another.
    fn swap(
        &mut self,
        number: u64,
        key: Arc<K>,
        mut newer: Operation<T, E>,
        effects: &mut Effects<K, T, E>,
    ) -> Option<T> {
        let operation = self.slots.get_mut(&number)?.operation.as_mut()?;
        self.stats.submitted += 1;
        self.stats.superseded += 1;
        let old = mem::replace(&mut operation.value, newer.value);
        effects.errors.extend(newer.error.take());
        effects.keys.push(key);
        Some(old)
    }

    /// Ends whatever the slot has, because something newer comes.
    fn overtake(&mut self, number: u64, effects: &mut Effects<K, T, E>) -> Option<Operation<T, E>> {
        let old = self.lift(number);
        let was_in_flight = self.void(number, effects);
        self.stats.superseded += u64::from(old.is_some()) + u64::from(was_in_flight);
        old
    }

    /// Takes one out to make room for another.
    fn make_room(
        &mut self,
        effects: &mut Effects<K, T, E>,
    ) -> Result<(), (Refusal, Option<GiveUp>)> {
        match self.limits.when_full {
            WhenFull::Refuse => Err((Refusal::Full, None)),
            WhenFull::DropNewest | WhenFull::DeadLetter => Err((Refusal::Full, Some(GiveUp::Full))),
            WhenFull::DropOldest => {
                let oldest = self.oldest.as_ref().and_then(BTreeMap::first_key_value);
                let oldest = oldest.map(|(_, number)| *number);
                // Those in flight cannot be dropped.
                let oldest = oldest.ok_or((Refusal::Full, None))?;
                if let Some(operation) = self.lift(oldest) {
                    self.stats.dropped += 1;
                    self.write_letter(oldest, operation, GiveUp::Full, effects);
                }
                self.sweep(oldest, effects);
                Ok(())
            }
        }
    }

    /// One that comes and finds no room: refused, or accepted and dropped.
    fn without_room(
        &mut self,
        refusal: Refusal,
        reason: Option<GiveUp>,
        key: Arc<K>,
        operation: Operation<T, E>,
        effects: &mut Effects<K, T, E>,
    ) -> Result<Option<T>, Turned<K, T, E>> {
        let Some(reason) = reason else {
            self.stats.refused += 1;
            return Err((refusal, key, operation));
        };
        self.stats.submitted += 1;
        self.stats.dropped += 1;
        effects.letters.push((key, operation, reason));
        Ok(None)
    }
}
