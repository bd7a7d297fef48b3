//! The client: what turns a call of a method into a request.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, PathArguments, Type};

use super::{doc, names, phantom};
use crate::model::{Answer, Argument, Method, Service};

/// The type, and its implementations.
pub(crate) fn expand(service: &Service) -> (TokenStream, TokenStream) {
    let parts = Parts {
        service,
        private: names::private(service),
        ident: format_ident!("{}Client", service.ident()),
    };
    let impls = [parts.inherent(), parts.clone_and_debug(), parts.the_trait()];
    (parts.definition(), impls.into_iter().collect())
}

struct Parts<'s> {
    service: &'s Service,
    private: TokenStream,
    ident: Ident,
}

impl Parts<'_> {
    fn definition(&self) -> TokenStream {
        let Self { service, private, ident } = self;
        let (vis, name, generics) = (&service.item.vis, service.ident(), service.generics());
        let bounds = &generics.where_clause;
        let types = phantom::field(service);
        let on_the_wire = service.wire_name.as_ref().map(|n| format!(", which is `{n}` on the wire"));
        let docs = doc(&format!(
            "Calls a [`{name}`] elsewhere{}. Cheap to clone.\n\nIt implements [`{name}`] itself; its own methods take \
             options for the call.",
            on_the_wire.unwrap_or_default()
        ));
        quote! {
            #docs
            #[allow(dead_code)]
            #vis struct #ident #generics #bounds {
                stub: #private::Stub,
                #types
            }
        }
    }

    fn inherent(&self) -> TokenStream {
        let Self { service, ident, .. } = self;
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let constructors = self.constructors();
        let methods = service.methods.iter().enumerate().map(|(index, method)| self.method(index, method));
        quote! {
            #[allow(dead_code)]
            impl #generics #ident #arguments #bounds {
                #constructors
                #(#methods)*
            }
        }
    }

    fn constructors(&self) -> TokenStream {
        let Self { service, private, .. } = self;
        let (vis, name) = (&service.item.vis, service.ident());
        let (_, trait_arguments, _) = service.generics().split_for_impl();
        let types = phantom::value(service);
        let info = names::call(service, &quote!(name));
        let server = format_ident!("{}Server", name);
        let in_process = "Calls `service` in this process, for tests without a network: the whole protocol and its real \
                          limits. Must be called within a tokio runtime.";
        match service.wire_name {
            Some(_) => {
                let in_process = doc(in_process);
                quote! {
                    /// A client that calls on `channel`.
                    ///
                    /// # Panics
                    ///
                    /// If the service's codec can't carry a type of one of its methods.
                    #[track_caller]
                    #vis fn new(channel: impl ::core::convert::Into<#private::RawChannel>) -> Self {
                        Self { stub: #private::Stub::new(::core::convert::Into::into(channel), #info), #types }
                    }

                    #in_process
                    #vis fn in_process(service: impl #name #trait_arguments) -> Self {
                        Self::new(#private::in_process(#server::new(service)))
                    }
                }
            }
            None => {
                let in_process = doc(&in_process.replace("`service`", "`service`, served as `name`,"));
                quote! {
                    /// A client that calls on `channel` the instance of the trait that is `name` on the wire.
                    ///
                    /// # Panics
                    ///
                    /// If the service's codec can't carry a type of one of its methods.
                    #[track_caller]
                    #vis fn named(
                        name: impl ::core::convert::Into<::std::borrow::Cow<'static, str>>,
                        channel: impl ::core::convert::Into<#private::RawChannel>,
                    ) -> Self {
                        Self { stub: #private::Stub::new(::core::convert::Into::into(channel), #info), #types }
                    }

                    #in_process
                    #vis fn in_process(
                        name: impl ::core::convert::Into<::std::borrow::Cow<'static, str>>,
                        service: impl #name #trait_arguments,
                    ) -> Self {
                        let server = #server::named(name, service);
                        let name = ::core::clone::Clone::clone(&#private::Service::info(&server).name);
                        Self::named(name, #private::in_process(server))
                    }
                }
            }
        }
    }

    fn method(&self, index: usize, method: &Method) -> TokenStream {
        let Self { service, private, .. } = self;
        let vis = &service.item.vis;
        let Method { ident, attributes, answer, .. } = method;
        let inputs = method.arguments.iter().map(|Argument { ident, ty, rows, .. }| match rows {
            Some(row) => quote_spanned! { ty.span() =>
                #ident: impl #private::Stream<Item: #private::StreamItem<#row>> + ::core::marker::Send + 'static
            },
            None if is_converted(ty) => {
                quote_spanned! { ty.span() => #ident: impl ::core::convert::Into<#ty> }
            }
            None => quote!(#ident: #ty),
        });
        let (codec, answered) = (&service.codec, names::answered(service, answer));
        let call = match (answer, method.rows()) {
            (Answer::Once(_), None) => quote!(#private::Call<#answered, #codec>),
            _ => quote!(#private::StreamCall<#answered>),
        };
        let body = self.call(index, method);
        let separator = (!attributes.is_empty()).then(|| quote!(#[doc = ""]));
        let docs = doc(&format!("Calls `{}`.", service.full_name(method)));
        quote! {
            #(#attributes)*
            #separator
            #docs
            #vis fn #ident(&self, #(#inputs),*) -> #call {
                #body
            }
        }
    }

    /// Encodes the arguments and makes a call of them.
    fn call(&self, index: usize, method: &Method) -> TokenStream {
        let Self { service, private, .. } = self;
        let arguments = names::local("arguments", Span::mixed_site());
        let put = method.values().map(|Argument { ident, wire_name, ty, .. }| {
            let value =
                if is_converted(ty) { quote!(::core::convert::Into::into(#ident)) } else { quote!(#ident) };
            let argument = names::argument(service, ty);
            quote! { #arguments.put(#argument, #wire_name, &#value); }
        });
        let items = method.rows().map(|(Argument { ident, .. }, row)| {
            let argument = names::argument(service, row);
            quote!(#private::Items::of(self.stub.service(), #index, #ident, #argument))
        });
        let class = method.class.as_ref().map(|class| quote!(.class(#private::TrafficClass::#class)));
        let call = match (&method.answer, items) {
            (Answer::Once(_), None) => quote!(self.stub.call(#index, #arguments.finish())),
            (Answer::Once(output), Some(items)) => {
                let returned = names::returned(service, output);
                quote!(#private::call_with_stream(&self.stub, #index, #arguments.finish(), #items, #returned))
            }
            (answer @ (Answer::Stream(stream) | Answer::TryStream(_, stream)), items) => {
                let streamed = names::streamed(service, answer, stream);
                let items = match items {
                    Some(items) => quote!(::core::option::Option::Some(#items)),
                    None => quote!(::core::option::Option::None),
                };
                quote!(#private::call_for_stream(&self.stub, #index, #arguments.finish(), #items, #streamed))
            }
        };
        quote! {
            #[allow(unused_mut)]
            let mut #arguments = #private::ArgumentsEncoder::new(self.stub.service(), #index);
            #(#put)*
            #call #class
        }
    }

    fn clone_and_debug(&self) -> TokenStream {
        let Self { service, ident, .. } = self;
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let types = phantom::value(service);
        let name = ident.to_string();
        quote! {
            #[automatically_derived]
            impl #generics ::core::clone::Clone for #ident #arguments #bounds {
                fn clone(&self) -> Self {
                    Self { stub: ::core::clone::Clone::clone(&self.stub), #types }
                }
            }

            #[automatically_derived]
            impl #generics ::core::fmt::Debug for #ident #arguments #bounds {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.debug_struct(#name)
                        .field("service", &self.stub.service().name)
                        .field("channel", self.stub.channel())
                        .finish()
                }
            }
        }
    }

    /// The client as an implementation of the trait.
    fn the_trait(&self) -> TokenStream {
        let Self { service, private, ident } = self;
        let name = service.ident();
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let methods = service.methods.iter().enumerate().map(|(index, method)| {
            let Method { ident, answer, context, .. } = method;
            let idents: Vec<_> = method.arguments.iter().map(|a| &a.ident).collect();
            let types = method.arguments.iter().map(|a| &a.ty);
            // Whatever the user calls it, another argument may be called `cx`.
            let cx = names::local("cx", Span::mixed_site());
            let (cx, set_cx) = match context {
                true => (quote!(#cx: &#private::Context,), quote!(.context(#cx))),
                false => (quote!(), quote!()),
            };
            let call = names::local("call", Span::mixed_site());
            let made = match method.rows() {
                None => quote!(Self::#ident(self, #(#idents),*)),
                Some(_) => {
                    let made = self.call(index, method);
                    quote!({ #made })
                }
            };
            let begun = match answer {
                Answer::Once(output) if method.rows().is_none() => {
                    let returned = names::returned(service, output);
                    quote!(#private::begin(#call, #returned))
                }
                Answer::Stream(items) => {
                    let streamed = names::streamed(service, answer, items);
                    quote!(#private::flatten(#call, #streamed))
                }
                _ => quote!(::core::future::IntoFuture::into_future(#call)),
            };
            let returned = super::returned(answer);
            quote! {
                fn #ident(&self, #cx #(#idents: #types),*) -> #returned {
                    let #call = #made #set_cx;
                    #begun
                }
            }
        });
        quote! {
            #[automatically_derived]
            impl #generics #name #arguments for #ident #arguments #bounds {
                #(#methods)*
            }
        }
    }
}

/// Whether the client takes what can be turned into this type.
fn is_converted(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let Some(last) = path.path.segments.last().filter(|_| path.qself.is_none()) else { return false };
    match &last.arguments {
        PathArguments::None => last.ident == "String" || last.ident == "Bytes",
        PathArguments::AngleBracketed(arguments) => {
            let is_u8 = |a: &GenericArgument| matches!(a, GenericArgument::Type(Type::Path(p)) if p.path.is_ident("u8"));
            last.ident == "Vec" && arguments.args.len() == 1 && arguments.args.iter().all(is_u8)
        }
        PathArguments::Parenthesized(_) => false,
    }
}
