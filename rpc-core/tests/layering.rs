//! Who may know whom: what design and documentation promise of the structure, held against the source.

mod scan;

use std::collections::{BTreeMap, BTreeSet};

use scan::{File, code, files, line, root, words, workspace};

fn none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

/// The sources of this package, by path from its `src`.
fn sources() -> Vec<File> {
    let prefix = if workspace().is_some() { "rpc-core/src/" } else { "src/" };
    let ours = files(&["rs"]).into_iter().filter_map(|file| {
        let path = file.path.strip_prefix(prefix)?.to_owned();
        Some(File { path, text: file.text })
    });
    ours.collect()
}

/// Paths that a source names, each from its root and with the line it stands in: `use a::{b, c::d}` names `a::b` and
/// `a::c::d`. `self` and `super` are resolved from `module`.
fn paths(code: &str, module: &[&str]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut tokens = Tokens { code, at: 0 };
    while let Some(token) = tokens.next() {
        if is_ident(token) {
            tokens.tree(vec![token.to_owned()], &mut found);
        }
    }
    found.into_iter().map(|(at, path)| (line(code, at), resolve(path, module))).collect()
}

fn resolve(path: Vec<String>, module: &[&str]) -> Vec<String> {
    let ups = path.iter().take_while(|s| *s == "super").count();
    let selves = usize::from(path[0] == "self");
    if ups + selves == 0 {
        return path;
    }
    let base = module[..module.len().saturating_sub(ups)].iter().map(|s| (*s).to_owned());
    base.chain(path.into_iter().skip(ups + selves)).collect()
}

fn is_ident(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

struct Tokens<'a> {
    code: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    /// A word, `::`, or one other character.
    fn next(&mut self) -> Option<&'a str> {
        let rest = &self.code[self.at..];
        let rest = rest.trim_start();
        self.at = self.code.len() - rest.len();
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let len = match rest.chars().next()? {
            _ if word > 0 => word,
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        self.at += len;
        Some(&rest[..len])
    }

    fn takes(&mut self, token: &str) -> bool {
        let before = self.at;
        let taken = self.next() == Some(token);
        if !taken {
            self.at = before;
        }
        taken
    }

    /// What follows `path`, which has just been read.
    fn tree(&mut self, mut path: Vec<String>, found: &mut Vec<(usize, Vec<String>)>) {
        let at = self.at;
        while self.takes("::") {
            let before = self.at;
            match self.next() {
                Some("{") => return self.group(&path, found),
                Some(token) if is_ident(token) => path.push(token.to_owned()),
                _ => {
                    self.at = before;
                    break;
                }
            }
        }
        found.push((at, path));
    }

    fn group(&mut self, prefix: &[String], found: &mut Vec<(usize, Vec<String>)>) {
        while let Some(token) = self.next() {
            match token {
                "}" => return,
                "self" => found.push((self.at, prefix.to_vec())),
                token if is_ident(token) => self.tree([prefix, &[token.to_owned()]].concat(), found),
                _ => {}
            }
        }
    }
}

/// Blanks what is compiled for tests only, and gives the names of test modules in files of their own.
fn without_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let (mut out, mut modules) = (code.to_owned(), Vec::new());
    while let Some(start) = out.find(MARK) {
        let rest = &out[start + MARK.len()..];
        let (semicolon, brace) = (rest.find(';'), rest.find('{'));
        let len = match (semicolon, brace) {
            (Some(s), b) if b.is_none_or(|b| s < b) => {
                modules.extend(rest[..s].split_whitespace().last().map(str::to_owned));
                s + 1
            }
            (_, Some(b)) => b + block(&rest[b..]),
            _ => rest.len(),
        };
        let end = start + MARK.len() + len;
        let blank: String = out[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(start..end, &blank);
    }
    (out, modules)
}

/// The length of the block that `code` begins with.
fn block(code: &str) -> usize {
    let mut depth = 0;
    for (i, c) in code.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return i + 1;
        }
    }
    code.len()
}

/// The module that a source file is: `proto/wire/mod.rs` is `crate::proto::wire`.
fn module(path: &str) -> Vec<&str> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    std::iter::once("crate").chain(path.split('/').filter(|s| *s != "lib")).collect()
}

/// What a file of `proto` may not name, as any part of a path.
const IMPURE: &[&str] = &[
    "tokio",
    "Mutex",
    "RwLock",
    "Condvar",
    "SystemTime",
    "spawn",
    "async",
    "await",
    "async_trait",
    "futures",
];

/// What it may not name as two parts of a path that follow each other.
const BEYOND: &[&[&str]] = &[
    &["std", "net"],
    &["std", "thread"],
    &["std", "fs"],
    &["std", "io"],
    &["Instant", "now"],
    &["crate", "client"],
    &["crate", "server"],
    &["crate", "connection"],
    &["crate", "transport"],
];

fn impurities(text: &str, module: &[&str]) -> Vec<String> {
    let (code, _) = without_tests(&code(text));
    let mut found = Vec::new();
    for (line, path) in paths(&code, module) {
        let named: Vec<&str> = path.iter().map(String::as_str).collect();
        let impure = named.iter().any(|s| IMPURE.contains(s));
        if impure || BEYOND.iter().any(|two| named.windows(2).any(|w| w == *two)) {
            found.push(format!("{line} names {}", named.join("::")));
        }
    }
    let elapsed = words(&code, "elapsed").filter(|at| {
        let (before, after) = (&code[..*at], &code[at + "elapsed".len()..]);
        before.trim_end().ends_with('.') && after.trim_start().starts_with('(')
    });
    found.extend(elapsed.map(|at| format!("{} asks the clock by elapsed()", line(&code, at))));
    found
}

#[test]
fn proto_knows_no_socket_task_clock_or_lock() {
    let sources: Vec<File> = sources().into_iter().filter(|f| f.path.starts_with("proto/")).collect();
    assert!(sources.len() > 5, "proto has {} files", sources.len());
    let mut of_tests = BTreeSet::new();
    for file in &sources {
        let (_, modules) = without_tests(&code(&file.text));
        let parent = module(&file.path)[1..].join("/");
        of_tests.extend(modules.iter().map(|m| format!("{parent}/{m}")));
    }
    let mut found = Vec::new();
    for file in &sources {
        if !of_tests
            .iter()
            .any(|t| file.path.starts_with(&format!("{t}.rs")) || file.path.starts_with(&format!("{t}/")))
        {
            let impure = impurities(&file.text, &module(&file.path));
            found.extend(impure.into_iter().map(|what| format!("src/{}:{what}", file.path)));
        }
    }
    none(found, "proto gets bytes and time as arguments, and knows nothing above it");
}

#[test]
fn what_proto_may_not_know_is_found() {
    let found = |text| impurities(text, &["crate", "proto", "outbox"]).len();
    assert_eq!(found("use std::{fmt, net::{self, SocketAddr}};"), 2);
    assert_eq!(found("use std::sync::{Arc, Mutex as Lock};"), 1);
    assert_eq!(found("let now = std::time::Instant::now();"), 1);
    assert_eq!(found("let then = start . elapsed ();"), 1);
    assert_eq!(found("async fn f() { g().await }"), 2);
    assert_eq!(found("use super::super::transport::Link;"), 1);
    assert_eq!(found("use crate::{payload::Payload, connection::{Connection, Traffic}};"), 2);
    assert_eq!(found("fn f(l: &dyn crate :: transport :: Link) {}"), 1);

    assert_eq!(found("use super::super::payload::Payload; use std::time::Instant;"), 0);
    assert_eq!(
        found("// tokio\n/* std::net */ const A: &str = \"crate::client\"; let elapsed = now - then;"),
        0
    );
    assert_eq!(found("#[cfg(test)]\nmod tests;\n#[cfg(test)] mod t { use tokio::spawn; fn f() {} }"), 0);
}

/// Inside this package: who may not name whom.
#[test]
fn client_and_server_stand_on_the_connection_and_not_under_it() {
    let mut found = Vec::new();
    for file in
        sources().iter().filter(|f| f.path.starts_with("connection/") || f.path.starts_with("transport/"))
    {
        let (code, _) = without_tests(&code(&file.text));
        for (line, path) in paths(&code, &module(&file.path)) {
            let above = path.len() > 1 && path[0] == "crate" && ["client", "server"].contains(&&*path[1]);
            if above {
                found.push(format!("src/{}:{line} names {}", file.path, path.join("::")));
            }
        }
    }
    none(found, "client, server -> connection -> proto");
}

/// The packages of the project that each of them may depend on: in its builds, and in its tests besides.
const MAY_USE: &[(&str, &[&str], &[&str])] = &[
    ("farcall", &["farcall-core", "farcall-macros", "farcall-rdma", "farcall-tcp"], &[]),
    ("farcall-core", &[], &["farcall-macros"]),
    ("farcall-macros", &[], &["farcall", "farcall-core"]),
    ("farcall-tcp", &["farcall-core"], &["farcall-macros"]),
    ("farcall-rdma", &["farcall-core"], &["farcall-macros"]),
    ("farcall-cli", &["farcall"], &[]),
    ("xtask", &[], &[]),
];

/// The names of the packages in the tables of a manifest that `wanted` picks by their last part.
fn dependencies(manifest: &toml::Table, wanted: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if wanted.contains(&&**key) {
            let name = |(key, spec): (&String, &toml::Value)| match spec
                .get("package")
                .and_then(toml::Value::as_str)
            {
                Some(package) => package.to_owned(),
                None => key.clone(),
            };
            found.extend(table.iter().map(name));
        } else if key != "workspace" {
            found.extend(dependencies(table, wanted)); // [target.'cfg(..)'.dependencies]
        }
    }
    found
}

#[test]
fn packages_depend_on_each_other_in_one_direction() {
    if workspace().is_none() {
        return;
    }
    let manifests: BTreeMap<String, toml::Table> = files(&["toml"])
        .iter()
        .filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"))
        .filter_map(|file| {
            let manifest: toml::Table = file.text.parse().unwrap();
            let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
            Some((name, manifest))
        })
        .collect();
    let mut found = Vec::new();
    for (package, builds, tests) in MAY_USE {
        let manifest =
            manifests.get(*package).unwrap_or_else(|| panic!("no package {package} in {:?}", root()));
        let mut check = |tables: &[&str], allowed: &[&[&str]]| {
            for used in dependencies(manifest, tables) {
                if manifests.contains_key(&used) && !allowed.iter().any(|a| a.contains(&&*used)) {
                    found.push(format!("{package} depends on {used} ({})", tables[0]));
                }
            }
        };
        check(&["dependencies", "build-dependencies"], &[builds]);
        check(&["dev-dependencies"], &[builds, tests, &[package]]);
    }
    none(found, "farcall -> core, macros, transports; a transport -> core and never another");
    let core = dependencies(&manifests["farcall-core"], &["dependencies"]);
    assert!(core.contains("bytes") && core.contains("tokio"), "dependencies are not found: {core:?}");
}

/// Where `unsafe` may be, each with the reason.
const UNSAFE: &[(&str, &str)] = &[
    ("transport-rdma/src/verbs/", "it speaks to libibverbs"),
    ("rpc-core/src/codec/segments.rs", "`BufMut` is an unsafe trait"),
    ("src/codec/segments.rs", "the same, when this package is on its own"),
    ("tests/ui/", "what `#[service]` refuses; it is never run"),
];

/// How many lines above an `unsafe` its reason may end.
const NEAR: usize = 6;

fn unreasoned(text: &str) -> Vec<usize> {
    let code = code(text);
    let lines: Vec<&str> = text.lines().collect();
    let needs = |at: &usize| {
        let after = code[at + "unsafe".len()..].trim_start();
        after.starts_with('{') || after.starts_with("impl")
    };
    let given = |line: usize| {
        let above = &lines[line.saturating_sub(NEAR + 1)..line];
        above.iter().any(|text| text.contains("SAFETY:"))
    };
    words(&code, "unsafe").filter(needs).map(|at| line(&code, at)).filter(|line| !given(*line)).collect()
}

#[test]
fn unsafe_code_is_in_its_places_and_gives_its_reasons() {
    let mut found = Vec::new();
    for file in files(&["rs"]) {
        let code = code(&file.text);
        if UNSAFE.iter().any(|(place, _)| file.path.starts_with(place)) {
            let bare = unreasoned(&file.text).into_iter();
            found.extend(bare.map(|line| format!("{}:{line} has no SAFETY comment", file.path)));
        } else {
            let places = words(&code, "unsafe").map(|at| line(&code, at));
            found.extend(places.map(|line| format!("{}:{line} is not a place for it", file.path)));
        }
    }
    none(found, "unsafe code is in its places, each block with a SAFETY comment");
}

#[test]
fn an_unsafe_block_without_a_reason_is_found() {
    assert_eq!(unreasoned("fn f() {\n    unsafe { g() }\n}"), [2]);
    assert_eq!(unreasoned("unsafe impl Send for X {}"), [1]);
    assert_eq!(
        unreasoned("// SAFETY: g asks for nothing.\nunsafe { g() };\n\n\n\n\n\n\nunsafe { g() }"),
        [9]
    );
    assert_eq!(unreasoned("// unsafe {\nunsafe fn f() {}\n#![deny(unsafe_code)]"), []);
}
