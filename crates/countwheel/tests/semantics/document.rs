//! `docs/semantics.md` and its second part are complete, and whatever they name as a proof
//! exists and is run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// How many rows each group of the first part has.
const GROUPS: [(&str, u32); 11] = [
    ("CFG", 12),
    ("CLK", 11),
    ("ADD", 14),
    ("CAN", 11),
    ("EXP", 11),
    ("KEY", 12),
    ("HIE", 9),
    ("LIF", 15),
    ("CAP", 5),
    ("OBS", 8),
    ("TST", 4),
];

/// The groups of the second part, whose rows are ours to number.
const PATTERNS: [&str; 11] = [
    "BKO", "RTY", "PER", "SUP", "WRK", "IDL", "LSE", "REQ", "DLQ", "DOP", "EXM",
];

/// The defects by their numbers: first those of timers, then those of what is built on them.
const DEFECTS: [RangeInclusive<u32>; 3] = [1..=27, 37..=39, 28..=36];

/// Both parts.
fn documents() -> String {
    read("docs/semantics.md") + &read("docs/semantics-patterns.md")
}

/// What ours is, at the beginning of the fourth column.
const VERDICTS: [&str; 3] = ["**Matched.**", "**Bettered.**", "**Absent.**"];

/// The crates whose examples are named as proofs.
const LIBRARY: [&str; 3] = ["countwheel", "countwheel-patterns", "countwheel-time"];

/// A reason is longer than this many words.
const FEW_WORDS: usize = 6;

struct Row {
    id: String,
    cells: Vec<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// All rows of all tables whose first cell looks like `ADD-5` or `D-5`.
fn rows(document: &str) -> Vec<Row> {
    let is_id = |cell: &str| {
        cell.split_once('-').is_some_and(|(group, number)| {
            !group.is_empty()
                && group.bytes().all(|byte| byte.is_ascii_uppercase())
                && number.parse::<u32>().is_ok()
        })
    };
    let lines = document.lines().filter(|line| line.starts_with('|'));
    lines
        .map(|line| {
            let cells = line.trim_matches('|').split('|').map(str::trim);
            cells.map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|cells| is_id(&cells[0]))
        .map(|cells| Row {
            id: cells[0].clone(),
            cells,
        })
        .collect()
}

/// The functions of a source file, by name, and whether each is a test that is run.
type Functions = BTreeMap<String, bool>;

struct Sources {
    /// By the name of the file without its ending; of `mod.rs`, that of its folder.
    functions: BTreeMap<String, Functions>,
    /// The sources of the library.
    library: String,
}

impl Sources {
    fn read() -> Self {
        let mut functions = BTreeMap::<String, Functions>::new();
        let mut library = String::new();
        let mut folders = vec![];
        for krate in fs::read_dir(repository().join("crates")).unwrap() {
            let krate = krate.unwrap().path();
            folders.extend([krate.join("src"), krate.join("tests")]);
        }
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension() == Some(OsStr::new("rs")) {
                    let text = fs::read_to_string(&path).unwrap();
                    let name = name_of(&path);
                    let known = functions.entry(name).or_default();
                    for (function, is_run) in tests_in(&text) {
                        *known.entry(function).or_default() |= is_run;
                    }
                    let mut parts = path.components();
                    if parts.any(|part| LIBRARY.iter().any(|&krate| part.as_os_str() == krate)) {
                        library += &text;
                    }
                }
            }
        }
        Self { functions, library }
    }

    /// What is wrong with a proof, if anything.
    fn objection(&self, proof: &str) -> Option<String> {
        if let Some(reason) = proof.strip_prefix("by construction: ") {
            let few = reason.split_whitespace().count() <= FEW_WORDS;
            return few.then(|| "a reason has more words".to_owned());
        }
        if let Some(item) = quoted(proof, "doc-test of ") {
            let name = item.rsplit("::").next().unwrap_or(item);
            let exists = has_an_example(&self.library, name);
            return (!exists).then(|| "has no example".to_owned());
        }
        if let Some(count) = quoted(proof, "instruction count ") {
            let counts = read("crates/countwheel-core/instructions.txt");
            let exists = counts
                .lines()
                .any(|line| line.starts_with(&format!("{count} ")));
            return (!exists).then(|| format!("nobody counts `{count}`"));
        }
        if let Some(workload) = proof.strip_prefix("benchmark ") {
            let exists = read("docs/benchmarks.md").contains(&format!("\n### {workload} "));
            return (!exists).then(|| format!("there is no benchmark {workload}"));
        }
        let Some((file, function)) = quoted(proof, "").and_then(|test| test.split_once("::"))
        else {
            return Some("is no proof of a known kind".to_owned());
        };
        match self.functions.get(file).and_then(|file| file.get(function)) {
            None => Some("does not exist".to_owned()),
            Some(false) => Some("is not run as a test".to_owned()),
            Some(true) => None,
        }
    }
}

/// What stands in quotes after `prefix`, if nothing else does.
fn quoted<'a>(proof: &'a str, prefix: &str) -> Option<&'a str> {
    let quoted = proof.strip_prefix(prefix)?;
    let inside = quoted.strip_prefix('`')?.strip_suffix('`')?;
    (!inside.contains('`')).then_some(inside)
}

/// Whether there is a function or a type of this name with an example in its documentation.
fn has_an_example(source: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait"].map(|kind| format!("{kind} {name}"));
    let defines = |line: &str| {
        kinds.iter().any(|kind| {
            let rest = line.split_once(kind.as_str()).map(|(_, rest)| rest);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let mut has_example = false;
    source.lines().map(str::trim).any(|line| {
        if line.starts_with("///") {
            has_example |= line.contains("```");
        } else if !line.starts_with("#[") {
            if has_example && line.starts_with("pub ") && defines(line) {
                return true;
            }
            has_example = false;
        }
        false
    })
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap();
    let name = if stem == "mod" {
        path.parent().unwrap().file_name().unwrap()
    } else {
        stem
    };
    name.to_str().unwrap().to_owned()
}

fn tests_in(source: &str) -> Functions {
    let mut functions = Functions::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            is_ignored |= line.starts_with("#[ignore");
        } else if let Some((_, after)) = line.split_once("fn ") {
            let name: String = after
                .chars()
                .take_while(|&c| c.is_alphanumeric() || c == '_')
                .collect();
            functions.insert(name, is_test && !is_ignored);
            (is_test, is_ignored) = (false, false);
        } else if line.is_empty() {
            (is_test, is_ignored) = (false, false);
        }
    }
    functions
}

fn proofs(row: &Row) -> impl Iterator<Item = &str> {
    let proofs = row.cells.last().unwrap().split("<br>");
    proofs.map(str::trim)
}

#[test]
fn every_row_is_there_once() {
    let rows = rows(&documents());
    let expected: BTreeSet<String> = GROUPS
        .iter()
        .flat_map(|&(group, last)| (1..=last).map(move |number| format!("{group}-{number}")))
        .chain(PATTERNS.iter().flat_map(|group| {
            // As many as there are, without a gap.
            let rows = rows.iter().filter(|row| row.id.starts_with(group));
            (1..=rows.count().max(1)).map(move |number| format!("{group}-{number}"))
        }))
        .chain(
            DEFECTS
                .into_iter()
                .flatten()
                .map(|number| format!("D-{number}")),
        )
        .collect();
    let mut found = BTreeSet::new();
    for row in &rows {
        assert!(expected.contains(&row.id), "nobody knows {}", row.id);
        assert!(found.insert(row.id.clone()), "{} is there twice", row.id);
    }
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn every_row_says_what_ours_is_and_what_proves_it() {
    let sources = Sources::read();
    let mut objections = Vec::new();
    for row in rows(&documents()) {
        let columns = if row.id.starts_with("D-") { 4 } else { 5 };
        if row.cells.len() != columns || row.cells.iter().any(String::is_empty) {
            objections.push(format!("{}: {} full cells", row.id, columns));
            continue;
        }
        let ours = &row.cells[columns - 2];
        if columns == 5 && !VERDICTS.iter().any(|verdict| ours.starts_with(verdict)) {
            objections.push(format!("{}: one of {VERDICTS:?} comes first", row.id));
        }
        if ours.starts_with(VERDICTS[2]) && ours.split_whitespace().count() <= FEW_WORDS {
            objections.push(format!("{}: says why", row.id));
        }
        for proof in proofs(&row) {
            let objection = sources.objection(proof);
            objections.extend(objection.map(|why| format!("{}: {proof} {why}", row.id)));
        }
    }
    assert!(objections.is_empty(), "\n{}", objections.join("\n"));
}

#[test]
fn what_is_no_proof_is_found() {
    let sources = Sources::read();
    let ok = |proof| assert_eq!(sources.objection(proof), None, "{proof}");
    let wrong = |proof| assert!(sources.objection(proof).is_some(), "{proof}");
    ok("`document::what_is_no_proof_is_found`");
    ok("`model::the_hierarchical_wheel_agrees_with_a_sorted_map`");
    ok("doc-test of `Timer::rouse`");
    ok("doc-test of `Histogram`");
    ok("instruction count `hierarchical schedule`");
    ok("benchmark W3e");
    ok("by construction: a reason that takes more than a handful of words");
    wrong("`document::rows`");
    wrong("`document::nothing_of_the_kind`");
    wrong("`nowhere::what_is_no_proof_is_found`");
    wrong("`document::what_is_no_proof_is_found` and more");
    wrong("doc-test of `Timer::rous`");
    wrong("doc-test of `Timer::pending`");
    wrong("instruction count `hierarchical sched`");
    wrong("benchmark W99");
    wrong("by construction: it is so");
    wrong("");

    let table = "| ID | x |\n|---|---|\n| ADD-5 | `a::b` |\n| D-12 | |\n| other | y |\n";
    let ids: Vec<_> = rows(table).into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["ADD-5", "D-12"]);
    let source =
        "#[test]\n#[ignore = \"slow\"]\nfn one() {}\n\n#[test]\nfn two() {}\nfn three() {}";
    let functions = tests_in(source);
    assert_eq!(
        (functions["one"], functions["two"], functions["three"]),
        (false, true, false)
    );
}
