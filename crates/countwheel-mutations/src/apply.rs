//! Applies mutations to texts.

use std::collections::BTreeMap;
use std::path::Path;

use crate::list::{Block, Line, Mutation};
use crate::{Files, Problem};

/// Lines of a file that others take the place of.
struct Edit<'a> {
    /// The first line, from 0, and the one behind the last. Both are the same where lines are put
    /// in between.
    from: usize,
    to: usize,
    with: Vec<&'a str>,
    of: &'a str,
    line: usize,
}

/// All files, with all mutations in them. Fails with every mutation that cannot be applied.
pub(crate) fn all(mutations: &[Mutation], files: &Files) -> Result<Files, Vec<Problem>> {
    let mut edits: BTreeMap<&Path, Vec<Edit<'_>>> = BTreeMap::new();
    let mut problems = Vec::new();
    for mutation in mutations {
        for block in &mutation.blocks {
            let found = match files.get(&block.file) {
                Some(text) => edits_of(block, text, &mutation.name),
                None => Err(format!("there is no file {}", block.file.display())),
            };
            match found {
                Ok(found) => edits.entry(&block.file).or_default().extend(found),
                Err(what) => problems.push(Problem {
                    line: block.line,
                    mutation: mutation.name.clone(),
                    what,
                }),
            }
        }
    }
    let mut copy = files.clone();
    for (path, mut edits) in edits {
        edits.sort_by_key(|edit| (edit.from, edit.to));
        problems.extend(edits.windows(2).filter_map(clash));
        copy.insert(path.to_owned(), edited(&files[path], &edits));
    }
    if problems.is_empty() {
        Ok(copy)
    } else {
        Err(problems)
    }
}

/// Where the lines of a block are in a text, as edits.
fn edits_of<'a>(block: &'a Block, text: &str, of: &'a str) -> Result<Vec<Edit<'a>>, String> {
    let there: Vec<_> = text.lines().map(str::trim).collect();
    let wanted = block.lines.iter().filter_map(|line| match line {
        Line::Kept(line) | Line::Removed(line) => Some(line.trim()),
        Line::Added(_) => None,
    });
    let wanted: Vec<_> = wanted.collect();
    let shown = || wanted.join("\n    ");
    let file = block.file.display();
    if wanted.is_empty() {
        return Err("a block says nothing of where it belongs".to_owned());
    }
    let mut places = (there.windows(wanted.len()).enumerate())
        .filter(|(_, window)| *window == wanted)
        .map(|(at, _)| at);
    let Some(mut at) = places.next() else {
        return Err(format!(
            "{file} does not have these lines:\n    {}",
            shown()
        ));
    };
    if let Some(other) = places.next() {
        let (first, second) = (at + 1, other + 1);
        return Err(format!(
            "{file} has these lines more than once, in line {first} and in line {second}:\n    {}",
            shown()
        ));
    }
    let mut edits: Vec<Edit<'_>> = Vec::new();
    let mut goes_on = false;
    for line in &block.lines {
        if let Line::Kept(_) = line {
            at += 1;
            goes_on = false;
            continue;
        }
        if !goes_on {
            edits.push(Edit {
                from: at,
                to: at,
                with: Vec::new(),
                of,
                line: block.line,
            });
        }
        goes_on = true;
        let edit = edits.last_mut().expect("one was just begun");
        match line {
            Line::Added(line) => edit.with.push(line),
            _ => {
                at += 1;
                edit.to = at;
            }
        }
    }
    Ok(edits)
}

/// Whether two edits that follow each other want the same lines. Lines that both put into one place
/// stand there in the order of the list.
fn clash(two: &[Edit<'_>]) -> Option<Problem> {
    let (one, other) = (&two[0], &two[1]);
    (other.from < one.to).then(|| Problem {
        line: other.line,
        mutation: other.of.to_owned(),
        what: format!("{} changes the same lines", one.of),
    })
}

/// The text with the edits, and with the macro by which they ask.
fn edited(text: &str, edits: &[Edit<'_>]) -> String {
    let lines: Vec<_> = text.lines().collect();
    let (mut out, mut at) = (Vec::new(), 0);
    for edit in edits {
        out.extend(lines.get(at..edit.from).unwrap_or_default());
        out.extend(&edit.with);
        at = edit.to;
    }
    out.extend(&lines[at..]);
    out.extend(["", "use crate::planted::planted;", ""]);
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::parse;

    const USE: &str = "\nuse crate::planted::planted;\n";

    fn applied(list: &str, text: &str) -> Result<String, Vec<String>> {
        let list = parse(list).expect("a list");
        let files = Files::from([("a.rs".into(), text.to_owned())]);
        all(&list, &files)
            .map(|mut copy| copy.remove(Path::new("a.rs")).expect("the file"))
            .map_err(|problems| problems.iter().map(|one| one.shown_in("list")).collect())
    }

    /// A mutation of one block.
    fn mutation(name: &str, block: &str) -> String {
        format!("## {name}\nx\n```diff a.rs\n{block}\n```\n")
    }

    #[test]
    fn lines_take_the_place_of_others_whatever_their_indentation() {
        let list = mutation("A", " if x {\n-y();\n+if !planted!(A) { y() }\n }");
        let text = "fn f() {\n    if x {\n        y();\n    }\n    y();\n}\n";
        let expected = "fn f() {\n    if x {\nif !planted!(A) { y() }\n    }\n    y();\n}\n";
        assert_eq!(applied(&list, text), Ok(format!("{expected}{USE}")));
    }

    #[test]
    fn a_file_without_a_mutation_stays_as_it_is() {
        let files = Files::from([("b.rs".into(), "x".to_owned())]);
        assert_eq!(all(&[], &files), Ok(files));
    }

    #[test]
    fn mutations_side_by_side_are_applied_in_any_order() {
        let (a, b, c) = (
            mutation("A", "-1\n+planted!(A)\n 2"),
            mutation("B", " 1\n-2\n+planted!(B)\n 3"),
            mutation("C", " 2\n+planted!(C)\n 3"),
        );
        let expected = format!("planted!(A)\nplanted!(B)\nplanted!(C)\n3\n{USE}");
        for list in [[&a, &b, &c], [&c, &b, &a], [&b, &c, &a]] {
            let list: String = list.map(String::as_str).concat();
            assert_eq!(applied(&list, "1\n2\n3\n"), Ok(expected.clone()), "{list}");
        }
    }

    #[test]
    fn each_line_that_is_not_there_is_named() {
        let list = mutation("A", "-1\n+planted!(A)") + &mutation("B", " 2\n-1\n+planted!(B)");
        let expected = [
            "list:3: A: a.rs does not have these lines:\n    1".to_owned(),
            "list:9: B: a.rs does not have these lines:\n    2\n    1".to_owned(),
        ];
        assert_eq!(applied(&list, "2\n3\n"), Err(expected.into()));
    }

    #[test]
    fn lines_that_are_there_twice_are_refused() {
        let problems = applied(&mutation("A", "-1\n+planted!(A)"), "1\n2\n1\n").unwrap_err();
        let expected =
            "list:3: A: a.rs has these lines more than once, in line 1 and in line 3:\n    1";
        assert_eq!(problems, [expected]);
    }

    #[test]
    fn two_mutations_of_the_same_lines_are_refused() {
        let list = mutation("A", "-1\n-2\n+planted!(A)") + &mutation("B", "-2\n+planted!(B)");
        let problems = applied(&list, "1\n2\n").unwrap_err();
        assert_eq!(problems, ["list:10: B: A changes the same lines"]);
    }

    #[test]
    fn lines_for_the_same_place_stand_in_the_order_of_the_list() {
        let list = mutation("B", " 1\n+planted!(B)") + &mutation("A", "+planted!(A)\n 2");
        let expected = format!("1\nplanted!(B)\nplanted!(A)\n2\n{USE}");
        assert_eq!(applied(&list, "1\n2\n"), Ok(expected));
    }

    #[test]
    fn a_block_without_a_place_or_without_its_file_is_refused() {
        let problems = applied(&mutation("A", "+planted!(A)"), "1\n").unwrap_err();
        assert_eq!(
            problems,
            ["list:3: A: a block says nothing of where it belongs"]
        );
        let list = mutation("A", "-1\n+planted!(A)").replace("a.rs", "b.rs");
        let problems = applied(&list, "1\n").unwrap_err();
        assert_eq!(problems, ["list:3: A: there is no file b.rs"]);
    }
}
