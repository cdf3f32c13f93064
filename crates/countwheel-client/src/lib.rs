//! A client of Countwheel's HTTP API.

mod client;
pub mod roots;
pub mod time;
pub mod words;

pub use self::client::*;
