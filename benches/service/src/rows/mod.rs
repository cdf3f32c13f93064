//! The rows, a file for each.

pub(crate) mod batch;
pub(crate) mod deliveries;
pub(crate) mod events;
pub(crate) mod isolation;
pub(crate) mod leases;
pub(crate) mod lists;
pub(crate) mod namespaces;
pub(crate) mod sets;

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Row {
    /// Bad receivers among good ones
    Isolation,
    /// Durable sets a second
    Sets,
    /// Deliveries a second, and how late they are
    Deliveries,
    /// Leases that workers ack a second
    Leases,
    /// Sets in one batch
    Batch,
    /// Lists, figures and metrics of a store with many queues
    Lists,
    /// Streams of events beside deliveries
    Events,
    /// A namespace beside one that is flooded
    Namespaces,
}

/// In which order a pair has its runs: without, or with, what is measured first. The order changes, so that neither kind has the
/// quieter half of each pair.
fn order(pair: usize) -> [bool; 2] {
    match pair % 2 {
        1 => [false, true],
        _ => [true, false],
    }
}
