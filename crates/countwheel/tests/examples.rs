//! The page of the examples: each program has a row, and each row a program.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Of each example the crate and the source.
type Programs = BTreeMap<String, (String, String)>;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = |path: PathBuf| {
        (
            path.file_name().unwrap().to_string_lossy().into_owned(),
            path,
        )
    };
    paths.map(named).collect()
}

fn programs() -> Programs {
    let mut programs = BTreeMap::new();
    for (package, folder) in entries(&repository().join("crates")) {
        for (file, path) in entries(&folder.join("examples")) {
            // A folder has what several programs share.
            if let Some(name) = file.strip_suffix(".rs") {
                let source = fs::read_to_string(&path).unwrap();
                programs.insert(name.to_owned(), (package.clone(), source));
            }
        }
    }
    programs
}

/// What is wrong with a page, given the programs that exist.
fn objections(page: &str, programs: &Programs) -> Vec<String> {
    let (mut wrong, mut missing) = (Vec::new(), programs.clone());
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [scene, program, command, prints, from] = cells[..] else {
            wrong.push(format!("five cells, please: {row}"));
            continue;
        };
        if scene == "scene" {
            continue;
        }
        let name = program
            .trim_start_matches('[')
            .split(']')
            .next()
            .unwrap_or_default();
        let Some((package, _)) = programs.get(name) else {
            wrong.push(format!("{name} is no example"));
            continue;
        };
        if missing.remove(name).is_none() {
            wrong.push(format!("{name} has two rows"));
        }
        if program != format!("[{name}](../crates/{package}/examples/{name}.rs)") {
            wrong.push(format!("{name} is not where its link leads"));
        }
        if !command.starts_with("`cargo run ")
            || !command.ends_with(&format!(" -p {package} --example {name}`"))
        {
            wrong.push(format!("{name} is not what its command runs"));
        }
        if [scene, prints, from].contains(&"") {
            wrong.push(format!("{name} has an empty cell"));
        }
    }
    wrong.extend(missing.keys().map(|name| format!("{name} has no row")));
    wrong
}

#[test]
fn every_example_has_a_row_and_every_row_its_program() {
    let page = fs::read_to_string(repository().join("docs/examples.md")).unwrap();
    let programs = programs();
    assert!(programs.len() > 30, "{} are too few", programs.len());
    let wrong = objections(&page, &programs);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The command of the heartbeats once named a crate that has no such example.
#[test]
fn a_command_in_the_head_of_an_example_runs_that_example() {
    for (name, (package, source)) in programs() {
        let head = source.lines().take_while(|line| line.starts_with("//!"));
        let head: Vec<_> = head
            .map(|line| line.trim_start_matches("//!").trim())
            .collect();
        let head = head.join(" ");
        if let Some((_, command)) = head.split_once("cargo run ") {
            let words: Vec<_> = command.split([' ', '`']).collect();
            let after = |option| {
                let place = words.iter().position(|&word| word == option)?;
                words
                    .get(place + 1)
                    .map(|word| word.trim_end_matches(['.', ',']))
            };
            assert_eq!(after("-p"), Some(&*package), "{name}");
            assert_eq!(after("--example"), Some(&*name), "{name}");
        }
    }
}

#[test]
fn what_is_wrong_with_a_page_is_found() {
    let first = ("countwheel".to_owned(), String::new());
    let programs = BTreeMap::from([("first".to_owned(), first)]);
    let wrong = |page: &str| objections(page, &programs);
    let row = "| a | [first](../crates/countwheel/examples/first.rs) | `cargo run -p countwheel --example first` | b | c |";
    assert_eq!(wrong(row), [""; 0]);
    assert_eq!(wrong(""), ["first has no row"]);
    assert_eq!(wrong(&format!("{row}\n{row}")), ["first has two rows"]);
    assert_eq!(
        wrong(&row.replace("first]", "last]")),
        ["last is no example", "first has no row"]
    );
    assert_eq!(
        wrong(&row.replace("/countwheel/", "/countwheel-core/")),
        ["first is not where its link leads"]
    );
    assert_eq!(
        wrong(&row.replace("-p countwheel ", "-p countwheel-core ")),
        ["first is not what its command runs"]
    );
    assert_eq!(
        wrong(&row.replace("| b |", "| |")),
        ["first has an empty cell"]
    );
    assert_eq!(wrong("| a |").len(), 2);
}
