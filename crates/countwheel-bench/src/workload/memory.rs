//! W6: resident bytes for each pending timer, its id included, its handle not.

use super::{Figures, figures, finish, room};
use crate::competitor::Competitor;
use crate::random::{Delays, index};
use crate::system::resident;

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
