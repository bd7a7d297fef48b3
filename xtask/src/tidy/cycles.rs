//! Loops of imports between the folders of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::File;
use super::imports::imports;
use crate::failure::{Failure, Result};

/// The crates whose folders are checked.
const CRATES: &[&str] =
    &["rpc-segments/src/", "rpc-proto/src/", "rpc-core/src/", "transport-tcp/src/", "transport-rdma/src/"];

/// A folder or file at the first level of a crate, and what it names of the others: where, by which file and line.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Returns each loop, in words.
pub(super) fn check(files: &[File]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for crate_src in CRATES {
        let graph = graph(files, crate_src)?;
        let loops = loops(&graph);
        found.extend(
            loops.iter().map(|of| format!("{crate_src}: a loop of imports: {}", describe(of, &graph))),
        );
    }
    Ok(found)
}

fn graph(files: &[File], crate_src: &str) -> Result<Graph> {
    let of_crate: Vec<(&str, &File)> =
        files.iter().filter_map(|file| Some((file.path.strip_prefix(crate_src)?, file))).collect();
    let rooms: BTreeSet<&str> = of_crate.iter().filter_map(|(path, _)| room(path)).collect();
    let mut graph = Graph::new();
    for (path, file) in of_crate {
        let Some(room) = room(path).filter(|_| path.ends_with(".rs") && !is_of_tests(path)) else { continue };
        let imports = imports(&file.text, &module(path))
            .map_err(|error| Failure::failed(format!("{}: {error}", file.path)))?;
        for (import, line) in imports {
            if let Some(other) =
                import.first().filter(|other| *other != room && rooms.contains(other.as_str()))
            {
                let names = graph.entry(room.to_owned()).or_default();
                names.entry(other.clone()).or_insert_with(|| format!("{}:{line}", file.path));
            }
        }
    }
    Ok(graph)
}

/// The folder or file at the first level that a path lies in; the crate's root belongs to none.
fn room(path: &str) -> Option<&str> {
    let first = path.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib" && name != "main").then_some(name)
}

/// The module that a file is: `wire/mod.rs` is `wire`.
fn module(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').map(str::to_owned).collect()
}

fn is_of_tests(path: &str) -> bool {
    module(path).iter().any(|part| part == "tests" || part == "loom_tests" || part == "sim")
}

/// The sets of rooms of which each reaches each.
fn loops(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reaches: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reachable(graph, from))).collect();
    let together = |from: &String| -> BTreeSet<String> {
        let back = |to: &&String| reaches.get(to).is_some_and(|reached| reached.contains(from));
        reaches[from].iter().copied().filter(back).cloned().collect()
    };
    graph.keys().map(together).filter(|together| together.len() > 1).collect()
}

fn reachable<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(next) = todo.pop() {
        for to in graph.get(next).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to) {
                todo.push(to);
            }
        }
    }
    reached
}

/// Names the rooms of a loop, and an import for each of its edges.
fn describe(together: &BTreeSet<String>, graph: &Graph) -> String {
    let edges = together.iter().flat_map(|from| {
        let to = graph.get(from).into_iter().flatten().filter(|(to, _)| together.contains(*to));
        to.map(move |(to, at)| format!("{from} -> {to} ({at})"))
    });
    let names: Vec<&str> = together.iter().map(String::as_str).collect();
    format!("{}\n      {}", names.join(", "), edges.collect::<Vec<_>>().join("\n      "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let file = |(path, text): &(&str, &str)| File { path: format!("c/src/{path}"), text: (*text).into() };
        let files: Vec<File> = files.iter().map(file).collect();
        let loops = loops(&graph(&files, "c/src/").unwrap());
        loops.into_iter().map(|together| together.into_iter().collect()).collect()
    }

    #[test]
    fn a_loop_through_a_third_room_is_found() {
        let a = ("a/mod.rs", "use crate::b::B;");
        let b = ("b.rs", "use super::c;");
        assert!(loops_of(&[a, b, ("c/x.rs", "use crate::d;"), ("d.rs", "")]).is_empty());
        assert_eq!(loops_of(&[a, b, ("c/x.rs", "use crate::a::A;")]), [["a", "b", "c"]]);
    }

    #[test]
    fn imports_within_a_room_and_in_tests_make_no_loop() {
        let within = [("a/x.rs", "use super::y;"), ("a/y.rs", "use crate::a::x;")];
        assert!(loops_of(&within).is_empty());
        let tests = [("a.rs", "use crate::b::B;"), ("b.rs", ""), ("b/tests.rs", "use crate::a::A;")];
        assert!(loops_of(&tests).is_empty());
    }
}
