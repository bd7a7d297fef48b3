//! What the service is called and what its methods look like, as both server and client announce it.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Ident, PathArguments, Type};

use crate::model::{Argument, Method, Service};

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
    quote! { #info #(#checks)* }
}

/// The path of what generated code may refer to.
pub(crate) fn private(service: &Service) -> TokenStream {
    let farcall = &service.farcall;
    quote!(#farcall::__private)
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

fn signature(service: &Service, method: &Method) -> TokenStream {
    let private = private(service);
    let codec = &service.codec;
    let Method { wire_name, output, .. } = method;
    let arguments = method.arguments.iter().map(|Argument { wire_name, ty, default, .. }| {
        let add = if *default { quote!(default_argument) } else { quote!(argument) };
        quote_spanned! { ty.span() => .#add::<#ty>(#wire_name) }
    });
    let returns = quote_spanned! { output.span() => .returns::<#output>() };
    quote! { #private::Signature::<#codec>::new(#wire_name) #(#arguments)* #returns }
}

/// Makes the compiler say at the tokens of a type what is missing.
fn check(service: &Service, method: &Method) -> TokenStream {
    let private = private(service);
    let codec = &service.codec;
    let too_many = method.arguments.get(1).map(|second| {
        let message = format!(
            "this codec carries one argument: put those of `{}` into one message, or use another codec",
            method.ident
        );
        quote_spanned! { second.ident.span() =>
            const _: () = ::core::assert!(<#codec as #private::Codec>::ARGUMENTS > 1, #message);
        }
    });
    quote! { #too_many }
}

/// The types of `Result<T, E>` or `Result<T>`, if that is what is written.
pub(crate) fn result_parts(output: &Type) -> Option<(&Type, Option<&Type>)> {
    let Type::Path(path) = output else { return None };
    let last = path.path.segments.last().filter(|segment| segment.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    Some((types.next()?, types.next()))
}
