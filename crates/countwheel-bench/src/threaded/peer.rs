//! The peers: our timer and those of other libraries, behind one trait.

mod countwheel;
mod futures;
mod heap;
mod hhwt;
mod tokio_task;

pub(crate) use tokio_task::runtime as tokio_runtime;

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::java::Program;
use crate::cell::Entrant;
use crate::dispatch::tasks;

/// A timer on the real clock that threads share. Each thread has a clone.
///
/// Everything is monomorphised, so that no call in a timed loop is indirect.
pub(crate) trait Peer: Clone + Send + 'static {
    /// What a timer is cancelled by, by this thread or by another.
    type Handle: Send;

    /// What a thread holds while it makes calls.
    type Entered;

    /// Whether `cancel` knows if it came in time.
    const CANCEL_TELLS: bool = true;

    /// A timer with nothing pending.
    fn start() -> anyhow::Result<Self>;

    /// Makes this thread one that may call.
    fn enter(&self) -> Self::Entered;

    /// Does `work` once `delay` has passed. A peer that is only polled may drop `work`.
    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> Self::Handle;

    /// Whether the timer was still to come; true if this cannot be known.
    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Does `work` once `delay` has passed, whatever `schedule` does. Never cancelled.
    fn call(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        drop(self.schedule(delay, work));
    }
}

tasks!(Peer);

/// Which form of a peer is meant, if it has two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// The cheapest use there is: nobody hears of the expiry.
    Cheapest,
    /// The one that does the work it is given.
    Working,
}

/// The peers by name, in the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Name {
    Timer,
    TimerInline,
    TimerFine,
    TimerTsc,
    TimerSleep,
    SleepPolled,
    SleepTask,
    AsyncIo,
    FuturesTimer,
    HhwtThread,
    HeapThread,
    Netty,
    NettyCoarse,
    JdkExecutor,
    Jvm,
}

/// A reference on a heap of less than 32 GB, which is what a Java caller keeps.
const JAVA_REFERENCE_BYTES: usize = 4;

impl Entrant for Name {
    fn label(self) -> &'static str {
        match self {
            Self::Timer => "countwheel Timer",
            Self::TimerInline => "countwheel Timer, inline",
            Self::TimerFine => "countwheel Timer, inline, 64 µs",
            Self::TimerTsc => "countwheel Timer, inline, TscClock",
            Self::TimerSleep => "countwheel Sleep, polled once",
            Self::SleepPolled => "tokio Sleep, polled once",
            Self::SleepTask => "tokio task, spawn and abort",
            Self::AsyncIo => "async-io Timer 2.6",
            Self::FuturesTimer => "futures-timer Delay 3.0",
            Self::HhwtThread => "hierarchical_hash_wheel_timer 1.4, thread",
            Self::HeapThread => "BinaryHeap and thread, lazy cancel",
            Self::Netty => "Netty HashedWheelTimer, 1 ms",
            Self::NettyCoarse => "Netty HashedWheelTimer, 100 ms",
            Self::JdkExecutor => "JDK ScheduledThreadPoolExecutor",
            Self::Jvm => "a JVM without a timer",
        }
    }

    fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Timer | Self::TimerInline | Self::TimerFine | Self::TimerTsc | Self::TimerSleep
        )
    }
}

impl Name {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// What a reader of its rows has to know.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::Timer => {
                "as it comes: ticks of 1 ms; the work is a boxed closure, done on a pool of two \
                 threads"
            }
            Self::TimerInline => "the same, with the work done on the timer's own thread",
            Self::TimerFine => "the same as inline, with ticks of 64 µs",
            Self::TimerTsc => "the same as inline, on the processor's counter",
            Self::TimerSleep => "as the `Sleep` of tokio, on the timer's own thread",
            Self::SleepPolled => {
                "on a multi-threaded runtime; each `Sleep` is boxed, polled once on the calling \
                 thread with a waker that does nothing, and dropped to cancel; in W5 and in the \
                 check the waker polls it again and does the work, on the thread that wakes"
            }
            Self::SleepTask => {
                "a task on a multi-threaded runtime for each timer; `abort` does not wait until \
                 the task is gone, nor tell whether it was in time"
            }
            Self::AsyncIo => {
                "polled once with a waker that does nothing, and dropped to cancel, on its own \
                 reactor thread; W5 and check as for the `Sleep`"
            }
            Self::FuturesTimer => {
                "as async-io, on its own helper thread; new and dropped timers wait in a list \
                 until that thread takes them"
            }
            Self::HhwtThread => {
                "every call is a message to its thread, through a queue without a limit, so a \
                 cancel does not tell whether it was in time; a delay counts from the thread's \
                 last tick when it takes the message, so timers fire early when it is quick and \
                 late when the queue is long; a cancelled timer leaves a weak reference behind \
                 until its tick"
            }
            Self::HeapThread => {
                "our yardstick: `Mutex`, `BinaryHeap`, `Condvar`; a cancel drops the closure, but \
                 the entry of 24 bytes stays in the heap until its deadline"
            }
            Self::Netty => {
                "512 slots; new and cancelled timers wait in queues until the next tick; every \
                 tick looks at all timers of its slot, also at those of later rounds"
            }
            Self::NettyCoarse => "the same with its default tick; only checked and in W7",
            Self::JdkExecutor => {
                "one thread, a heap behind one lock; `setRemoveOnCancelPolicy(true)`"
            }
            Self::Jvm => {
                "what the threads of the virtual machine itself do, to be subtracted in W7"
            }
        }
    }

    /// The program to start, if it is not this one.
    pub(crate) fn program(self) -> Option<Program> {
        let (class, option) = match self {
            Self::Netty => ("Netty", "1"),
            Self::NettyCoarse => ("Netty", "100"),
            Self::JdkExecutor => ("JdkExecutor", "1"),
            Self::Jvm => ("Nothing", "0"),
            _ => return None,
        };
        Some(Program { class, option })
    }

    /// Whether it has anything to be checked.
    pub(crate) fn is_timer(self) -> bool {
        self != Self::Jvm
    }

    /// The size of what its user has to keep for each timer.
    pub(crate) fn handle_bytes(self) -> usize {
        let here = self.dispatch(Form::Cheapest, HandleBytes);
        here.unwrap_or(JAVA_REFERENCE_BYTES)
    }

    /// `None` for whom another program is needed.
    pub(crate) fn dispatch<T: Task>(self, form: Form, task: T) -> Option<T::Output> {
        Some(match (self, form) {
            (Self::Timer, _) => task.run::<countwheel::Ours<countwheel::Usual>>(),
            (Self::TimerInline, _) => task.run::<countwheel::Ours<countwheel::Inline>>(),
            (Self::TimerFine, _) => task.run::<countwheel::Ours<countwheel::Fine>>(),
            (Self::TimerTsc, _) => task.run::<countwheel::Ours<countwheel::Counter>>(),
            (Self::TimerSleep, Form::Cheapest) => task.run::<futures::Polled<futures::Ours>>(),
            (Self::TimerSleep, Form::Working) => task.run::<futures::Woken<futures::Ours>>(),
            (Self::SleepPolled, Form::Cheapest) => task.run::<futures::Polled<futures::Sleep>>(),
            (Self::SleepPolled, Form::Working) => task.run::<futures::Woken<futures::Sleep>>(),
            (Self::SleepTask, _) => task.run::<tokio_task::Tasks>(),
            (Self::AsyncIo, Form::Cheapest) => task.run::<futures::Polled<futures::AsyncIo>>(),
            (Self::AsyncIo, Form::Working) => task.run::<futures::Woken<futures::AsyncIo>>(),
            (Self::FuturesTimer, Form::Cheapest) => task.run::<futures::Polled<futures::Helper>>(),
            (Self::FuturesTimer, Form::Working) => task.run::<futures::Woken<futures::Helper>>(),
            (Self::HhwtThread, _) => task.run::<hhwt::Threaded>(),
            (Self::HeapThread, _) => task.run::<heap::LazyHeap>(),
            (Self::Netty | Self::NettyCoarse | Self::JdkExecutor | Self::Jvm, _) => return None,
        })
    }
}
