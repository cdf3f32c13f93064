//! The library is empty. The programs are in `examples`, each beside the same one with today's usual crates, and
//! `docs/programs.md` compares them.

#![forbid(unsafe_code)]
