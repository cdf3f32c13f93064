//! Patterns for authors of a broker or a registry: for members of a cluster and clients of a log.
//!
//! | you want | take |
//! |---|---|
//! | members that leave unless they renew, with a limit on evictions at a time | [`Leases`], with the numbers of Eureka and SOFARegistry in [`LeaseConfig`] |
//! | requests that wait for a change under some keys, or for their time | [`DelayedOperations`], as in Kafka's purgatory |
//! | the numbers of a server of Dubbo | [`HeartbeatConfig::dubbo_server`](crate::HeartbeatConfig::dubbo_server) |
//!
//! ```
//! use countwheel::ManualHost;
//! use countwheel_patterns::broker::{LeaseConfig, Leases};
//! use std::time::Duration;
//!
//! let host = ManualHost::new();
//! let config = LeaseConfig::new(Duration::from_secs(90));
//! let leases = Leases::new(host.timer().clone(), config, |member: &String| {
//!     println!("{member} is gone");
//! });
//! assert_eq!(leases.len(), 0);
//! ```

pub use crate::delayed_operations::{
    DelayedOperation, DelayedOperationError, DelayedOperations, DelayedOperationsStats, Watch,
};
pub use crate::lease::{Lease, LeaseConfig, LeaseStats, Leases};
