//! The page about the Application Security Verification Standard names each requirement once, and tests that exist.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/asvs.md");

/// The sections of the chapters that the page is about, and how many requirements each has.
const SECTIONS: [(&str, u32); 38] = [
    ("2.1", 12),
    ("2.2", 7),
    ("2.3", 3),
    ("2.4", 5),
    ("2.5", 7),
    ("2.6", 3),
    ("2.7", 6),
    ("2.8", 7),
    ("2.9", 3),
    ("2.10", 4),
    ("3.1", 1),
    ("3.2", 4),
    ("3.3", 4),
    ("3.4", 5),
    ("3.5", 3),
    ("3.6", 2),
    ("3.7", 1),
    ("4.1", 5),
    ("4.2", 2),
    ("4.3", 3),
    ("5.1", 5),
    ("5.2", 8),
    ("5.3", 10),
    ("5.4", 3),
    ("5.5", 4),
    ("7.1", 4),
    ("7.2", 2),
    ("7.3", 4),
    ("7.4", 3),
    ("8.1", 6),
    ("8.2", 3),
    ("8.3", 8),
    ("9.1", 3),
    ("9.2", 5),
    ("13.1", 5),
    ("13.2", 6),
    ("13.3", 2),
    ("13.4", 2),
];

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| "));
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
    let rows = rows.map(cells);
    rows.filter(|row: &Vec<&str>| row[0].starts_with(|it: char| it.is_ascii_digit()))
}

/// The section of a requirement, and its number there.
fn parts(name: &str) -> (&str, u32) {
    let (section, number) = name.rsplit_once('.').unwrap();
    (section, number.parse().unwrap())
}

#[test]
fn each_requirement_is_there_once() {
    let mut found = Vec::new();
    for row in rows() {
        for part in row[0].split(", ") {
            let (first, last) = part.split_once('–').unwrap_or((part, part));
            let ((section, first), (other, last)) = (parts(first), parts(last));
            assert_eq!(section, other, "{part}");
            found.extend((first..=last).map(|number| (section, number)));
        }
    }
    let sections = SECTIONS.iter();
    let all = sections.flat_map(|&(section, count)| (1..=count).map(move |it| (section, it)));
    let (all, mut sorted): (BTreeSet<_>, Vec<_>) = (all.collect(), found.clone());
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), found.len(), "one is there twice");
    assert_eq!(sorted.into_iter().collect::<BTreeSet<_>>(), all);
}

fn sources(directory: &Path, all: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push((path.display().to_string(), text));
        }
    }
}

#[test]
fn what_is_met_names_tests_that_exist() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    sources(&here.join("src"), &mut all);
    sources(&here.join("tests"), &mut all);
    let mut named = 0;
    for row in rows() {
        assert_eq!(row.len(), 4, "{row:?}");
        let is_known = ["met", "open", "operator", "–"].contains(&row[2]);
        assert!(is_known, "{row:?}");
        let names = row[3].split('`').skip(1).step_by(2);
        for name in names.filter(|name| name.contains("::")) {
            let (module, test) = name.split_once("::").unwrap();
            let is_there = all.iter().any(|(path, text)| {
                let is_of = [format!("/{module}.rs"), format!("/{module}/mod.rs")];
                let is_of = is_of.iter().any(|end| path.ends_with(end));
                is_of && text.contains(&format!("fn {test}()"))
            });
            assert!(is_there, "{name}");
            named += 1;
        }
    }
    assert!(named > 60, "{named}");
}
