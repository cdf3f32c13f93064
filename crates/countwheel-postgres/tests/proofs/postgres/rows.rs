//! One row is changed from outside while its timer pends: nothing else suffers, and it is said which.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::{
    Attempt, Config, Health, Inline, Outcome, Shards, SystemClock, TimerName, Timers, TroubleReason,
};
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::Clock;

/// How a change is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Noticed {
    /// The server refuses the change.
    Refused,
    /// When the timer is due, by its name.
    Due,
    /// When the store lists it among what is due, by its row.
    Row,
}

use Noticed::{Due as AtDue, Refused, Row};

/// Each column of `timer`, what it is set to, and how that is noticed. A row that is moved to another
/// shard or hash is another row.
const CHANGES: [(&str, &str, Noticed); 27] = [
    ("revision", "revision + 1", AtDue),
    ("revision", "revision - 1", AtDue),
    ("revision", "9223372036854775807", AtDue),
    ("revision", "-9223372036854775808", AtDue),
    ("due", "due + 1", Refused),
    ("wake", "wake + 1", Refused),
    ("wake", "9223372036854775807", Refused),
    ("wake", "-9223372036854775808", Refused),
    ("wake", "NULL", Refused),
    ("shard", "99", Refused),
    ("clock", "'z'", Refused),
    ("clock", "''", Refused),
    ("state", "'z'", Refused),
    ("state", "'r'", AtDue),
    ("state", "'d'", AtDue),
    ("state", "'x'", Refused),
    ("hash", "gen_random_uuid()", Row),
    ("queue", "'other'", AtDue),
    ("queue", "''", AtDue),
    ("queue", "E'a/\\n'", AtDue),
    ("key", "'other'", AtDue),
    ("key", "''", AtDue),
    ("key", "repeat('x', 5000)", AtDue),
    ("body", "''", AtDue),
    ("body", "substr(body, 1, 20)", AtDue),
    (
        "body",
        "set_byte(body, length(body) - 1, 255 - get_byte(body, length(body) - 1))",
        AtDue,
    ),
    ("payload", "'\\x00'", AtDue),
];

const NONE: Vec<String> = Vec::new();

type Fired = Arc<Mutex<BTreeSet<String>>>;

fn open(options: &PostgresOptions, fired: &Fired) -> Timers {
    let store = PostgresStore::open(options).expect("there is a cluster");
    let fired = Arc::clone(fired);
    let handler = Inline(move |attempt: &Attempt| {
        let mut fired = fired.lock().expect("nobody panics");
        fired.insert(attempt.name.to_string());
        Outcome::done()
    });
    let (shards, clock) = (store.shards(), Arc::new(SystemClock::new()));
    Timers::open_divided(
        store,
        shards,
        shards.all(),
        handler,
        clock,
        Config::default(),
    )
    .expect("it is free")
}

fn set(timers: &Timers, name: &TimerName, due: Duration) {
    let set = timers.set(name.clone(), due, "payload");
    set.expect("it is a good timer");
}

/// The details of the troubles with one record.
fn unreadable(timers: &Timers) -> Vec<String> {
    timers.reach().expect("it is there");
    let troubles = timers.troubles().into_iter();
    let of_records = troubles.filter(|one| one.reason == TroubleReason::UnreadableRecord);
    of_records.map(|one| one.detail).collect()
}

/// Whether it is so within 5 s.
fn settled(is_right: &dyn Fn() -> bool) -> bool {
    (0..100).any(|_| {
        is_right() || {
            super::wait(Duration::from_millis(50));
            false
        }
    })
}

fn name(key: String) -> TimerName {
    TimerName::new("rows", key).expect("a good name")
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_row_that_is_changed_from_outside_is_the_only_one_that_suffers() {
    let server = super::server();
    let options = server.fresh();
    PostgresStore::make(&options, Shards::new(4).expect("from 1 to 1024")).expect("a fresh schema");
    let fired = Fired::default();
    let timers = open(&options, &fired);
    // Longer than all changes take.
    let (clock, span) = (SystemClock::new(), Duration::from_secs(12));
    let began = clock.now();
    let names = |number: usize| ["changed", "other"].map(|what| name(format!("{what}-{number}")));
    for number in 0..CHANGES.len() {
        for name in names(number) {
            set(&timers, &name, span);
        }
    }
    for (number, (column, value, noticed)) in CHANGES.into_iter().enumerate() {
        let change = format!(
            "UPDATE \"{}\".timer SET {column} = {value} WHERE key = 'changed-{number}'",
            options.schema
        );
        let changed = server.execute(&change);
        let is_refused = changed.is_err();
        assert_eq!(
            is_refused,
            noticed == Refused,
            "{column} = {value}: {changed:?}"
        );
    }
    let took = clock.now().saturating_since(began);
    super::wait(
        span.checked_sub(took)
            .expect("all is changed before it is due"),
    );
    let said = || unreadable(&timers);
    let wrong = |number: usize, what: &str, said: &[String]| {
        let (column, value, _) = CHANGES[number];
        panic!("{column} = {value}: {what}: {said:?}")
    };
    for (number, (.., noticed)) in CHANGES.into_iter().enumerate() {
        let [changed, other] = names(number);
        let has_fired = |name: &TimerName| {
            let fired = fired.lock().expect("nobody panics");
            fired.contains(&name.to_string())
        };
        let is_said = || {
            said()
                .iter()
                .any(|detail| detail.starts_with(&format!("{changed}: ")))
        };
        if !settled(&|| has_fired(&other)) {
            wrong(number, "another timer does not start", &said());
        }
        let is_right = match noticed {
            Refused => settled(&|| has_fired(&changed)),
            AtDue => settled(&is_said) && !has_fired(&changed),
            Row => !has_fired(&changed),
        };
        if !is_right {
            wrong(number, "it is not noticed", &said());
        }
    }
    assert_eq!(timers.health(), Health::Running);

    // Set anew, each is as good as before.
    fired.lock().expect("nobody panics").clear();
    let mended = (0..)
        .zip(CHANGES)
        .filter(|(_, (.., noticed))| *noticed == AtDue);
    let mended: Vec<_> = mended
        .map(|(number, _)| name(format!("changed-{number}")))
        .collect();
    for name in &mended {
        set(&timers, name, Duration::ZERO);
    }
    let all = || fired.lock().expect("nobody panics").len() == mended.len();
    assert!(settled(&all), "{:?}", fired.lock());
    let of_timers = || {
        said()
            .iter()
            .filter(|detail| !detail.starts_with("row "))
            .count()
    };
    assert!(settled(&|| of_timers() == 0), "{:?}", said());
    timers.stop(Duration::from_secs(1));

    // The row whose hash is another is found when it is listed, and is told until it is gone.
    let timers = open(&options, &fired);
    let is_told = || {
        let said = unreadable(&timers);
        let is_row =
            |detail: &String| detail.starts_with("row ") && detail.contains("rows/changed-");
        said.len() == 1 && said.iter().all(is_row)
    };
    assert!(settled(&is_told), "{:?}", unreadable(&timers));
    println!("{:?}", unreadable(&timers));
    let gone = format!(
        "DELETE FROM \"{}\".timer WHERE key LIKE 'changed-%' AND state = 'p'",
        options.schema
    );
    server.execute(&gone).expect("we may");
    assert_eq!(unreadable(&timers), NONE);
    assert_eq!(timers.health(), Health::Running);
    timers.stop(Duration::from_secs(1));
}
