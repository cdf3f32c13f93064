//! The peers, each with its own server and its own way to set a timer.

pub(crate) mod beanstalkd;
pub(crate) mod graphile;
