//! Answers of a machine as text.
//!
//! A line `== QUESTION` stands before the lines of its answer, and `== QUESTION !ERRNO` where there is none. Lines before the first
//! question are comments. Questions: a file's path; a directory's path with `/` behind it; `PATH ->` for a link; `open PATH` and
//! `owner PATH`; `$ PROGRAM ARGUMENT …`; `interfaces`.

use std::collections::BTreeMap;
use std::fmt;

use super::Answer;

/// A line that is none of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedRecording {
    /// Counted from 1.
    line: usize,
    text: String,
}

impl fmt::Display for MalformedRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is not `== QUESTION` or `== QUESTION !ERRNO`: {:?}", self.line, self.text)
    }
}

impl std::error::Error for MalformedRecording {}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Answer>, MalformedRecording> {
    let mut answers = BTreeMap::new();
    let mut current: Option<(String, Answer)> = None;
    for (index, line) in text.lines().enumerate() {
        let malformed = || MalformedRecording { line: index + 1, text: line.to_owned() };
        if let Some(question) = line.strip_prefix("==") {
            let question = question.strip_prefix(' ').map(str::trim_end).filter(|q| !q.is_empty());
            let question = question.ok_or_else(malformed)?;
            let (question, answer) = match question.rsplit_once(" !") {
                Some((question, errno)) => (question, Err(errno.parse().map_err(|_| malformed())?)),
                None => (question, Ok(String::new())),
            };
            answers.extend(current.replace((question.to_owned(), answer)));
        } else if let Some((_, answer)) = &mut current {
            match answer {
                Ok(text) => {
                    text.push_str(line.strip_prefix('\\').unwrap_or(line));
                    text.push('\n');
                }
                Err(_) if line.trim().is_empty() => {}
                Err(_) => return Err(malformed()),
            }
        }
    }
    answers.extend(current);
    for text in answers.values_mut().flatten() {
        *text = text.trim().to_owned();
    }
    Ok(answers)
}

pub(super) fn render(answers: &BTreeMap<String, Answer>) -> String {
    let mut text = String::new();
    for (question, answer) in answers {
        match answer {
            Ok(answer) => {
                text.push_str(&format!("== {question}\n"));
                for line in answer.lines() {
                    // A line that looks like a question, or like one that was escaped.
                    let escape = if line.starts_with("==") || line.starts_with('\\') { "\\" } else { "" };
                    text.push_str(&format!("{escape}{line}\n"));
                }
            }
            Err(errno) => text.push_str(&format!("== {question} !{errno}\n")),
        }
    }
    text
}

/// Returns the names in a directory that questions about what is in it have.
pub(super) fn implied_names(answers: &BTreeMap<String, Answer>, directory: &str) -> Vec<String> {
    let inside = answers.keys().filter_map(|question| question.strip_prefix(directory));
    let first = |rest: &str| {
        let name = rest.split('/').next().unwrap_or(rest);
        name.strip_suffix(" ->").unwrap_or(name).to_owned()
    };
    let mut names: Vec<_> = inside.map(first).collect();
    names.sort_unstable();
    names.dedup();
    names
}
