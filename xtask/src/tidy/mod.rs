//! `cargo xtask test tidy`: house rules that neither Cargo nor a lint knows.

mod crates;
mod cycles;
mod imports;
mod threats;

use std::fs;
use std::path::Path;

use crate::failure::{Context, Failure, Result};
use crate::host;

/// A longer file has more than one subject.
const MAX_LINES: usize = 600;

/// Words that no file may say, each with the reason. In two parts, so that this file does not say them either.
const WORDS: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "names a directory of one machine"),
    (concat!("/ro", "ot/"), "names a directory of one machine"),
    (concat!("FIX", "ME"), "puts off what belongs in an issue"),
    (concat!("TO", "DO"), "puts off what belongs in an issue"),
    (concat!("#[ig", "nore"), "is a test that does not run"),
];

/// Words that begin no sentence of a comment and no name of a function, because such a sentence has to be read twice.
const CLAUSES: &[&str] = &["What", "Who", "That"];

/// The places that may lift the workspace's ban of unsafe code. `docs/SAFETY.md` argues each.
const UNSAFE: &[&str] = &["transport-rdma/src/verbs/", "transport-rdma/src/dma/", "rpc-segments/src/lib.rs"];

/// One text file of the workspace.
pub(crate) struct File {
    /// Relative to the workspace, with `/` between its parts.
    path: String,
    text: String,
}

/// Checks every rule, and fails with all that breaks one.
pub(crate) fn check() -> Result<()> {
    let root = host::workspace_dir();
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut found: Vec<String> = files.iter().flat_map(broken).collect();
    found.extend(threats::check(&files));
    found.extend(crates::check(root)?);
    found.extend(cycles::check(&files)?);
    match found.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} rules are broken:\n  {}", found.join("\n  ")))),
    }
}

/// The rules that one file breaks, in words.
fn broken(file: &File) -> Vec<String> {
    let File { path, text } = file;
    let mut found = Vec::new();
    let is_rust = path.ends_with(".rs");
    let lines = text.lines().count();
    if is_rust && lines > MAX_LINES {
        found.push(format!("{path} has {lines} lines; the most are {MAX_LINES}"));
    }
    for (n, line) in text.lines().enumerate() {
        for (_, why) in WORDS.iter().filter(|(word, _)| line.contains(word)) {
            found.push(format!("{path}:{} {why}", n + 1));
        }
        if let Some(word) = clause(line).filter(|_| is_rust) {
            let place = format!("{path}:{}", n + 1);
            found.push(format!(
                "{place} begins a sentence with `{word}`: begin with the thing that is meant, or a verb"
            ));
        }
    }
    // The workspace denies unsafe code and `allow`, so a file needs `expect(unsafe_code)` for it.
    let lifts = concat!("unsafe", "_code,");
    if is_rust && text.contains(lifts) && !UNSAFE.iter().any(|place| path.starts_with(place)) {
        found.push(format!("{path} has unsafe code, and is no place for it"));
    }
    found
}

/// Returns the word of [`CLAUSES`] that begins a sentence of a comment, or the name of a function, in this line.
fn clause(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let is_clause = |word: &str| CLAUSES.iter().find(|clause| clause.eq_ignore_ascii_case(word)).copied();
    let Some(text) = line.strip_prefix("//") else {
        let (before, name) = line.split_once("fn ")?;
        let is_item = before.split_whitespace().all(|word| word.starts_with("pub") || word == "async");
        return name.split_once('_').filter(|_| is_item).and_then(|(word, _)| is_clause(word));
    };
    let is_marker = |word: &&str| matches!(*word, "-" | "*");
    let text = text.trim_start_matches(['/', '!']);
    let mut first_words =
        text.split(". ").filter_map(|text| text.split_whitespace().find(|word| !is_marker(word)));
    first_words.find_map(|word| is_clause(word).filter(|clause| *clause == word))
}

/// Reads all text files below `directory`, but those that are hidden or built.
fn collect(root: &Path, directory: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(directory).context(directory.display())?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name.to_string_lossy().starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
            continue;
        }
        let is_text = ["rs", "md", "toml", "sh"].iter().any(|e| path.extension().is_some_and(|x| x == *e));
        // Another program's temporary file may be gone by now.
        if let (true, Ok(text)) = (is_text, fs::read_to_string(&path)) {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
            files.push(File { path: parts.join("/"), text });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        broken(&File { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn long_files_and_forbidden_words_are_found() {
        assert_eq!(found("a.rs", &"\n".repeat(600)), 0);
        assert_eq!(found("a.rs", &"\n".repeat(601)), 1);
        assert_eq!(found("a.md", &"\n".repeat(601)), 0);
        assert_eq!(found("a.md", concat!("see /wo", "rk/x\nTO", "DO")), 2);
    }

    #[test]
    fn sentences_begin_with_what_they_are_about() {
        for line in [
            "/// What it is.",
            "    /// - Who asks.",
            "//! It ends. That",
            "// It ends. That is all.",
            "    fn what_is_it() {",
            "pub(super) async fn who_asks(",
        ] {
            assert_eq!(found("a.rs", line), 1, "{line}");
        }
        for line in [
            "/// Whatever it is.",
            "/// It says that What is a type.",
            "let x = 1; // That",
            "fn whatever(what: &str) {",
            "let name = \"a fn what_it_is\";",
        ] {
            assert_eq!(found("a.rs", line), 0, "{line}");
        }
        assert_eq!(found("a.md", "/// What it is."), 0);
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let lifted = concat!("#![expect(unsafe", "_code, reason = \"none\")]");
        assert_eq!(found("transport-rdma/src/verbs/qp.rs", lifted), 0);
        assert_eq!(found("rpc-core/src/lib.rs", lifted), 1);
    }
}
