//! `ARCHITECTURE.md` beside what is there: its arrows between the crates are those of the manifests,
//! the paths of its code map exist, and its tables can be scanned.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Who depends on whom, and whether in tests only.
type Arrows = BTreeSet<(String, String, Kind)>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// `->`
    Built,
    /// `~>`
    InTests,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Of one manifest: which of our crates each of its sections names.
fn arrows_of(manifest: &str) -> Arrows {
    let (mut package, mut kind, mut arrows) = (String::new(), None, Arrows::new());
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            // `[dependencies.name]` would be read as no section of dependencies.
            assert!(!section.contains("dependencies."), "{section}");
            kind = match section.rsplit('.').next() {
                Some("dependencies" | "build-dependencies") => Some(Kind::Built),
                Some("dev-dependencies") => Some(Kind::InTests),
                _ => None,
            };
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim().split('.').next().unwrap();
            if kind.is_none() && key == "name" && package.is_empty() {
                value.trim().trim_matches('"').clone_into(&mut package);
            } else if let Some(kind) = kind.filter(|_| key.starts_with("countwheel")) {
                arrows.insert((package.clone(), key.to_owned(), kind));
            }
        }
    }
    arrows
}

/// The lines `a -> b, c` of the block of the document that begins with the word `arrows`.
fn arrows_in(document: &str) -> Arrows {
    let (_, block) = document
        .split_once("```arrows\n")
        .expect("a block of arrows");
    let (block, _) = block.split_once("```").unwrap();
    let mut arrows = Arrows::new();
    for line in block.lines() {
        let (from, kind, to) = match (line.split_once("->"), line.split_once("~>")) {
            (Some((from, to)), None) => (from, Kind::Built, to),
            (None, Some((from, to))) => (from, Kind::InTests, to),
            _ => panic!("no arrow, or two: {line}"),
        };
        for to in to.split(',') {
            let arrow = (from.trim().to_owned(), to.trim().to_owned(), kind);
            assert!(arrows.insert(arrow), "twice: {line}");
        }
    }
    arrows
}

/// A cell of a table is no longer, in characters: two lines.
const CELL_MAX: usize = 200;

/// The cells of a row of a table; none of another line, and none of the line below a header.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    if !line.starts_with('|') || line.trim_matches(['|', '-']).is_empty() {
        return Vec::new();
    }
    let cells = line.trim_matches('|').split('|');
    cells.map(str::trim).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// What is wrong with the code map of the document, whose paths are those of `root`.
fn objections(document: &str, root: &Path) -> Vec<String> {
    let (_, map) = document.split_once("\n## Code map\n").unwrap();
    let (map, _) = map.split_once("\n## ").unwrap_or((map, ""));
    let mut objections = Vec::new();
    // Where the paths of a table begin; of the first table, at the root.
    let mut krate = String::new();
    let mut paths = 0;
    for line in map.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            krate = quoted(heading).next().unwrap_or_default().to_owned();
            if !root.join(&krate).is_dir() {
                objections.push(format!("there is no {krate}"));
            }
        }
        let named = cells(line).into_iter().next();
        for path in named.into_iter().flat_map(quoted) {
            paths += 1;
            let krate = root.join(&krate);
            let is_there = |path: PathBuf| path.exists();
            if !is_there(krate.join("src").join(path)) && !is_there(krate.join(path)) {
                objections.push(format!("{} has no {path}", krate.display()));
            }
        }
    }
    if paths == 0 {
        objections.push("the code map names no path".to_owned());
    }
    for cell in document.lines().flat_map(cells) {
        let length = cell.chars().count();
        if length > CELL_MAX {
            objections.push(format!("a cell of {length} characters: {cell}"));
        }
    }
    objections
}

#[test]
fn every_path_of_the_code_map_exists_and_every_cell_can_be_scanned() {
    let document = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let found = objections(&document, &repository());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_crate_is_in_the_code_map() {
    let document = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    for krate in fs::read_dir(repository().join("crates")).unwrap() {
        let name = krate.unwrap().file_name().into_string().unwrap();
        let row = format!("| `crates/{name}` | ");
        assert!(document.contains(&row), "the code map lacks {name}");
    }
}

#[test]
fn what_is_wrong_with_a_code_map_is_found() {
    let map = |rows: &str| {
        let document = format!("x\n\n## Code map\n\n| a | b |\n|---|---|\n{rows}\n## Next\n");
        objections(&document, &repository())
    };
    let long = "x".repeat(CELL_MAX);
    let right = format!(
        "| `crates/countwheel` | {long} |\n\n### `crates/countwheel`\n\n\
         | `timer.rs`, `concurrent/` | c |\n| `tests/timer.rs` | c |\n"
    );
    assert_eq!(map(&right), [""; 0]);
    assert_eq!(map(&right.replace("timer.rs`, ", "timer.r`, ")).len(), 1);
    assert_eq!(map(&right.replace("concurrent/", "concurent/")).len(), 1);
    assert_eq!(
        map(&right.replace("# `crates/countwheel`", "# `crates/c`")).len(),
        4
    );
    assert_eq!(map(&right.replace(&long, &(long.clone() + "x"))).len(), 1);
    assert_eq!(map("| none | b |\n").len(), 1);
}

#[test]
fn the_arrows_of_the_document_are_those_of_the_manifests() {
    let mut real = Arrows::new();
    for krate in fs::read_dir(repository().join("crates")).unwrap() {
        let manifest = krate.unwrap().path().join("Cargo.toml");
        real.extend(arrows_of(&fs::read_to_string(manifest).unwrap()));
    }
    let document = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let stated = arrows_in(&document);
    let unstated: Vec<_> = real.difference(&stated).collect();
    let unreal: Vec<_> = stated.difference(&real).collect();
    assert!(unstated.is_empty(), "ARCHITECTURE.md lacks {unstated:?}");
    assert!(unreal.is_empty(), "no manifest has {unreal:?}");
    assert!(real.len() >= 15, "{} are read", real.len());
}

#[test]
fn each_way_of_writing_an_arrow_is_read() {
    let arrow = |to: &str, kind| ("countwheel-a".to_owned(), to.to_owned(), kind);
    let manifest = r#"
        [package]
        name = "countwheel-a"
        [features]
        countwheel-x = ["countwheel-y/z"]
        [dependencies]
        countwheel.workspace = true
        countwheel-b = { workspace = true, features = ["serde"] }
        serde = "1"
        [target.'cfg(unix)'.dependencies]
        countwheel-c = { path = "../c" }
        [dev-dependencies]
        countwheel-d.workspace = true
    "#;
    let expected = Arrows::from([
        arrow("countwheel", Kind::Built),
        arrow("countwheel-b", Kind::Built),
        arrow("countwheel-c", Kind::Built),
        arrow("countwheel-d", Kind::InTests),
    ]);
    assert_eq!(arrows_of(manifest), expected);
    let document = "x\n```arrows\ncountwheel-a -> countwheel, countwheel-b, countwheel-c\n\
                    countwheel-a ~> countwheel-d\n```\n";
    assert_eq!(arrows_in(document), expected);
}
