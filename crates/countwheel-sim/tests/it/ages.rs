//! Long times, in short; and that what is wrong with them is noticed.

use std::time::Duration;

use countwheel_sim::ages::{Ages, run};
use countwheel_sim::machine::Kind;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn hours_of_much_go_by() {
    for kind in Kind::ALL {
        let is_slow = Kind::ON_DISK.contains(&kind) || kind == Kind::Postgres;
        let dense = Ages {
            span: if is_slow { HOUR / 10 } else { HOUR },
            restart: if is_slow { 500 } else { 10_000 },
            kind,
            ..Ages::dense()
        };
        let lived = run(1, &dense).unwrap();
        let requests = u64::try_from(dense.span.as_millis() / 100).unwrap();
        let seen = lived.started > requests / 3 && lived.retries > requests / 50;
        assert!(seen, "{requests} {lived:?}");
        assert!(lived.interrupted > 0 && lived.again > 0, "{lived:?}");
    }
}

#[test]
fn a_century_of_little_goes_by() {
    let lived = run(2, &Ages::sparse()).unwrap();
    // 2100 has none.
    assert_eq!(lived.leap_days, 24, "{lived:?}");
    assert!(lived.restarts > 100 && lived.started > 2_000, "{lived:?}");
    assert!(lived.spanned > 100 * 365 * 24 * HOUR, "{lived:?}");
    let decade = Ages {
        span: Ages::sparse().span / 10,
        kind: Kind::Tables,
        ..Ages::sparse()
    };
    let lived = run(3, &decade).unwrap();
    assert_eq!(lived.leap_days, 3, "{lived:?}");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn mistakes_in_the_product_are_noticed() {
    use countwheel_durable::PlantedBug as InEngine;
    use countwheel_sim::planted::{PlantedBug, plant};

    let hours = Ages {
        span: 6 * HOUR,
        restart: 10_000,
        ..Ages::dense()
    };
    for bug in [
        PlantedBug::Engine(InEngine::FireEarly),
        PlantedBug::Engine(InEngine::WakeLate),
        PlantedBug::Engine(InEngine::LoseRetry),
        PlantedBug::Engine(InEngine::KeepRemoved),
        PlantedBug::Engine(InEngine::MoveKeepsOldDeadline),
        PlantedBug::Engine(InEngine::ForgetInterrupted),
    ] {
        plant(Some(bug));
        let seen = run(1, &hours);
        plant(None);
        println!("{bug:?}: {}", seen.as_ref().unwrap_err());
    }
}
