//! Foreign text in places where people read it: in logs, on a terminal and on the page.
//!
//! A character that moves a terminal's cursor, turns the direction of writing or shows nothing at
//! all could make a key or a receiver's answer pass for something else (Boucher and Anderson,
//! "Trojan Source", 2021). This module shows such characters as JSON escapes them, `\u202e`, so
//! that JSON stays the same.

use std::io::{self, Write};

/// Whether a character acts on what stands around it, or cannot be seen.
fn is_unseen(found: char) -> bool {
    matches!(found,
        '\u{00}'..='\u{1f}' | '\u{7f}'..='\u{9f}' // controls, ESC among them
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' // of no width, and marks of direction
        | '\u{2028}'..='\u{202e}' // ends of lines, embeddings and overrides
        | '\u{2060}'..='\u{206f}' // joiners, isolates
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' // tags
    )
}

/// Writes a character as it may be shown.
pub(crate) fn put(out: &mut impl std::fmt::Write, found: char) -> std::fmt::Result {
    if !is_unseen(found) {
        return out.write_char(found);
    }
    let mut units = [0; 2];
    for unit in found.encode_utf16(&mut units) {
        write!(out, "\\u{unit:04x}")?;
    }
    Ok(())
}

/// A writer of text that shows what would not be seen. Each write is of whole characters.
#[derive(Debug)]
pub(crate) struct Showing<W> {
    out: W,
    /// Whether a write is one line: what looks like an end of it before its end is none.
    by_line: bool,
}

impl<W> Showing<W> {
    /// For text of any number of lines.
    pub(crate) fn lines(out: W) -> Self {
        let by_line = false;
        Self { out, by_line }
    }

    /// For a log, of which each write is one line.
    pub(crate) fn line(out: W) -> Self {
        let by_line = true;
        Self { out, by_line }
    }
}

impl<W: Write> Write for Showing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) if self.by_line => (line, "\n"),
            _ => (&*text, ""),
        };
        let is_end = |found| matches!(found, '\n' | '\t') && !self.by_line;
        if !line.chars().any(|found| is_unseen(found) && !is_end(found)) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut shown = String::with_capacity(line.len() + 16);
        for found in line.chars() {
            if is_end(found) {
                shown.push(found);
            } else {
                put(&mut shown, found).map_err(io::Error::other)?;
            }
        }
        shown += end;
        self.out.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(by_line: bool, text: &str) -> String {
        let mut out = Vec::new();
        let mut showing = if by_line {
            Showing::line(&mut out)
        } else {
            Showing::lines(&mut out)
        };
        showing.write_all(text.as_bytes()).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_would_not_be_seen_is_shown() {
        for (text, shown) in [
            ("order-42 ü 漢字 👍", "order-42 ü 漢字 👍"),
            ("a\u{1b}[2Jb", "a\\u001b[2Jb"),
            ("gpj\u{202e}exe", "gpj\\u202eexe"),
            ("a\u{200b}b\u{feff}c", "a\\u200bb\\ufeffc"),
            ("a\u{9b}31m", "a\\u009b31m"),
            ("\u{e0041}", "\\udb40\\udc41"),
            ("one\ntwo\r\n", "one\ntwo\\u000d\n"),
        ] {
            assert_eq!(written(false, text), shown);
        }
    }

    /// One line of a log stays one line.
    #[test]
    fn nothing_in_a_line_ends_it() {
        let forged = "key=a\n2026-01-01 INFO all is well\n";
        let shown = "key=a\\u000a2026-01-01 INFO all is well\n";
        assert_eq!(written(true, forged), shown);
        assert_eq!(written(true, "plain\n"), "plain\n");
    }

    /// What is JSON still is, and says the same.
    #[test]
    fn json_stays_what_it_is() {
        let text = "a\u{202e}b\u{e0041}\u{200b}";
        let json = serde_json::to_string(&[text]).expect("JSON");
        let read: Vec<String> = serde_json::from_str(&written(false, &json)).expect("JSON");
        assert_eq!(read, [text]);
    }
}
