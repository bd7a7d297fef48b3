//! The server: what turns a request into a call of the implementation.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Generics, parse_quote};

use super::{doc, names, phantom};
use crate::model::{Answer, Argument, Method, Service};

/// The type, and its implementations.
pub(crate) fn expand(service: &Service) -> (TokenStream, TokenStream) {
    let parts = Parts::new(service);
    (
        parts.definition(),
        [parts.constructors(), parts.clone_and_debug(), parts.service()].into_iter().collect(),
    )
}

/// Whether an identifier appears anywhere in these tokens.
fn mentions(tokens: TokenStream, ident: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(other) => other == *ident,
        TokenTree::Group(group) => mentions(group.stream(), ident),
        _ => false,
    })
}

struct Parts<'s> {
    service: &'s Service,
    private: TokenStream,
    ident: Ident,
    /// The implementation's type parameter.
    implementation: Ident,
    /// The trait's, with that one before them.
    generics: Generics,
}

impl<'s> Parts<'s> {
    fn new(service: &'s Service) -> Self {
        let mut implementation = Ident::new("S", Span::mixed_site());
        // The user's own types and traits may have any name.
        while mentions(service.item.to_token_stream(), &implementation) {
            implementation = format_ident!("{implementation}_");
        }
        let mut generics = service.generics().clone();
        generics.params.insert(0, parse_quote!(#implementation));
        Self {
            service,
            private: names::private(service),
            ident: format_ident!("{}Server", service.ident()),
            implementation,
            generics,
        }
    }

    /// The generics with the bound that the implementation implements the trait.
    fn bounded(&self) -> Generics {
        let Self { service, implementation, .. } = self;
        let (_, arguments, _) = service.generics().split_for_impl();
        let name = service.ident();
        let mut generics = self.generics.clone();
        generics.make_where_clause().predicates.push(parse_quote!(#implementation: #name #arguments));
        generics
    }

    fn definition(&self) -> TokenStream {
        let Self { service, private, ident, implementation, generics } = self;
        let (vis, name) = (&service.item.vis, service.ident());
        let bounds = &generics.where_clause;
        let types = phantom::field(service);
        let on_the_wire = service.wire_name.as_ref().map(|n| format!(" It is `{n}` on the wire."));
        let docs = doc(&format!(
            "Serves an implementation of [`{name}`].{} Cheap to clone.",
            on_the_wire.unwrap_or_default()
        ));
        quote! {
            #docs
            #[allow(dead_code)]
            #vis struct #ident #generics #bounds {
                served: #private::Served<#implementation>,
                #types
            }
        }
    }

    fn constructors(&self) -> TokenStream {
        let Self { service, private, ident, implementation, .. } = self;
        let vis = &service.item.vis;
        let bounded = self.bounded();
        let (generics, _, bounds) = bounded.split_for_impl();
        let (_, arguments, _) = self.generics.split_for_impl();
        let types = phantom::value(service);
        let info = names::call(service, &quote!(name));
        let constructors = match service.wire_name {
            Some(_) => quote! {
                /// Serves `service`.
                #vis fn new(service: #implementation) -> Self {
                    Self::from_arc(::std::sync::Arc::new(service))
                }

                /// Serves `service`, which the application uses, too.
                #vis fn from_arc(service: ::std::sync::Arc<#implementation>) -> Self {
                    Self { served: #private::Served::new(service, #info), #types }
                }
            },
            None => quote! {
                /// Serves `service` as `name`, the name on the wire of this instance of the trait.
                #vis fn named(
                    name: impl ::core::convert::Into<::std::borrow::Cow<'static, str>>,
                    service: #implementation,
                ) -> Self {
                    Self::named_from_arc(name, ::std::sync::Arc::new(service))
                }

                /// Serves `service`, which the application uses, too, as `name`.
                #vis fn named_from_arc(
                    name: impl ::core::convert::Into<::std::borrow::Cow<'static, str>>,
                    service: ::std::sync::Arc<#implementation>,
                ) -> Self {
                    Self { served: #private::Served::new(service, #info), #types }
                }
            },
        };
        quote! {
            #[allow(dead_code)]
            impl #generics #ident #arguments #bounds { #constructors }
        }
    }

    fn clone_and_debug(&self) -> TokenStream {
        let Self { service, ident, .. } = self;
        let (generics, arguments, bounds) = self.generics.split_for_impl();
        let types = phantom::value(service);
        let name = ident.to_string();
        quote! {
            #[automatically_derived]
            impl #generics ::core::clone::Clone for #ident #arguments #bounds {
                fn clone(&self) -> Self {
                    Self { served: ::core::clone::Clone::clone(&self.served), #types }
                }
            }

            #[automatically_derived]
            impl #generics ::core::fmt::Debug for #ident #arguments #bounds {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.debug_struct(#name).field("service", &self.served.info().name).finish_non_exhaustive()
                }
            }
        }
    }

    fn service(&self) -> TokenStream {
        let Self { service, private, ident, .. } = self;
        let bounded = self.bounded();
        let (generics, _, bounds) = bounded.split_for_impl();
        let (_, arguments, _) = self.generics.split_for_impl();
        let arms = service.methods.iter().enumerate().map(|(index, method)| self.arm(index, method));
        // One span for all, or `self` and the locals of the arms would not be those of the signature.
        quote_spanned! { Span::mixed_site() =>
            #[automatically_derived]
            impl #generics #private::Service for #ident #arguments #bounds {
                fn info(&self) -> &#private::ServiceInfo {
                    self.served.info()
                }

                fn call(&self, method: usize, request: #private::IncomingCall) -> #private::HandlerFuture {
                    let served = ::core::clone::Clone::clone(&self.served);
                    match method {
                        #(#arms)*
                        _ => #private::no_such_method(served.info(), method),
                    }
                }
            }
        }
    }

    /// Decodes the arguments of one method, and makes a future that calls it and encodes what it returns.
    fn arm(&self, index: usize, method: &Method) -> TokenStream {
        let Self { service, private, implementation, .. } = self;
        let (_, trait_arguments, _) = service.generics().split_for_impl();
        let (name, ident) = (service.ident(), &method.ident);
        let locals: Vec<Ident> = (0..method.arguments.len())
            .map(|i| format_ident!("argument_{i}", span = Span::mixed_site()))
            .collect();
        let take = |local: &Ident, argument: TokenStream| {
            quote_spanned! { Span::mixed_site() =>
                let #local = match #argument {
                    ::core::result::Result::Ok(value) => value,
                    ::core::result::Result::Err(reply) => return #private::at_once(reply),
                };
            }
        };
        let (mut decode, mut rows) = (Vec::new(), None);
        for (Argument { wire_name, ty, default, rows: row, .. }, local) in
            method.arguments.iter().zip(&locals)
        {
            let argument = names::argument(service, row.as_ref().unwrap_or(ty));
            if row.is_some() {
                rows = Some(take(
                    local,
                    quote_spanned! { Span::mixed_site() =>
                        #private::requests(streams.as_ref(), served.info(), method, #argument)
                    },
                ));
                continue;
            }
            let next = Ident::new(if *default { "next_or_default" } else { "next" }, Span::mixed_site());
            let incoming = names::local("incoming", Span::mixed_site());
            decode.push(take(local, quote!(#incoming.#next::<#ty>(#argument, #wire_name))));
        }
        let context = method.context.then(|| quote_spanned! { Span::mixed_site() => &context, });
        let keep_context = method.context.then(|| {
            quote_spanned! { Span::mixed_site() => let context = #private::given(request.context); }
        });
        let outcome = quote_spanned! { Span::mixed_site() =>
            <#implementation as #name #trait_arguments>::#ident(served.service(), #context #(#locals),*)
        };
        let has_streams = rows.is_some() || !matches!(method.answer, Answer::Once(_));
        let take_streams = has_streams.then(|| {
            quote_spanned! { Span::mixed_site() => let streams = request.streams; }
        });
        let reply = self.reply(&method.answer, &outcome);
        let spawn = method.spawn.then(|| quote_spanned! { Span::mixed_site() => #private::in_task().await; });
        quote_spanned! { Span::mixed_site() =>
            #index => {
                // Not in the future, which would hold the whole request.
                let mut incoming = #private::Incoming::new(request.payload);
                #(#decode)*
                let held = match incoming.finish() {
                    ::core::result::Result::Ok(held) => held,
                    ::core::result::Result::Err(reply) => return #private::at_once(reply),
                };
                #take_streams
                #rows
                #keep_context
                ::std::boxed::Box::pin(async move {
                    let _held = held;
                    #spawn
                    #reply
                })
            }
        }
    }

    /// Encodes what the implementation returned.
    fn reply(&self, answer: &Answer, outcome: &TokenStream) -> TokenStream {
        let Self { service, private, .. } = self;
        match answer {
            Answer::Once(output) => {
                let returned = names::returned(service, output);
                quote_spanned! { Span::mixed_site() =>
                    let outcome = #outcome.await;
                    #private::finish(served.info(), method, outcome, #returned)
                }
            }
            Answer::Stream(items) => {
                let streamed = names::streamed(service, answer, items);
                quote_spanned! { Span::mixed_site() =>
                    let stream = #outcome;
                    #private::answer(streams, served.info(), method, stream, #streamed).await
                }
            }
            Answer::TryStream(_, items) => {
                let streamed = names::streamed(service, answer, items);
                quote_spanned! { Span::mixed_site() =>
                    match #outcome.await {
                        ::core::result::Result::Ok(stream) => {
                            #private::answer(streams, served.info(), method, stream, #streamed).await
                        }
                        ::core::result::Result::Err(error) => {
                            #private::refuse(served.info(), method, error, #streamed)
                        }
                    }
                }
            }
        }
    }
}
