//! The parts of one timer's life that are decided beforehand: its options, and the frequency of
//! each operation.
//!
//! Every life has another mix, with some operations left out altogether: so the proof also finds
//! effects that show only without them.

use std::fmt;
use std::time::Duration;

use countwheel::Layout;

use crate::random::Random;

/// The options of a timer, and what is done to it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    /// Nanoseconds.
    pub(super) tick: u64,
    pub(super) max_pending: Option<u64>,
    pub(super) shards: usize,
    /// How many threads the one thread pretends to be; up to six.
    pub(super) threads: usize,
    /// Who runs the tasks; the timer itself if nobody.
    pub(super) executor: Option<Odds>,
    pub(super) overload: OverloadKind,
    /// How much the clock has moved before the timer is made, in nanoseconds.
    pub(super) start: u64,
    pub(super) slow_task_budget: Duration,
    /// About how many tasks are pending at a time.
    pub(super) population: usize,
    /// How many operations it lives.
    pub(super) operations: u64,
    pub(super) mix: Mix,
    pub(super) kinds: Mix,
    pub(super) delays: Mix,
    pub(super) spans: Mix,
    pub(super) deeds: Mix,
    /// The longest usual delay, in ticks.
    pub(super) reach: u64,
}

/// How often the simulated executor does what: once in so many times, never if zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odds {
    pub(super) refuses: u64,
    pub(super) runs_at_once: u64,
    pub(super) loses: u64,
}

/// What becomes of a task that the executor refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OverloadKind {
    RunInline,
    RetryAfter(Duration),
    HandBack,
}

/// Sixteen choices at most, each with its share.
#[derive(Clone)]
pub(super) struct Mix {
    table: [u8; 64],
}

impl fmt::Debug for Mix {
    /// The share of each choice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shares = [0_u8; 16];
        for &choice in &self.table {
            shares[usize::from(choice)] += 1;
        }
        write!(f, "{shares:?}")
    }
}

impl Mix {
    /// Each share is left as it is, made four times as large, or nothing.
    fn new(random: &mut Random, shares: &[u64]) -> Self {
        let mut shares = shares.to_vec();
        for share in &mut shares {
            *share *= *random.pick(&[0, 1, 1, 1, 4]);
        }
        if shares.iter().sum::<u64>() == 0 {
            shares[0] = 1;
        }
        let total = shares.iter().sum();
        let mut table = [0; 64];
        for cell in &mut table {
            let mut rest = random.below(total);
            for (choice, &share) in (0..).zip(&shares) {
                if rest < share {
                    *cell = choice;
                    break;
                }
                rest -= share;
            }
        }
        Self { table }
    }

    /// One of the choices, by its number.
    pub(super) fn pick<T: Copy>(&self, random: &mut Random, choices: &[T]) -> T {
        choices[usize::from(*random.pick(&self.table))]
    }
}

/// What is done to a timer from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Schedule,
    Batch,
    Cancel,
    Move,
    Query,
    DropHandle,
    Guard,
    Advance,
    Step,
    Stall,
    RunDue,
    Work,
    Stats,
    NextWake,
    Stale,
}

impl Operation {
    pub(super) const ALL: [Self; 15] = [
        Self::Schedule,
        Self::Batch,
        Self::Cancel,
        Self::Move,
        Self::Query,
        Self::DropHandle,
        Self::Guard,
        Self::Advance,
        Self::Step,
        Self::Stall,
        Self::RunDue,
        Self::Work,
        Self::Stats,
        Self::NextWake,
        Self::Stale,
    ];
    const SHARES: [u64; 15] = [30, 3, 14, 12, 14, 4, 3, 8, 6, 3, 4, 8, 1, 2, 2];
}

/// What is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A task, after a delay.
    Task,
    /// A task, at a deadline, which may have passed.
    At,
    /// A value for a channel.
    Send,
    /// A waker.
    Wake,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Task, Self::At, Self::Send, Self::Wake];
    const SHARES: [u64; 4] = [8, 8, 3, 3];

    /// Whether the host itself has it done.
    pub(super) fn is_short(self) -> bool {
        matches!(self, Self::Send | Self::Wake)
    }
}

/// How far ahead something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delay {
    Zero,
    BelowTick,
    Uniform,
    LogUniform,
    /// Around the beginning of a slot of some level.
    Border,
    /// The same deadline as another task.
    Again,
    /// Near the end of time.
    End,
    Max,
}

impl Delay {
    pub(super) const ALL: [Self; 8] = [
        Self::Uniform,
        Self::Zero,
        Self::BelowTick,
        Self::LogUniform,
        Self::Border,
        Self::Again,
        Self::End,
        Self::Max,
    ];
    const SHARES: [u64; 8] = [40, 3, 6, 12, 8, 10, 1, 1];
}

/// How far the clock moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Span {
    BelowTick,
    Ticks,
    /// To about the deadline of a pending task.
    ToDeadline,
    LogUniform,
    Border,
    End,
}

impl Span {
    pub(super) const ALL: [Self; 6] = [
        Self::Ticks,
        Self::BelowTick,
        Self::ToDeadline,
        Self::LogUniform,
        Self::Border,
        Self::End,
    ];
    const SHARES: [u64; 6] = [200, 80, 200, 16, 16, 1];
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Nothing,
    Schedule,
    Cancel,
    Move,
    Query,
    Stats,
    Panic,
    /// Takes long: moves the clock.
    Slow,
    Stop,
}

impl Deed {
    pub(super) const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Schedule,
        Self::Cancel,
        Self::Move,
        Self::Query,
        Self::Stats,
        Self::Panic,
        Self::Slow,
        Self::Stop,
    ];
    const SHARES: [u64; 9] = [200, 30, 15, 15, 10, 2, 3, 2, 1];
}

impl Plan {
    /// The plan of the next life. `rest` is how many operations are left at most.
    pub(super) fn new(random: &mut Random, rest: u64) -> Self {
        let tick = match random.below(10) {
            0 => *random.pick(&[1, 2, 7, 64, 65_537, 999_999_999, 1_000_000_000]),
            1 => log_uniform(random, 30),
            2 | 3 => *random.pick(&[1_000_000, 64_000, 100_000_000]),
            _ => 1_000 * log_uniform(random, 17),
        };
        let layout = if random.one_in(2) {
            Layout::Hierarchical
        } else {
            let power = 1 << random.below(13);
            let ticks = if random.one_in(2) {
                power
            } else {
                random.between(1, power) | 1
            };
            Layout::hashed(small(ticks)).unwrap_or_default()
        };
        let population = match random.below(40) {
            0 => 3_000,
            1..4 => 400,
            _ => small(random.between(1, 60)),
        };
        let threads = if random.one_in(3) {
            1
        } else {
            random.between(2, 6)
        };
        let executor = random.one_in(3).then(|| Odds {
            refuses: *random.pick(&[0, 2, 8]),
            runs_at_once: *random.pick(&[0, 2, 8]),
            loses: *random.pick(&[0, 0, 0, 30]),
        });
        let overload = match random.below(3) {
            0 => OverloadKind::RunInline,
            1 => OverloadKind::HandBack,
            _ => {
                let longest = 1 << random.below(40);
                let pause = random.below(longest);
                OverloadKind::RetryAfter(Duration::from_nanos(pause))
            }
        };
        let start = match random.below(8) {
            0 => u64::MAX - log_uniform(random, 50),
            1 => log_uniform(random, 63),
            2 => border(random, 0, tick),
            _ => 0,
        };
        let life = 1_u64 << random.between(4, 15);
        let mut plan = Self {
            layout,
            tick,
            max_pending: random
                .one_in(4)
                .then(|| random.below(2 * population as u64 + 1)),
            shards: small(random.between(1, 8)),
            threads: small(threads),
            executor,
            overload,
            start,
            slow_task_budget: Duration::from_nanos(random.below(1 << 30)),
            population,
            operations: random.between(life / 2, life).min(rest),
            mix: Mix::new(random, &Operation::SHARES),
            kinds: Mix::new(random, &Kind::SHARES),
            delays: Mix::new(random, &Delay::SHARES),
            spans: Mix::new(random, &Span::SHARES),
            deeds: Mix::new(random, &Deed::SHARES),
            reach: *random.pick(&[10, 300, 3_000, 70_000, 1 << 25]),
        };
        if !random.one_in(4) {
            plan.deeds = Mix {
                table: plan.deeds.table.map(|deed| {
                    let rare = Deed::ALL[usize::from(deed)];
                    if matches!(rare, Deed::Slow | Deed::Stop) {
                        0
                    } else {
                        deed
                    }
                }),
            };
        }
        if plan
            .deeds
            .table
            .iter()
            .any(|&deed| Deed::ALL[usize::from(deed)] == Deed::Slow)
        {
            // When a value was sent is only known if nobody else moves the clock.
            let task = |kind| {
                if Kind::ALL[usize::from(kind)] == Kind::Send {
                    0
                } else {
                    kind
                }
            };
            plan.kinds = Mix {
                table: plan.kinds.table.map(task),
            };
        }
        plan
    }
}

/// Nanoseconds from now to about the beginning of some level's slot.
pub(super) fn border(random: &mut Random, now: u64, tick: u64) -> u64 {
    let power = 8 * random.between(1, 6);
    let here = now / tick;
    // Either so far from now, or where the digits above change.
    let ticks = if random.one_in(2) {
        1 << power
    } else {
        ((here >> power) + 1).saturating_mul(1 << power) - here
    };
    let nanos = ticks.saturating_mul(tick);
    match random.below(3) {
        0 => nanos,
        1 => nanos.saturating_sub(random.below(3 * tick)),
        _ => nanos.saturating_add(random.below(3 * tick)),
    }
}

/// A number below 2^`bits`, of any length with the same chance.
pub(super) fn log_uniform(random: &mut Random, bits: u64) -> u64 {
    let top = 1 << random.below(bits);
    random.between(top, 2 * (top - 1) + 1)
}

pub(super) fn small(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
