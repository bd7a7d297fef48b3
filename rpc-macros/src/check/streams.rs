//! Where methods take and answer with streams, and where not.

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    AngleBracketedGenericArguments, GenericArgument, PatType, Path, PathArguments, ReturnType, Token, Type,
    TypeParamBound, TypePath, parse_quote, parse_quote_spanned,
};

use super::{Errors, check_type, written};
use crate::model::{Answer, Items, arguments_of};
use crate::parse::Rpc;

/// The error for a stream in any other place.
pub(super) const MISPLACED: &str = "a stream is an argument of its own, `rows: Streaming<Row>`, or what a method returns: \
    `fn watch(..) -> impl Stream<Item = farcall::Result<Row>>`, or with `async fn` a `farcall::Result<impl Stream<..>>`";

/// Whether it is written as a stream: `impl Stream<..>` or `Streaming<..>`.
pub(super) fn is_stream(ty: &Type) -> bool {
    match ty {
        Type::ImplTrait(ty) => bound(&ty.bounds).is_some(),
        Type::Path(ty) => is_streaming(ty),
        _ => false,
    }
}

pub(super) fn is_streaming(ty: &TypePath) -> bool {
    ty.path.segments.last().is_some_and(|segment| segment.ident == "Streaming")
}

/// Returns the bound that makes a stream.
pub(super) fn bound(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Option<&Path> {
    bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            bound.path.segments.last().is_some_and(|s| s.ident == "Stream").then_some(&bound.path)
        }
        _ => None,
    })
}

/// Whether the stream is all that is returned.
pub(super) fn is_returned(output: &ReturnType) -> bool {
    matches!(output, ReturnType::Type(_, ty) if is_stream(ty))
}

/// Returns the answer of a method with this return type. `farcall` is the path of `Status`.
pub(super) fn answer(ty: &Type, farcall: &Path, errors: &mut Errors) -> Option<Answer> {
    if is_stream(ty) {
        return items(ty, farcall, errors).map(Answer::Stream);
    }
    if let Type::Path(result) = ty
        && let Some(stream) = in_result(result)
    {
        let others = arguments_of(result).into_iter().flatten().skip(1);
        for other in others {
            if let GenericArgument::Type(error) = other {
                check_type(error, "an error", errors);
            }
        }
        return items(stream, farcall, errors).map(|items| Answer::TryStream(result.clone(), items));
    }
    check_type(ty, "a result", errors);
    Some(Answer::Once(ty.clone()))
}

/// The stream that is the value of a result.
fn in_result(ty: &TypePath) -> Option<&Type> {
    let is_result = ty.path.segments.last()?.ident.to_string().ends_with("Result");
    match arguments_of(ty)?.first()? {
        GenericArgument::Type(value) if is_result && is_stream(value) => Some(value),
        _ => None,
    }
}

fn items(ty: &Type, farcall: &Path, errors: &mut Errors) -> Option<Items> {
    let item = match ty {
        Type::ImplTrait(stream) => {
            let item = item(bound(&stream.bounds)?, errors)?;
            check_type(&item, "an item", errors);
            if is_no_result(&item) {
                let row = written(&item);
                errors.add(
                    &item,
                    format_args!(
                        "every stream can be cut short, and so its items are results: write `impl Stream<Item = \
                         farcall::Result<{row}>>`"
                    ),
                );
                return None;
            }
            item
        }
        Type::Path(stream) => {
            let (row, error) = rows_and_error(stream, errors)?;
            let error = error.unwrap_or_else(|| parse_quote!(#farcall::__private::Status));
            parse_quote_spanned!(ty.span() => ::core::result::Result<#row, #error>)
        }
        _ => return None,
    };
    Some(Items { ty: ty.clone(), item })
}

/// Whether this is certainly not a `Result`, nor another name of one.
fn is_no_result(ty: &Type) -> bool {
    const OTHERS: &[&str] = &[
        "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
        "u128", "usize", "String", "Bytes", "Vec", "Option", "Box", "HashMap", "BTreeMap",
    ];
    match ty {
        Type::Path(ty) => {
            ty.path.segments.last().is_some_and(|last| OTHERS.iter().any(|name| last.ident == name))
        }
        Type::Tuple(_) | Type::Array(_) | Type::Slice(_) => true,
        _ => false,
    }
}

/// Returns the `X` of `Stream<Item = X>`.
fn item(bound: &Path, errors: &mut Errors) -> Option<Type> {
    let item = match &bound.segments.last()?.arguments {
        PathArguments::AngleBracketed(AngleBracketedGenericArguments { args, .. }) => {
            args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(item) if item.ident == "Item" => Some(item.ty.clone()),
                _ => None,
            })
        }
        _ => None,
    };
    if item.is_none() {
        errors.add(bound, "say what it is a stream of: `impl Stream<Item = farcall::Result<Row>>`");
    }
    item
}

/// Returns both types of `Streaming<R, E>`, the second if it is there.
fn rows_and_error(ty: &TypePath, errors: &mut Errors) -> Option<(Type, Option<Type>)> {
    let mut types = arguments_of(ty).into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    let Some(row) = types.next() else {
        errors.add(ty, "say what it is a stream of: `Streaming<Row>`");
        return None;
    };
    let error = types.next();
    check_type(&row, "an item", errors);
    if let Some(error) = &error {
        check_type(error, "an error", errors);
    }
    Some((row, error))
}

/// Returns the item type of an argument that is a stream.
pub(super) fn rows(input: &PatType, rpc: &Rpc, errors: &mut Errors) -> Option<Type> {
    if let Some(span) = rpc.default {
        errors.add_at(span, "a stream has no default: a caller with nothing to send sends an empty stream");
    }
    match &*input.ty {
        Type::Path(ty) => {
            let (row, error) = rows_and_error(ty, errors)?;
            if let Some(error) = error {
                errors.add(
                    error,
                    "what a client streams has no error of its own, for a client that fails cancels the call: write \
                     `Streaming<Row>`",
                );
            }
            Some(row)
        }
        Type::ImplTrait(ty) => {
            let row = written(item(bound(&ty.bounds)?, errors)?);
            let name = input.pat.to_token_stream();
            errors.add(
                ty,
                format_args!(
                    "the server gets a stream that has a name: write `{name}: Streaming<{row}>`; the client takes any \
                     stream of `{row}`"
                ),
            );
            None
        }
        _ => None,
    }
}
