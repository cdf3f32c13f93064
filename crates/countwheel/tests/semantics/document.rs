//! `docs/semantics.md`, its second part and `docs/semantics-durable.md` are complete, and whatever
//! they name as a proof exists and is run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// How many rows each group of the first part has.
const GROUPS: [(&str, u32); 11] = [
    ("CFG", 13),
    ("CLK", 13),
    ("ADD", 14),
    ("CAN", 11),
    ("EXP", 11),
    ("KEY", 12),
    ("HIE", 9),
    ("LIF", 16),
    ("CAP", 5),
    ("OBS", 8),
    ("TST", 4),
];

/// The groups of the second part, whose rows are ours to number.
const PATTERNS: [&str; 12] = [
    "BKO", "RTY", "PER", "SUP", "WRK", "IDL", "LSE", "REQ", "DLQ", "DOP", "EXM", "TWR",
];

/// The groups of the durable promises, numbered in the same way.
const DURABLE: [&str; 31] = [
    "NEV", "ACK", "UNK", "DLV", "ORD", "RMV", "REV", "RET", "DED", "REC", "FAR", "SUS", "FUL",
    "DMG", "DIR", "SNP", "SHD", "PGS", "FWD", "CNF", "RES", "DRN", "PUR", "JOB", "LIM", "LST",
    "LAT", "HND", "WBH", "HTP", "BAT",
];

/// No fewer promises are in that document.
const DURABLE_LEAST: usize = 150;

/// The layers of which NEV-1 to NEV-4 name the test of "never early", in this order.
const LAYERS: [&str; 4] = [
    "**The wheels**",
    "**A timer in a process**",
    "**The durable engine**",
    "**The service**",
];

/// The defects by their numbers: first those of timers, then those of what is built on them.
const DEFECTS: [RangeInclusive<u32>; 3] = [1..=27, 37..=39, 28..=36];

/// All parts.
fn documents() -> String {
    read("docs/semantics.md") + &read("docs/semantics-patterns.md") + &durable()
}

fn durable() -> String {
    read("docs/semantics-durable.md")
}

/// What ours is, at the beginning of the fourth column.
const VERDICTS: [&str; 3] = ["**Matched.**", "**Bettered.**", "**Absent.**"];

/// The crates whose examples are named as proofs.
const LIBRARY: [&str; 3] = ["countwheel", "countwheel-patterns", "countwheel-time"];

/// The properties that every store has to show.
const PROPERTIES: &str = "crates/countwheel-durable/src/store/conformance.rs";

/// The crates in which mistakes are planted.
const WITH_MISTAKES: [&str; 6] = [
    "countwheel-cluster",
    "countwheel-durable",
    "countwheel-disk",
    "countwheel-peers",
    "countwheel-postgres",
    "countwheel-sim",
];

/// A reason is longer than this many words.
const FEW_WORDS: usize = 6;

struct Row {
    id: String,
    cells: Vec<String>,
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(path: &str) -> String {
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

/// What a function of a source file is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    NoTest,
    /// A test that `cargo test` leaves out.
    Ignored,
    Test,
}

/// The functions of a source file, by name.
type Functions = BTreeMap<String, Kind>;

struct Sources {
    /// By the name of the file without its ending; of `mod.rs` and `tests.rs`, that of its folder.
    functions: BTreeMap<String, Functions>,
    /// The tests of the real program that take too long for `cargo test`, in the same way.
    long: BTreeMap<String, Functions>,
    /// The names of all mistakes that are planted.
    mistakes: BTreeSet<String>,
    /// The sources of the library.
    library: String,
}

impl Sources {
    fn read() -> Self {
        let mut functions = BTreeMap::<String, Functions>::new();
        let mut long = BTreeMap::<String, Functions>::new();
        let mut mistakes = BTreeSet::new();
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
                    let is_in = |folders: &[&str]| {
                        let mut parts = path.components();
                        parts.any(|part| folders.iter().any(|&folder| part.as_os_str() == folder))
                    };
                    let name = name_of(&path);
                    let kinds = tests_in(&text);
                    if is_in(&["proofs"]) {
                        long.entry(name.clone()).or_default().extend(kinds.clone());
                    }
                    let known = functions.entry(name).or_default();
                    for (function, kind) in kinds {
                        let known = known.entry(function).or_insert(kind);
                        *known = kind.max(*known);
                    }
                    if is_in(&WITH_MISTAKES) && is_in(&["src"]) {
                        mistakes.extend(mistakes_in(&text));
                    }
                    if is_in(&LIBRARY) {
                        library += &text;
                    }
                }
            }
        }
        Self {
            functions,
            long,
            mistakes,
            library,
        }
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
        if let Some(property) = quoted(proof, "property ") {
            let is_checked = read(PROPERTIES).contains(&format!("check: {property},"));
            return (!is_checked).then(|| "is checked of no store".to_owned());
        }
        if let Some(mistake) = quoted(proof, "mistake ") {
            let is_planted = self.mistakes.contains(mistake);
            return (!is_planted).then(|| "is planted nowhere".to_owned());
        }
        if let Some(test) = quoted(proof, "long ") {
            return match kind_of(&self.long, test) {
                None => Some("does not exist".to_owned()),
                Some(Kind::Ignored) if is_stage(test) => None,
                Some(Kind::Ignored) => Some("is run by no stage".to_owned()),
                Some(Kind::NoTest | Kind::Test) => Some("is no long test".to_owned()),
            };
        }
        let Some(test) = quoted(proof, "").filter(|test| test.contains("::")) else {
            return Some("is no proof of a known kind".to_owned());
        };
        match kind_of(&self.functions, test) {
            None => Some("does not exist".to_owned()),
            Some(Kind::NoTest | Kind::Ignored) => Some("is not run as a test".to_owned()),
            Some(Kind::Test) => None,
        }
    }
}

/// Of `file::test`.
fn kind_of(files: &BTreeMap<String, Functions>, test: &str) -> Option<Kind> {
    let (file, function) = test.split_once("::")?;
    files.get(file)?.get(function).copied()
}

/// Whether the gate has a stage for the module of this test of the real program.
fn is_stage(test: &str) -> bool {
    let module = test.split("::").next().unwrap();
    let gate = read("xtask/src/gate.rs");
    let is_one = |stage: &str| gate.contains(&format!("name: \"{stage}\","));
    // A stage may have a folder of files.
    let crates = fs::read_dir(repository().join("crates")).unwrap();
    let proofs = crates.map(|krate| krate.unwrap().path().join("tests/proofs"));
    let folders = proofs.flat_map(|proofs| fs::read_dir(proofs).into_iter().flatten());
    let mut folders = folders.map(|folder| folder.unwrap().path());
    let is_in =
        |folder: PathBuf| folder.join(format!("{module}.rs")).exists() && is_one(&name_of(&folder));
    is_one(module) || folders.any(is_in)
}

/// The variants of the enumerations of a file that says at its head that it is about mistakes.
fn mistakes_in(source: &str) -> Vec<String> {
    let about = source.lines().next().unwrap_or_default().to_lowercase();
    if !about.starts_with("//!") || !(about.contains("mistake") || about.contains("planted")) {
        return Vec::new();
    }
    let mut is_told = false;
    let variants = source.lines().map(str::trim).filter_map(|line| {
        let after_comment = std::mem::replace(&mut is_told, line.starts_with("///"));
        let name = line.strip_suffix(',').filter(|_| after_comment)?;
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_name.then(|| name.to_owned())
    });
    variants.collect()
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
    let name = if stem == "mod" || stem == "tests" {
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
            let kind = match (is_test, is_ignored) {
                (false, _) => Kind::NoTest,
                (true, true) => Kind::Ignored,
                (true, false) => Kind::Test,
            };
            functions.insert(name, kind);
            (is_test, is_ignored) = (false, false);
        } else if line.is_empty() {
            (is_test, is_ignored) = (false, false);
        }
    }
    functions
}

fn group_of(row: &Row) -> &str {
    row.id.split('-').next().unwrap()
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
        .chain(PATTERNS.iter().chain(&DURABLE).flat_map(|group| {
            // As many as there are, without a gap.
            let rows = rows.iter().filter(|row| group_of(row) == *group);
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
        let group = group_of(&row);
        let is_short = group == "D" || DURABLE.contains(&group);
        let columns = if is_short { 4 } else { 5 };
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
fn every_durable_promise_says_where_it_is_stated() {
    let rows = rows(&durable());
    assert!(rows.len() >= DURABLE_LEAST, "{} rows", rows.len());
    for row in &rows {
        let links: Vec<_> = row.cells[2].split("](").skip(1).collect();
        assert!(!links.is_empty(), "{} is stated nowhere", row.id);
        for link in links {
            let (path, _) = link.split_once(')').unwrap();
            let path = repository().join("docs").join(path);
            assert!(path.is_file(), "{}: {}", row.id, path.display());
        }
    }
}

#[test]
fn each_layer_has_a_test_of_never_early() {
    let rows = rows(&durable());
    for (number, layer) in (1u32..).zip(LAYERS) {
        let id = format!("NEV-{number}");
        let row = rows.iter().find(|row| row.id == id).unwrap();
        assert!(row.cells[1].starts_with(layer), "{id} is about {layer}");
        let is_test = |proof: &str| proof.starts_with('`');
        assert!(proofs(row).any(is_test), "{id} names a test");
    }
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
    ok("property `readers_see_whole_batches`");
    ok("mistake `FireEarly`");
    ok("mistake `IgnoreFence`");
    ok("long `kill::kills_under_load_lose_nothing`");
    wrong("property `apply`");
    wrong("mistake `Pending`");
    wrong("mistake `FireEarl`");
    wrong("long `kill::kills_under_load_lose_noth`");
    wrong("long `document::what_is_no_proof_is_found`");
    wrong("long `checker::an_early_arrival_is_seen`");
    wrong("`kill::kills_under_load_lose_nothing`");
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
        (Kind::Ignored, Kind::Test, Kind::NoTest)
    );
}
