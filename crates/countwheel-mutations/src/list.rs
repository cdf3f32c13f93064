//! Reads a list of mutations.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::Problem;

/// A mistake, and what it is in the sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// Of its heading in the list, from 1.
    pub(crate) line: usize,
    /// What the mistake is.
    pub(crate) what: Vec<String>,
    pub(crate) blocks: Vec<Block>,
}

/// A change of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) file: PathBuf,
    /// Of its beginning in the list, from 1.
    pub(crate) line: usize,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    Kept(String),
    Removed(String),
    Added(String),
}

impl Line {
    fn read(line: &str) -> Self {
        match line.split_at_checked(1) {
            Some(("+", line)) => Self::Added(line.to_owned()),
            Some(("-", line)) => Self::Removed(line.to_owned()),
            Some((" ", line)) => Self::Kept(line.to_owned()),
            _ => Self::Kept(line.to_owned()),
        }
    }
}

/// Reads a list. Fails for a block that does not end or stands under no heading, for a name that
/// is there twice, and for a mutation that never asks whether it is planted, or whether another is.
pub(crate) fn parse(list: &str) -> Result<Vec<Mutation>, Problem> {
    let mut mutations: Vec<Mutation> = Vec::new();
    let mut lines = (1..).zip(list.lines());
    while let Some((line, text)) = lines.next() {
        if let Some(name) = text.strip_prefix("## ") {
            mutations.push(Mutation {
                name: name.trim().to_owned(),
                line,
                what: Vec::new(),
                blocks: Vec::new(),
            });
            continue;
        }
        let Some(mutation) = mutations.last_mut() else {
            if text.starts_with("```") {
                return Err(problem(line, "", "a block above all headings"));
            }
            continue;
        };
        if let Some(fence) = text.strip_prefix("```") {
            let Some(file) = fence.strip_prefix("diff ") else {
                return Err(problem(line, &mutation.name, "a block names no file"));
            };
            let mut block = Block {
                file: file.trim().into(),
                line,
                lines: Vec::new(),
            };
            loop {
                match lines.next() {
                    Some((_, "```")) => break,
                    Some((_, text)) => block.lines.push(Line::read(text)),
                    None => return Err(problem(line, &mutation.name, "a block does not end")),
                }
            }
            mutation.blocks.push(block);
        } else if mutation.blocks.is_empty() && !(text.is_empty() && mutation.what.is_empty()) {
            mutation.what.push(text.to_owned());
        }
    }
    for mutation in &mut mutations {
        while mutation.what.last().is_some_and(String::is_empty) {
            mutation.what.pop();
        }
        check(mutation)?;
    }
    let mut names: Vec<_> = mutations.iter().map(|one| (&one.name, one.line)).collect();
    names.sort_unstable();
    match names.windows(2).find(|two| two[0].0 == two[1].0) {
        Some(two) => Err(problem(two[1].1, two[1].0, "the name is there twice")),
        None => Ok(mutations),
    }
}

fn check(mutation: &Mutation) -> Result<(), Problem> {
    let err = |what: String| Err(problem(mutation.line, &mutation.name, &what));
    if mutation.what.is_empty() {
        return err("nothing says what the mistake is".to_owned());
    }
    let mut asks = false;
    for line in mutation.blocks.iter().flat_map(|block| &block.lines) {
        let Line::Added(line) = line else { continue };
        for rest in line.split("planted!(").skip(1) {
            let name = rest.split(')').next().unwrap_or_default();
            if name != mutation.name {
                return err(format!("it asks whether {name} is planted"));
            }
            asks = true;
        }
    }
    if asks {
        Ok(())
    } else {
        err(format!("no line has planted!({})", mutation.name))
    }
}

fn problem(line: usize, mutation: &str, what: &str) -> Problem {
    Problem {
        line,
        mutation: mutation.to_owned(),
        what: what.to_owned(),
    }
}

/// The module `planted` of the copy.
pub(crate) fn module_of(mutations: &[Mutation]) -> String {
    let (mut variants, mut all) = (String::new(), String::new());
    for Mutation { name, what, .. } in mutations {
        for line in what {
            let _ = writeln!(variants, "    /// {line}");
        }
        let _ = writeln!(variants, "    {name},");
        let _ = writeln!(all, "        Self::{name},");
    }
    format!(
        "//! The mistakes that are planted in this copy.\n\n\
         /// A mistake of this copy.\n\
         #[derive(Clone, Copy, PartialEq, Eq, Debug)]\n\
         pub(crate) enum Bug {{\n{variants}}}\n\n\
         impl Bug {{\n    /// All of them.\n    pub(crate) const ALL: &[Self] = &[\n{all}    ];\n}}\n\n\
         /// Whether the mistake is on.\n\
         macro_rules! planted {{\n    ($bug:ident) => {{\n        \
         crate::planting::is_planted(crate::planted::Bug::$bug)\n    }};\n}}\n\n\
         pub(crate) use planted;\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn fails(list: &str, line: usize, what: &str) {
        let problem = parse(list).expect_err("a problem");
        assert_eq!((problem.line, problem.what.as_str()), (line, what));
    }

    #[test]
    fn a_mutation_has_a_name_a_sentence_and_blocks() {
        let list = "# Of the timer\n\nText.\n\n## Late\n\nIt is\nlate.\n\n```diff a/b.rs\n \
                    x\n-  y\n+  planted!(Late)\n\n```\n\n```diff c.rs\n+planted!(Late)\n```\n";
        let mutations = parse(list).expect("a list");
        let [late] = &mutations[..] else {
            panic!("{mutations:?}")
        };
        assert_eq!((late.name.as_str(), late.line), ("Late", 5));
        assert_eq!(late.what, ["It is", "late."]);
        let lines = [
            Line::Kept("x".to_owned()),
            Line::Removed("  y".to_owned()),
            Line::Added("  planted!(Late)".to_owned()),
            Line::Kept(String::new()),
        ];
        assert_eq!(late.blocks[0].file, PathBuf::from("a/b.rs"));
        assert_eq!(
            (late.blocks[0].line, &late.blocks[0].lines[..]),
            (10, &lines[..])
        );
        assert_eq!(late.blocks[1].line, 17);
        let module = module_of(&mutations);
        assert!(
            module.contains("    /// It is\n    /// late.\n    Late,\n"),
            "{module}"
        );
        assert!(module.contains("        Self::Late,\n"), "{module}");
    }

    #[test]
    fn a_mutation_asks_whether_it_is_planted_and_whether_no_other_is() {
        fails(
            "## A\nx\n```diff a.rs\n-1\n+2\n```\n",
            1,
            "no line has planted!(A)",
        );
        fails("## A\nx\n", 1, "no line has planted!(A)");
        // Where it is taken away, it does not count.
        fails(
            "## A\nx\n```diff a.rs\n-planted!(A)\n```\n",
            1,
            "no line has planted!(A)",
        );
        let other = "## A\nx\n```diff a.rs\n+planted!(A) && planted!(B)\n```\n";
        fails(other, 1, "it asks whether B is planted");
    }

    #[test]
    fn a_list_that_says_too_little_is_refused() {
        fails(
            "## A\n```diff a.rs\n+planted!(A)\n```\n",
            1,
            "nothing says what the mistake is",
        );
        fails(
            "## A\nx\n```diff a.rs\n+planted!(A)\n",
            3,
            "a block does not end",
        );
        fails(
            "## A\nx\n```\n+planted!(A)\n```\n",
            3,
            "a block names no file",
        );
        fails("```diff a.rs\n```\n", 1, "a block above all headings");
        let one = "## A\nx\n```diff a.rs\n+planted!(A)\n```\n";
        fails(&format!("{one}{one}"), 6, "the name is there twice");
    }
}
