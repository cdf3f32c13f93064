//! The simulated server answers as a real one does.
//!
//! `COUNTWHEEL_HISTORIES` says how many histories are put to both, and `COUNTWHEEL_SEED` which is the first.

use countwheel_postgres::conformance::Mistake;
use countwheel_postgres::testing::{different_answers, same_answers};

fn number(variable: &str, usual: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn the_simulated_server_answers_as_a_real_one() {
    let server = super::server();
    let first = number("COUNTWHEEL_SEED", 1);
    let count = number("COUNTWHEEL_HISTORIES", 100);
    let (mut answers, mut made, mut not_made) = (0, 0, 0);
    for seed in first..first + count {
        let same = same_answers(&server, seed, None).unwrap_or_else(|differs| {
            let short = different_answers(&server, seed, None);
            panic!("{}", short.ok().flatten().unwrap_or(differs))
        });
        answers += same.answers;
        made += same.made;
        not_made += same.not_made;
    }
    println!("{count} histories, {answers} answers, {made} turns made, {not_made} not");
    assert!(made > 5 * not_made / 10 && not_made > made / 10);
}

/// The first history whose answers are not the same.
fn found(mistake: Option<Mistake>) -> Option<u64> {
    let server = super::server();
    (1..=10).find(|seed| same_answers(&server, *seed, mistake).is_err())
}

/// All but one: nothing is under way when another statement comes.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn mistakes_in_the_statements_are_found() {
    for mistake in Mistake::ALL {
        let after = found(Some(mistake));
        println!("{mistake:?}: {after:?}");
        assert_eq!(after.is_some(), mistake != Mistake::NoLock, "{mistake:?}");
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_history_that_fails_is_made_short() {
    let server = super::server();
    let short = different_answers(&server, 1, Some(Mistake::NotJoined));
    let short = short.expect("the server is there").expect("it is found");
    println!("{short}");
    let (_, steps) = short.split_once("\nafter").expect("the steps are said");
    assert!((1..=3).contains(&steps.trim().lines().count()), "{steps}");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
#[cfg(feature = "planted-bugs")]
fn mistakes_in_the_simulated_server_are_found() {
    use countwheel_postgres::{PlantedBug, plant};

    const OF_THE_SERVER: [PlantedBug; 7] = [
        PlantedBug::PostgresNoToken,
        PlantedBug::PostgresReplacesTurn,
        PlantedBug::PostgresNoTurnBefore,
        PlantedBug::PostgresNotJoined,
        PlantedBug::PostgresSettingsNotJoined,
        PlantedBug::PostgresTakesLate,
        PlantedBug::PostgresKeepsRemoved,
    ];
    for bug in OF_THE_SERVER {
        plant(Some(bug));
        let after = found(None);
        plant(None);
        println!("{bug:?}: {after:?}");
        assert!(after.is_some(), "{bug:?}");
    }
}
