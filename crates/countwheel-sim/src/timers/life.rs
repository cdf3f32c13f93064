//! One timer after another, each from its making to its end.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Clock, Instant, ManualHost, Overload, Resolution, Stop, Timeout, Timer};

use super::desk::{Desk, Elsewhere, Handle};
use super::plan::{Operation, OverloadKind, Plan, Span, border, log_uniform, small};
use super::reference::Fate;
use super::{Options, Report, Sabotage};
use crate::failure::Failure;
use crate::random::Random;

/// So many operations a closed timer, or one at the end of time, lives on.
const AFTERLIFE: u64 = 40;

/// Handles of timers that are no more, kept to be asked.
const OLD_HANDLES: usize = 16;

/// Runs a seed.
///
/// # Errors
/// If anything is not as predicted.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let quiet = Options {
        log: 0,
        ..options.clone()
    };
    let first = run_once(seed, if options.trace { options } else { &quiet });
    if first.is_err() && options.log > 0 && !options.trace {
        // Once more, to see what led to it. It cannot go otherwise.
        return run_once(seed, options);
    }
    first
}

/// A failed assertion of the timer is a failure like others.
fn run_once(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let run = || live_all(seed, options);
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_shown| {
        Err(Box::new(Failure {
            seed,
            step: 0,
            what: "it panicked".to_owned(),
            last: Vec::new(),
        }))
    })
}

/// One life after another.
fn live_all(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let mut report = Report::default();
    let mut plans = Random::new(seed, "plans");
    let mut old = Vec::new();
    let mut life = 0;
    while report.operations < options.operations {
        let plan = Plan::new(&mut plans, options.operations - report.operations);
        let random = Random::new(seed ^ plans.draw(), "operations");
        let desk = Desk::new(plan, random, options);
        live(&desk, &mut old, options);
        let mut state = desk.lock();
        report.operations += state.report.operations.max(1);
        let mut lived = std::mem::take(&mut state.report);
        let counts = &state.reference.counts;
        (lived.added, lived.ran, lived.cancelled) = (counts.added, counts.ran, counts.cancelled);
        (lived.returned, lived.refused) = (counts.returned, counts.refused);
        (lived.moved, lived.overloaded) = (counts.moved, counts.overloaded);
        (lived.panicked, lived.timers) = (counts.panicked, 1);
        lived.operations = 0;
        lived.trace = lived.trace.rotate_left(life % 64);
        life += 1;
        if let Some(what) = state.failure.take() {
            return Err(Box::new(Failure {
                seed,
                step: report.operations,
                what,
                last: state.take_log(),
            }));
        }
        report.add(&lived);
    }
    Ok(report)
}

/// A handle whose timer is gone, with what it must say for ever.
struct Old {
    timeout: Timeout,
    expired: Option<bool>,
    cancelled: bool,
}

fn make(desk: &Arc<Desk>) -> ManualHost {
    let plan = &desk.plan;
    let resolution = Resolution::new(Duration::from_nanos(plan.tick));
    let mut builder = Timer::builder()
        .resolution(resolution.unwrap_or_default())
        .layout(plan.layout)
        .slow_task_budget(plan.slow_task_budget)
        .shards(NonZeroUsize::new(plan.shards).unwrap_or(NonZeroUsize::MIN));
    if let Some(max) = plan.max_pending {
        builder = builder.max_pending(max);
    }
    if plan.executor.is_some() {
        let back = Arc::clone(desk);
        builder = builder
            .executor(Elsewhere(Arc::clone(desk)))
            .overload(match plan.overload {
                OverloadKind::RunInline => Overload::RunInline,
                OverloadKind::RetryAfter(pause) => Overload::RetryAfter(pause),
                OverloadKind::HandBack => Overload::hand_back(move |task| back.takes_back(task)),
            });
    } else {
        builder = builder.inline();
    }
    builder.manual(desk.clock.clone())
}

fn live(desk: &Arc<Desk>, old: &mut Vec<Old>, options: &Options) {
    let mut host = make(desk);
    let timer = host.timer().clone();
    desk.set_timer(Some(timer.clone()));
    let mut last = u64::MAX;
    loop {
        let mut state = desk.lock();
        let done = state.report.operations;
        if done >= desk.plan.operations || done >= last || state.failure.is_some() {
            break;
        }
        if last == u64::MAX && (state.reference.closed || desk.now() == u64::MAX) {
            last = done + AFTERLIFE;
        }
        let close = state.random.one_in(8 * desk.plan.operations) || state.reference.closed;
        let close = close && state.random.one_in(8);
        let mut operation = desk.plan.mix.pick(&mut state.random, &Operation::ALL);
        let crowded = state.reference.pending() >= desk.plan.population;
        if crowded && matches!(operation, Operation::Schedule | Operation::Batch) {
            operation = Operation::Advance;
        }
        drop(state);
        if close {
            desk.closes(&timer);
        } else {
            act(desk, &mut host, &timer, operation, old, options);
        }
    }
    end(desk, host, timer, old);
}

fn act(
    desk: &Arc<Desk>,
    host: &mut ManualHost,
    timer: &Timer,
    operation: Operation,
    old: &[Old],
    options: &Options,
) {
    match operation {
        Operation::Schedule => desk.schedules(timer, None),
        Operation::Batch => desk.schedules_batch(timer),
        Operation::Cancel => desk.cancels(),
        Operation::Move => desk.moves(),
        Operation::Query => desk.queries(),
        Operation::DropHandle => desk.drops_handle(),
        Operation::Guard => desk.guards(),
        Operation::Advance => {
            let span = span(desk);
            drive(desk, "advance", span, || host.advance(span));
        }
        Operation::Step => {
            let span = span(desk);
            let oversleeps = options.sabotage == Some(Sabotage::OversleepsDeadline);
            drive(desk, "step", span, || step(desk, host, span, oversleeps));
        }
        Operation::Stall => {
            let span = span(desk);
            let mut state = desk.lock();
            state.report.operations += 1;
            state.note(|| format!("stall for {span:?}"));
            desk.clock.advance(span);
        }
        Operation::RunDue => drive(desk, "run what is due", Duration::ZERO, || host.run_due()),
        Operation::Work => desk.works(),
        Operation::Stats => desk.checks_stats(timer),
        Operation::NextWake => desk.checks_wake(host.next_wake()),
        Operation::Stale if desk.lock().reference.closed => desk.asks_stopping(),
        Operation::Stale => ask_old(desk, old),
    }
}

/// How far the clock is to move.
fn span(desk: &Desk) -> Duration {
    let mut state = desk.lock();
    let state = &mut *state;
    let (now, tick) = (desk.now(), desk.plan.tick);
    let random = &mut state.random;
    let nanos = match desk.plan.spans.pick(random, &Span::ALL) {
        Span::BelowTick => random.below(tick),
        Span::Ticks => {
            let ticks = random.below(20);
            ticks * tick + random.below(tick)
        }
        Span::ToDeadline => {
            let most = random.below(desk.plan.reach).saturating_add(1);
            let ahead = random.below(most);
            let known = state.reference.some_deadline(now, ahead);
            let span = known.unwrap_or(now).saturating_sub(now);
            match random.below(4) {
                0 => span.saturating_sub(1),
                1 => span.saturating_add(tick - 1),
                _ => span,
            }
        }
        Span::LogUniform => log_uniform(random, 50),
        Span::Border => border(random, now, tick),
        Span::End => (u64::MAX - now).saturating_sub(random.below(3 * tick)),
    };
    Duration::from_nanos(nanos)
}

/// Lets the host do something.
fn drive(desk: &Desk, what: &str, span: Duration, host: impl FnOnce() -> usize) {
    let mut state = desk.lock();
    state.report.operations += 1;
    let now = desk.now();
    state.note(|| format!("{what} for {span:?} at {now}"));
    state.take_in(now);
    state.reference.host_begins(now);
    drop(state);
    let fired = host();
    let mut state = desk.lock();
    let now = desk.now();
    state.take_in(now);
    let verdict = state.reference.host_ends(now);
    state.check(verdict);
    let expected = state.reference.fired_by_host;
    if desk.plan.executor.is_none() && fired != expected {
        state.fails(|| format!("{expected} fired, and the host says {fired}"));
    }
    drop(state);
    desk.check_works();
}

/// Advances by hand, from one wake-up to the next, as a thread does.
fn step(desk: &Desk, host: &mut ManualHost, span: Duration, oversleeps: bool) -> usize {
    let clock = host.clock().clone();
    let target = clock.now() + span;
    let mut fired = host.run_due();
    while let Some(wake) = host.next_wake().filter(|&wake| wake <= target) {
        let now = clock.now();
        if wake == Instant::MAX && wake == now {
            break;
        }
        if wake <= now {
            let mut state = desk.lock();
            state.fails(|| format!("the host is told to wake at {wake:?} for nothing, at {now:?}"));
            break;
        }
        let extra = Duration::from_nanos(u64::from(oversleeps) * desk.plan.tick);
        clock.advance(wake.saturating_since(now) + extra);
        fired += host.run_due();
    }
    clock.advance(target.saturating_since(clock.now()));
    fired
}

/// Asks the handles of timers that are no more.
fn ask_old(desk: &Desk, old: &[Old]) {
    let mut state = desk.lock();
    state.report.operations += 1;
    if old.is_empty() {
        return;
    }
    let index = small(state.random.below(old.len() as u64));
    let Old {
        timeout,
        expired,
        cancelled,
    } = &old[index];
    state.report.stale += 1;
    let right = match state.random.below(5) {
        0 => !timeout.cancel(),
        1 => !timeout.reschedule(Duration::ZERO),
        2 => !timeout.is_pending(),
        3 => timeout.is_cancelled() == *cancelled,
        _ => expired.is_none_or(|expired| timeout.is_expired() == expired),
    };
    if !right {
        state.fails(|| format!("the handle of an old timer is wrong: {timeout:?}"));
    }
}

/// The end of a timer: closed by somebody, or left by all.
fn end(desk: &Arc<Desk>, host: ManualHost, timer: Timer, old: &mut Vec<Old>) {
    let state = desk.lock();
    let failed = state.failure.is_some();
    drop(state);
    let closed = desk.lock().reference.closed;
    let drops = !closed && desk.lock().random.one_in(3);
    if !failed && !drops {
        desk.closes(&timer);
        let now = desk.now();
        desk.closes_by(&timer, Stop::HandBack, now);
        while !desk.lock().stoppings.is_empty() {
            desk.asks_stopping();
            if desk.lock().failure.is_some() {
                break;
            }
        }
        desk.checks_stats(&timer);
    }
    if drops && !failed {
        let mut state = desk.lock();
        let now = desk.now();
        state.take_in(now);
        state.note(|| "drop the timer".to_owned());
        state.report.dropped += 1;
        let verdict = state.reference.closes(Stop::Drop, now);
        state.check(verdict);
    }
    desk.while_dropping(|| {
        desk.set_timer(None);
        drop(timer);
        drop(host);
    });
    let mut state = desk.lock();
    let out = state.reference.out;
    if drops && out > 0 {
        state.fails(|| format!("{out} outlive their timer"));
    }
    drop(state);
    bury(desk, old, failed);
}

/// What outlives a timer: handles, and work for which there is nothing to do any more.
fn bury(desk: &Arc<Desk>, old: &mut Vec<Old>, failed: bool) {
    for work in desk.take_works() {
        work.run();
    }
    let handles = std::mem::take(&mut desk.lock().handles);
    let mut kept = 0;
    for handle in handles {
        let fate = desk.lock().reference.entries[handle.id].fate;
        check_at_the_end(desk, &handle, fate);
        if kept < 4
            && let Some(timeout) = handle.into_timeout()
        {
            kept += 1;
            let timeout = Old {
                timeout,
                expired: match fate {
                    Fate::Returned(expired) => expired,
                    fate => Some(fate == Fate::Ran),
                },
                cancelled: fate == Fate::Cancelled,
            };
            if old.len() < OLD_HANDLES {
                old.push(timeout);
            } else {
                let index = small(desk.lock().random.below(OLD_HANDLES as u64));
                old[index] = timeout;
            }
        }
    }
    desk.lock().stoppings.clear();
    let mut state = desk.lock();
    if failed || state.failure.is_some() {
        return;
    }
    let without_end = state
        .reference
        .entries
        .iter()
        .position(|entry| !entry.gone || matches!(entry.fate, Fate::Pending | Fate::Waiting));
    if let Some(id) = without_end {
        let entry = state.reference.entries[id].clone();
        state.fails(|| format!("{id} has come to no end: {entry:?}"));
    }
    let counts = &state.reference.counts;
    if counts.added != counts.ran + counts.cancelled + counts.returned {
        let counts = counts.clone();
        state.fails(|| format!("the sum is wrong: {counts:?}"));
    }
}

/// A handle whose timer has ended says what became of its task.
fn check_at_the_end(desk: &Desk, handle: &Handle, fate: Fate) {
    let mut state = desk.lock();
    if state.failure.is_some() {
        return;
    }
    let (id, timeout, now) = (handle.id, handle.timeout(), desk.now());
    let reference = &mut state.reference;
    let mut verdict = reference.says_pending(id, timeout.is_pending(), now);
    if verdict.is_ok() {
        verdict = reference.says_expired(id, timeout.is_expired(), now);
    }
    if verdict.is_ok() {
        verdict = reference.says_cancelled(id, timeout.is_cancelled());
    }
    if verdict.is_ok() && timeout.cancel() {
        verdict = Err(format!("{id} was cancelled at the end, being {fate:?}"));
    }
    state.check(verdict);
}
