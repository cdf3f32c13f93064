//! Models of the concurrent part of Countwheel: threads that meet in a timer, in every possible order.
//!
//! There is nothing here but tests, and each of them is a crate of its own that compiles copies of
//! the product's files, such as those of `countwheel/src/concurrent`. What those take from the
//! machine (locks, atomics, fences, threads), they take from `crate::sync`, and here that is the
//! checker's. Nothing needs a flag, and nothing else is built anew.
//!
//! - `tests/loom` runs small models, of two or three threads, in every order and with every
//!   value that the memory model lets a thread read.
//! - `tests/loom_patterns` does the same with `countwheel-patterns/src/concurrent`.
//! - `tests/shuttle` runs a whole timer's life on 8 to 16 threads, in orders drawn by chance.
//! - `tests/fence` visits every state of the fence of the store in a PostgreSQL: two nodes, a database, what
//!   is lost and what is late. It compiles no file of the product, and has mistakes of its own.
//! - `tests/wheels` has nothing to do with threads: it plants mistakes in the wheels, which the model
//!   test of `countwheel-core` must find.
//!
//! A model that cannot fail proves nothing. So each one is run again with mistakes planted in the
//! copies, and has to find each of its own. `mutations/` lists the mistakes, and `build.rs` plants
//! them: a new one goes into a list, and the name of it into a model.
//!
//! ```sh
//! cargo test -p countwheel-models -- --nocapture       # says how many orders each took
//! COUNTWHEEL_MODELS=deep cargo test -p countwheel-models --release
//! ```
//!
//! With `deep`, loom interrupts the threads of its larger models five times rather than three, and
//! shuttle draws a hundred times as many orders, others each time. Such a run takes minutes.
