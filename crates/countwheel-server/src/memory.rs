//! Gives unused memory back to the system.

/// Executes the program again, in the same process, with memory settings under which it stays small
/// however long it runs. Returns if the settings are there already or cannot be made; the program
/// then goes on as it is.
///
/// Elsewhere than with the GNU C library it does nothing.
///
/// ```no_run
/// countwheel_server::memory::keep_little(); // first of all: before any thread or file
/// ```
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    gnu::begin_again();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod gnu {
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    /// What the library reads from the environment at the start, in bytes: from which size on a
    /// piece of memory is the system's own, and how much may be free at the end of an arena before
    /// it is given back. By itself the library begins with 128 KiB for both; but whenever a larger
    /// piece is given back it raises them, up to 32 and 64 MiB, and never lowers them. It does not
    /// once it was told a value. 128 KiB cost a fifth of the peak, these nothing that could be
    /// measured: decision 4.
    const SETTINGS: [(&str, &str); 2] = [
        ("MALLOC_MMAP_THRESHOLD_", "4194304"),
        ("MALLOC_TRIM_THRESHOLD_", "1048576"),
    ];
    /// Who sets one of these knows better. The first two also say that this is the second time.
    const KNOWN: [&str; 3] = [SETTINGS[0].0, SETTINGS[1].0, "GLIBC_TUNABLES"];

    pub(super) fn begin_again() {
        let mut arguments = std::env::args_os();
        let (Some(called), Ok(program)) = (arguments.next(), std::env::current_exe()) else {
            return;
        };
        let is_known = KNOWN.iter().any(|name| std::env::var_os(name).is_some());
        // Under a loader that was named by hand, the program is the loader.
        if is_known || program.file_name() != Path::new(&called).file_name() {
            return;
        }
        let mut again = Command::new(program);
        let error = again.arg0(called).args(arguments).envs(SETTINGS).exec();
        eprintln!("countwheel: goes on with the memory settings that there are: {error}");
    }
}
