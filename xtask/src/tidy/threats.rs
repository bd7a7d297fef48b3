//! The threats in `docs/SECURITY.md`: each names tests that there are, or says that it is open.

use super::File;

const PAGE: &str = "docs/SECURITY.md";

/// Returns the rows of the tables with a column of tests that name none, and the tests that are not there.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let mut found = Vec::new();
    let mut has_tests = false;
    for (n, line) in page.text.lines().enumerate() {
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            has_tests = false;
            continue;
        };
        let last = cells.rsplit('|').next().unwrap_or_default().trim();
        if last == "test" {
            has_tests = true;
        } else if has_tests && !last.starts_with("---") {
            let place = format!("{PAGE}:{}", n + 1);
            found.extend(
                missing(files, last).map(|test| format!("{place} names no test that there is: {test}")),
            );
            if !last.contains('`') && !cells.contains("*open*") {
                found.push(format!("{place} names no test, and does not say that it is open"));
            }
        }
    }
    found
}

/// Returns the names in a cell that are no tests.
fn missing<'a>(files: &'a [File], cell: &'a str) -> impl Iterator<Item = &'a str> {
    cell.split('`').skip(1).step_by(2).filter(|name| !files.iter().any(|file| has(file, name)))
}

/// Whether a file has the test of this path. Modules are looked for in the path of the file.
fn has(file: &File, test: &str) -> bool {
    let mut modules: Vec<_> = test.split("::").filter(|module| *module != "tests").collect();
    let Some(name) = modules.pop() else { return false };
    let path = file.path.strip_suffix(".rs").unwrap_or_default();
    let is_there = |module: &&str| path.split('/').any(|part| part == *module);
    !modules.is_empty() && modules.iter().all(is_there) && has_test(&file.text, name)
}

/// Whether a text has a test of this name, or one of its macros makes it. Tests that do not run are another rule's.
fn has_test(text: &str, name: &str) -> bool {
    let mut attributes = Vec::new();
    let (mut is_in_attribute, mut has_macro) = (false, false);
    for line in text.lines().map(str::trim) {
        if is_in_attribute || line.starts_with("#[") {
            attributes.push(line);
            is_in_attribute = !line.ends_with(']');
            continue;
        }
        if line.starts_with("//") {
            continue;
        }
        let is_test = attributes.drain(..).any(|attribute: &str| {
            attribute.starts_with("#[test]") || attribute.starts_with("#[tokio::test")
        });
        let function = line.trim_start_matches("async ").strip_prefix("fn ");
        if is_test && let Some(function) = function {
            if function.split_once('(').is_some_and(|(function, _)| function == name) {
                return true;
            }
            has_macro |= function.starts_with('$');
        }
        // A macro makes a test of a line that begins with its name.
        let rest = line.strip_prefix(name).filter(|_| has_macro);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':')) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &str) -> Vec<String> {
        let page = format!(
            "| threat | answer | test |\n|---|---|---|\n{rows}\n\n| a | b |\n|---|---|\n| c | `d` |\n"
        );
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let tests = r#"
#[test]
fn it_holds() {}

/// Words.
#[expect(
    clippy::unwrap_used,
    reason = "a test"
)]
#[tokio::test(start_paused = true)]
// Words.
async fn it_waits() {}

fn it_helps() {}

#[test]
fn it_uses_helpers() {
    it_helps();
}
"#;
        let of_macro = "macro_rules! tests {\n    #[test]\n    fn $name() {}\n}\n\n    by_macro\n    vm_by_macro: a::by_macro\n";
        let no_macro = "let list = [\n    by_macro\n];\n";
        check(&[
            file(PAGE, &page),
            file("core/tests/locks.rs", tests),
            file("core/tests/made.rs", of_macro),
            file("core/tests/keys.rs", no_macro),
        ])
    }

    #[test]
    fn tests_that_are_there_may_be_named() {
        assert!(found("| a | b | `locks::it_holds`, `locks::tests::it_waits` |").is_empty());
        assert!(found("| a | b | `made::tests::by_macro`; `made::vm_by_macro` |").is_empty());
        assert!(found("| a | *open*: b | |").is_empty());
    }

    #[test]
    fn other_names_and_none_are_found() {
        for row in [
            "| a | b | |",
            "| a | b | words |",
            "| a | b | `it_holds` |",
            "| a | b | `locks` |",
            "| a | b | `locks::it` |",
            "| a | b | `keys::it_holds` |",
            "| a | *open*: b | `locks::it_held` |",
            "| a | b | `locks::it_helps` |",
            "| a | b | `keys::by_macro` |",
        ] {
            assert_eq!(found(row).len(), 1, "{row}");
        }
    }
}
