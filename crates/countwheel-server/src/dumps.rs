//! Keeps what this process has in memory out of files of the system's making: a core dump has tokens, signing secrets
//! and payloads in it.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Refuses core dumps as [`refuse`] does, unless the operator wants them. A system that does not let it has a warning in the
/// log, and the service starts all the same.
///
/// ```no_run
/// countwheel_server::dumps::keep_out(false); // before any secret is read
/// ```
pub fn keep_out(are_wanted: bool) {
    if are_wanted {
        tracing::warn!("a core dump of this process has tokens, secrets and payloads in it");
    } else if let Err(error) = refuse() {
        tracing::warn!(%error, "the system may write core dumps of this process, with secrets in them");
    }
}

/// From here on the system writes no core dump of this process, nor hands one to another program, and no process of the
/// same user may attach itself as a debugger (`PR_SET_DUMPABLE`).
///
/// Elsewhere than on Linux it only sets the limit of the size of a core file (`RLIMIT_CORE`) to 0. Processes that this
/// one starts inherit that limit.
///
/// # Errors
/// The system's, if it refuses: then core dumps may be written as before.
///
/// ```no_run
/// countwheel_server::dumps::refuse()?; // before any secret is read
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn refuse() -> io::Result<()> {
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, nothing)?;
    // The limit alone is not asked where the system hands core dumps to a program.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}
