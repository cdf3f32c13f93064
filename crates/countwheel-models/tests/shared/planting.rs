//! The mistake that is planted into a model, and the proof that the model finds it.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::planted::Bug;

thread_local! {
    // The threads of a model all run on the one thread that checks it. So several models can
    // be checked at the same time, each with a mistake of its own.
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Whether the mistake is to be made.
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Makes `bug`, or none, on this thread from here on. Panics with a bug are not reported: they
/// are expected.
pub(crate) fn plant(bug: Option<Bug>) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if PLANTED.get().is_none() {
                loud(panic);
            }
        }));
    });
    PLANTED.set(bug);
}

/// Whether `check` fails with `bug` planted, be it by a failed assertion or by a deadlock.
pub(crate) fn finds(bug: Bug, check: impl FnOnce()) -> bool {
    plant(Some(bug));
    let failed = catch_unwind(AssertUnwindSafe(check)).is_err();
    plant(None);
    failed
}

/// Whether the models are to be checked for as long as it takes.
pub(crate) fn is_deep() -> bool {
    std::env::var_os("COUNTWHEEL_MODELS").is_some_and(|depth| depth == "deep")
}
