//! What several tests share, some of it with those of the engine.

pub(crate) mod content;
#[path = "../../../../countwheel-durable/tests/it/support/forward.rs"]
pub(crate) mod forward;
pub(crate) mod random;
#[path = "../../../../countwheel-durable/tests/it/support/sample.rs"]
pub(crate) mod sample;
