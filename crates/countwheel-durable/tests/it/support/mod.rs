//! What several tests share.

pub(crate) mod ask;
pub(crate) mod disk;
pub(crate) mod forward;
pub(crate) mod kept;
pub(crate) mod sample;
