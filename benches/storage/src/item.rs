//! The record that every candidate holds, and the rows of the two tables it makes.

use crate::numbers::mix;

/// Bytes of a key, as the caller chose it.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of a payload: half of it random, half of it text that compresses.
pub(crate) const PAYLOAD_BYTES: usize = 200;
/// Bytes of a place in the order of deadlines: due, shard and id.
pub(crate) const PLACE_BYTES: usize = 18;
/// Bytes of the value under a place: attempts, key and payload.
pub(crate) const VALUE_BYTES: usize = 4 + KEY_BYTES + PAYLOAD_BYTES;
/// What one record is in both tables, without any overhead: place and value, key and place.
pub(crate) const LOGICAL_BYTES: u64 = (PLACE_BYTES + VALUE_BYTES + KEY_BYTES + PLACE_BYTES) as u64;

/// The caller's key.
pub(crate) type Key = [u8; KEY_BYTES];
/// A place in the order of deadlines.
pub(crate) type Place = [u8; PLACE_BYTES];
/// What stands under a place.
pub(crate) type Value = [u8; VALUE_BYTES];

const TEMPLATE: &[u8] = br#"{"event":"order.payment_timeout","url":"https://shop.example/hooks/close-order","retry":"default"}  "#;

/// A timer: everything follows from its id and when it is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// Unique; what comes of a counter.
    pub(crate) id: u64,
    /// When it is due, in milliseconds since 1970.
    pub(crate) due_ms: u64,
}

impl Item {
    /// 32 hexadecimal digits in no order.
    pub(crate) fn key(self) -> Key {
        let mut key = [0; KEY_BYTES];
        hex(mix(self.id), &mut key[..16]);
        hex(mix(!self.id), &mut key[16..]);
        key
    }

    pub(crate) fn place(self) -> Place {
        let mut place = [0; PLACE_BYTES];
        place[..8].copy_from_slice(&self.due_ms.to_be_bytes());
        // The shard stays 0.
        place[10..].copy_from_slice(&self.id.to_be_bytes());
        place
    }

    pub(crate) fn payload(self) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [b' '; PAYLOAD_BYTES];
        let (random, text) = payload.split_at_mut(PAYLOAD_BYTES / 2);
        let mut state = self.id;
        for chunk in random.chunks_mut(8) {
            state = mix(state);
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let len = text.len().min(TEMPLATE.len());
        text[..len].copy_from_slice(&TEMPLATE[..len]);
        payload
    }

    pub(crate) fn value(self) -> Value {
        let mut value = [0; VALUE_BYTES];
        value[4..4 + KEY_BYTES].copy_from_slice(&self.key());
        value[4 + KEY_BYTES..].copy_from_slice(&self.payload());
        value
    }

    /// The key in a value, if it is long enough to hold one.
    pub(crate) fn key_in(value: &[u8]) -> Option<Key> {
        value.get(4..4 + KEY_BYTES)?.try_into().ok()
    }

    /// The payload in a value.
    pub(crate) fn payload_in(value: &[u8]) -> Option<&[u8]> {
        value.get(4 + KEY_BYTES..VALUE_BYTES)
    }

    /// When a place is due, in milliseconds since 1970.
    pub(crate) fn due_in(place: &[u8]) -> Option<u64> {
        Some(u64::from_be_bytes(place.get(..8)?.try_into().ok()?))
    }
}

/// Adds this much to a deadline: what a move does.
pub(crate) const MOVE_MS: u64 = 90 * 86_400_000;

/// One change, as all candidates are given it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// A new record.
    Insert(Item),
    /// It was due and is delivered: it goes, and whoever has the window knows where it stands.
    Deliver(Item),
    /// By its key, to a deadline [`MOVE_MS`] later.
    Move(Item),
    /// By its key.
    Remove(Item),
}

impl Op {
    pub(crate) fn item(self) -> Item {
        match self {
            Self::Insert(item) | Self::Deliver(item) | Self::Move(item) | Self::Remove(item) => {
                item
            }
        }
    }
}

fn hex(number: u64, out: &mut [u8]) {
    for (digit, place) in (0..16).rev().zip(out) {
        let nibble = (number >> (4 * digit)) & 15;
        *place = b"0123456789abcdef"[usize::try_from(nibble).unwrap_or(0)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_size_of_the_method() {
        assert_eq!(LOGICAL_BYTES, 304);
        assert_eq!(TEMPLATE.len(), 100);
    }

    #[test]
    fn what_goes_into_the_tables_can_be_read_back() {
        let item = Item {
            id: 77,
            due_ms: 1_234,
        };
        assert_eq!(Item::key_in(&item.value()), Some(item.key()));
        assert_eq!(Item::payload_in(&item.value()), Some(&item.payload()[..]));
        assert_eq!(Item::due_in(&item.place()), Some(1_234));
        assert!(item.key().iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn places_are_in_the_order_of_deadlines() {
        let place = |id, due_ms| Item { id, due_ms }.place();
        assert!(place(9, 1) < place(1, 2));
        assert!(place(1, 256) < place(2, 256));
    }
}
