//! What a node decides, sentence by sentence, and the mistakes that these sentences find.

mod clock;
mod control;
mod gather;
mod loans;
mod paper;
mod place;
#[cfg(feature = "planted-bugs")]
mod planted;

/// Sentences, each as a test of its own, and all of them as a list.
macro_rules! sentences {
    ($($name:ident,)+) => {
        #[cfg(feature = "planted-bugs")]
        pub(crate) const ALL: &[(&str, fn())] = &[$((stringify!($name), super::$name)),+];

        mod each {
            $(
                #[test]
                fn $name() {
                    super::super::$name();
                }
            )+
        }
    };
}

pub(crate) use sentences;
