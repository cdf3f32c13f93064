//! Three nodes under load through what takes minutes, or what is measured.

mod primary;
mod rolling;
