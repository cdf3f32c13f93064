//! The README of each published crate beside its manifest: the features are those of the manifest,
//! the versions are those of the workspace, and the example is a doc test.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const PUBLISHED: [&str; 10] = [
    "countwheel",
    "countwheel-client",
    "countwheel-core",
    "countwheel-disk",
    "countwheel-durable",
    "countwheel-patterns",
    "countwheel-postgres",
    "countwheel-server",
    "countwheel-time",
    "countwheel-tower",
];

/// Each feature, and whether it is on by default.
type Features = BTreeMap<String, bool>;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(krate: &str, file: &str) -> String {
    let path = repository().join("crates").join(krate).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a section, between its heading and the next.
fn section<'a>(text: &'a str, heading: &'a str, next: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().skip_while(move |line| *line != heading);
    lines
        .skip(1)
        .take_while(move |line| !line.starts_with(next))
}

/// What stands in quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

fn value_of<'a>(manifest: &'a str, section_of: &'a str, key: &str) -> &'a str {
    let mut lines = section(manifest, section_of, "[");
    let line = lines.find(|line| line.split('=').next().unwrap().trim() == key);
    quoted(line.unwrap()).next().unwrap()
}

fn features_of_manifest(manifest: &str) -> Features {
    let mut features = Features::new();
    let mut on = Vec::new();
    for line in section(manifest, "[features]", "[") {
        let Some((name, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else {
            continue;
        };
        // A list over several lines would be read as an empty one.
        assert!(value.ends_with(']'), "{line}");
        if name == "default" {
            on.extend(quoted(value).map(str::to_owned));
        } else {
            features.insert(name.to_owned(), false);
        }
    }
    for name in on {
        *features.get_mut(&name).expect("a feature of its own") = true;
    }
    features
}

fn features_of_readme(readme: &str) -> Features {
    let rows = section(readme, "## Features", "## ").filter(|line| line.starts_with("| `"));
    let read = |row: &str| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, on, adds] = cells[..] else {
            panic!("a row has three cells: {row}");
        };
        assert!(matches!(on, "yes" | "no") && !adds.is_empty(), "{row}");
        (name.trim_matches('`').to_owned(), on == "yes")
    };
    rows.map(read).collect()
}

#[test]
fn the_features_of_each_readme_are_those_of_its_manifest() {
    for krate in PUBLISHED {
        let manifest = features_of_manifest(&read(krate, "Cargo.toml"));
        let readme = read(krate, "README.md");
        assert_eq!(features_of_readme(&readme), manifest, "{krate}");
        let says_none = readme.contains("\nThe crate has no features.\n");
        assert_eq!(says_none, manifest.is_empty(), "{krate}");
    }
}

#[test]
fn the_versions_of_each_readme_are_those_of_the_workspace() {
    let workspace = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let of_workspace = |key| value_of(&workspace, "[workspace.package]", key);
    let msrv = format!("Rust {} or later.", of_workspace("rust-version"));
    let version = of_workspace("version");
    for krate in PUBLISHED {
        let readme = read(krate, "README.md");
        let rust: Vec<_> = section(&readme, "## Rust", "## ")
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(rust, [&*msrv], "{krate}");
        let ours: Vec<_> = section(&readme, "[dependencies]", "```").collect();
        let own = format!("{krate} = ");
        assert!(ours.iter().any(|line| line.starts_with(&own)), "{krate}");
        for line in ours {
            let named = quoted(line).next().unwrap();
            assert!(version.starts_with(&format!("{named}.")), "{krate}: {line}");
        }
    }
}

#[test]
fn each_readme_is_published_and_its_example_is_compiled() {
    for krate in PUBLISHED {
        let manifest = read(krate, "Cargo.toml");
        assert!(manifest.contains("\nreadme = \"README.md\"\n"), "{krate}");
        let library = read(krate, "src/lib.rs");
        let included = "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\n";
        assert!(library.contains(included), "{krate}");
        let readme = read(krate, "README.md");
        assert!(readme.starts_with(&format!("# {krate}\n")), "{krate}");
        let (_, example) = readme.split_once("```rust").expect("an example");
        let (example, _) = example.split_once("\n```").unwrap();
        let lines = example.lines().skip(1);
        let lines = lines.filter(|line| !line.starts_with("# ")).count();
        assert!((5..=15).contains(&lines), "{krate}: {lines} lines");
    }
}

#[test]
fn every_link_of_each_readme_leads_to_a_file() {
    for krate in PUBLISHED {
        let readme = read(krate, "README.md");
        let mut links = 0;
        for target in readme.split("](").skip(1) {
            let (target, _) = target.split_once(')').unwrap();
            let path = target.split('#').next().unwrap();
            let file = repository().join("crates").join(krate).join(path);
            assert!(file.is_file(), "{krate}: {target}");
            links += 1;
        }
        assert!(links >= 3, "{krate}");
    }
}

#[test]
fn features_are_read_from_a_manifest_and_from_a_table() {
    let manifest = "[package]\nname = \"x\"\n\n[features]\ndefault = [\"a\"]\n# Says why.\na = []\nb-c = [\"dep:d\"]\n\n[dependencies]\nd = \"1\"\n";
    let expected = Features::from([("a".to_owned(), true), ("b-c".to_owned(), false)]);
    assert_eq!(features_of_manifest(manifest), expected);
    let readme = "# x\n\n## Features\n\n| feature | on by default | adds |\n|---|---|---|\n| `a` | yes | x |\n| `b-c` | no | y |\n\n## Rust\n\n| `d` | no | z |\n";
    assert_eq!(features_of_readme(readme), expected);
    assert_eq!(value_of(manifest, "[dependencies]", "d"), "1");
    assert!(features_of_manifest("[package]\n").is_empty());
}
