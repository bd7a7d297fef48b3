//! The project's files as text, for tests that hold rules which no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

/// One text file.
pub(crate) struct File {
    /// Relative to [`root`], with `/` on every system.
    pub(crate) path: String,
    /// As it stands there.
    pub(crate) text: String,
}

/// The workspace if this package is in it, else the package alone: then rules about the rest have nothing to hold.
pub(crate) fn root() -> PathBuf {
    workspace().unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")))
}

/// The workspace, unless this package was unpacked somewhere on its own.
pub(crate) fn workspace() -> Option<PathBuf> {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let manifest = fs::read_to_string(parent.join("Cargo.toml")).ok()?;
    let ours = manifest.contains("[workspace]") && manifest.contains("name = \"farcall\"");
    ours.then(|| parent.to_owned())
}

/// Every file with one of these extensions, in order; without what is hidden or built.
pub(crate) fn files(extensions: &[&str]) -> Vec<File> {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &root, extensions, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!files.is_empty(), "{} has no files of {extensions:?}", root.display());
    files
}

fn collect(root: &Path, directory: &Path, extensions: &[&str], files: &mut Vec<File>) {
    let entries = fs::read_dir(directory).expect("a directory of the project can be read");
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name.to_string_lossy().starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, extensions, files);
        } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            let relative = path.strip_prefix(root).expect("found under it");
            let parts: Vec<_> = relative.iter().map(|p| p.to_string_lossy()).collect();
            // Another program's temporary file may be gone by now.
            if let Ok(text) = fs::read_to_string(&path) {
                files.push(File { path: parts.join("/"), text });
            }
        }
    }
}

/// Rust source with comments and the insides of literals blanked out; every line stays where it was.
pub(crate) fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes[i..].starts_with(b"//") => line_end(bytes, i),
            b'/' if bytes[i..].starts_with(b"/*") => comment_end(bytes, i),
            b'"' => string_end(bytes, i),
            b'r' if !is_word(bytes, i.wrapping_sub(1)) || b"bc".contains(&bytes[i - 1]) => raw_end(bytes, i),
            b'\'' => char_end(text, i),
            _ => i,
        };
        for b in &mut out[i..end] {
            if *b != b'\n' {
                *b = b' ';
            }
        }
        i = end.max(i + 1);
    }
    String::from_utf8(out).expect("only whole characters were blanked out")
}

fn is_word(bytes: &[u8], i: usize) -> bool {
    bytes.get(i).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| from + n)
}

/// Comments nest.
fn comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut i) = (0, from);
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            (depth, i) = (depth + 1, i + 2);
        } else if bytes[i..].starts_with(b"*/") {
            (depth, i) = (depth - 1, i + 2);
        } else {
            i += 1;
        }
        if depth == 0 {
            break;
        }
    }
    i.min(bytes.len())
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut i = from + 1;
    while i < bytes.len() && bytes[i] != b'"' {
        i += 1 + usize::from(bytes[i] == b'\\');
    }
    (i + 1).min(bytes.len())
}

/// `from` itself if no raw string begins there.
fn raw_end(bytes: &[u8], from: usize) -> usize {
    let hashes = bytes[from + 1..].iter().take_while(|b| **b == b'#').count();
    let open = from + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return from;
    }
    let close = [&b"\""[..], &vec![b'#'; hashes]].concat();
    let rest = &bytes[open + 1..];
    rest.windows(close.len()).position(|w| w == close).map_or(bytes.len(), |n| open + 1 + n + close.len())
}

/// `from` itself if it begins a lifetime.
fn char_end(text: &str, from: usize) -> usize {
    let mut rest = text[from + 1..].char_indices();
    match (rest.next(), rest.next()) {
        (Some((_, '\\')), _) => {
            let escaped = from + 3;
            text.as_bytes()[escaped..].iter().position(|b| *b == b'\'').map_or(from, |n| escaped + n + 1)
        }
        (Some(_), Some((n, '\''))) => from + 1 + n + 1,
        _ => from,
    }
}

/// The number of the line in which byte `at` stands.
pub(crate) fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Where `word` stands in code as a word of its own.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !is_word(bytes, at.wrapping_sub(1)) && !is_word(bytes, at + word.len()))
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = r##"a /* b /* c */ d */ e // f
        "g \" h" i r#"j " k"# l 'm' n '\'' o '\u{70}' p::<'q> br"r" s"##;
    let kept: String = code(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(kept, "a e i l n o p::<'q> b s");
    assert_eq!(code(text).len(), text.len());
    assert_eq!(words("unsafe_code unsafe {", "unsafe").collect::<Vec<_>>(), [12]);
}
