//! The names of the peers.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::workload::{Extent, Workload};
use super::{heartbeat, map, request};
use crate::cell::Entrant;
use crate::workload::Figures;

/// The peers by name, in the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Name {
    IdleWatch,
    TimerRescheduled,
    TimerRearmed,
    SleepReset,
    SleepRearmed,
    Requests,
    TimerOneshot,
    TimeoutOneshot,
    ExpiringMap,
    Moka,
    SweptMap,
}

impl Entrant for Name {
    fn label(self) -> &'static str {
        match self {
            Self::IdleWatch => "countwheel IdleWatch",
            Self::TimerRescheduled => "countwheel Timer, moved at each touch",
            Self::TimerRearmed => "countwheel Timer, re-armed when it fires",
            Self::SleepReset => "tokio Sleep, reset at each touch",
            Self::SleepRearmed => "tokio task with a Sleep, re-armed",
            Self::Requests => "countwheel Requests",
            Self::TimerOneshot => "countwheel Timer, table and oneshot",
            Self::TimeoutOneshot => "tokio timeout, table and oneshot",
            Self::ExpiringMap => "countwheel ExpiringMap",
            Self::Moka => "moka 0.12, time to live",
            Self::SweptMap => "HashMap, 16 shards, swept",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::IdleWatch | Self::Requests | Self::ExpiringMap)
    }
}

impl Name {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether it has anything to do with the workload.
    pub(crate) fn is_in(self, workload: Workload) -> bool {
        match self {
            Self::IdleWatch
            | Self::TimerRescheduled
            | Self::TimerRearmed
            | Self::SleepReset
            | Self::SleepRearmed => workload == Workload::P1,
            Self::Requests | Self::TimerOneshot | Self::TimeoutOneshot => {
                matches!(workload, Workload::P2 | Workload::P2t)
            }
            Self::ExpiringMap | Self::Moka | Self::SweptMap => {
                matches!(workload, Workload::P3 | Workload::P3m)
            }
        }
    }

    /// What a reader of its rows has to know.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::IdleWatch => {
                "as it comes: `read` stores the time; looks at a connection when its time is over, \
                 in ticks of 10 ms"
            }
            Self::TimerRescheduled => {
                "what one writes first: a `Timeout` for each connection, and `reschedule` whenever \
                 it is heard of"
            }
            Self::TimerRearmed => {
                "what one writes next: a touch stores the time, in an `Arc`; the task looks at it \
                 when it fires, and is scheduled again for what is left"
            }
            Self::SleepReset => {
                "a `Sleep` in each connection, polled once with a waker of its own, and \
                 `reset` whenever it is heard of, which tokio does without its lock as long as it \
                 only becomes later"
            }
            Self::SleepRearmed => {
                "a task for each connection, on a multi-threaded runtime; a touch stores the time, \
                 and the task sleeps again for what is left"
            }
            Self::Requests | Self::ExpiringMap => "as it comes",
            Self::TimerOneshot => {
                "what one writes by hand: 16 maps behind locks, from the id to the sender and its \
                 `Timeout`"
            }
            Self::TimeoutOneshot => {
                "the same 16 maps, from the id to the sender; `tokio::time::timeout` around the \
                 receiver, boxed, polled by the calling thread"
            }
            Self::Moka => {
                "`moka::sync::Cache` with `time_to_live` and without a limit of its size; what it \
                 puts off it does in later calls, and before its memory is measured it is asked to"
            }
            Self::SweptMap => {
                "what one writes by hand: 16 maps behind locks, a deadline beside each value, and a \
                 thread that looks at everything once a second"
            }
        }
    }

    pub(super) fn measure(
        self,
        workload: Workload,
        load: u64,
        extent: Extent,
    ) -> anyhow::Result<Figures> {
        match self {
            Self::IdleWatch => heartbeat::measure::<heartbeat::IdleWatch>(load, extent),
            Self::TimerRescheduled => heartbeat::measure::<heartbeat::Rescheduled>(load, extent),
            Self::TimerRearmed => heartbeat::measure::<heartbeat::Rearmed>(load, extent),
            Self::SleepReset => heartbeat::measure::<heartbeat::SleepReset>(load, extent),
            Self::SleepRearmed => heartbeat::measure::<heartbeat::SleepRearmed>(load, extent),
            Self::Requests => request::measure::<request::Ours>(workload, load, extent),
            Self::TimerOneshot => request::measure::<request::ByHand>(workload, load, extent),
            Self::TimeoutOneshot => request::measure::<request::Tokio>(workload, load, extent),
            Self::ExpiringMap => map::measure::<map::Ours>(workload, load, extent),
            Self::Moka => map::measure::<map::Moka>(workload, load, extent),
            Self::SweptMap => map::measure::<map::Swept>(workload, load, extent),
        }
    }
}
