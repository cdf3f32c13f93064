//! Phrases that the prose of this project does without: see CONTRIBUTING.md.
//!
//! The check reads all pages in Markdown but the decisions, which are dated, and all comments of
//! Rust. [`IN_PAGES`] holds for [`PAGES`] alone, outside their blocks of code.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;

/// A phrase in lower case, where `*` stands for one word, and the words to write instead.
type Phrase = (&'static str, &'static str);

const TWO_SENTENCES: &str = "two sentences, with a noun for each pronoun";
const A_NOUN: &str = "a noun: the caller, the timer, the thread";
const AN_ACTIVE_VERB: &str = "an active verb, with the one who acts as the subject";

/// Refused everywhere.
const PHRASES: [Phrase; 9] = [
    (
        "for want of",
        "for lack of, or a sentence that begins with the reason",
    ),
    ("has it called", "calls it"),
    ("has * called", "calls it, with the subject first"),
    ("who has * has", TWO_SENTENCES),
    ("who has * * has", TWO_SENTENCES),
    (
        "is told of it by whoever",
        "the one who says it as the subject",
    ),
    ("are looked for", AN_ACTIVE_VERB),
    ("are told of", AN_ACTIVE_VERB),
    (CAUSATIVE, "the verb itself: \"Runs `task`\""),
];

/// Stands for a sentence that begins with "Has" and an object: "Has `task` run".
const CAUSATIVE: &str = "Has ...";

/// What follows "Has" in such a sentence, besides a name in code.
const OBJECTS: [&str; 7] = [
    "a",
    "an",
    "the",
    "all",
    "everything",
    "everybody",
    "somebody",
];

/// Refused in [`PAGES`].
const IN_PAGES: [Phrase; 14] = [
    ("whoever", A_NOUN),
    ("who comes", A_NOUN),
    ("who has", A_NOUN),
    ("what is due", "due timers, due items"),
    ("what is not due", "timers that are not due"),
    ("what becomes of", "the end of, or the rule for"),
    ("what became of", "the end of, or the result of"),
    ("unless told otherwise", "by default"),
    ("unless asked for otherwise", "by default"),
    ("one more is refused", "a full ... refuses one more"),
    ("is looked for", AN_ACTIVE_VERB),
    ("is looked at", AN_ACTIVE_VERB),
    ("is told of", AN_ACTIVE_VERB),
    ("to be had", "available, or a sentence with \"can get\""),
];

/// The pages of users and operators.
const PAGES: [&str; 16] = [
    "README.md",
    "docs/api.md",
    "docs/guide",
    "docs/metrics.md",
    "docs/operate.md",
    "docs/reliability.md",
    "docs/timer-states.md",
    "crates/countwheel/README.md",
    "crates/countwheel-core/README.md",
    "crates/countwheel-disk/README.md",
    "crates/countwheel-disk/guide",
    "crates/countwheel-durable/README.md",
    "crates/countwheel-patterns/README.md",
    "crates/countwheel-patterns/guide",
    "crates/countwheel-server/README.md",
    "crates/countwheel-time/README.md",
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
        let file = file.strip_prefix(root).unwrap_or(file);
        for (number, phrase, instead) in faults(&text, Kind::of(file)) {
            let file = file.display();
            found.push(format!("{file}:{number}: `{phrase}`; write {instead}"));
        }
    }
    if let Some(page) = PAGES.iter().find(|page| !root.join(page).exists()) {
        return Outcome::Failed(format!("{page} is not there"));
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
            if !matches!(
                name,
                Some("target" | "decisions" | "corpus" | "node_modules")
            ) {
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

/// The part of a file that is prose, and the phrases that are refused there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Comments.
    Rust,
    /// All lines.
    Markdown,
    /// All lines for [`PHRASES`]; for [`IN_PAGES`], all but blocks of code.
    Page,
}

impl Kind {
    fn of(file: &Path) -> Self {
        if file.extension().is_some_and(|extension| extension == "rs") {
            Self::Rust
        } else if PAGES.iter().any(|page| file.starts_with(page)) {
            Self::Page
        } else {
            Self::Markdown
        }
    }
}

/// A word of prose, or the end of a comment, which no phrase goes over.
struct Word<'a> {
    line: usize,
    /// Without the signs around it, in lower case.
    plain: String,
    raw: &'a str,
    is_in_code: bool,
}

/// The phrases of a text, by line, from 1. A phrase may go on in the next line.
fn faults(text: &str, kind: Kind) -> Vec<(usize, &'static str, &'static str)> {
    let words = words(text, kind);
    let mut found: Vec<(usize, &'static str, &'static str)> = Vec::new();
    let in_pages = IN_PAGES.iter().filter(|_| kind == Kind::Page);
    for (phrase, instead) in PHRASES.iter().chain(in_pages) {
        let is_everywhere = PHRASES.iter().any(|(other, _)| other == phrase);
        let wanted: Vec<_> = phrase.split(' ').collect();
        for place in words.windows(wanted.len()) {
            let is_it = if *phrase == CAUSATIVE {
                is_causative(place)
            } else {
                place.iter().zip(&wanted).all(|(word, wanted)| {
                    !word.plain.is_empty() && (*wanted == "*" || word.plain == *wanted)
                })
            };
            let line = place[0].line;
            if is_it
                && (is_everywhere || !place[0].is_in_code)
                && !found.iter().any(|(other, ..)| *other == line)
            {
                found.push((line, phrase, instead));
            }
        }
    }
    found
}

fn words(text: &str, kind: Kind) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut is_in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let said = if kind == Kind::Rust {
            line.strip_prefix("//")
                .map(|said| said.trim_start_matches(['/', '!']))
        } else {
            Some(line)
        };
        let Some(said) = said else {
            words.push(Word {
                line: number,
                plain: String::new(),
                raw: "",
                is_in_code,
            });
            continue;
        };
        is_in_code ^= said.trim_start().starts_with("```");
        words.extend(said.split_whitespace().map(|raw| Word {
            line: number,
            plain: plain(raw),
            raw,
            is_in_code,
        }));
    }
    words
}

/// Whether a sentence begins here with "Has" and what it makes do something. A question ends
/// elsewhere with its own sign, and none of the comments asks one.
fn is_causative(place: &[Word<'_>]) -> bool {
    let [has, object] = place else {
        return false;
    };
    has.raw == "Has" && (object.raw.starts_with('`') || OBJECTS.contains(&object.raw))
}

/// A word without what stands around it.
fn plain(word: &str) -> String {
    let is_around = |c: char| !c.is_alphanumeric();
    word.trim_matches(is_around).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, kind: Kind) -> Vec<usize> {
        let found = faults(text, kind);
        found.into_iter().map(|(line, ..)| line).collect()
    }

    #[test]
    fn a_phrase_is_found_over_the_end_of_a_line_and_in_comments_alone() {
        let text = "It waits for\nwant of room.\n";
        assert_eq!(lines(text, Kind::Markdown), [1]);
        assert_eq!(lines(text, Kind::Rust), [0; 0]);
        assert_eq!(lines("/// Has `f` called once.\n", Kind::Rust), [1]);
        assert_eq!(
            lines("    // Refused for\n    // want of room.\n", Kind::Rust),
            [1]
        );
        assert_eq!(lines("// For\nlet want = of;\n", Kind::Rust), [0; 0]);
        let found = |text| lines(text, Kind::Markdown);
        assert_eq!(found("Who has a lease has a table."), [1]);
        assert_eq!(found("Who has leases has tables."), [1]);
        assert_eq!(found("It calls `f` for lack of room."), [0; 0]);
    }

    #[test]
    fn each_phrase_is_found() {
        for (phrase, _) in PHRASES.iter().filter(|(phrase, _)| *phrase != CAUSATIVE) {
            let text = format!("So {} there.", phrase.replace('*', "one"));
            assert_eq!(lines(&text, Kind::Markdown), [1], "{phrase}");
            let comment = format!("    /// {text}");
            assert_eq!(lines(&comment, Kind::Rust), [1], "{phrase}");
        }
        for (phrase, _) in IN_PAGES {
            let text = format!("So {phrase} there.");
            assert_eq!(lines(&text, Kind::Page), [1], "{phrase}");
            assert_eq!(lines(&text, Kind::Markdown), [0; 0], "{phrase}");
        }
    }

    #[test]
    fn a_causative_is_found_and_a_plain_sentence_is_not() {
        let found = |text| lines(text, Kind::Rust);
        assert_eq!(found("/// Has `task` run once `delay` has passed."), [1]);
        assert_eq!(found("/// It waits.\n/// Has the wheel\n/// ask."), [2]);
        assert_eq!(found("/// Has everything handled that waits."), [1]);
        assert_eq!(found("/// Has no room, or drops what it takes."), [0; 0]);
        assert_eq!(found("/// It has `head` and `tail`."), [0; 0]);
        assert_eq!(found("/// It\n/// has the lock."), [0; 0]);
        assert_eq!(found("/// Has\nthe(room);"), [0; 0]);
    }

    #[test]
    fn a_page_may_have_in_its_code_what_its_prose_must_not() {
        let page = "Due.\n```rust\n// Whoever asks:\n```\nWhoever asks.\n";
        assert_eq!(lines(page, Kind::Page), [5]);
        let page = "```rust\n// For want of room.\n```\n";
        assert_eq!(lines(page, Kind::Page), [2]);
    }

    #[test]
    fn the_pages_are_told_from_other_files() {
        let kind = |file| Kind::of(Path::new(file));
        assert!(kind("README.md") == Kind::Page);
        assert!(kind("docs/guide/README.md") == Kind::Page);
        assert!(kind("docs/glossary.md") == Kind::Markdown);
        assert!(kind("benches/storage/README.md") == Kind::Markdown);
        assert!(kind("crates/countwheel-patterns/guide/retry.md") == Kind::Page);
        assert!(kind("crates/countwheel-patterns/src/lib.rs") == Kind::Rust);
    }
}
