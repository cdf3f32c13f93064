//! Tags: short texts of a timer, by which lists and jobs find it.

use super::json::Field;
use super::problem::Problem;
use super::request::Query;

/// How many tags a timer has at the most, and how many a list or a job may ask for.
pub(crate) const TAGS_MAX: usize = 8;
/// The longest tag, in bytes.
pub(crate) const TAG_MAX_BYTES: usize = 64;

const A_TAG: &str = "a tag is 1 to 64 ASCII letters, digits and . _ : / = -";

/// Whether a text is a tag. There is no comma in one: a query separates tags by commas.
pub(crate) fn is_tag(text: &str) -> bool {
    let is_of_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=-".contains(&byte);
    (1..=TAG_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_of_tag)
}

/// The tags of a set, or those that a job asks for.
pub(super) fn read(field: &Field<'_>) -> Result<Vec<String>, Problem> {
    let elements = field.elements()?;
    if elements.len() > TAGS_MAX {
        return Err(field.malformed(format!("there are at most {TAGS_MAX} tags")));
    }
    let mut tags: Vec<String> = Vec::with_capacity(elements.len());
    for element in elements {
        let tag = element.text()?.into_owned();
        if !is_tag(&tag) {
            return Err(element.malformed(A_TAG));
        }
        if tags.contains(&tag) {
            return Err(element.malformed("the tag is there twice"));
        }
        tags.push(tag);
    }
    Ok(tags)
}

/// The tags that a list asks for, with commas between them.
pub(super) fn of_query(query: &Query<'_>) -> Result<Vec<String>, Problem> {
    let what = "at most 8 tags with commas between them";
    let tags = query.read("tag", what, |text| {
        let tags: Vec<_> = text.split(',').map(str::to_owned).collect();
        let are_tags = tags.len() <= TAGS_MAX && tags.iter().all(|tag| is_tag(tag));
        are_tags.then_some(tags)
    })?;
    Ok(tags.unwrap_or_default())
}
