//! Whether a server holds the store: every property of a store, every fence, and that each planted
//! mistake is found on it.
//!
//! ```no_run
//! use countwheel_postgres::{PostgresOptions, conformance};
//!
//! let options = PostgresOptions::new("postgres://timers@127.0.0.1/timers");
//! let holds = conformance::run(&options, |sentence, result| println!("{sentence} {result:?}"))?;
//! assert!(holds);
//! # Ok::<(), countwheel_postgres::PostgresError>(())
//! ```

mod fences;
mod mistake;
#[expect(
    clippy::disallowed_methods,
    reason = "a proxy delays what passes in real time"
)]
mod proxy;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use countwheel_durable::Shards;
use countwheel_durable::store::Store;
use countwheel_durable::store::conformance::{PROPERTIES, Reopen};
use parking_lot::Mutex;

use crate::bits::Bits;
use crate::{PostgresError, PostgresOptions, PostgresStore, STEP};

pub use mistake::Mistake;
pub use proxy::{Cut, Proxy};

/// How long it may take to remove a schema.
const REMOVING: Duration = Duration::from_secs(60);

/// Checks everything in schemas of its own, which it removes at the end, and hands each sentence with
/// its result to `report`. Says whether all hold. It takes some minutes, most of them for round trips.
///
/// # Errors
/// [`PostgresError`] if the server cannot be used at all.
///
/// # Panics
/// Not by itself: what panics in a check is a sentence that does not hold.
pub fn run(
    options: &PostgresOptions,
    mut report: impl FnMut(&str, Result<(), String>),
) -> Result<bool, PostgresError> {
    let fresh = Fresh {
        options: options.clone(),
        made: Mutex::default(),
    };
    // What is refused is refused here, in one line.
    drop(PostgresStore::open(&fresh.try_make(4)?)?);
    let mut all = true;
    let mut tell = |sentence: &str, result: Result<(), String>| {
        all &= result.is_ok();
        report(sentence, result);
    };
    for property in PROPERTIES {
        let held = caught(|| {
            let mut options = fresh.make(Shards::MAX);
            options.node = Some(7);
            let store = PostgresStore::open(&options).expect("there is a cluster");
            (property.check)(&mut Reopened { options, store });
            Ok(())
        });
        tell(property.sentence, held);
    }
    for (number, (what, _)) in fences::CHECKS.iter().enumerate() {
        let held = caught(|| fences::check(number, &fresh, None));
        tell(&format!("Nothing goes wrong with {what}."), held);
    }
    for mistake in Mistake::ALL {
        let found = (0..fences::CHECKS.len()).any(|number| {
            let found = caught(|| fences::check(number, &fresh, Some(mistake)));
            found.is_err()
        });
        let held = found.then_some(()).ok_or_else(|| "it is not".to_owned());
        tell(&format!("The mistake {mistake:?} is found."), held);
    }
    Ok(all)
}

/// The result, or what a panic says.
fn caught(check: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| Err(said(&*panic)))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Schemas that nobody else has, removed when this is dropped.
struct Fresh {
    options: PostgresOptions,
    made: Mutex<Vec<String>>,
}

impl Fresh {
    fn try_make(&self, shards: u16) -> Result<PostgresOptions, PostgresError> {
        let drawn = Bits::random().map_err(|error| PostgresError::System {
            reason: error.to_string(),
        })?;
        let mut options = self.options.clone();
        options.schema = format!("conformance_{drawn:?}");
        let shards = Shards::new(shards).unwrap_or(Shards::ONE);
        PostgresStore::make(&options, shards)?;
        self.made.lock().push(options.schema.clone());
        Ok(options)
    }

    fn make(&self, shards: u16) -> PostgresOptions {
        self.try_make(shards).expect("another one was made")
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for schema in self.made.get_mut() {
            let text = format!("DROP SCHEMA \"{schema}\" CASCADE");
            if let Err(error) = execute(&self.options, &text) {
                tracing::warn!(schema, %error, "a schema is left");
            }
        }
    }
}

/// Runs statements on a connection of its own.
fn execute(options: &PostgresOptions, text: &str) -> Result<(), PostgresError> {
    let mut link = crate::store::connect(options)?;
    Ok(link.execute(text, REMOVING.max(STEP))?)
}

struct Reopened {
    options: PostgresOptions,
    store: PostgresStore,
}

impl Reopen for Reopened {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn reopen(&mut self) {
        self.store = PostgresStore::open(&self.options).expect("it was open before");
    }
}
