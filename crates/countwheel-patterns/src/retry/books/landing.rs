//! The start and the end of attempts.

use std::mem;
use std::sync::Arc;

use super::{Effects, Flight, Landing, Operation, Passage, Phase, RetryBooks, RetryPlace};
use crate::{GiveUp, StopSignal};
use countwheel::Instant;

impl<K, T, E> RetryBooks<K, T, E> {
    /// The attempt starts, unless something came in between.
    pub(in crate::retry) fn take_off(
        &mut self,
        passage: Passage,
    ) -> Option<(Arc<K>, Operation<T, E>, StopSignal)> {
        if self.operation_mut(passage.slot)?.place != RetryPlace::Queued(passage.number) {
            return None;
        }
        let mut operation = self.lift(passage.slot)?;
        self.launched += 1;
        operation.attempts.begin();
        self.stats.attempts += 1;
        self.stats.in_flight += 1;
        let slot = self.slots.get_mut(&passage.slot)?;
        let signal = StopSignal::new();
        slot.flight = Some(Flight {
            signal: signal.clone(),
            is_void: false,
        });
        Some((Arc::clone(&slot.key), operation, signal))
    }

    /// The executor did not take it: it waits again.
    pub(in crate::retry) fn turned_away(
        &mut self,
        passage: Passage,
        until: Option<Instant>,
        now: Instant,
        effects: &mut Effects<K, T, E>,
    ) {
        let operation = self.operation_mut(passage.slot);
        if operation.is_none_or(|operation| operation.place != RetryPlace::Queued(passage.number)) {
            return;
        }
        let Some(mut operation) = self.lift(passage.slot) else {
            return;
        };
        if let Some(until) = until {
            operation.next_at = until;
            self.place(passage.slot, operation, now, effects);
        } else {
            self.keep(passage.slot, operation);
        }
    }

    /// Leaves an operation for the stop.
    fn keep(&mut self, number: u64, mut operation: Operation<T, E>) {
        operation.place = RetryPlace::Left;
        if let Some(oldest) = &mut self.oldest {
            oldest.insert(operation.serial, number);
        }
        self.stats.pending += 1;
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.operation = Some(operation);
        }
    }

    /// Whether the result of the attempt in flight changes nothing.
    pub(in crate::retry) fn is_void(&self, passage: Passage) -> bool {
        let slot = self.slots.get(&passage.slot);
        let flight = slot.and_then(|slot| slot.flight.as_ref());
        flight.is_none_or(|flight| flight.is_void)
    }

    /// The attempt has ended.
    pub(in crate::retry) fn land(
        &mut self,
        passage: Passage,
        operation: Operation<T, E>,
        landing: Landing<E>,
        now: Instant,
        effects: &mut Effects<K, T, E>,
    ) {
        let slot = self.slots.get_mut(&passage.slot);
        let Some(flight) = slot.and_then(|slot| slot.flight.take()) else {
            effects.operations.push(operation);
            return;
        };
        self.launched -= 1;
        self.fill(effects);
        if flight.is_void {
            self.stats.fencing -= 1;
            self.stats.void += 1;
            effects.operations.push(operation);
            if let Landing::Failed(error, _) = landing {
                effects.errors.extend(error);
            }
            if let Some(fenced) = self.lift(passage.slot) {
                self.place(passage.slot, fenced, now, effects);
            }
        } else {
            self.stats.in_flight -= 1;
            self.ended(passage.slot, operation, landing, now, effects);
        }
        self.sweep(passage.slot, effects);
    }

    fn ended(
        &mut self,
        number: u64,
        mut operation: Operation<T, E>,
        landing: Landing<E>,
        now: Instant,
        effects: &mut Effects<K, T, E>,
    ) {
        let next = match landing {
            Landing::Succeeded => {
                self.stats.succeeded += 1;
                effects.operations.push(operation);
                return;
            }
            Landing::Failed(error, next) => {
                self.stats.failed += 1;
                if error.is_some() {
                    effects
                        .errors
                        .extend(mem::replace(&mut operation.error, error));
                }
                next
            }
            Landing::Panicked(next) => {
                self.stats.panicked += 1;
                next
            }
            Landing::Interrupted(next) => {
                self.stats.interrupted += 1;
                next
            }
        };
        match next {
            Err(reason) => {
                self.stats.given_up += 1;
                self.write_letter(number, operation, reason, effects);
            }
            Ok(_) if self.phase == Phase::Orphaned => {
                self.stats.dropped += 1;
                self.write_letter(number, operation, GiveUp::Dropped, effects);
            }
            Ok(next) => {
                operation.next_at = next;
                self.place(number, operation, now, effects);
            }
        }
    }
}
