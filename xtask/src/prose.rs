//! Phrases that the prose of this project does without: see CONTRIBUTING.md.
//!
//! Read are all pages in Markdown but the decisions, which are dated, and all comments of Rust.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;

/// What a line must not have, in lower case, and what to write instead. `*` stands for one word.
const PHRASES: [(&str, &str); 6] = [
    (
        "for want of",
        "for lack of, or a sentence that begins with the reason",
    ),
    ("has it called", "calls it"),
    ("has * called", "calls it, with the subject first"),
    (
        "who has * has",
        "two sentences, with a noun for each pronoun",
    ),
    (
        "who has * * has",
        "two sentences, with a noun for each pronoun",
    ),
    (
        "is told of it by whoever",
        "the one who says it as the subject",
    ),
];

/// Looks at every file below `root`.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut files = Vec::new();
    for place in ["crates", "xtask", "benches", "docs", "examples-data"] {
        collect(&root.join(place), &mut files);
    }
    files.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root.join(name)));
    let mut found = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else {
            return Outcome::Failed(format!("{} cannot be read", file.display()));
        };
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        for (number, phrase, instead) in faults(&text, is_rust) {
            let file = file.strip_prefix(root).unwrap_or(file).display();
            found.push(format!("{file}:{number}: `{phrase}`; write {instead}"));
        }
    }
    if files.len() < 100 {
        return Outcome::Failed(format!("{} files are too few", files.len()));
    }
    if found.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed(found.join("\n"))
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        if path.is_dir() {
            if !matches!(name, Some("target" | "decisions" | "corpus")) {
                collect(&path, files);
            }
        } else if matches!(
            path.extension().and_then(|extension| extension.to_str()),
            Some("md" | "rs")
        ) && name != Some("prose.rs")
        {
            files.push(path);
        }
    }
}

/// The phrases of a text, by line, from 1. A phrase may go on in the next line.
fn faults(text: &str, is_rust: bool) -> Vec<(usize, &'static str, &'static str)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let said = if is_rust {
            let Some(said) = line.strip_prefix("//") else {
                words.push((number, String::new())); // a comment ends
                continue;
            };
            said.trim_start_matches(['/', '!'])
        } else {
            line
        };
        let said = said.split_whitespace();
        words.extend(said.map(|word| (number, plain(word))));
    }
    let mut found: Vec<(usize, &'static str, &'static str)> = Vec::new();
    for (phrase, instead) in PHRASES {
        let wanted: Vec<_> = phrase.split(' ').collect();
        for place in words.windows(wanted.len()) {
            let is_it = place
                .iter()
                .zip(&wanted)
                .all(|((_, word), wanted)| !word.is_empty() && (*wanted == "*" || word == wanted));
            if is_it && !found.iter().any(|(line, ..)| *line == place[0].0) {
                found.push((place[0].0, phrase, instead));
            }
        }
    }
    found
}

/// A word without what stands around it.
fn plain(word: &str) -> String {
    let is_around = |c: char| !c.is_alphanumeric();
    word.trim_matches(is_around).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_found_over_the_end_of_a_line_and_in_comments_alone() {
        let lines = |text, is_rust| -> Vec<usize> {
            let found = faults(text, is_rust);
            found.into_iter().map(|(line, ..)| line).collect()
        };
        let text = "It waits for\nwant of room.\n";
        assert_eq!(lines(text, false), [1]);
        assert_eq!(lines(text, true), [0; 0]);
        assert_eq!(lines("/// Has `f` called once.\n", true), [1]);
        assert_eq!(
            lines("    // Refused for\n    // want of room.\n", true),
            [1]
        );
        assert_eq!(lines("// For\nlet want = of;\n", true), [0; 0]);
        assert_eq!(lines("Who has a lease has a table.", false), [1]);
        assert_eq!(lines("Who has leases has tables.", false), [1]);
        assert_eq!(lines("It calls `f` for lack of room.", false), [0; 0]);
    }
}
