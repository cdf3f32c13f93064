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
    /// A future that is woken while it is polled is not polled again.
    WokenWhilePolled,
    /// The task that is queued for a future does not see what was done before a wake-up.
    WokenUnseen,
    /// A future is dropped while it is polled.
    DroppedWhilePolled,
    /// Whether an outcome is settled is looked up in one step, and settled in another.
    SettledInTwoSteps,
    /// Who comes while another tries does not make it try again.
    CheckedWhileTried,
    /// A try that is to follow another does not see what was done before the last check.
    CheckedUnseen,
    /// Whether it is decided is looked up in one step, and decided in another.
    DecidedInTwoSteps,
    /// A handle is kept though it was decided before.
    ArmedAfterDecision,
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
