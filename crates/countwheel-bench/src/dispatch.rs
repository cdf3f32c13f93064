//! Calls generic code with a type chosen by its name.

/// Makes `Task`, which is something to do with whoever implements the trait that is named,
/// and `HandleBytes`, which is such a task. A macro, since no trait can name another's bound.
macro_rules! tasks {
    ($subject:ident) => {
        /// Something to do with a type that is only known by name.
        pub(crate) trait Task {
            /// What it results in.
            type Output;
            /// Does it.
            fn run<S: $subject>(self) -> Self::Output;
        }

        /// How large is what a timer is cancelled by?
        struct HandleBytes;

        impl Task for HandleBytes {
            type Output = usize;

            fn run<S: $subject>(self) -> usize {
                size_of::<S::Handle>()
            }
        }
    };
}

pub(crate) use tasks;
