//! Hosts: who finds out that time has passed, and runs what is due.
//!
//! Every host performs the same steps of the ledger. They differ in how they wait.

pub(crate) mod manual;
pub(crate) mod thread;
