//! What several tests share.

pub(crate) mod ask;

pub(crate) mod forward;
pub(crate) mod kept;
pub(crate) mod random;
pub(crate) mod sample;
