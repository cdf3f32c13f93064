//! Machines whose wall clock is wrong, by libfaketime: what a program is told of the time is in a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library that makes up the time of a program.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut found = found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|path| path.exists())
        .expect("libfaketime: cargo xtask says what is missing")
}

/// What a program is started with that is to read its wall clock in the file.
pub(crate) fn environment(clock: &Path) -> Vec<(&'static str, OsString)> {
    vec![
        ("LD_PRELOAD", library().into()),
        ("FAKETIME_TIMESTAMP_FILE", clock.into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ]
}

/// Sets the clock: so far from the right time, and perhaps how fast it goes, as in `+5 x1.1`.
pub(crate) fn set(clock: &Path, to: &str) {
    // At once: the program reads it whenever it asks for the time.
    let new = clock.with_extension("new");
    std::fs::write(&new, format!("{to}\n")).unwrap();
    std::fs::rename(&new, clock).unwrap();
}
