//! The type-erased form of a service: `DynKv` for `Kv`, on request.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{GenericParam, Generics, Type, parse_quote};

use super::{doc, names, phantom, returned};
use crate::model::{Answer, Items, Method, Service, result_of};

/// The type, and its implementations.
pub(super) fn expand(service: &Service) -> (TokenStream, TokenStream) {
    let name = service.ident();
    let dynamic = Dynamic {
        service,
        private: names::private(service),
        ident: format_ident!("Dyn{name}"),
        object: format_ident!("__{name}Object", span = Span::mixed_site()),
    };
    let implementations = [dynamic.every_service(), dynamic.constructor_and_debug(), dynamic.the_service()];
    (dynamic.definition(), quote!(#(#implementations)*))
}

struct Dynamic<'s> {
    service: &'s Service,
    private: TokenStream,
    ident: Ident,
    /// The trait that the type has an object of. Nobody calls its methods by name: so they hide none of the service's.
    object: Ident,
}

impl Dynamic<'_> {
    fn definition(&self) -> TokenStream {
        let Self { service, ident, object, .. } = self;
        let (vis, name) = (&service.item.vis, service.ident());
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let docs = doc(&format!(
            "Any [`{name}`]: one type for all implementations, clients included. It implements [`{name}`] itself. Each call \
             allocates a box for its future or its stream. Cheap to clone."
        ));
        let methods = (0..).zip(&service.methods).map(|(index, method)| self.signature(index, method));
        let types = phantom::field(service);
        quote! {
            #[doc(hidden)]
            #[allow(dead_code)]
            trait #object #generics: ::core::marker::Send + ::core::marker::Sync + 'static #bounds {
                #(#methods;)*
            }

            #docs
            #[allow(dead_code)]
            #vis struct #ident #generics #bounds {
                object: ::std::sync::Arc<dyn #object #arguments>,
                #types
            }
        }
    }

    /// Every implementation of the service makes a trait object.
    fn every_service(&self) -> TokenStream {
        let Self { service, private, object, .. } = self;
        let name = service.ident();
        let implementation = implementation();
        let (_, arguments, bounds) = service.generics().split_for_impl();
        let generics = self.generics_and_implementation();
        let (generics, ..) = generics.split_for_impl();
        let methods = (0..).zip(&service.methods).map(|(index, method)| {
            let (signature, ident, values) = (self.signature(index, method), &method.ident, values(method));
            let called = quote!(<Self as #name #arguments>::#ident(self, #values));
            let body = match &method.answer {
                Answer::Stream(Items { ty: Type::Path(_), .. }) => called,
                Answer::Once(_) | Answer::Stream(_) => quote!(::std::boxed::Box::pin(#called)),
                Answer::TryStream(result, items) => {
                    let stream = self.stream(items);
                    let result = result_of(result, &stream);
                    let boxed = match &items.ty {
                        Type::ImplTrait(_) => quote!(::std::boxed::Box::pin(stream) as #stream),
                        _ => quote!(stream),
                    };
                    quote! {
                        ::std::boxed::Box::pin(async move {
                            let result = #private::Outcome::into_result(#called.await);
                            let result = result.map(|stream| #boxed);
                            <#result as #private::Outcome>::from_result(result)
                        })
                    }
                }
            };
            quote!(#signature { #body })
        });
        quote! {
            #[automatically_derived]
            impl #generics #object #arguments for #implementation #bounds {
                #(#methods)*
            }
        }
    }

    fn constructor_and_debug(&self) -> TokenStream {
        let Self { service, ident, .. } = self;
        let (vis, name) = (&service.item.vis, service.ident());
        let implementation = implementation();
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let types = phantom::value(service);
        let text = ident.to_string();
        quote! {
            #[allow(dead_code)]
            impl #generics #ident #arguments #bounds {
                /// Erases the type of a service.
                #vis fn new<#implementation: #name #arguments>(service: #implementation) -> Self {
                    Self { object: ::std::sync::Arc::new(service), #types }
                }
            }

            #[automatically_derived]
            impl #generics ::core::clone::Clone for #ident #arguments #bounds {
                fn clone(&self) -> Self {
                    Self { object: ::core::clone::Clone::clone(&self.object), #types }
                }
            }

            #[automatically_derived]
            impl #generics ::core::fmt::Debug for #ident #arguments #bounds {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.write_str(#text)
                }
            }
        }
    }

    fn the_service(&self) -> TokenStream {
        let Self { service, private, ident, .. } = self;
        let name = service.ident();
        let (generics, arguments, bounds) = service.generics().split_for_impl();
        let methods = (0..).zip(&service.methods).map(|(index, method)| {
            let (erased, values) = (erased(index), values(method));
            let (parameters, returned) = (self.parameters(method, None), returned(&method.answer));
            let called = quote!(self.object.#erased(#values));
            // Captures the lifetimes of `self` and `cx`, of which the box has the shorter.
            let body = match (&method.answer, method.context) {
                (Answer::Once(_) | Answer::TryStream(..), _) => quote!(async move { #called.await }),
                (Answer::Stream(Items { ty: Type::Path(_), .. }), _) | (Answer::Stream(_), false) => called,
                (Answer::Stream(_), true) => {
                    quote!(#private::relay(move |items| async move { items.all(#called).await }))
                }
            };
            let ident = &method.ident;
            quote! {
                fn #ident(&self, #parameters) -> #returned {
                    #body
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

    fn generics_and_implementation(&self) -> Generics {
        let name = self.service.ident();
        let implementation = implementation();
        let mut generics = self.service.generics().clone();
        let (_, arguments, _) = self.service.generics().split_for_impl();
        let parameter: GenericParam = parse_quote!(#implementation: #name #arguments);
        generics.params.push(parameter);
        generics
    }

    /// A method of the trait object.
    fn signature(&self, index: usize, method: &Method) -> TokenStream {
        let (erased, parameters) = (erased(index), self.parameters(method, Some(quote!('call))));
        let output = match &method.answer {
            Answer::Once(output) => self.future(output),
            Answer::Stream(items) => self.stream(items),
            Answer::TryStream(result, items) => self.future(&result_of(result, &self.stream(items))),
        };
        quote!(fn #erased<'call>(&'call self, #parameters) -> #output)
    }

    fn parameters(&self, method: &Method, lifetime: Option<TokenStream>) -> TokenStream {
        let private = &self.private;
        let arguments = method.arguments.iter().map(|a| (&a.ident, &a.ty));
        let arguments = arguments.map(|(ident, ty)| quote!(#ident: #ty));
        let context = method.context.then(|| {
            let cx = context();
            quote!(#cx: &#lifetime #private::Context,)
        });
        quote!(#context #(#arguments),*)
    }

    fn future(&self, output: &Type) -> Type {
        parse_quote! {
            ::core::pin::Pin<::std::boxed::Box<
                dyn ::core::future::Future<Output = #output> + ::core::marker::Send + 'call
            >>
        }
    }

    /// The type of a stream, which is in a box unless it is a `Streaming`.
    fn stream(&self, items: &Items) -> Type {
        let (private, item) = (&self.private, &items.item);
        if !matches!(items.ty, Type::ImplTrait(_)) {
            return items.ty.clone();
        }
        parse_quote! {
            ::core::pin::Pin<::std::boxed::Box<
                dyn #private::Stream<Item = #item> + ::core::marker::Send + 'call
            >>
        }
    }
}

fn implementation() -> Ident {
    Ident::new("__Implementation", Span::mixed_site())
}

/// The name of a method of the trait object.
fn erased(index: usize) -> Ident {
    format_ident!("call_{index}", span = Span::mixed_site())
}

fn context() -> Ident {
    names::local("cx", Span::mixed_site())
}

/// The arguments of a method, as values.
fn values(method: &Method) -> TokenStream {
    let context = method.context.then(|| context().into_token_stream());
    let arguments = method.arguments.iter().map(|a| a.ident.to_token_stream());
    let values = context.into_iter().chain(arguments);
    quote!(#(#values),*)
}
