//! The types of arguments and answers.

use quote::ToTokens;
use syn::Type;
use syn::visit::{self, Visit};

use super::{Errors, streams};

pub(super) fn check_type(ty: &Type, what: &'static str, errors: &mut Errors) {
    Types { what, errors }.visit_type(ty);
}

/// Finds what can't travel.
struct Types<'e> {
    what: &'static str,
    errors: &'e mut Errors,
}

impl<'ast> Visit<'ast> for Types<'_> {
    fn visit_type_reference(&mut self, reference: &'ast syn::TypeReference) {
        let what = self.what;
        let owned = owned(&reference.elem);
        self.errors.add(reference, format_args!("{what} travels and is therefore owned: write `{owned}`"));
    }

    fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
        if lifetime.ident != "static" {
            let what = self.what;
            self.errors
                .add(lifetime, format_args!("{what} travels and is therefore owned: it borrows nothing"));
        }
    }

    fn visit_type_impl_trait(&mut self, ty: &'ast syn::TypeImplTrait) {
        if streams::bound(&ty.bounds).is_some() {
            return self.errors.add(ty, streams::MISPLACED);
        }
        let what = self.what;
        self.errors
            .add(ty, format_args!("{what} has a type with a name: write it, or make the trait generic"));
    }

    fn visit_type_trait_object(&mut self, ty: &'ast syn::TypeTraitObject) {
        if streams::bound(&ty.bounds).is_some() {
            return self.errors.add(ty, streams::MISPLACED);
        }
        visit::visit_type_trait_object(self, ty);
    }

    fn visit_type_path(&mut self, ty: &'ast syn::TypePath) {
        if streams::is_streaming(ty) {
            return self.errors.add(ty, streams::MISPLACED);
        }
        if ty.path.segments.first().is_some_and(|segment| segment.ident == "Self") {
            return self
                .errors
                .add(ty, "`Self` is the implementation, which the other side does not know: name the type");
        }
        visit::visit_type_path(self, ty);
    }
}

/// Tokens as people write them, without spaces around angle brackets and colons.
pub(super) fn written(tokens: impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    text.replace(" :: ", "::").replace(" < ", "<").replace(" >", ">").replace(" ,", ",")
}

/// Returns the owned type to write in place of a reference to this one.
fn owned(ty: &Type) -> String {
    match ty {
        Type::Path(path) if path.path.is_ident("str") => "String".into(),
        Type::Slice(slice) => match &*slice.elem {
            Type::Path(element) if element.path.is_ident("u8") => "Bytes".into(),
            element => format!("Vec<{}>", written(element)),
        },
        other => written(other),
    }
}
