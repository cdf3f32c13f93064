//! What both sides say first. Its form is the same in every version of the protocol, so that any two can
//! tell each other why they do not understand each other.

use countwheel_cluster::NodeId;

use crate::frame::FrameError;
use crate::planted::planted;

/// The versions of the protocol that this program speaks.
pub(crate) const SPOKEN: Versions = Versions { from: 1, to: 2 };

const MAGIC: [u8; 4] = *b"CWPR";
/// How long it is.
pub(crate) const HELLO_BYTES: usize = 4 + 1 + 2 + 2 + 8 + 16 + 16;

/// Versions of the protocol, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Versions {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Versions {
    /// The latest that both speak.
    pub(crate) fn common(self, other: Self) -> Option<u16> {
        let latest = self.to.min(other.to);
        (latest >= self.from.max(other.from)).then_some(latest)
    }
}

/// Whether the one who was called talks to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Welcome,
    /// No version in common.
    Version,
    /// Another cluster.
    Cluster,
    /// Another node, or another start of the same.
    Node,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) standing: Standing,
    pub(crate) versions: Versions,
    pub(crate) cluster: u64,
    /// Who speaks.
    pub(crate) from: NodeId,
    /// To whom.
    pub(crate) to: NodeId,
}

impl Hello {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend(MAGIC);
        bytes.push(match self.standing {
            Standing::Welcome => 0,
            Standing::Version => 1,
            Standing::Cluster => 2,
            Standing::Node => 3,
        });
        bytes.extend(self.versions.from.to_be_bytes());
        bytes.extend(self.versions.to.to_be_bytes());
        bytes.extend(self.cluster.to_be_bytes());
        bytes.extend(self.from.0.to_be_bytes());
        bytes.extend(self.to.0.to_be_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        let problem = "no hello";
        let malformed = || FrameError::Malformed { problem };
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| malformed())?;
        let (magic, rest) = bytes.split_at(4);
        let (standing, rest) = rest.split_at(1);
        let (versions, rest) = rest.split_at(4);
        let (cluster, rest) = rest.split_at(8);
        let (from, to) = rest.split_at(16);
        if magic != MAGIC {
            return Err(malformed());
        }
        let standing = match standing {
            [0] => Standing::Welcome,
            [1] => Standing::Version,
            [2] => Standing::Cluster,
            [3] => Standing::Node,
            _ => return Err(malformed()),
        };
        let number = |bytes: &[u8]| {
            let digits = bytes.iter();
            digits.fold(0_u128, |number, &digit| number << 8 | u128::from(digit))
        };
        let version = |bytes: &[u8]| u16::try_from(number(bytes)).unwrap_or(u16::MAX);
        Ok(Self {
            standing,
            versions: Versions {
                from: version(&versions[..2]),
                to: version(&versions[2..]),
            },
            cluster: u64::try_from(number(cluster)).unwrap_or(u64::MAX),
            from: NodeId(number(from)),
            to: NodeId(number(to)),
        })
    }

    /// How the one who was called, `me` of `cluster`, stands to who says this.
    pub(crate) fn judged_by(&self, cluster: u64, me: NodeId) -> Standing {
        if SPOKEN.common(self.versions).is_none() {
            Standing::Version
        } else if self.cluster != cluster && !planted!(PeersClusterUnchecked) {
            Standing::Cluster
        } else if self.to != me {
            Standing::Node
        } else {
            Standing::Welcome
        }
    }
}
