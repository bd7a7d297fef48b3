//! From the model to the code.
//!
//! Local names are hygienic (`Span::mixed_site`), and paths are absolute, so that nothing of the user's can get in the
//! way. Each type appears with its own span, which is where the compiler then complains of it.

mod client;
mod dynamic;
mod names;
mod phantom;
mod server;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Block, ItemTrait, TraitItem, Type, parse_quote, parse_quote_spanned};

use crate::model::{Answer, Items, Service, result_of};

pub(crate) fn service(service: &Service) -> TokenStream {
    let definition = definition(service);
    let (server, server_impls) = server::expand(service);
    let (client, client_impls) = client::expand(service);
    let (dynamic, dynamic_impls) = if service.is_dyn { dynamic::expand(service) } else { Default::default() };
    let names = names::expand(service);
    quote! {
        #definition
        #server
        #client
        #dynamic

        // The user's lints report on the trait, not on the code that is generated from it.
        #[allow(deprecated, clippy::all, clippy::pedantic)]
        const _: () = {
            #names
            #server_impls
            #client_impls
            #dynamic_impls
        };
    }
}

/// The trait, as the compiler sees it.
fn definition(service: &Service) -> ItemTrait {
    let mut item = service.item.clone();
    for bound in
        [parse_quote!(::core::marker::Send), parse_quote!(::core::marker::Sync), parse_quote!('static)]
    {
        item.supertraits.push(bound);
    }
    item.colon_token.get_or_insert_default();
    let functions = item.items.iter_mut().filter_map(|member| match member {
        TraitItem::Fn(function) => Some(function),
        _ => None,
    });
    for (function, method) in functions.zip(&service.methods) {
        let returned = returned(&method.answer);
        let is_async = function.sig.asyncness.take().is_some();
        function.sig.output = parse_quote!(-> #returned);
        if let Some(body) = function.default.take_if(|_| is_async) {
            let block: Block = parse_quote_spanned! { Span::mixed_site() => { async move #body } };
            function.default = Some(block);
            function.semi_token = None;
        }
    }
    item
}

/// Returns the return type of the trait's method.
fn returned(answer: &Answer) -> TokenStream {
    let output = match answer {
        Answer::Once(output) => output,
        Answer::Stream(items) => return sendable(items).into_token_stream(),
        Answer::TryStream(result, items) => &result_of(result, &sendable(items)),
    };
    quote!(impl ::core::future::Future<Output = #output> + ::core::marker::Send)
}

/// The stream's type, which is `Send`: `Streaming` is by itself.
fn sendable(items: &Items) -> Type {
    let mut ty = items.ty.clone();
    if let Type::ImplTrait(stream) = &mut ty {
        stream.bounds.push(parse_quote!(::core::marker::Send));
    }
    ty
}

/// A doc comment.
fn doc(text: &str) -> TokenStream {
    let lines = text.lines().map(|line| if line.is_empty() { String::new() } else { format!(" {line}") });
    quote_spanned! { Span::mixed_site() => #(#[doc = #lines])* }
}
