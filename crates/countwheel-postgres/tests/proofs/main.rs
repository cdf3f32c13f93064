//! What needs a real server: a stage of the gate, and too long for every `cargo test`.

mod postgres;
