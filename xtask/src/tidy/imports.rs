//! The imports of a source file from its own crate.

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMacro, Meta, Path, Token, UseTree};

/// A path from the root of the crate, and the line that names it.
pub(super) type Import = (Vec<String>, usize);

/// Returns all paths that begin with `crate`, `super` or `self` outside of tests. `module`: where the file stands, as in
/// `["connection", "streams"]`.
pub(super) fn imports(text: &str, module: &[String]) -> syn::Result<Vec<Import>> {
    let mut found = Found { module: module.to_vec(), imports: Vec::new() };
    found.visit_file(&syn::parse_file(text)?);
    Ok(found.imports)
}

struct Found {
    module: Vec<String>,
    imports: Vec<Import>,
}

impl Found {
    fn add(&mut self, segments: &[String], line: usize) {
        let ups = segments.iter().take_while(|segment| *segment == "super").count();
        let path = match segments.first().map(String::as_str) {
            Some("crate") => segments[1..].to_vec(),
            Some("self") => [&self.module, &segments[1..]].concat(),
            Some("super") => {
                let above = &self.module[..self.module.len().saturating_sub(ups)];
                [above, &segments[ups..]].concat()
            }
            _ => return,
        };
        self.imports.push((path, line));
    }

    fn add_tree(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_tree(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(tree, prefix)),
            UseTree::Name(name) => {
                let mut path = prefix.clone();
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                self.add(&path, name.span().start().line);
            }
            UseTree::Rename(rename) => {
                let path = [&prefix[..], &[rename.ident.to_string()]].concat();
                self.add(&path, rename.span().start().line);
            }
            UseTree::Glob(glob) => self.add(prefix, glob.span().start().line),
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.add(&segments, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    // The visibility of an item, as in `pub(in crate::connection)`, is no use of the module.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(syn::ItemConst { attrs, .. })
        | Item::Enum(syn::ItemEnum { attrs, .. })
        | Item::Fn(syn::ItemFn { attrs, .. })
        | Item::Impl(syn::ItemImpl { attrs, .. })
        | Item::Macro(ItemMacro { attrs, .. })
        | Item::Mod(syn::ItemMod { attrs, .. })
        | Item::Static(syn::ItemStatic { attrs, .. })
        | Item::Struct(syn::ItemStruct { attrs, .. })
        | Item::Trait(syn::ItemTrait { attrs, .. })
        | Item::Type(syn::ItemType { attrs, .. })
        | Item::Use(syn::ItemUse { attrs, .. }) => attrs,
        _ => &[],
    }
}

/// Whether an attribute is `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let names_test = |meta: &Meta| match meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(|meta| meta.path().is_ident("test"))),
        _ => false,
    };
    attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|meta| names_test(&meta))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let module = ["connection".to_owned(), "streams".to_owned()];
        imports(text, &module).unwrap().into_iter().map(|(path, _)| path.join("::")).collect()
    }

    #[test]
    fn paths_are_resolved_from_where_they_stand() {
        assert_eq!(
            found("use crate::{client::Call, status::{self, Code as C}};"),
            ["client::Call", "status", "status::Code"]
        );
        assert_eq!(
            found("use super::slots::*; use self::call::Room;"),
            ["connection::slots", "connection::streams::call::Room"]
        );
        assert_eq!(
            found("fn f(l: &dyn crate::transport::Link) { super::super::client::g() }"),
            ["transport::Link", "client::g"]
        );
        assert_eq!(
            found("mod inner { use super::call; use super::super::slots; }"),
            ["connection::streams::call", "connection::slots"]
        );
    }

    #[test]
    fn names_of_other_crates_comments_and_tests_do_not_count() {
        assert!(
            found(
                "use std::fmt; use bytes::Bytes; // use crate::client;\nconst A: &str = \"crate::client\";"
            )
            .is_empty()
        );
        assert!(found("#[cfg(test)] mod tests { use crate::client::Call; }").is_empty());
        assert!(found("#[cfg(all(test, farcall_loom))] use crate::client::Call;").is_empty());
        assert_eq!(found("#[cfg(not(test))] use crate::client::Call;"), ["client::Call"]);
        assert!(found("pub(in crate::connection) fn f() {}").is_empty());
    }
}
