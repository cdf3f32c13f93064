//! The frames that every file of a table store is made of, and the numbers in them.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use countwheel_time::Timestamp;

use crate::codec::{self, Indexed};
use crate::{DueClock, Revision, StateKind, TimerName, Wake};
use crate::{Position, Shard};

/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 8;
/// The bytes of a frame before its body: checksum, length, kind, three zeros.
pub(super) const FRAME_HEADER: usize = 12;
/// The version of a table, in its footer.
pub(super) const VERSION: u32 = 3;
/// The due index of a table of this version does not say in which state a record is.
const VERSION_WITHOUT_KINDS: u32 = 2;
/// In the byte that says the kind of a frame: its body is packed.
const PACKED: u8 = 1 << 7;
/// A shorter body is not packed.
const PACK_MIN_BYTES: usize = 64;
/// LZ4 never makes more than this of a byte.
const UNPACKED_OF_A_BYTE: usize = 255;
/// A record longer than this has a frame of its own, so that looking for its name reads little.
pub(super) const LARGE_BYTES: usize = 2 << 10;
/// An index tree is at most so high: more than any file can need.
pub(super) const HEIGHT_MAX: u32 = 16;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// Records by name.
    Records = 1,
    /// Names by clock and wake.
    Due = 2,
    /// Keys by queue, state, due and revision.
    List = 3,
    /// Last keys of frames, and where these stand.
    Index = 4,
    /// One large record.
    Large = 5,
    /// A filter over names.
    Filter = 6,
    /// What the file holds.
    Footer = 7,
    /// What the store holds.
    Manifest = 8,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        [
            Self::Records,
            Self::Due,
            Self::List,
            Self::Index,
            Self::Large,
            Self::Filter,
            Self::Footer,
            Self::Manifest,
        ]
        .into_iter()
        .find(|&kind| kind as u8 == byte & !PACKED)
    }
}

/// Bytes with the right checksum that make no sense: another program wrote them, or a mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

/// Which file of which store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TablePlace {
    pub(super) store_id: u64,
    pub(super) file: u64,
}

impl TablePlace {
    /// Appends a frame that is to stand at `offset`, and fills up to the next one. `kind` is the
    /// byte that says it.
    pub(super) fn write(self, offset: u64, kind: u8, body: &[u8], out: &mut Vec<u8>) {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(&self.checksum(offset, kind, body).to_le_bytes());
        out.extend_from_slice(&length);
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out.extend_from_slice(body);
        let padding = usize::try_from(frame_len(body.len())).unwrap_or(usize::MAX)
            - FRAME_HEADER
            - body.len();
        out.resize(out.len() + padding, 0);
    }

    /// The checksum of a frame: bytes of another store or file, or from elsewhere in this one,
    /// do not have it.
    pub(super) fn checksum(self, offset: u64, kind: u8, body: &[u8]) -> u32 {
        let mut salt = [0; 33];
        salt[..8].copy_from_slice(&self.store_id.to_le_bytes());
        salt[8..16].copy_from_slice(&self.file.to_le_bytes());
        salt[16..24].copy_from_slice(&offset.to_le_bytes());
        salt[24..32].copy_from_slice(&(body.len() as u64).to_le_bytes());
        salt[32] = kind;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&salt);
        hasher.update(body);
        hasher.finalize()
    }

    /// Takes the frame in `bytes`, which is all of it but what fills up to the next one. Its kind,
    /// and the frame with its body as it was before it was packed; `None` if it is none.
    pub(super) fn open(self, offset: u64, bytes: Vec<u8>) -> Option<(Kind, Vec<u8>)> {
        let (header, body) = bytes.split_first_chunk::<FRAME_HEADER>()?;
        let fits = u32_at(header, 4) as usize == body.len()
            && u32_at(header, 0) == self.checksum(offset, header[8], body)
            && header[9..] == [0; 3];
        let kind = Kind::of(header[8]).filter(|_| fits)?;
        let is_packed = header[8] & PACKED != 0;
        let opened = if is_packed { unpack(&bytes)? } else { bytes };
        Some((kind, opened))
    }
}

/// Packs bodies: most payloads are text, and names and numbers in order are much alike.
#[derive(Default)]
pub(super) struct Packer {
    table: CompressTable,
    packed: Vec<u8>,
}

impl Packer {
    /// The byte that says the kind of the frame, and its body as it is to be written: packed, if
    /// that saves an eighth at least.
    pub(super) fn pack<'a>(&'a mut self, kind: Kind, body: &'a [u8]) -> (u8, &'a [u8]) {
        let plain = (kind as u8, body);
        let Ok(length) = u32::try_from(body.len()) else {
            return plain;
        };
        if body.len() < PACK_MIN_BYTES {
            return plain;
        }
        let most = 4 + get_maximum_output_size(body.len());
        if self.packed.len() < most {
            self.packed.resize(most, 0);
        }
        self.packed[..4].copy_from_slice(&length.to_le_bytes());
        let packed = compress_into_with_table(body, &mut self.packed[4..], &mut self.table);
        match packed {
            Ok(len) if 4 + len <= body.len() - body.len() / 8 => {
                (kind as u8 | PACKED, &self.packed[..4 + len])
            }
            _ => plain,
        }
    }
}

/// The length that is stated for what was packed to `packed` bytes. Whatever it says, no more is
/// set aside than there can be.
fn unpacked_len(stated: [u8; 4], packed: usize) -> Option<usize> {
    let most = packed.saturating_mul(UNPACKED_OF_A_BYTE);
    let stated = u32::from_le_bytes(stated) as usize;
    (stated <= most).then_some(stated)
}

/// The frame with its body unpacked.
fn unpack(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, body) = frame.split_first_chunk::<FRAME_HEADER>()?;
    let (length, packed) = body.split_first_chunk::<4>()?;
    let length = unpacked_len(*length, packed.len())?;
    let mut out = vec![0; FRAME_HEADER + length];
    out[..FRAME_HEADER].copy_from_slice(header);
    let filled = decompress_into(packed, &mut out[FRAME_HEADER..]).ok()?;
    (filled == length).then_some(out)
}

/// Where a frame stands, and how long its body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pointer {
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Pointer {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        put_varint(out, self.offset / ALIGNMENT);
        put_varint(out, u64::from(self.len));
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut at = 0;
        let offset = varint(bytes, &mut at)?;
        let len = varint(bytes, &mut at)?;
        if at != bytes.len() {
            return Err(Malformed);
        }
        Ok(Self {
            offset: offset.checked_mul(ALIGNMENT).ok_or(Malformed)?,
            len: u32::try_from(len).map_err(|_| Malformed)?,
        })
    }
}

/// A tree over one part of a table: where its root stands, and how many levels of indexes there
/// are. An empty part has a root of length zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tree {
    pub(super) root: Pointer,
    pub(super) height: u32,
}

/// How many bytes a frame with such a body takes.
pub(super) fn frame_len(body: usize) -> u64 {
    ((FRAME_HEADER + body) as u64).next_multiple_of(ALIGNMENT)
}

/// What a footer says. Its body is
///
/// ```text
/// | magic 8 | version u32 | content u32 | newest u64 | records u64 | tombstones u64 | dues u64 |
/// | by name | by wake | by queue | filter |
/// ```
///
/// where the last four are an offset u64, a length u32 and a height u32 each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Footer {
    version: u32,
    /// The last ingest of which something is in the table.
    pub(super) newest: u64,
    /// The CRC-32 of the checksums of all frames before, so that tables with one footer are one.
    pub(super) content: u32,
    pub(super) records: u64,
    pub(super) tombstones: u64,
    /// Entries of the due index. The list index has as many as there are records.
    pub(super) dues: u64,
    /// By name, by wake, by queue.
    pub(super) trees: [Tree; 3],
    pub(super) filter: Pointer,
}

impl Default for Footer {
    fn default() -> Self {
        Self {
            version: VERSION,
            newest: 0,
            content: 0,
            records: 0,
            tombstones: 0,
            dues: 0,
            trees: [Tree::default(); 3],
            filter: Pointer::default(),
        }
    }
}

const TABLE_MAGIC: [u8; 8] = *b"cwheeltb";
const FOOTER_BODY: usize = 8 + 8 + 4 * 8 + 4 * 16;

/// Where the footer of a file of this length stands: at its end.
pub(super) fn footer_pointer(length: u64) -> Option<Pointer> {
    Some(Pointer {
        offset: length.checked_sub(frame_len(FOOTER_BODY))?,
        len: u32::try_from(FOOTER_BODY).ok()?,
    })
}

impl Footer {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(FOOTER_BODY);
        body.extend_from_slice(&TABLE_MAGIC);
        body.extend_from_slice(&self.version.to_le_bytes());
        body.extend_from_slice(&self.content.to_le_bytes());
        for number in [self.newest, self.records, self.tombstones, self.dues] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        let filter = Tree {
            root: self.filter,
            height: 0,
        };
        for tree in self.trees.iter().chain([&filter]) {
            body.extend_from_slice(&tree.root.offset.to_le_bytes());
            body.extend_from_slice(&tree.root.len.to_le_bytes());
            body.extend_from_slice(&tree.height.to_le_bytes());
        }
        body
    }

    /// What the body of a footer says; the version, if it is another one.
    pub(super) fn read(body: &[u8]) -> Result<Result<Self, u32>, Malformed> {
        if body.len() < 12 || body[..8] != TABLE_MAGIC {
            return Err(Malformed);
        }
        let version = u32_at(body, 8);
        if !(VERSION_WITHOUT_KINDS..=VERSION).contains(&version) {
            return Ok(Err(version));
        }
        if body.len() != FOOTER_BODY {
            return Err(Malformed);
        }
        let tree = |at| Tree {
            root: Pointer {
                offset: u64_at(body, at),
                len: u32_at(body, at + 8),
            },
            height: u32_at(body, at + 12),
        };
        let trees = [tree(48), tree(64), tree(80)];
        if trees.iter().any(|tree| tree.height > HEIGHT_MAX) {
            return Err(Malformed);
        }
        Ok(Ok(Self {
            version,
            content: u32_at(body, 12),
            newest: u64_at(body, 16),
            records: u64_at(body, 24),
            tombstones: u64_at(body, 32),
            dues: u64_at(body, 40),
            trees,
            filter: tree(96).root,
        }))
    }
}

impl Footer {
    /// What stands behind a wake in the due index: the name, and a byte for the state of the record.
    pub(super) fn due_value(&self, name: &[u8], kind: StateKind, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(name);
        if self.version > VERSION_WITHOUT_KINDS {
            out.push(kind as u8);
        }
    }

    /// The name and the state that [`due_value`](Self::due_value) put there; `None` where the table
    /// does not know the state.
    pub(super) fn due_parts<'a>(
        &self,
        value: &'a [u8],
    ) -> Result<(&'a [u8], Option<StateKind>), Malformed> {
        if self.version == VERSION_WITHOUT_KINDS {
            return Ok((value, None));
        }
        let (&kind, name) = value.split_last().ok_or(Malformed)?;
        let kind = StateKind::ALL.get(usize::from(kind)).ok_or(Malformed)?;
        Ok((name, Some(*kind)))
    }
}

/// What stands behind a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    /// Whatever older tables have was removed.
    Tombstone,
    /// A record without its name and its checksum.
    Inline(&'a [u8]),
    /// The same in a frame of its own.
    Large(Pointer),
    /// A record that could not be read when it was flushed here, and what was known of it.
    Unreadable(Indexed),
}

const TOMBSTONE: u8 = 0;
const INLINE: u8 = 1;
const LARGE: u8 = 2;
const UNREADABLE: u8 = 3;

/// What stands behind the byte that says that a record could not be read.
const INDEXED_BYTES: usize = 3 + 4 * 8;

fn write_indexed(indexed: Indexed, out: &mut Vec<u8>) {
    let Indexed {
        kind,
        position,
        wake,
        clock,
    } = indexed;
    out.extend_from_slice(&[kind as u8, clock as u8, u8::from(wake.is_some())]);
    let Wake { at, revision } = wake.unwrap_or_default();
    for number in [
        position.due.as_micros(),
        position.revision.0,
        at.as_micros(),
        revision.0,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn read_indexed(bytes: &[u8]) -> Result<Indexed, Malformed> {
    let bytes: &[u8; INDEXED_BYTES] = bytes.try_into().map_err(|_| Malformed)?;
    let kinds = StateKind::ALL;
    let &kind = kinds.get(usize::from(bytes[0])).ok_or(Malformed)?;
    let clocks = DueClock::ALL;
    let &clock = clocks.get(usize::from(bytes[1])).ok_or(Malformed)?;
    let number = |index: usize| u64_at(bytes, 3 + 8 * index);
    let wake = Wake {
        at: Timestamp::from_micros(number(2)),
        revision: Revision(number(3)),
    };
    Ok(Indexed {
        kind,
        position: Position {
            due: Timestamp::from_micros(number(0)),
            revision: Revision(number(1)),
        },
        wake: (bytes[2] == 1).then_some(wake),
        clock,
    })
}

impl<'a> Value<'a> {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Tombstone => out.push(TOMBSTONE),
            Self::Inline(stripped) => {
                out.push(INLINE);
                out.extend_from_slice(stripped);
            }
            Self::Large(pointer) => {
                out.push(LARGE);
                pointer.write(out);
            }
            Self::Unreadable(indexed) => {
                out.push(UNREADABLE);
                write_indexed(indexed, out);
            }
        }
    }

    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes.split_first() {
            Some((&TOMBSTONE, [])) => Ok(Self::Tombstone),
            Some((&INLINE, stripped)) => Ok(Self::Inline(stripped)),
            Some((&LARGE, pointer)) => Ok(Self::Large(Pointer::read(pointer)?)),
            Some((&UNREADABLE, indexed)) => Ok(Self::Unreadable(read_indexed(indexed)?)),
            _ => Err(Malformed),
        }
    }
}

/// What a record's bytes begin with: the version, the queue and the key, as the codec has them.
fn head(version: u8, key: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let name = key.get(SHARD_BYTES..).ok_or(Malformed)?;
    let end = name.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
    out.push(version);
    put_varint(out, end as u64);
    out.extend_from_slice(&name[..end]);
    put_varint(out, (name.len() - end - 1) as u64);
    out.extend_from_slice(&name[end + 1..]);
    Ok(())
}

/// The bytes of a record without its name, which the key says already, and without its checksum,
/// since a frame has one. To have both would be worse: with the same polynomial, the checksum of
/// bytes that end in their checksum is the same whatever they are.
pub(super) fn strip(key: &[u8], encoded: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (covered, _) = encoded.split_last_chunk::<4>().ok_or(Malformed)?;
    let &version = covered.first().ok_or(Malformed)?;
    out.clear();
    head(version, key, out)?;
    let rest = covered.strip_prefix(&out[..]).ok_or(Malformed)?;
    out.truncate(1);
    out.extend_from_slice(rest);
    Ok(())
}

/// The bytes of the record whose key and stripped bytes these are.
pub(super) fn restore(key: &[u8], stripped: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    restore_unchecked(key, stripped, out)?;
    out.extend_from_slice(&crc32fast::hash(out).to_le_bytes());
    Ok(())
}

/// The same without its checksum.
pub(super) fn restore_unchecked(
    key: &[u8],
    stripped: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    out.clear();
    let (&version, rest) = stripped.split_first().ok_or(Malformed)?;
    head(version, key, out)?;
    out.extend_from_slice(rest);
    Ok(())
}

/// The bytes of a key that say the shard.
pub(super) const SHARD_BYTES: usize = 2;

/// The shard and the name of a key.
pub(super) fn name_of(key: &[u8]) -> Result<(Shard, TimerName), Malformed> {
    let (shard, name) = key.split_first_chunk::<SHARD_BYTES>().ok_or(Malformed)?;
    let name = codec::name_of(name).map_err(|_| Malformed)?;
    Ok((Shard(u16::from_be_bytes(*shard)), name))
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

/// Reads a number of at most ten bytes.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Malformed> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let &byte = bytes.get(*at).ok_or(Malformed)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

/// Reads a length, which is below 2^32, so that adding a few of them cannot overflow.
pub(super) fn length(bytes: &[u8], at: &mut usize) -> Result<usize, Malformed> {
    let length = u32::try_from(varint(bytes, at)?).map_err(|_| Malformed)?;
    usize::try_from(length).map_err(|_| Malformed)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_no_more() {
        let place = TablePlace {
            store_id: 7,
            file: 1,
        };
        let mut packer = Packer::default();
        for body in [vec![0; 1 << 20], vec![7; 100], b"text ".repeat(9_000)] {
            let (kind, packed) = packer.pack(Kind::Records, &body);
            assert!(packed.len() < body.len() / 2);
            let most = packed.len() - 4;
            let stated = |len: usize| u32::try_from(len).unwrap().to_le_bytes();
            assert_eq!(unpacked_len(stated(body.len()), most), Some(body.len()));
            assert_eq!(unpacked_len(stated(most * 256), most), None);
            let mut frame = Vec::new();
            place.write(8, kind, packed, &mut frame);
            frame.truncate(FRAME_HEADER + packed.len());
            let (kind, opened) = place.open(8, frame.clone()).unwrap();
            assert!(kind == Kind::Records && opened[FRAME_HEADER..] == body);
            // The checksum is right, and the length is not.
            for wrong in [body.len() - 1, body.len() + 1] {
                let mut body = packed.to_vec();
                body[..4].copy_from_slice(&stated(wrong));
                let mut frame = Vec::new();
                place.write(8, PACKED | 1, &body, &mut frame);
                frame.truncate(FRAME_HEADER + body.len());
                assert!(place.open(8, frame).is_none());
            }
        }
        let noise: Vec<u8> = (0_u32..2_000)
            .map(|number| (number.wrapping_mul(0x9e37_79b9) >> 24) as u8)
            .collect();
        assert_eq!(packer.pack(Kind::Due, &noise[..63]).0, Kind::Due as u8);
    }
}
