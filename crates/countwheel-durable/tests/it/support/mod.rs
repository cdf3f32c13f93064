//! What several tests share.

pub(crate) mod ask;

pub(crate) mod forward;
pub(crate) mod sample;
