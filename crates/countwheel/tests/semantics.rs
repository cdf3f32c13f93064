//! The comparison with other timers, row by row: `docs/semantics.md` names for every row the
//! tests that show what Countwheel does. Those that are here are ordered as the document is.
//! `document` reads it, and the durable promises beside it; `way` reads the page about the way of
//! a timer. Nothing here sleeps.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "semantics/add.rs"]
mod add;
#[path = "semantics/can.rs"]
mod can;
#[path = "semantics/cap.rs"]
mod cap;
#[path = "semantics/cfg.rs"]
mod cfg;
#[path = "semantics/clk.rs"]
mod clk;
#[path = "semantics/document.rs"]
mod document;
#[path = "semantics/exp.rs"]
mod exp;
#[path = "semantics/harness.rs"]
mod harness;
#[path = "semantics/hie.rs"]
mod hie;
#[path = "semantics/lif.rs"]
mod lif;
#[path = "semantics/obs.rs"]
mod obs;
mod support;
#[path = "semantics/tst.rs"]
mod tst;
#[path = "semantics/way.rs"]
mod way;
