//! Storage of values: nodes that are reused, and generations that detect the reuse.

use alloc::vec::Vec;
use core::hint;
use core::mem;
use core::num::NonZeroU32;

use crate::indices::Indices;
use crate::segments::Segments;
use crate::{Expired, Tick, TimerKey};

/// Nodes to a segment: 16 KiB of them when a value takes eight bytes.
const SEGMENT: usize = 1_024;

/// Where an entry stands: its chunk's number times 32, plus its place in the chunk.
///
/// Chunk 0 is never used, so that an `Option` costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position(NonZeroU32);

impl Position {
    #[inline]
    pub(crate) fn new(position: u32) -> Self {
        Self(NonZeroU32::new(position).expect("chunk 0 is never used"))
    }

    #[inline]
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }
}

/// One entry's value, or the room for one. Eight bytes more than the value.
enum Node<T> {
    Live {
        /// How often this node was given out; the entry's key repeats it.
        generation: NonZeroU32,
        position: Position,
        value: T,
    },
    Free {
        /// The one to give out next.
        generation: NonZeroU32,
    },
}

impl<T> Node<T> {
    /// Takes out what is there, and leaves a free node of the next generation.
    #[inline]
    fn vacate(&mut self, generation: NonZeroU32) -> Self {
        let generation = generation.saturating_add(1);
        mem::replace(self, Self::Free { generation })
    }

    #[inline]
    fn generation(&self) -> NonZeroU32 {
        let (Self::Free { generation } | Self::Live { generation, .. }) = self;
        *generation
    }
}

/// The values of one wheel.
pub(crate) struct Nodes<T> {
    nodes: Segments<Node<T>, SEGMENT>,
    /// For each segment, the generation at which its nodes begin: after a release not
    /// the first, so that keys from before stay stale.
    floors: Vec<NonZeroU32>,
    indices: Indices<SEGMENT>,
    len: usize,
    /// Values that left since somebody last asked.
    removed: usize,
}

impl<T> Nodes<T> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Segments::new(),
            floors: Vec::new(),
            indices: Indices::new(),
            len: 0,
            removed: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The node the next [`fill`](Self::fill) is about.
    #[inline]
    pub(crate) fn reserve(&mut self) -> u32 {
        self.indices.take()
    }

    /// Puts a value into the node that was reserved. O(1), amortised over growth.
    #[inline]
    pub(crate) fn fill(&mut self, index: u32, position: Position, value: T) -> TimerKey {
        self.len += 1;
        let node = match self.nodes.get_mut(index as usize) {
            Some(node) => node,
            None => self.add_segment(index as usize),
        };
        debug_assert!(
            matches!(node, Node::Free { .. }),
            "only a free node is filled"
        );
        let generation = node.generation();
        *node = Node::Live {
            generation,
            position,
            value,
        };
        TimerKey { index, generation }
    }

    #[cold]
    fn add_segment(&mut self, index: usize) -> &mut Node<T> {
        let segment = index / SEGMENT;
        if self.floors.len() <= segment {
            self.floors.resize(segment + 1, NonZeroU32::MIN);
        }
        let generation = self.floors[segment];
        self.nodes.add(index, || Node::Free { generation });
        self.nodes.cell_mut(index)
    }

    /// Where the entry of `key` stands; `None` if the key is stale.
    #[inline]
    pub(crate) fn find(&self, key: TimerKey) -> Option<Position> {
        match self.nodes.get(key.index as usize)? {
            Node::Live {
                generation,
                position,
                ..
            } if *generation == key.generation => Some(*position),
            _ => None,
        }
    }

    pub(crate) fn value(&self, key: TimerKey) -> Option<&T> {
        match self.nodes.get(key.index as usize)? {
            Node::Live {
                generation, value, ..
            } if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The value of the node at `index`, if it is live.
    pub(crate) fn value_at(&self, index: u32) -> Option<&T> {
        match self.nodes.get(index as usize)? {
            Node::Live { value, .. } => Some(value),
            Node::Free { .. } => None,
        }
    }

    /// Every value with its key and where its entry stands, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TimerKey, Position, &T)> {
        let narrow = |index| u32::try_from(index).expect("indices have 32 bits");
        self.nodes
            .iter()
            .filter_map(move |(index, node)| match node {
                Node::Live {
                    generation,
                    position,
                    value,
                } => {
                    let key = TimerKey {
                        index: narrow(index),
                        generation: *generation,
                    };
                    Some((key, *position, value))
                }
                Node::Free { .. } => None,
            })
    }

    pub(crate) fn value_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        match self.nodes.get_mut(key.index as usize)? {
            Node::Live {
                generation, value, ..
            } if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Takes the value of `key` out; `None` if the key is stale. O(1).
    #[inline]
    pub(crate) fn take(&mut self, key: TimerKey) -> Option<(Position, T)> {
        let node = self.nodes.get_mut(key.index as usize)?;
        match node {
            Node::Live { generation, .. } if *generation == key.generation => {}
            _ => return None,
        }
        let taken = node.vacate(key.generation);
        self.free(key.index, key.generation);
        match taken {
            Node::Live {
                position, value, ..
            } => Some((position, value)),
            Node::Free { .. } => None,
        }
    }

    /// Takes the value of an entry that is in the wheel, and makes its key stale. O(1).
    #[inline]
    pub(crate) fn expire(&mut self, index: u32, deadline: Tick) -> Expired<T> {
        let node = self.nodes.cell_mut(index as usize);
        let generation = node.generation();
        let taken = node.vacate(generation);
        self.free(index, generation);
        let Node::Live { value, .. } = taken else {
            unreachable!("an entry in the wheel has a value")
        };
        Expired {
            key: TimerKey { index, generation },
            deadline,
            value,
        }
    }

    /// Frees a node; a retired one is never given out again, as that would repeat a key.
    #[inline]
    fn free(&mut self, index: u32, generation: NonZeroU32) {
        self.len -= 1;
        self.removed += 1;
        if generation < NonZeroU32::MAX {
            self.indices.give(index);
        }
    }

    /// How many values have left since the last [`count_removals`](Self::count_removals).
    #[inline]
    pub(crate) fn removed(&self) -> usize {
        self.removed
    }

    pub(crate) fn count_removals(&mut self) -> usize {
        mem::take(&mut self.removed)
    }

    /// Nodes there is memory for.
    pub(crate) fn room(&self) -> usize {
        self.indices.cells()
    }

    pub(crate) fn end_epoch(&mut self) {
        self.indices.end_epoch();
    }

    /// Releases a segment that the last epoch found to be surplus, if there is one.
    pub(crate) fn release_surplus(&mut self) {
        if let Some(segment) = self.indices.release_surplus() {
            self.release(segment);
        }
    }

    #[cold]
    fn release(&mut self, segment: usize) {
        let nodes = self.nodes.release(segment);
        for node in nodes.iter().flat_map(|nodes| nodes.iter()) {
            self.floors[segment] = self.floors[segment].max(node.generation());
        }
    }

    /// Releases segments in which no value lives, so many at most, and tells how many.
    pub(crate) fn shrink_by(&mut self, most: usize) -> usize {
        let unused = self.indices.release_unused(most);
        for &segment in &unused {
            self.release(segment);
        }
        unused.len()
    }

    /// Looks at nodes that are needed next, so that they come into the cache together:
    /// a processor waits for loads that depend on one another one by one, but for a
    /// dozen independent ones at once.
    #[inline]
    pub(crate) fn look_at(&self, indices: impl Iterator<Item = u32>) {
        let is_live = |index| self.position(index).is_some();
        hint::black_box(
            indices
                .map(|index| usize::from(is_live(index)))
                .sum::<usize>(),
        );
    }

    /// Notes that an entry stands somewhere else now.
    #[inline]
    pub(crate) fn moved(&mut self, index: u32, to: Position) {
        if let Node::Live { position, .. } = self.nodes.cell_mut(index as usize) {
            *position = to;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.bytes() + self.indices.bytes() + self.floors.capacity() * size_of::<NonZeroU32>()
    }

    /// Where the entry of the node at `index` stands, if it is live.
    #[inline]
    pub(crate) fn position(&self, index: u32) -> Option<Position> {
        match self.nodes.get(index as usize)? {
            Node::Live { position, .. } => Some(*position),
            Node::Free { .. } => None,
        }
    }

    pub(crate) fn check(&self) {
        let live = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node, Node::Live { .. }));
        assert_eq!(live.count(), self.len, "the number of entries is known");
        self.indices.check(|index| match self.nodes.get(index) {
            Some(Node::Live { .. }) => Some(true),
            Some(Node::Free {
                generation: NonZeroU32::MAX,
            }) => None, // perhaps it is retired
            Some(Node::Free { .. }) | None => Some(false),
        });
    }

    /// Sets the generation of a key's node, for tests.
    #[cfg(test)]
    pub(crate) fn set_generation(&mut self, index: u32, to: NonZeroU32) {
        let node = self.nodes.cell_mut(index as usize);
        let (Node::Free { generation } | Node::Live { generation, .. }) = node;
        *generation = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(nodes: &mut Nodes<char>, value: char) -> TimerKey {
        let index = nodes.reserve();
        nodes.fill(index, Position::new(32), value)
    }

    #[test]
    fn a_node_takes_eight_bytes_more_than_its_value() {
        assert_eq!(size_of::<Node<u64>>(), 16);
        assert_eq!(size_of::<Node<()>>(), 8);
    }

    #[test]
    fn a_freed_node_is_reused_under_another_key() {
        let mut nodes = Nodes::new();
        let old = insert(&mut nodes, 'a');
        assert!(nodes.take(old).is_some());
        let new = insert(&mut nodes, 'b');
        assert_eq!(new.index, old.index);
        assert_ne!(new, old);
        assert_eq!(nodes.value(old), None);
        assert_eq!(nodes.value(new), Some(&'b'));
        assert_eq!(nodes.take(old), None);
    }

    #[test]
    fn a_node_retires_before_its_generations_repeat() {
        let mut nodes = Nodes::new();
        let first = insert(&mut nodes, 'a');
        let last_but_one = NonZeroU32::new(u32::MAX - 1).unwrap();
        nodes.set_generation(first.index, last_but_one);
        nodes.take(TimerKey {
            generation: last_but_one,
            ..first
        });
        nodes.check();
        assert_eq!(insert(&mut nodes, 'z').index, first.index);
        let last = TimerKey {
            generation: NonZeroU32::MAX,
            ..first
        };
        assert!(nodes.take(last).is_some());
        let next = insert(&mut nodes, 'b');
        assert_ne!(next.index, last.index, "the retired node is not given out");
        assert_eq!((nodes.find(first), nodes.find(last)), (None, None));
        nodes.check();
    }

    #[test]
    fn keys_stay_stale_when_their_segment_was_released_and_came_back() {
        let mut nodes = Nodes::new();
        let old = insert(&mut nodes, 'a');
        nodes.take(old);
        nodes.shrink_by(usize::MAX);
        assert!(nodes.bytes() < 1_024, "{}", nodes.bytes());
        assert_eq!(nodes.find(old), None);
        let new = insert(&mut nodes, 'b');
        assert_eq!(new.index, old.index);
        assert_ne!(new.generation, old.generation);
        nodes.check();
    }
}
