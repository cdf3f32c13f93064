//! `docs/limits.md` against the constants of the program, for limits that no request can try out. A row without a
//! constant here, a constant without a row and another number each fail.

use std::time::Duration;

use countwheel_durable::{Answer, Config, EventLog, Note, Record};

use crate::api::events::PIECE_BYTES;
use crate::api::idempotency::KEPT_FOR;
use crate::api::{TESTS_MAX, audit, backfill, batch};
use crate::events::SIGN_OF_LIFE;
use crate::resources::{blocked, breaker, failing, flows, queue};
use crate::{answered, deliver, pool, pull, traced};

const PAGE: &str = include_str!("../../../docs/limits.md");

/// Rows in words, and those whose number is private to another crate, which its own tests hold.
const IN_WORDS: [&str; 5] = [
    "answer of a proxy to `CONNECT`",
    "attempts that run for one endpoint, or one host and port",
    "spans of time for which a run and those before it were held",
    "how long a dead timer is kept",
    "runs of a calendar that are counted as missed or overlapped at a time",
];

/// Each row with its numbers, in bytes, milliseconds or as they are.
fn constants() -> Vec<(&'static str, Vec<u64>)> {
    let bytes = |bytes: usize| u64::try_from(bytes).unwrap();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap();
    vec![
        ("operations of a batch", vec![batch::OPERATIONS_MAX]),
        ("line of a batch", vec![bytes(batch::LINE_MAX_BYTES)]),
        (
            "operations of a batch that are under way",
            vec![bytes(batch::WINDOW), bytes(batch::WINDOW_BYTES)],
        ),
        (
            "result that waits for its reader",
            vec![bytes(batch::RESULT_BYTES)],
        ),
        (
            "what refusals say that wait for their reader",
            vec![bytes(batch::TEXTS_MAX)],
        ),
        (
            "time without a byte in either direction",
            vec![millis(batch::PROGRESS)],
        ),
        (
            "operations of an atomic batch",
            vec![bytes(batch::ATOMIC_MAX)],
        ),
        (
            "length of an atomic batch",
            vec![bytes(batch::ATOMIC_MAX_BYTES)],
        ),
        (
            "body of an answer that is read",
            vec![bytes(deliver::ANSWER_MAX_BYTES)],
        ),
        (
            "everything that a target sends for one attempt over HTTP/1.1, and a head over HTTP/2",
            vec![bytes(pool::READ_MAX_BYTES)],
        ),
        ("headers of an answer", vec![bytes(pool::HEADERS_MAX)]),
        (
            "everything that a target sends on a connection of HTTP/2",
            vec![bytes(pool::READ_MAX_BYTES), bytes(pool::READ_MAX_BYTES)],
        ),
        (
            "attempts that share a connection of HTTP/2",
            vec![bytes(pool::STREAMS_MAX)],
        ),
        (
            "`Retry-After` that is honoured",
            vec![millis(Duration::from_secs(86_400))],
        ),
        (
            "body of an answer that is kept",
            vec![bytes(answered::BODY_KEPT_BYTES)],
        ),
        ("attempts whose answers are kept", vec![bytes(Answer::KEPT)]),
        (
            "attempts that run with more than 2 MiB to send",
            vec![
                u64::from(flows::LARGE_AT_ONCE),
                u64::from(flows::LARGE_TO_ONE),
            ],
        ),
        (
            "bodies in one answer of leases",
            vec![bytes(pull::LEASED_MAX_BYTES)],
        ),
        (
            "leases of which it is known which worker has them",
            vec![bytes(pull::WORKERS_MAX)],
        ),
        (
            "endpoints of which it is known how long they have failed",
            vec![bytes(failing::KNOWN_MAX)],
        ),
        (
            "hosts and ports that are known to be refused",
            vec![bytes(blocked::KNOWN_MAX)],
        ),
        (
            "time until such a host and port is looked at again",
            vec![millis(blocked::LOOK_MIN), millis(blocked::LOOK_MAX)],
        ),
        ("tests of endpoints at a time", vec![bytes(TESTS_MAX)]),
        (
            "time for the test of an endpoint",
            vec![millis(deliver::TEST_MAX)],
        ),
        (
            "`tracestate` that is carried on",
            vec![bytes(traced::STATE_MAX_BYTES)],
        ),
        (
            "attempts of a timer that are listed",
            vec![bytes(Record::ATTEMPTS_KEPT)],
        ),
        (
            "attempts in a row that end with the process",
            vec![u64::from(Config::default().max_interruptions)],
        ),
        (
            "a timer's request as it is stored",
            vec![bytes(queue::LONGEST_JOB)],
        ),
        (
            "the note of an entry of the audit log",
            vec![bytes(Note::MAX_BYTES)],
        ),
        (
            "entries that a filtered page of the audit log looks at",
            vec![bytes(audit::LOOKED_AT_MAX)],
        ),
        (
            "how long it is known that a backfill has made a run",
            vec![millis(backfill::KNOWN_FOR)],
        ),
        ("the answer of an attempt", vec![bytes(Answer::MAX_BYTES)]),
        (
            "the detail of an attempt",
            vec![bytes(Record::DETAIL_MAX_BYTES)],
        ),
        (
            "how long a purge that is through is shown",
            vec![millis(countwheel_durable::Purge::SHOWN_FOR)],
        ),
        (
            "how long the receipt of a `POST` is kept",
            vec![millis(KEPT_FOR)],
        ),
        (
            "how long a job that has ended is shown",
            vec![millis(countwheel_durable::Job::SHOWN_FOR)],
        ),
        ("events that a node keeps", vec![bytes(EventLog::EVENTS)]),
        (
            "memory for the events that a node keeps",
            vec![bytes(EventLog::BYTES)],
        ),
        ("time without an event", vec![millis(SIGN_OF_LIFE)]),
        (
            "piece of a stream that waits for its reader",
            vec![bytes(PIECE_BYTES)],
        ),
        (
            "endpoints whose health a node knows",
            vec![bytes(breaker::KNOWN_MAX)],
        ),
    ]
}

/// The cells of the rows of a section.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.lines().skip_while(|line| *line != heading).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let rows = section.filter(|line| line.starts_with("| ")).skip(1);
    let cells = |row: &'static str| row.trim_matches('|').split(" | ").map(str::trim).collect();
    rows.map(cells).collect()
}

/// The numbers of a cell.
fn amounts(cell: &str) -> Vec<u64> {
    let words: Vec<&str> = cell.split(' ').collect();
    let number = |word: &str| {
        word.trim_end_matches(',')
            .replace(',', "")
            .parse::<u64>()
            .ok()
    };
    let amounts = words.iter().enumerate().filter_map(|(at, word)| {
        let times = match words.get(at + 1).copied() {
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("s") => 1_000,
            Some("h") => 3_600_000,
            _ => 1,
        };
        Some(number(word)? * times)
    });
    amounts.collect()
}

#[test]
fn the_page_has_the_numbers_of_the_program_and_no_others() {
    let mut constants = constants();
    let sections = [
        "## Of a batch",
        "## Of a delivery",
        "## Of events",
        "## Of what is stored",
    ];
    for row in sections.into_iter().flat_map(rows) {
        let [limit, is, _] = row[..] else {
            panic!("{row:?}");
        };
        if IN_WORDS.contains(&limit) {
            continue;
        }
        let at = constants.iter().position(|(name, _)| *name == limit);
        let (_, numbers) = constants.swap_remove(at.expect(limit));
        assert_eq!(amounts(is), numbers, "{limit}");
    }
    assert!(constants.is_empty(), "no row has {constants:?}");
}
