//! The kernel's counters of this process.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_link, read_to_string};

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};

/// Resident bytes of this process. The kernel counts them for `smaps_rollup` page by
/// page; the counters behind `statm` are only roughly up to date.
pub(crate) fn resident() -> anyhow::Result<f64> {
    let text =
        read_to_string("/proc/self/smaps_rollup").context("the resident memory is unknown")?;
    let kibibytes = field(&text, "Rss:")
        .and_then(|rest| rest.strip_suffix("kB")?.trim().parse::<f64>().ok())
        .context("the kernel does not say how much memory is resident")?;
    Ok(kibibytes * 1024.0)
}

/// Nanoseconds that all threads of this process have spent on a processor, those that
/// have ended included.
pub(crate) fn processor_nanoseconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 * 1e9 + spent.tv_nsec as f64
}

/// How often each thread of this process but the calling one has gone to sleep by itself.
pub(crate) fn switches_of_others() -> anyhow::Result<BTreeMap<String, f64>> {
    let this = read_link("/proc/thread-self").context("this thread is unknown")?;
    let mut switches = BTreeMap::new();
    for entry in read_dir("/proc/self/task").context("the threads are unknown")? {
        let entry = entry?;
        let name = entry.file_name();
        if Some(name.as_os_str()) == this.file_name() {
            continue;
        }
        // A thread may have ended since it was listed.
        let Ok(text) = read_to_string(entry.path().join("status")) else {
            continue;
        };
        let count = field(&text, "voluntary_ctxt_switches:")
            .and_then(|count| count.parse().ok())
            .context("the kernel does not count switches")?;
        switches.insert(name.to_string_lossy().into_owned(), count);
    }
    Ok(switches)
}

/// What stands behind `name` in a file of the kernel.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_is_asked() {
        assert!(resident().unwrap() > 4096.0);
        assert!(processor_nanoseconds() > 0.0);
        // The test runs on a thread of its own, beside the main one.
        assert!(!switches_of_others().unwrap().is_empty());
    }
}
