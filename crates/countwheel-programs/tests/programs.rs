//! The page of the programs: each has its row with the lines it has, and none of ours has more than it may.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// Our programs with their crates, and how many lines they may have.
const PROGRAMS: [(&str, &str, usize); 4] = [
    ("countwheel-programs", "tcp_server", 80),
    ("countwheel-programs", "orders_threads", 80),
    ("countwheel-disk", "orders_killed", 60),
    ("countwheel-programs", "webhook", 80),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of a program, without blank ones and those of comments.
fn lines(krate: &str, program: &str) -> usize {
    let path = format!("crates/{krate}/examples/{program}.rs");
    let source = fs::read_to_string(repository().join(path)).unwrap();
    count(&source)
}

fn count(source: &str) -> usize {
    let lines = source.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn no_program_has_more_lines_than_it_may() {
    for (krate, program, most) in PROGRAMS {
        let lines = lines(krate, program);
        assert!(lines <= most, "{program}: {lines} lines");
        assert!(lines > most / 2, "{program}: {lines} lines are no program");
    }
}

#[test]
fn the_page_has_the_lines_of_each_program_and_of_the_same_with_usual_crates() {
    let page = fs::read_to_string(repository().join("docs/programs.md")).unwrap();
    for (krate, program, _) in PROGRAMS {
        let usual = format!("{program}_usual");
        let (ours, theirs) = (lines(krate, program), lines("countwheel-programs", &usual));
        let row = format!(
            "| [{program}](../crates/{krate}/examples/{program}.rs) | {ours} \
             | [{usual}](../crates/countwheel-programs/examples/{usual}.rs) | {theirs} |"
        );
        assert!(page.contains(&row), "the page has no row\n{row}");
    }
}

#[test]
fn blank_lines_and_comments_are_no_lines() {
    assert_eq!(
        count("//! a\n\n/// b\nfn c() {\n    // d\n    e(); // f\n}\n"),
        3
    );
}
