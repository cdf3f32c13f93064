//! The arrows between the crates: those of `ARCHITECTURE.md` are those of the manifests.

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
