//! What the concurrent part takes from the product's statistics.

/// Of the product's, which only the product can make.
#[expect(dead_code, reason = "no model looks at it")]
pub(crate) struct ShardLoad {
    pub(crate) pending: u64,
    pub(crate) occupied_slots: usize,
    pub(crate) fullest_slot: usize,
    pub(crate) memory_bytes: usize,
}
