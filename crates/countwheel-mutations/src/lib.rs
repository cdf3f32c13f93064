//! Plants mistakes in copies of sources, for the tests that must find them.
//!
//! A test that cannot fail proves nothing. So tests run against sources with known mistakes as
//! well, and have to find each. The sources contain none of that: the build script of the tests
//! calls [`build`], which copies the sources into the folder of the build and applies a list of
//! **mutations** to the copy. Each mistake there is off until a test switches it on by its name.
//!
//! # The list
//!
//! A document in Markdown. A heading `##` names a mutation, the text below says what the mistake
//! is, and each block `diff` changes one file. The lines of a block but for those with `+` must be
//! in that file, one below the other, in exactly one place; indentation does not count. The lines
//! with `+` ask `planted!(Name)` whether the mistake is on.
//!
//! ````text
//! ## SleepWithoutFence
//!
//! No fence is between the host's announcement and its second look.
//!
//! ```diff shards.rs
//! -fence(Ordering::SeqCst);
//! +if !planted!(SleepWithoutFence) {
//! +    fence(Ordering::SeqCst);
//! +}
//! ```
//! ````
//!
//! What is above the first heading `##` is for readers. All mutations are applied to the same
//! copy, each to the text as the sources have it, so none depends on another. Two that change the
//! same line are refused. Where the sources do not have the lines of a block any more, the build
//! fails and shows them.
//!
//! # The copy
//!
//! Tests take it in with `include!(concat!(env!("OUT_DIR"), "/NAME/lib.rs"))`, in the root of their
//! crate. It has one more module: `planted`, with `Bug`, the enum of all mutations in the order of
//! the list. `planted!(Name)` asks `crate::planting::is_planted(Bug::Name)`: that function is
//! the test's. The copy has no unit tests.

mod apply;
mod list;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use list::Mutation;

/// Why a mutation cannot be planted.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Problem {
    /// Of the list, from 1.
    line: usize,
    mutation: String,
    what: String,
}

impl Problem {
    /// As compilers say it, so that editors find the place.
    fn shown_in(&self, list: &str) -> String {
        format!("{list}:{}: {}: {}", self.line, self.mutation, self.what)
    }
}

/// For a build script: copies `sources` to the folder `name` of the build, and plants there what
/// `list` says. Both paths begin at the manifest of the package that is built.
///
/// The sources are those of a crate, with a `lib.rs`, or of a module, with a `mod.rs`. If a
/// mutation cannot be planted, this prints why, for all of them, and ends the build script.
///
/// ```no_run
/// // in build.rs
/// let sources = "../countwheel/src/concurrent";
/// countwheel_mutations::build("mutations/timer.md", sources, "timer");
/// ```
///
/// # Panics
///
/// Outside a build script.
pub fn build(list: &str, sources: &str, name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo runs build scripts")).join(name);
    println!("cargo::rerun-if-changed={list}");
    println!("cargo::rerun-if-changed={sources}");
    if let Err(problems) = plant(list, sources, &out) {
        for problem in problems {
            eprintln!("{problem}");
        }
        process::exit(1);
    }
}

fn plant(list: &str, sources: &str, out: &Path) -> Result<(), Vec<String>> {
    let of = |what: &str, error: io::Error| vec![format!("{what}: {error}")];
    let text = fs::read_to_string(list).map_err(|error| of(list, error))?;
    let mut files = Files::new();
    collect(Path::new(sources), Path::new(""), &mut files).map_err(|error| of(sources, error))?;
    let copy = list::parse(&text)
        .map_err(|problem| vec![problem])
        .and_then(|mutations| copy_of(&mutations, &files, sources))
        .map_err(|problems| {
            let shown = problems.iter().map(|problem| problem.shown_in(list));
            shown.collect::<Vec<_>>()
        })?;
    write(out, &copy).map_err(|error| of(&out.display().to_string(), error))
}

/// The texts of files, by their paths below the folder of the sources.
type Files = BTreeMap<PathBuf, String>;

fn collect(folder: &Path, below: &Path, files: &mut Files) -> io::Result<()> {
    for entry in fs::read_dir(folder.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(folder, &path, files)?;
        } else {
            files.insert(path.clone(), fs::read_to_string(folder.join(path))?);
        }
    }
    Ok(())
}

/// Writes what has changed. A file of an earlier copy that is not part of this one stays, and
/// nothing names it.
fn write(out: &Path, copy: &Files) -> io::Result<()> {
    for (path, text) in copy {
        let path = out.join(path);
        if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            continue;
        }
        fs::create_dir_all(path.parent().expect("it is below the folder"))?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// The sources with all mutations, and what the copy has beside them.
fn copy_of(mutations: &[Mutation], files: &Files, sources: &str) -> Result<Files, Vec<Problem>> {
    let mut copy = apply::all(mutations, files)?;
    for text in copy.values_mut() {
        *text = text.replace("#[cfg(test)]", "#[cfg(false)]");
    }
    let root = Path::new("lib.rs");
    let modules = "mod planted;\n";
    let Some(text) = copy.remove(root) else {
        // A module: it goes into a folder of its own name, below a root that is made here.
        let module = Path::new(sources).file_name().unwrap_or_default();
        let in_module = |(path, text)| (Path::new(module).join(path), text);
        let mut copy: Files = copy.into_iter().map(in_module).collect();
        // Tests need less of it than the product.
        let allowed = "#[allow(dead_code, unused_imports)]";
        let text = format!("{modules}{allowed}\nmod {};\n", module.display());
        copy.insert(root.to_owned(), text);
        copy.insert("planted.rs".into(), list::module_of(mutations));
        return Ok(copy);
    };
    // What is included has no attributes of its own.
    let is_inner = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
    let lines = text.lines().filter(|line| !is_inner(line));
    let text = lines.map(|line| format!("{line}\n")).collect::<String>() + modules;
    copy.insert(root.to_owned(), text);
    copy.insert("planted.rs".into(), list::module_of(mutations));
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(list: &str, files: &[(&str, &str)], sources: &str) -> Result<Files, Vec<Problem>> {
        let files = files.iter().map(|&(path, text)| (path.into(), text.into()));
        let mutations = list::parse(list).expect("a list");
        copy_of(&mutations, &files.collect(), sources)
    }

    const LIST: &str = "## Late\n\nIt is late.\n\n```diff a.rs\n-1\n+2 + planted!(Late)\n```\n";

    #[test]
    fn a_module_is_put_below_a_root_of_its_own() {
        let copy = copied(
            LIST,
            &[("a.rs", "1\n"), ("mod.rs", "mod a;\n")],
            "x/src/near",
        );
        let copy = copy.expect("a copy");
        let paths: Vec<_> = copy.keys().map(|path| path.to_str()).collect();
        let expected = ["lib.rs", "near/a.rs", "near/mod.rs", "planted.rs"];
        assert_eq!(paths, expected.map(Some));
        assert_eq!(
            copy[Path::new("lib.rs")],
            "mod planted;\n#[allow(dead_code, unused_imports)]\nmod near;\n"
        );
    }

    #[test]
    fn the_root_of_a_crate_loses_what_cannot_be_included() {
        let root = "//! A crate.\n#![no_std]\n\n/// An item.\nmod a;\n";
        let copy = copied(LIST, &[("a.rs", "1\n"), ("lib.rs", root)], "x/src");
        let copy = copy.expect("a copy");
        let expected = "\n/// An item.\nmod a;\nmod planted;\n";
        assert_eq!(copy[Path::new("lib.rs")], expected);
    }

    #[test]
    fn a_copy_has_no_unit_tests() {
        let file = "1\n#[cfg(test)]\nmod tests {}\n";
        let copy = copied(LIST, &[("a.rs", file)], "x/near").expect("a copy");
        let text = &copy[Path::new("near/a.rs")];
        assert!(text.contains("#[cfg(false)]\nmod tests {}"), "{text}");
    }
}
