//! W6: resident bytes for each pending timer, its id included, its handle not.

use anyhow::Context as _;

use super::{Figures, figures, finish, room};
use crate::competitor::Competitor;
use crate::random::{Delays, index};

pub(super) fn measure<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let delays = Delays::Uniform.list(index(timers));
    let mut handles = room(timers);
    let mut competitor = C::new(Delays::Uniform.longest());
    let before = resident()?;
    for ((id, &delay), handle) in (0..).zip(&delays).zip(handles.iter_mut()) {
        *handle = Some(competitor.schedule(u64::from(delay), id));
    }
    let grown = resident()? - before;
    finish(competitor, handles);
    Ok(figures([("w6", grown / timers as f64)]))
}

/// Resident bytes of this process. The kernel counts them for `smaps_rollup` page by
/// page; the counters behind `statm` are only roughly up to date.
fn resident() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")
        .context("the resident memory is unknown")?;
    let kibibytes = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<f64>().ok())
        .context("the kernel does not say how much memory is resident")?;
    Ok(kibibytes * 1024.0)
}
