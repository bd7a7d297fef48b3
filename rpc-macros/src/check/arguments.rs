//! The arguments of a method.

use proc_macro2::Span;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, LitStr, Pat, PatType, Signature, Type};

use super::types::check_type;
use super::{Errors, check_wire_name, streams};
use crate::model::Argument;
use crate::parse::{self, Rpc};

/// Whether there is a context, and the arguments that travel.
pub(super) fn arguments(
    signature: &mut Signature,
    receiver: bool,
    errors: &mut Errors,
) -> (bool, Vec<Argument>) {
    let mut context = false;
    let mut arguments = Vec::new();
    let mut default: Option<Span> = None;
    let mut streams = 0;
    for (i, input) in signature.inputs.iter_mut().skip(usize::from(receiver)).enumerate() {
        let FnArg::Typed(input) = input else { continue };
        let rpc = errors.keep(parse::rpc(&mut input.attrs)).unwrap_or_default();
        if let Some(span) = rpc.spawn {
            errors.add_at(span, "`spawn` goes on methods");
        }
        if let Some(span) = rpc.idempotent {
            errors.add_at(span, "`idempotent` goes on methods");
        }
        if let Some(class) = &rpc.class {
            errors.add(class, "`class` goes on methods");
        }
        if let Some(name) = &rpc.name {
            check_wire_name(name, errors);
        }
        for attribute in input.attrs.iter().filter(|a| a.path().is_ident("cfg")) {
            errors.add(attribute, "an argument is always there or never: both sides must agree on it");
        }
        if is_context(&input.ty) {
            check_context(input, i, &rpc, errors);
            context = true;
            continue;
        }
        if is_context_by_value(input) {
            errors.add(
                &input.ty,
                "the context is lent for the call: write `cx: &Context`; a type of your own of this name needs a path, as in \
                 `self::Context`",
            );
            context = true;
            continue;
        }
        let argument = argument(input, &rpc, errors);
        if streams::is_stream(&input.ty) {
            // It does not travel with the others.
            streams += 1;
            if streams == 2 {
                errors.add(&input.ty, "a call takes one stream: make one `enum` of what the two carry");
            }
            arguments.extend(argument);
            continue;
        }
        if let (Some(span), None) = (default, rpc.default) {
            let name = &input.pat;
            errors.add_at(
                span,
                format_args!(
                    "only the last arguments can have a default, and `{}`, which comes after this one, has none",
                    name.to_token_stream()
                ),
            );
        }
        default = rpc.default;
        arguments.extend(argument);
    }
    (context, arguments)
}

/// Whether the type is a reference to something called `Context`.
fn is_context(ty: &Type) -> bool {
    let Type::Reference(reference) = ty else { return false };
    let Type::Path(path) = &*reference.elem else { return false };
    path.path.segments.last().is_some_and(|segment| segment.ident == "Context")
}

/// Whether it is farcall's context by its path, or by both names.
fn is_context_by_value(input: &PatType) -> bool {
    let (Type::Path(ty), Pat::Ident(name)) = (&*input.ty, &*input.pat) else { return false };
    let segments = &ty.path.segments;
    let is_ours = segments.len() == 2 && segments[0].ident == "farcall";
    let is_named = segments.len() == 1 && ["cx", "_cx", "ctx", "_ctx"].iter().any(|cx| name.ident == cx);
    (is_ours || is_named) && segments.last().is_some_and(|last| last.ident == "Context")
}

fn check_context(input: &PatType, place: usize, rpc: &Rpc, errors: &mut Errors) {
    if place != 0 {
        errors.add(input, "the context comes first: write `(&self, cx: &Context, ..)`");
    }
    if let Type::Reference(reference) = &*input.ty
        && (reference.mutability.is_some() || reference.lifetime.is_some())
    {
        errors.add(reference, "the context is lent for the call: write `cx: &Context`");
    }
    if rpc.name.is_some() || rpc.default.is_some() {
        errors.add(input, "the context does not travel: it has no name on the wire and no default");
    }
}

fn argument(input: &PatType, rpc: &Rpc, errors: &mut Errors) -> Option<Argument> {
    let rows = if streams::is_stream(&input.ty) {
        streams::rows(input, rpc, errors)
    } else {
        check_type(&input.ty, "an argument", errors);
        None
    };
    let ident = match &*input.pat {
        Pat::Ident(p) if p.by_ref.is_none() && p.mutability.is_none() && p.subpat.is_none() => &p.ident,
        other => {
            errors.add(
                other,
                "an argument of a service has a plain name, which is part of its signature: take it apart in the body",
            );
            return None;
        }
    };
    let wire_name = rpc.name.as_ref().map_or_else(|| ident.unraw().to_string(), LitStr::value);
    Some(Argument {
        ident: ident.clone(),
        wire_name: LitStr::new(&wire_name, input.ty.span()),
        ty: (*input.ty).clone(),
        default: rpc.default.is_some(),
        rows,
    })
}
