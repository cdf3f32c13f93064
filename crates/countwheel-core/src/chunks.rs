//! Storage of deadlines: chains of small arrays, one chain to a slot.

use alloc::vec::Vec;
use core::hint;

use crate::bits::Bits;
use crate::indices::Indices;
use crate::nodes::Position;
use crate::segments::Segments;

/// Entries to a chunk: as many as a word has bits.
pub(crate) const CHUNK: u32 = u32::BITS;

/// Chunks to a segment: 16 KiB of entries.
const SEGMENT: usize = 64;

/// No chunk: number 0 is never given out.
const NONE: u32 = 0;

/// What stands in a chunk for each timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChunkEntry {
    /// The lower half of the deadline. The upper half is that of the hand, unless the
    /// chunk is a wide one.
    pub(crate) deadline: u32,
    pub(crate) node: u32,
}

/// The first chunk of a slot's chain, where its next entry goes, and what is live in the
/// chunk that is being filled: so that filling it changes one line beside the chunk's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot {
    /// `NONE` for an empty slot.
    pub(crate) first: u32,
    /// In the last chunk, or just behind it if there is no room; 0 for an empty slot.
    next: u32,
    /// Which entries of the last chunk are live, if that one is open.
    live: u32,
}

impl Slot {
    fn last(self) -> u32 {
        // The place just behind a chunk is a multiple of `CHUNK`.
        self.next.saturating_sub(1) / CHUNK
    }
}

/// The slots of a wheel and which of them are occupied, and one slot more, for entries
/// that are on their way out in order.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    occupied: Bits,
    occupied_len: usize,
}

impl Slots {
    /// `len` empty slots, and the one for what is on its way out, which has number `len`.
    pub(crate) fn new(len: usize) -> Self {
        Self {
            slots: alloc::vec![Slot::default(); len + 1],
            occupied: Bits::below(len + 1),
            occupied_len: 0,
        }
    }

    /// How many there are, without the one for what is on its way out.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - 1
    }

    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> Slot {
        self.slots[slot]
    }

    #[inline]
    pub(crate) fn is_empty(&self, slot: usize) -> bool {
        self.slots[slot].first == NONE
    }

    /// The occupied slot with the lowest number.
    #[inline]
    pub(crate) fn first_occupied(&self) -> Option<usize> {
        self.occupied.first()
    }

    /// The first occupied slot that is not below `slot`.
    pub(crate) fn first_occupied_from(&self, slot: usize) -> Option<usize> {
        self.occupied.first_from(slot)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.occupied.bytes()
    }

    fn set_occupied(&mut self, slot: usize) {
        self.occupied_len += 1;
        if slot < self.len() {
            self.occupied.insert(slot);
        }
    }

    fn set_empty(&mut self, slot: usize) {
        self.slots[slot] = Slot::default();
        self.occupied_len -= 1;
        if slot < self.len() {
            self.occupied.remove(slot);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Links {
    previous: u32,
    next: u32,
    slot: u32,
    /// The chunk that holds the upper halves of the deadlines, or `NONE`.
    upper: u32,
}

/// All entries of one wheel.
///
/// A chunk is an array of 32 entries and a word that says which of them are live. New
/// entries go to the end of their slot's last chunk, so that filling a slot and emptying
/// it are streams; taking one out clears its bit, and a chunk without bits leaves its
/// chain. So the live entries of a chain, from its first chunk on, stand in the order in
/// which they were filed.
pub(crate) struct Chunks {
    entries: Segments<[ChunkEntry; CHUNK as usize], SEGMENT>,
    /// Which entries are live, by chunk. 0 for the *open* chunk of a slot, the last one
    /// while it is being filled, whose bits are in the slot; and for a free chunk.
    live: Vec<u32>,
    links: Vec<Links>,
    indices: Indices<SEGMENT>,
    /// Chunks on chains.
    in_use: usize,
    /// Where the search for chunks to merge stands.
    merged_up_to: u32,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        let mut indices = Indices::new();
        let none = indices.take();
        debug_assert_eq!(none, NONE, "indices begin at 0");
        Self {
            entries: Segments::new(),
            live: alloc::vec![0],
            links: alloc::vec![Links::default()],
            indices,
            in_use: 0,
            merged_up_to: 0,
        }
    }

    /// Appends an entry to a slot's chain. `now` and the deadline tell whether the lower
    /// half of the deadline is enough. O(1).
    #[inline]
    pub(crate) fn append(
        &mut self,
        slots: &mut Slots,
        slot: usize,
        deadline: u64,
        now: u64,
        node: u32,
    ) -> Position {
        let next = slots.slots[slot].next;
        if next.is_multiple_of(CHUNK) || upper(deadline) != upper(now) {
            return self.append_to_other_chunk(slots, slot, deadline, now, node);
        }
        let slot = &mut slots.slots[slot];
        slot.next = next + 1;
        slot.live |= 1 << (next % CHUNK);
        self.put(next, deadline, node)
    }

    #[inline]
    fn put(&mut self, position: u32, deadline: u64, node: u32) -> Position {
        let (chunk, at) = split(position);
        self.entries.cell_mut(chunk)[at] = ChunkEntry {
            deadline: lower(deadline),
            node,
        };
        Position::new(position)
    }

    /// Appends where the last chunk of the slot is full, is a wide one, or ought to be.
    #[inline(never)]
    fn append_to_other_chunk(
        &mut self,
        slots: &mut Slots,
        slot: usize,
        deadline: u64,
        now: u64,
        node: u32,
    ) -> Position {
        let last = slots.slots[slot].last();
        let is_wide = upper(deadline) != upper(now);
        // What was cancelled at the end of a wide chunk is room for the next one.
        let filled = CHUNK - self.live[last as usize].leading_zeros();
        let has_upper = self.links[last as usize].upper != NONE;
        if last != NONE && has_upper && filled < CHUNK {
            self.put_upper(last, filled, deadline);
            self.live[last as usize] |= 1 << filled;
            return self.put(last * CHUNK + filled, deadline, node);
        }
        let chunk = self.chain_chunk(slots, slot);
        if is_wide {
            let upper = self.take_chunk();
            self.links[chunk as usize].upper = upper;
            self.put_upper(chunk, 0, deadline);
            self.live[chunk as usize] = 1;
            slots.slots[slot].next = (chunk + 1) * CHUNK;
        } else {
            slots.slots[slot].live = 1;
            slots.slots[slot].next = chunk * CHUNK + 1;
        }
        self.put(chunk * CHUNK, deadline, node)
    }

    /// Adds a chunk to the end of a slot's chain. It has no entries yet.
    fn chain_chunk(&mut self, slots: &mut Slots, slot: usize) -> u32 {
        let last = slots.slots[slot].last();
        let chunk = self.take_chunk();
        self.in_use += 1;
        self.links[chunk as usize] = Links {
            previous: last,
            next: NONE,
            slot: narrow(slot),
            upper: NONE,
        };
        match last {
            NONE => {
                slots.slots[slot].first = chunk;
                slots.set_occupied(slot);
            }
            last => {
                self.links[last as usize].next = chunk;
                if self.live[last as usize] == 0 {
                    self.live[last as usize] = slots.slots[slot].live; // no longer open
                }
            }
        }
        chunk
    }

    /// Appends entries whose upper halves are that of the hand, at most a chunk of them,
    /// as a chunk of their own. Returns the position of the first.
    pub(crate) fn append_chunk(
        &mut self,
        slots: &mut Slots,
        slot: usize,
        entries: &[ChunkEntry],
    ) -> Position {
        let chunk = self.chain_chunk(slots, slot);
        self.entries.cell_mut(chunk as usize)[..entries.len()].copy_from_slice(entries);
        let first = chunk * CHUNK;
        slots.slots[slot].live = u32::MAX >> (CHUNK as usize - entries.len());
        slots.slots[slot].next = first + narrow(entries.len());
        Position::new(first)
    }

    fn put_upper(&mut self, chunk: u32, at: u32, deadline: u64) {
        let beside = self.links[chunk as usize].upper as usize;
        self.entries.cell_mut(beside)[at as usize].deadline = upper(deadline);
    }

    fn take_chunk(&mut self) -> u32 {
        let chunk = self.indices.take();
        // The place behind the last one must be a number, too.
        assert!(chunk < u32::MAX / CHUNK, "a wheel has at most 2^27 chunks");
        if self.entries.get(chunk as usize).is_none() {
            self.entries
                .add(chunk as usize, || [ChunkEntry::default(); CHUNK as usize]);
            let segment_end = (chunk as usize / SEGMENT + 1) * SEGMENT;
            let chunks = self.live.len().max(segment_end);
            self.live.resize(chunks, 0);
            self.links.resize(chunks, Links::default());
        }
        // The lines of a chunk that was used long ago are waited for together, and not by
        // the store that comes to each.
        let cold = self.entries.cell(chunk as usize);
        hint::black_box(cold[0].node ^ cold[8].node ^ cold[16].node ^ cold[24].node);
        chunk
    }

    fn free_chunk(&mut self, chunk: u32) {
        self.live[chunk as usize] = 0;
        self.in_use -= 1;
        self.indices.give(chunk);
        match self.links[chunk as usize].upper {
            NONE => {}
            upper => self.indices.give(upper),
        }
    }

    pub(crate) fn end_epoch(&mut self) {
        self.indices.end_epoch();
    }

    /// Releases a segment that the last epoch found to be surplus, if there is one.
    pub(crate) fn release_surplus(&mut self) {
        if let Some(segment) = self.indices.release_surplus() {
            drop(self.entries.release(segment));
        }
    }

    /// Takes the entry at a position out of its slot. O(1).
    #[inline]
    pub(crate) fn remove(&mut self, slots: &mut Slots, position: Position) {
        let (chunk, at) = split(position.get());
        self.remove_all(slots, chunk, 1 << at);
    }

    /// Takes several entries of one chunk out of their slot: those that `gone` names.
    #[inline]
    pub(crate) fn remove_all(&mut self, slots: &mut Slots, chunk: usize, gone: u32) {
        let live = self.live[chunk];
        self.live[chunk] = live & !gone;
        if live & !gone == 0 {
            self.remove_last_or_open(slots, chunk, live, gone);
        }
    }

    #[inline(never)]
    fn remove_last_or_open(&mut self, slots: &mut Slots, chunk: usize, live: u32, gone: u32) {
        if live == 0 {
            let slot = &mut slots.slots[self.links[chunk].slot as usize];
            slot.live &= !gone;
            if slot.live != 0 {
                return;
            }
        }
        self.unchain(slots, chunk);
    }

    /// Takes a chunk without live entries off its chain, and frees it.
    #[inline(never)]
    fn unchain(&mut self, slots: &mut Slots, chunk: usize) {
        let Links {
            previous,
            next,
            slot,
            ..
        } = self.links[chunk];
        let slot = slot as usize;
        match (previous, next) {
            (NONE, NONE) => slots.set_empty(slot),
            (NONE, next) => {
                slots.slots[slot].first = next;
                self.links[next as usize].previous = NONE;
            }
            (previous, NONE) => {
                self.links[previous as usize].next = NONE;
                slots.slots[slot].next = (previous + 1) * CHUNK;
            }
            (previous, next) => {
                self.links[previous as usize].next = next;
                self.links[next as usize].previous = previous;
            }
        }
        self.free_chunk(narrow(chunk));
    }

    /// Takes the first chunk off a slot's chain, live entries and all, and frees it.
    #[inline]
    pub(crate) fn take_first(&mut self, slots: &mut Slots, slot: usize) -> Option<Taken> {
        let Slot { first, .. } = slots.slots[slot];
        let chunk = first as usize;
        if first == NONE {
            return None;
        }
        let beside = self.links[chunk].upper;
        let taken = Taken {
            entries: *self.entries.cell(chunk),
            uppers: (beside != NONE).then(|| *self.entries.cell(beside as usize)),
            live: self.live(slots.slots[slot], chunk),
        };
        self.unchain(slots, chunk);
        Some(taken)
    }

    /// The chunks of a slot's chain, first to last.
    pub(crate) fn chain(&self, slot: Slot) -> impl Iterator<Item = usize> {
        let first = Some(slot.first as usize).filter(|&chunk| chunk != 0);
        core::iter::successors(first, |&chunk| {
            Some(self.links[chunk].next as usize).filter(|&next| next != 0)
        })
    }

    /// Every entry of a slot, in the order in which they were filed: the whole deadline,
    /// the node, and the position.
    pub(crate) fn iter(&self, slot: Slot, now: u64) -> impl Iterator<Item = (u64, u32, Position)> {
        self.chain(slot).flat_map(move |chunk| {
            members(self.live(slot, chunk)).map(move |at| {
                let (deadline, node) = self.entry(chunk, at as usize, now);
                let position = Position::new(narrow(chunk) * CHUNK + at);
                (deadline, node, position)
            })
        })
    }

    /// The first entry of a slot: its deadline, its node, and its position.
    #[inline(always)]
    pub(crate) fn first(&self, slot: Slot, now: u64) -> Option<(u64, u32, Position)> {
        let chunk = slot.first;
        if chunk == NONE {
            return None;
        }
        let at = self.live(slot, chunk as usize).trailing_zeros() % CHUNK;
        let (deadline, node) = self.entry(chunk as usize, at as usize, now);
        Some((deadline, node, Position::new(chunk * CHUNK + at)))
    }

    /// The deadline of the entry at a position.
    #[inline]
    pub(crate) fn deadline(&self, position: Position, now: u64) -> u64 {
        let (chunk, at) = split(position.get());
        self.entry(chunk, at, now).0
    }

    /// The whole deadline and the node of an entry.
    #[inline(always)]
    pub(crate) fn entry(&self, chunk: usize, at: usize, now: u64) -> (u64, u32) {
        let entry = self.entries.cell(chunk)[at];
        let upper = match self.links[chunk].upper {
            NONE => upper(now),
            beside => self.entries.cell(beside as usize)[at].deadline,
        };
        (joined(upper, entry.deadline), entry.node)
    }

    /// Whether a chunk has upper halves.
    #[inline]
    pub(crate) fn is_wide(&self, chunk: usize) -> bool {
        self.links[chunk].upper != NONE
    }

    /// The chunk behind this one, or 0.
    pub(crate) fn next(&self, chunk: u32) -> u32 {
        self.links[chunk as usize].next
    }

    /// Which entries of a chunk are due by `last_due`, as bits.
    pub(crate) fn due(&self, slot: Slot, chunk: u32, last_due: u64, now: u64) -> u32 {
        let chunk = chunk as usize;
        let live = self.live(slot, chunk);
        if self.is_wide(chunk) || upper(last_due) != upper(now) {
            let is_due = |at: &u32| self.entry(chunk, *at as usize, now).0 <= last_due;
            return members(live)
                .filter(is_due)
                .fold(0, |due, at| due | 1 << at);
        }
        let entries = (0..).zip(self.entries.cell(chunk));
        let due = entries.fold(0, |due, (at, entry)| {
            due | u32::from(entry.deadline <= lower(last_due)) << at
        });
        due & live
    }

    #[inline]
    pub(crate) fn live(&self, slot: Slot, chunk: usize) -> u32 {
        match self.live[chunk] {
            0 => slot.live,
            live => live,
        }
    }

    #[inline]
    pub(crate) fn entries(&self, chunk: usize) -> &[ChunkEntry; CHUNK as usize] {
        self.entries.cell(chunk)
    }

    /// Whether cancels have left the chunks so empty that some should be merged: less
    /// than an eighth full, apart from one chunk for each occupied slot.
    #[inline]
    pub(crate) fn are_sparse(&self, slots: &Slots, len: usize) -> bool {
        self.in_use > len / (CHUNK as usize / 8) + slots.occupied_len
    }

    /// Looks at the next chunk, and merges it with those behind it on its chain as long as
    /// all fit into one. Tells which nodes' entries now stand where; the caller notes it.
    pub(crate) fn merge_next(
        &mut self,
        slots: &mut Slots,
        now: u64,
    ) -> Option<impl Iterator<Item = (u32, Position)> + Clone + use<>> {
        self.merged_up_to += 1;
        if self.merged_up_to as usize >= self.live.len() {
            self.merged_up_to = 0;
        }
        let chunk = self.merged_up_to;
        let is_closed = self.live[chunk as usize] != 0;
        let next = self.next(chunk);
        if !is_closed || next == NONE {
            return None;
        }
        let slot = self.links[chunk as usize].slot as usize;
        let live_in = |chunks: &Self, chunk: u32| chunks.live(slots.slots[slot], chunk as usize);
        if (live_in(self, chunk).count_ones() + live_in(self, next).count_ones()) > CHUNK {
            return None;
        }
        let mut merged = [(0, 0); CHUNK as usize];
        let mut len = 0;
        let mut from = chunk;
        loop {
            for at in members(self.live(slots.slots[slot], from as usize)) {
                merged[len] = self.entry(from as usize, at as usize, now);
                len += 1;
            }
            if from != chunk {
                self.take_over_upper(chunk, from);
                self.unchain(slots, from as usize); // then the slot has no room in `chunk`
            }
            from = self.next(chunk);
            let more = self.live(slots.slots[slot], from as usize).count_ones();
            if from == NONE || len + more as usize > CHUNK as usize {
                break;
            }
        }
        let is_wide = self.is_wide(chunk as usize);
        for (at, &(deadline, node)) in (0..).zip(&merged[..len]) {
            if is_wide {
                self.put_upper(chunk, at, deadline);
            }
            self.put(chunk * CHUNK + at, deadline, node);
        }
        let live = u32::MAX >> (CHUNK - narrow(len));
        if self.next(chunk) == NONE && !is_wide {
            self.live[chunk as usize] = 0; // it is open again
            slots.slots[slot].live = live;
            slots.slots[slot].next = chunk * CHUNK + narrow(len);
        } else {
            self.live[chunk as usize] = live;
        }
        let positions = (0..len).map(move |at| Position::new(chunk * CHUNK + narrow(at)));
        Some(merged.into_iter().map(|(_, node)| node).zip(positions))
    }

    /// Gives `chunk` the other one's upper halves, if it has none.
    fn take_over_upper(&mut self, chunk: u32, other: u32) {
        if self.links[chunk as usize].upper == NONE {
            let upper = core::mem::replace(&mut self.links[other as usize].upper, NONE);
            self.links[chunk as usize].upper = upper;
        }
    }

    /// Releases segments in which no chunk is in use, so many at most, and tells how many.
    pub(crate) fn shrink_by(&mut self, most: usize) -> usize {
        let unused = self.indices.release_unused(most);
        for &segment in &unused {
            drop(self.entries.release(segment));
        }
        let chunks = self.indices.end();
        self.live.truncate(chunks);
        self.live.shrink_to_fit();
        self.links.truncate(chunks);
        self.links.shrink_to_fit();
        unused.len()
    }

    /// How many chunks are on chains.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
            + self.indices.bytes()
            + self.live.capacity() * size_of::<u32>()
            + self.links.capacity() * size_of::<Links>()
    }

    /// Checks every chain, and that the books agree with them.
    pub(crate) fn check(&self, slots: &Slots, len: usize) {
        slots.occupied.check();
        let mut chained = alloc::vec![false; self.live.len()];
        let (mut in_use, mut live, mut occupied_len) = (0, 0, 0);
        for (number, &slot) in slots.slots.iter().enumerate() {
            let is_occupied = slot.first != NONE;
            occupied_len += usize::from(is_occupied);
            assert_eq!(
                slots.occupied.contains(number),
                is_occupied && number < slots.len(),
                "a slot's bit says whether it is occupied"
            );
            let mut previous = NONE;
            for chunk in self.chain(slot) {
                let links = self.links[chunk];
                assert_eq!(links.previous, previous, "the links agree both ways");
                assert_eq!(links.slot as usize, number, "a chunk knows its slot");
                let is_last = links.next == NONE;
                assert!(
                    is_last || self.live[chunk] != 0,
                    "only the last one is open"
                );
                let live_here = self.live(slot, chunk);
                assert_ne!(live_here, 0, "a chunk on a chain has entries");
                for part in [chunk, links.upper as usize] {
                    assert!(part == 0 || !chained[part], "a chunk is on one chain");
                    chained[part] = part != 0;
                }
                in_use += 1;
                live += live_here.count_ones() as usize;
                previous = narrow(chunk);
            }
            assert_eq!(slot.last(), previous, "a slot knows its last chunk");
        }
        assert_eq!(in_use, self.in_use, "the number of chunks is known");
        assert_eq!(live, len, "every entry is in one chunk");
        assert_eq!(
            occupied_len, slots.occupied_len,
            "the occupied slots are counted"
        );
        self.indices
            .check(|chunk| Some(chunk == 0 || chained.get(chunk).is_some_and(|&on| on)));
    }
}

/// A chunk that was taken off its chain.
pub(crate) struct Taken {
    entries: [ChunkEntry; CHUNK as usize],
    uppers: Option<[ChunkEntry; CHUNK as usize]>,
    live: u32,
}

impl Taken {
    /// How many live entries it has.
    pub(crate) fn len(&self) -> usize {
        self.live.count_ones() as usize
    }

    /// The live entries, first to last, with their whole deadlines.
    #[inline]
    pub(crate) fn iter(&self, now: u64) -> impl Iterator<Item = (u64, u32)> {
        members(self.live).map(move |at| {
            let entry = self.entries[at as usize];
            let upper = match &self.uppers {
                Some(uppers) => uppers[at as usize].deadline,
                None => upper(now),
            };
            (joined(upper, entry.deadline), entry.node)
        })
    }

    /// Appends the live entries, whose upper halves are that of the hand, to a list.
    #[inline]
    pub(crate) fn move_narrow(&self, to: &mut Vec<ChunkEntry>) {
        debug_assert!(
            self.uppers.is_none(),
            "the hand's upper half is that of all"
        );
        if self.live == u32::MAX {
            to.extend_from_slice(&self.entries);
        } else {
            to.extend(members(self.live).map(|at| self.entries[at as usize]));
        }
    }
}

/// The numbers of the bits that are set, lowest first.
#[inline]
pub(crate) fn members(bits: u32) -> impl Iterator<Item = u32> {
    let mut rest = bits;
    core::iter::from_fn(move || {
        (rest != 0).then(|| {
            let at = rest.trailing_zeros();
            rest &= rest - 1;
            at
        })
    })
}

#[inline]
pub(crate) fn upper(tick: u64) -> u32 {
    (tick >> 32) as u32
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is asked for"
)]
pub(crate) fn lower(tick: u64) -> u32 {
    tick as u32
}

#[inline]
pub(crate) fn joined(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

/// The chunk of a position, and the place in it.
#[inline]
fn split(position: u32) -> (usize, usize) {
    ((position / CHUNK) as usize, (position % CHUNK) as usize)
}

/// Chunks, slots and places in a chunk are numbered in 32 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "what is numbered so fits")]
fn narrow(number: usize) -> u32 {
    number as u32
}
