//! The pages of the guides, read as files: every link leads somewhere, and somewhere else in the
//! documentation of the crate, where the definitions in `guide/links.md` come first. Beside the guide
//! of this crate there is one to durable timers, in `countwheel-disk`.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guide")
}

fn durable_guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../countwheel-disk/guide")
}

/// A page without its blocks of code and its code in line, in which nothing is a link, but with
/// the code that is all of a label.
fn prose(page: &str) -> String {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Labels are the same whatever their case.
fn label(text: &str) -> String {
    text.to_lowercase()
}

/// What `[label]: target` defines.
fn definitions(prose: &str) -> BTreeMap<String, String> {
    let define = |line: &str| {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some((label(name), target.to_owned()))
    };
    prose.lines().filter_map(define).collect()
}

/// What the definitions of pictures define, in the documentation of the crate.
fn pictures() -> BTreeMap<String, String> {
    let files = fs::read_dir(guide().join("pictures")).expect("the folder of pictures can be read");
    let files = files.map(|file| file.expect("the folder of pictures can be read").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let all = files.flat_map(|path| {
        definitions(&fs::read_to_string(path).expect("the folder of pictures can be read"))
    });
    all.collect()
}

/// What a page links to.
#[derive(Default, Debug, PartialEq, Eq)]
struct Links {
    /// `[text](target)`
    targets: Vec<String>,
    /// `[text][label]` and `[label]`, which is only a link if there is a definition.
    labels: Vec<(String, bool)>,
}

fn links(prose: &str) -> Links {
    let mut links = Links::default();
    let lines = prose.lines();
    let text = lines.filter(|line| !(line.starts_with('[') && line.contains("]: ")));
    let text = text.collect::<Vec<_>>().join(" ");
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        rest = &rest[open + 1..];
        let Some(close) = rest.find([']', '[']) else {
            break;
        };
        if rest[close..].starts_with('[') {
            continue; // the inner one of two is the link
        }
        let (name, after) = (&rest[..close], &rest[close + 1..]);
        rest = after;
        if let Some(target) = after.strip_prefix('(') {
            let end = target.find(')').unwrap_or(target.len());
            links.targets.push(target[..end].to_owned());
        } else if let Some(named) = after.strip_prefix('[') {
            let end = named.find(']').unwrap_or(named.len());
            links.labels.push((label(&named[..end]), true));
            rest = &named[end..];
        } else {
            links.labels.push((label(name), false));
        }
    }
    links
}

/// The heading that a `#fragment` names.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// What is wrong with a link of a page, read as a file.
fn objection(guide: &Path, page: &str, target: &str) -> Option<String> {
    if target.starts_with("https://") {
        return None;
    }
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        None
    } else {
        Some(guide.join(path))
    };
    let text = match &file {
        None => page.to_owned(),
        Some(file) => match fs::read_to_string(file) {
            Ok(text) => text,
            Err(_) => return Some(format!("{target} is no file")),
        },
    };
    let is_there = fragment.is_empty() || anchors(&text).contains(fragment);
    (!is_there).then(|| format!("{target} has no such heading"))
}

/// What is wrong with the links of a page, given what `links.md` defines.
fn objections(guide: &Path, page: &str, in_rustdoc: &BTreeMap<String, String>) -> Vec<String> {
    let prose = prose(page);
    let defined = definitions(&prose);
    let links = links(&prose);
    let mut wrong = Vec::new();
    for target in links.targets.iter().chain(defined.values()) {
        wrong.extend(objection(guide, page, target));
    }
    for (label, is_certain) in &links.labels {
        if *is_certain && !defined.contains_key(label) {
            wrong.push(format!("[{label}] is not defined"));
        }
        if !is_certain && !defined.contains_key(label) && in_rustdoc.contains_key(label) {
            wrong.push(format!("[{label}] is defined in links.md only"));
        }
    }
    for (label, target) in &defined {
        if !target.starts_with("https://") && !in_rustdoc.contains_key(label) {
            wrong.push(format!("[{label}] is not defined in links.md"));
        }
        if !links.labels.iter().any(|(used, _)| used == label) {
            wrong.push(format!("[{label}] is not used"));
        }
    }
    for target in &links.targets {
        if !target.starts_with("https://") && !target.starts_with('#') {
            wrong.push(format!(
                "{target} leads nowhere in the crate's documentation"
            ));
        }
    }
    wrong
}

/// What is wrong with the links of a guide, and how many pages it has. `own` is what its `links.md`
/// names besides the crate itself.
fn found(guide: &Path, own: &str, pictures: BTreeMap<String, String>) -> (Vec<String>, usize) {
    let mut in_rustdoc = definitions(&fs::read_to_string(guide.join("links.md")).unwrap());
    assert!(
        in_rustdoc
            .values()
            .all(|path| path.starts_with("crate::") || path.starts_with(own))
    );
    in_rustdoc.extend(pictures);
    let (mut pages, mut used, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for file in fs::read_dir(guide).unwrap() {
        let path = file.unwrap().path();
        if path.ends_with("links.md") || path.is_dir() {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let objections = objections(guide, &page, &in_rustdoc);
        wrong.extend(
            objections
                .iter()
                .map(|objection| format!("{name}: {objection}")),
        );
        used.extend(definitions(&prose(&page)).into_keys());
        pages += 1;
    }
    let unused = in_rustdoc.keys().filter(|label| !used.contains(*label));
    wrong.extend(unused.map(|label| format!("links.md: [{label}] is not used")));
    (wrong, pages)
}

// 163 links of the pages led nowhere but in the crate's documentation.
#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let pictures = pictures();
    assert!(
        pictures
            .values()
            .all(|data| data.starts_with("data:image/svg+xml,"))
    );
    let (wrong, pages) = found(&guide(), "countwheel::", pictures);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(pages, 26);
}

#[test]
fn every_link_of_the_guide_to_durable_timers_leads_somewhere() {
    let (wrong, pages) = found(&durable_guide(), "countwheel_durable::", BTreeMap::new());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(pages, 9);
}

/// Each page is a module of its crate, so that its blocks are tests, and is in the index.
#[test]
fn every_page_is_a_module_and_in_the_index() {
    let index = durable_guide().join("../../../docs/guide/README.md");
    let index = fs::read_to_string(index).unwrap();
    for guide in [guide(), durable_guide()] {
        let modules = fs::read_to_string(guide.join("../src/guide.rs")).unwrap();
        for file in fs::read_dir(&guide).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with("links.md") || path.is_dir() {
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let included = format!("include_str!(\"../guide/{name}\")");
            assert!(modules.contains(&included), "{name} is no module");
            assert!(index.contains(&format!("/guide/{name})")), "{name}");
        }
    }
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let in_rustdoc = definitions("[`Timer`]: crate::Timer\n[capacity]: crate::guide::capacity");
    let guide = guide();
    let wrong = |page: &str| objections(&guide, page, &in_rustdoc);
    assert!(
        wrong(
            "A [`Timer`], [read][capacity].\n\n[`timer`]: ../src/chain.rs\n[capacity]: capacity.md"
        )
        .is_empty()
    );
    assert!(wrong("# A b, c!\n[there](#a-b-c)").is_empty());
    assert_eq!(
        wrong("A [`Timer`]."),
        ["[`timer`] is defined in links.md only"]
    );
    assert_eq!(wrong("A [timer][`Timer`]."), ["[`timer`] is not defined"]);
    assert_eq!(
        wrong("[`Timer`]\n\n[`Timer`]: ../src/tiger.rs"),
        ["../src/tiger.rs is no file"]
    );
    assert_eq!(
        wrong("[`Timer`]\n\n[`Timer`]: crate::Timer"),
        ["crate::Timer is no file"]
    );
    assert_eq!(
        wrong("[x](crate::Timer)"),
        [
            "crate::Timer is no file",
            "crate::Timer leads nowhere in the crate's documentation"
        ]
    );
    assert_eq!(wrong("[x](#there)"), ["#there has no such heading"]);
    assert_eq!(
        wrong("[`x`]\n\n[`x`]: tuning.md"),
        ["[`x`] is not defined in links.md"]
    );
    assert_eq!(wrong("\n[`Timer`]: tuning.md"), ["[`timer`] is not used"]);
    assert!(wrong("```\nlet x = a[0](b);\n```").is_empty());
}
