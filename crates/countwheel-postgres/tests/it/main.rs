//! The store on a simulated server: what needs no real one.

mod leases;
mod simulated;
