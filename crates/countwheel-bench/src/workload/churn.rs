//! W1: schedule N timers, cancel all of them in random order; then once more with the memory
//! already allocated (W1w).

use std::hint::black_box;

use super::{Figures, figures, finish, room};
use crate::competitor::Competitor;
use crate::random::{Delays, index, shuffle};
use crate::stopwatch::Stopwatch;

pub(super) fn measure<C: Competitor>(timers: u64) -> Figures {
    let delays = Delays::Uniform.list(index(timers));
    let mut handles = room(timers);
    let mut competitor = C::new(Delays::Uniform.longest());

    let (schedule, cancel) = round(&mut competitor, 0, &delays, &mut handles);
    if !C::CANCELS {
        finish(competitor, handles);
        return figures([("w1-schedule", schedule)]);
    }
    handles.resize_with(index(timers), || None);
    let (schedule_warm, cancel_warm) = round(&mut competitor, timers, &delays, &mut handles);
    finish(competitor, handles);
    figures([
        ("w1-schedule", schedule),
        ("w1-cancel", cancel),
        ("w1w-schedule", schedule_warm),
        ("w1w-cancel", cancel_warm),
    ])
}

/// Nanoseconds for each schedule and each cancel. Shuffling is not timed.
fn round<C: Competitor>(
    competitor: &mut C,
    first_id: u64,
    delays: &[u32],
    handles: &mut Vec<Option<C::Handle>>,
) -> (f64, f64) {
    let timers = delays.len() as u64;
    let watch = Stopwatch::start();
    for ((id, &delay), handle) in (first_id..).zip(delays).zip(handles.iter_mut()) {
        *handle = Some(competitor.schedule(u64::from(delay), id));
    }
    let schedule = watch.nanoseconds_per(timers);
    if !C::CANCELS {
        return (schedule, 0.0);
    }
    shuffle(handles);
    let watch = Stopwatch::start();
    let cancelled = competitor.cancel_all(handles.drain(..).flatten());
    let cancel = watch.nanoseconds_per(timers);
    assert_eq!(
        black_box(cancelled),
        timers,
        "every timer was still to come"
    );
    (schedule, cancel)
}
