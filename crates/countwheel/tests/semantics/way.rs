//! `docs/timer-way.md` names nothing that is not there.

use std::path::Path;

use crate::document::{read, repository};

const PAGE: &str = "docs/timer-way.md";

/// The walks of the page, and no fewer stations in each.
const STATIONS: [usize; 3] = [8, 15, 10];

/// The numbered stations of each section of the page.
fn walks(page: &str) -> Vec<Vec<String>> {
    let is_number = |line: &str| {
        let number = line.split_once(". **").map(|(number, _)| number);
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut walks = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let mut stations = Vec::<String>::new();
        for line in section.lines() {
            if is_number(line) {
                stations.push(line.to_owned());
            } else if let Some(station) = stations.last_mut() {
                *station += "\n";
                *station += line;
            }
        }
        walks.push(stations);
    }
    walks
}

/// What is wrong with a station, whose paths are those of `root`.
fn objections(station: &str, root: &Path) -> Vec<String> {
    let title = station.lines().next().unwrap_or_default();
    let quoted: Vec<_> = station.split('`').skip(1).step_by(2).collect();
    let (mut sources, mut objections) = (Vec::new(), Vec::new());
    for path in quoted.iter().filter(|quoted| quoted.contains('/')) {
        match std::fs::read_to_string(root.join(path)) {
            Ok(source) => sources.push(source),
            Err(_) => objections.push(format!("{title}: there is no {path}")),
        }
    }
    let functions = quoted.iter().filter_map(|quoted| quoted.strip_suffix("()"));
    let functions: Vec<_> = functions.collect();
    for function in &functions {
        let (owner, name) = function.rsplit_once("::").unwrap_or(("", function));
        let is_there = |source: &String| defines(source, name) && has_word(source, owner);
        if !sources.iter().any(is_there) {
            objections.push(format!("{title}: no file of it has {function}"));
        }
    }
    if sources.is_empty() || functions.is_empty() {
        objections.push(format!("{title}: names no file, or no function"));
    }
    objections
}

/// Whether there is a function of this name.
fn defines(source: &str, name: &str) -> bool {
    let definition = format!("fn {name}");
    let mut after = source.split(&definition).skip(1);
    after.any(|rest| rest.starts_with(['(', '<']))
}

/// Whether it is named, by itself and not as a part of another name.
fn has_word(source: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    word.is_empty() || source.split(|c| !is_letter(c)).any(|found| found == word)
}

#[test]
fn every_file_and_function_on_the_way_exists() {
    let walks = walks(&read(PAGE));
    let stations: Vec<_> = walks.iter().map(Vec::len).collect();
    assert_eq!(stations.len(), STATIONS.len());
    let is_enough = stations
        .iter()
        .zip(STATIONS)
        .all(|(&is, least)| is >= least);
    assert!(is_enough, "{stations:?} stations");
    let root = repository();
    let found = walks.iter().flatten();
    let found: Vec<_> = found
        .flat_map(|station| objections(station, &root))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn what_is_not_on_the_way_is_found() {
    let page = "# x\n\n`y/z`\n\n## A\n\n1. **One.** `a()` in\n   `b/c.rs`.\n2. **Two.** d\n\n## B\n\ntext\n";
    let walks = walks(page);
    assert_eq!(walks.len(), 2);
    assert_eq!(walks[0].len(), 2);
    assert!(walks[0][0].contains("b/c.rs") && walks[1].is_empty());

    let root = repository();
    let wrong = |station: &str| objections(station, &root).len();
    let file = "`crates/countwheel/src/timer.rs`";
    assert_eq!(wrong(&format!("1. **x** `Timer::schedule()` in {file}")), 0);
    assert_eq!(wrong(&format!("1. **x** `schedule_at()` in {file}")), 0);
    assert_eq!(wrong(&format!("1. **x** `schedule_a()` in {file}")), 1);
    assert_eq!(wrong(&format!("1. **x** `Tim::schedule()` in {file}")), 1);
    assert_eq!(
        wrong("1. **x** `schedule()` in `crates/countwheel/src/tim.rs`"),
        3
    );
    assert_eq!(wrong(&format!("1. **x** in {file}")), 1);
    assert_eq!(wrong("1. **x** nothing"), 1);
}
