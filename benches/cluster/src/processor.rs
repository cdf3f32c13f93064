//! How much of the processors a process has used, by what the kernel counts.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// What `/proc` counts in, on every Linux: hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// What a process has used until now.
pub(crate) fn used(process: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    Ok(of(&stat).context("a process is written as none is")?.used)
}

/// What a process and those that it started, and has not waited for, have used until now.
pub(crate) fn used_with_children(process: u32) -> anyhow::Result<Duration> {
    let mut all = used(process)?;
    for entry in fs::read_dir("/proc")? {
        // One that has ended meanwhile is left out.
        let stat = fs::read_to_string(entry?.path().join("stat"));
        if let Some(other) = stat.ok().as_deref().and_then(of)
            && other.parent == process
        {
            all += other.used;
        }
    }
    Ok(all)
}

struct Stat {
    parent: u32,
    used: Duration,
}

/// The name of the program stands in brackets, and may have any in it.
fn of(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = rest.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    Some(Stat {
        parent: ticks(1)?,
        used: TICK * ticks(11)? + TICK * ticks(12)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_used_is_read_behind_its_name() {
        let stat = "77 (post) gres: x) S 41 77 77 0 -1 4194560 900 0 3 0 250 50 7 8 20 0 1 0 9 1 1";
        let stat = of(stat).unwrap();
        assert_eq!((stat.parent, stat.used), (41, Duration::from_secs(3)));
        assert!(used_with_children(std::process::id()).is_ok());
    }
}
