//! House rules that no lint knows.

mod scan;

use scan::{code, files, line};

/// Longer than this, a file has more than one subject.
const MAX_LINES: usize = 600;

/// Source files that may be longer, each with the reason.
const LONG: &[(&str, &str)] = &[];

fn none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn source_files_are_short() {
    let mut found = Vec::new();
    for file in files(&["rs"]) {
        let lines = file.text.lines().count();
        let excused = LONG.iter().any(|(path, _)| *path == file.path);
        if lines > MAX_LINES && !excused {
            found.push(format!("{} has {lines} lines", file.path));
        }
        if lines <= MAX_LINES && excused {
            found.push(format!("{} is short now: strike it off the list", file.path));
        }
    }
    none(found, "a source file has at most 600 lines");
}

/// What no file may say. In two parts, so that this file does not say it either.
const WORDS: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "names a directory of one machine"),
    (concat!("/ro", "ot/"), "names a directory of one machine"),
    (concat!("/tmp/", "t-"), "names a directory of one machine"),
    (concat!("FIX", "ME"), "puts off what belongs in an issue"),
    (concat!("TO", "DO"), "puts off what belongs in an issue"),
];

#[test]
fn files_speak_of_the_project_alone() {
    let mut found = Vec::new();
    for file in files(&["rs", "md", "toml", "sh", "yml", "yaml", "txt"]) {
        for (n, text) in file.text.lines().enumerate() {
            for (_, why) in WORDS.iter().filter(|(word, _)| text.contains(word)) {
                found.push(format!("{}:{} {why}", file.path, n + 1));
            }
        }
    }
    none(found, "files have nothing that is true in one place or for one day only");
}

const ALLOWED: &str = "silences a lint for good: `expect` it, with the reason";

/// What no code may do, without the spaces that it may have between its parts.
const CODE: &[(&str, &str)] = &[
    ("todo!(", "is not finished"),
    ("unimplemented!(", "is not finished"),
    ("[allow(", ALLOWED),
    (",allow(", ALLOWED),
    ("#[ignore", "is a test that does not run"),
];

/// Where lints may be silenced for good, each with the reason.
const SILENT: &[(&str, &str)] = &[(
    "rpc-macros/src/expand/",
    "generated code fits many services; where a lint finds nothing, `expect` warns",
)];

fn forbidden(text: &str) -> Vec<(usize, &'static str)> {
    let code = code(text);
    // Spaces go, lines stay.
    let dense: String = code.chars().filter(|c| *c == '\n' || !c.is_whitespace()).collect();
    let found = CODE.iter().flat_map(|(what, why)| dense.match_indices(what).map(move |(at, _)| (at, *why)));
    found.map(|(at, why)| (line(&dense, at), why)).collect()
}

#[test]
fn code_is_finished_and_lints_are_heeded() {
    let mut found = Vec::new();
    for file in files(&["rs"]) {
        let silent = SILENT.iter().any(|(place, _)| file.path.starts_with(place));
        let here = forbidden(&file.text).into_iter().filter(|(_, why)| !silent || *why != ALLOWED);
        found.extend(here.map(|(line, why)| format!("{}:{line} {why}", file.path)));
    }
    none(found, "code is finished, lints are heeded, tests run");
}

#[test]
fn what_is_forbidden_is_found() {
    let lines = |text| forbidden(text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("fn f() {\n    todo!()\n}"), [2]);
    assert_eq!(lines("#![allow(dead_code)]"), [1]);
    assert_eq!(lines("#[cfg_attr(test, allow (dead_code))]"), [1]);
    assert_eq!(lines("\n# [ignore = \"slow\"]"), [2]);
    assert_eq!(lines("// todo!()\n#[expect(dead_code)] fn allow() { m::allow(\"[allow(\") }"), []);
}
