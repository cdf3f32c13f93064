//! Mistakes that are easy to make where threads meet. The models plant each of them, to prove
//! that they would find it; here none is ever made.

macro_rules! bugs {
    ($($(#[$what:meta])* $name:ident,)+) => {
        /// A mistake in [`concurrent`](crate::concurrent).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Bug {
            $($(#[$what])* $name,)+
        }

        #[cfg(test)]
        impl Bug {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

bugs! {
    /// The host announces its sleep and does not look again.
    SleepWithoutSecondLook,
    /// The host's second look is only at the shard that came first in the first.
    SecondLookAtOneShard,
    /// No fence is between the host's announcement and its second look.
    SleepWithoutFence,
    /// No fence is between an earlier deadline and the look at the sleeper.
    LookWithoutFence,
    /// An earlier deadline is published after the look at the sleeper, not before.
    PublishAfterLook,
    /// An earlier deadline does not lower the bound of its shard.
    BoundNotLowered,
    /// A move to an earlier deadline does not lower the bound of its shard.
    MoveNotPublished,
    /// At the end of time, no insert wakes the host: no bound is beyond that.
    EndOfTimeUnannounced,
    /// The bound is raised after the lock of the shard was given up, when entries have fired.
    RaiseOutsideLock,
    /// The same, when the host looks for the exact deadline.
    RefineOutsideLock,
    /// Who wants to make the host look around wakes it only if it has announced its sleep.
    RouseOnlyTheSleeping,
    /// Who wakes the host notes only afterwards that it is awake, when it may sleep again.
    AwakeAfterWake,
    /// A wake-up that comes before the sleep is forgotten.
    TokenForgotten,
    /// A host that is given another waker keeps the first.
    FirstWakerKept,
    /// Whether the timer is closed is looked up before the lock is taken.
    ClosedBeforeLock,
    /// The last cancel of a closing timer leaves its host asleep.
    LastCancelUnannounced,
    /// A cancel looks in one step and takes in another.
    CancelInTwoSteps,
    /// What fired is counted in another step than it was taken out.
    FiredCountedLate,
    /// What a stop took out is noted as returned in another step.
    ReturnedNotedLate,
    /// The room left is read and written in two steps.
    RoomInTwoSteps,
    /// What is pending is counted one shard after the other.
    CountedInTurn,
    /// A cancel gives no room back.
    CancelKeepsRoom,
    /// What was taken out of the queue is not counted as running at once.
    StartAfterTake,
    /// A stop counts the queue in one step and takes it out in another.
    DrainInTwoSteps,
    /// A ticket that is returned is still counted as given out.
    TicketKept,
    /// Tasks that stop their own timer wait for each other.
    StopsWaitForEachOther,
    /// The end of a task tells nobody.
    EndUnannounced,
    /// The end of the host tells nobody.
    HostEndUnannounced,
    /// Who waits asynchronously looks in one step and registers in another.
    WaiterRegisteredLate,
    /// An alarm that somebody set earlier in the meantime is set back to a later time.
    AlarmPutOff,
    /// An alarm that rings still counts as set.
    AlarmStaysSet,
}

#[cfg(test)]
mod tests {
    use super::Bug;
    use crate::sync::is_planted;

    #[test]
    fn nothing_is_planted_unless_a_model_does_so() {
        assert!(!Bug::ALL.iter().any(|&bug| is_planted(bug)));
    }
}
