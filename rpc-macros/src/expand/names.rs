//! Names and signatures of a service and its methods, as server and client announce them.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Ident, Type, TypePath, parse_quote};

use crate::model::{Answer, Argument, Items, Method, Service, arguments_of, result_of};

/// The function that gives the service's `ServiceInfo`; see [`call`].
pub(crate) fn expand(service: &Service) -> TokenStream {
    let private = private(service);
    let codec = &service.codec;
    let methods = service.methods.iter().map(|method| signature(service, method));
    let checks = service.methods.iter().map(|method| check(service, method));
    let function = function();
    let (generics, _, bounds) = service.generics().split_for_impl();
    let info = |name: TokenStream| {
        quote! { #private::service_info::<#codec>(#name, ::std::vec![#(#methods),*]) }
    };
    let info = match &service.wire_name {
        Some(name) => {
            let info = info(quote!(#name));
            quote! {
                fn #function() -> ::std::sync::Arc<#private::ServiceInfo> {
                    static INFO: ::std::sync::OnceLock<::std::sync::Arc<#private::ServiceInfo>> =
                        ::std::sync::OnceLock::new();
                    ::std::sync::Arc::clone(INFO.get_or_init(|| #info))
                }
            }
        }
        None => {
            let info = info(quote!(name));
            quote! {
                fn #function #generics(
                    name: ::std::borrow::Cow<'static, str>,
                ) -> ::std::sync::Arc<#private::ServiceInfo> #bounds {
                    #info
                }
            }
        }
    };
    let (alias, codec_path) = (codec_alias(), &service.codec);
    quote! {
        // In one place: a path that leads nowhere is reported once.
        type #alias = #codec_path;
        #info
        #(#checks)*
    }
}

fn codec_alias() -> Ident {
    format_ident!("__ServiceCodec", span = Span::mixed_site())
}

/// The path of what generated code may refer to.
pub(crate) fn private(service: &Service) -> TokenStream {
    private_at(service, Span::call_site())
}

/// The path of what generated code may refer to, with a span. Where all of an expression has the span of a type, the compiler says there, and not at
/// the attribute, what the type lacks.
pub(crate) fn private_at(service: &Service, span: Span) -> TokenStream {
    // A path given as `crate = ".."` stands where it was given; all of ours has one origin, or the compiler falls back to
    // the attribute.
    let farcall = &service.farcall;
    let span = Span::call_site().located_at(span);
    let at_span = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    quote!(#farcall::__private).into_iter().map(at_span).collect()
}

/// The codec with a span, likewise.
fn codec_at(span: Span) -> TokenStream {
    located_at(span, &codec_alias())
}

/// An expression for what the codec does with an argument.
pub(crate) fn argument(service: &Service, ty: &Type) -> TokenStream {
    let (private, codec) = (private_at(service, ty.span()), codec_at(ty.span()));
    quote_spanned! { ty.span() => #private::argument::<#codec, #ty>() }
}

/// An expression for what the codec does with what a method returns. Its result and its error are found by the
/// compiler, for the type may be an alias; where they stand in the text is known for something like `Result<T, E>`.
pub(crate) fn returned(service: &Service, output: &Type) -> TokenStream {
    let span = output.span();
    let (result, error) = result_spans(output).unwrap_or((span, span));
    let private = private_at(service, span);
    let (for_result, for_error) = (codec_at(result), codec_at(error));
    let error = located_at(error, &quote!(<#output as #private::Outcome>::Err));
    quote_spanned! { span => {
        #[allow(unused_imports)]
        use #private::OtherError as _;
        let (returned, error) = #private::returned::<#output, #for_result, #for_error, #error>();
        returned.with_status_in(error.status_in())
    } }
}

fn result_spans(output: &Type) -> Option<(Span, Span)> {
    let Type::Path(path) = output else { return None };
    path.path.segments.last().filter(|last| last.ident.to_string().ends_with("Result"))?;
    let arguments = arguments_of(path)?;
    let result = arguments.first()?.span();
    Some((result, arguments.get(1).map_or(result, Spanned::span)))
}

/// An expression for what the codec does with a stream that a method answers with, likewise.
pub(crate) fn streamed(service: &Service, answer: &Answer, items: &Items) -> TokenStream {
    let item = &items.item;
    let (row, error) = result_spans(item).unwrap_or_else(|| (item.span(), item.span()));
    let private = private_at(service, item.span());
    let item_error = located_at(error, &quote!(<#item as #private::Outcome>::Err));
    let (refusal, refused) = match answer {
        Answer::TryStream(result, _) => {
            let span = arguments_of(result).and_then(|a| a.get(1)).map_or(error, Spanned::span);
            let result = answered(service, answer);
            (span, located_at(span, &quote!(<#result as #private::Outcome>::Err)))
        }
        _ => (error, item_error.clone()),
    };
    let (for_row, for_error, for_refusal) = (codec_at(row), codec_at(error), codec_at(refusal));
    quote_spanned! { item.span() => {
        #[allow(unused_imports)]
        use #private::OtherError as _;
        let (streamed, error, refusal) =
            #private::streamed::<#item, #for_row, #for_error, #item_error, #for_refusal, #refused>();
        streamed.with_status_in(error.status_in(), refusal.status_in())
    } }
}

/// Returns the output type of the client's call.
pub(crate) fn answered(service: &Service, answer: &Answer) -> Type {
    let (items, result) = match answer {
        Answer::Once(output) => return output.clone(),
        Answer::Stream(items) => (items, None),
        Answer::TryStream(result, items) => (items, Some(result)),
    };
    let item = &items.item;
    let private = private_at(service, item.span());
    let error = located_at(item.span(), &quote!(<#item as #private::Outcome>::Err));
    let plain = plain_result(item);
    let stream = match plain {
        Some((path, ok, None)) if is_farcalls(service, path) => parse_quote!(#private::Streaming<#ok>),
        Some((_, ok, Some(error))) => parse_quote!(#private::Streaming<#ok, #error>),
        Some((_, ok, None)) => parse_quote!(#private::Streaming<#ok, #error>),
        None => {
            let ok = located_at(item.span(), &quote!(<#item as #private::Outcome>::Ok));
            parse_quote!(#private::Streaming<#ok, #error>)
        }
    };
    match (result, plain) {
        (Some(result), _) | (None, Some((result, ..))) => result_of(result, &stream),
        (None, None) => parse_quote!(::core::result::Result<#stream, #error>),
    }
}

/// Splits `Result<T>` and `Result<T, E>`, wherever it comes from, into `T` and `E`, so that documentation and editors show
/// these. An alias of another name may be anything: the compiler finds what it is a result of.
fn plain_result(item: &Type) -> Option<(&TypePath, &Type, Option<&Type>)> {
    let Type::Path(path) = item else { return None };
    if path.qself.is_some() || path.path.segments.last()?.ident != "Result" {
        return None;
    }
    let mut arguments = arguments_of(path)?.iter().map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    let ok = arguments.next()??;
    let error = match arguments.next() {
        Some(error) => Some(error?),
        None => None,
    };
    arguments.next().is_none().then_some((path, ok, error))
}

/// Whether it is `farcall::Result`, whose error is a `Status`.
fn is_farcalls(service: &Service, result: &TypePath) -> bool {
    let farcall = service.farcall.segments.iter().map(|segment| &segment.ident);
    let mut segments = result.path.segments.iter().map(|segment| &segment.ident);
    segments.next_back();
    segments.eq(farcall)
}

/// A local variable of generated code, with a span likewise.
pub(crate) fn local(name: &str, span: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(span))
}

/// Returns these tokens with a span.
pub(crate) fn located_at(span: Span, path: &impl ToTokens) -> TokenStream {
    let locate = |mut token: TokenTree| {
        token.set_span(token.span().located_at(span));
        token
    };
    path.to_token_stream().into_iter().map(locate).collect()
}

/// An expression that calls the function made here. `name` is the instance's, for a generic trait.
pub(crate) fn call(service: &Service, name: &TokenStream) -> TokenStream {
    let function = function();
    match service.wire_name {
        Some(_) => quote!(#function()),
        None => {
            let (_, arguments, _) = service.generics().split_for_impl();
            let arguments = arguments.as_turbofish();
            quote!(#function #arguments(::core::convert::Into::into(#name)))
        }
    }
}

fn function() -> Ident {
    format_ident!("__service_info", span = Span::mixed_site())
}

/// An expression that gives what the method looks like.
fn signature(service: &Service, method: &Method) -> TokenStream {
    let private = private(service);
    let Method { wire_name, answer, .. } = method;
    let arguments = method.values().map(|Argument { wire_name, ty, default, .. }| {
        let argument = argument(service, ty);
        let signature = local("signature", Span::mixed_site());
        let add = format_ident!("{}", if *default { "default_argument" } else { "argument" });
        quote! { #signature.#add(#argument, #wire_name); }
    });
    let signature = local("signature", Span::mixed_site());
    let rows = method.rows().map(|(Argument { wire_name, .. }, row)| {
        let argument = argument(service, row);
        quote! { #signature.rows(#argument, #wire_name); }
    });
    let idempotent = method.idempotent.then(|| quote! { #signature.idempotent(); });
    let answers = match answer {
        Answer::Once(output) => {
            let returned = returned(service, output);
            quote!(returns(#returned))
        }
        Answer::Stream(items) | Answer::TryStream(_, items) => {
            let streamed = streamed(service, answer, items);
            quote!(streams(#streamed))
        }
    };
    quote! {{
        #[allow(unused_mut)]
        let mut #signature = #private::Signature::new(#wire_name);
        #(#arguments)*
        #rows
        #idempotent
        #signature.#answers
    }}
}

/// Refuses more arguments than the codec carries.
fn check(service: &Service, method: &Method) -> Option<TokenStream> {
    let codec = &service.codec;
    let second = &method.values().nth(1)?.ident;
    let private = private_at(service, second.span());
    let message = format!(
        "this codec carries one argument: put those of `{}` into one message, or use another codec",
        method.ident
    );
    Some(quote_spanned! { second.span() =>
        const _: () = ::core::assert!(<#codec as #private::Codec>::ARGUMENTS > 1, #message);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, parse};

    /// The type that the client's method gives of a method that is declared like this, without spaces.
    fn shown(method: &str) -> String {
        let item = format!("trait Log {{ {method}; }}").parse().expect("these are tokens");
        let service = parse::options(TokenStream::new())
            .and_then(|options| check::service(options, parse::item(item)?))
            .unwrap_or_else(|error| panic!("{error}"));
        let ty = answered(&service, &service.methods[0].answer);
        ty.to_token_stream().to_string().replace(' ', "").replace("::farcall::__private::", "")
    }

    #[test]
    fn types_of_streams_are_shown_as_they_are_written() {
        for (item, answered) in [
            ("farcall::Result<u64>", "farcall::Result<Streaming<u64>>"),
            ("std::result::Result<Vec<u8>, Torn>", "std::result::Result<Streaming<Vec<u8>,Torn>,Torn>"),
            ("Result<u64, Torn>", "Result<Streaming<u64,Torn>,Torn>"),
            // Neither its origin nor its error is known.
            ("Result<u64>", "Result<Streaming<u64,<Result<u64>asOutcome>::Err>>"),
            (
                "LogResult<u64>",
                "::core::result::Result<Streaming<<LogResult<u64>asOutcome>::Ok,<LogResult<u64>asOutcome>::Err>,\
                 <LogResult<u64>asOutcome>::Err>",
            ),
        ] {
            assert_eq!(shown(&format!("fn lines(&self) -> impl Stream<Item = {item}>")), answered);
        }
        assert_eq!(
            shown("async fn tail(&self) -> Result<impl Stream<Item = farcall::Result<u64>>, LogError>"),
            "Result<Streaming<u64>,LogError>"
        );
        assert_eq!(
            shown("async fn stored(&self) -> farcall::Result<Streaming<u64, Torn>>"),
            "farcall::Result<Streaming<u64,Torn>>"
        );
    }
}
