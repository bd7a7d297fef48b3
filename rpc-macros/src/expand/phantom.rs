//! A generic trait's type parameters appear in no field of server and client but this one.

use proc_macro2::TokenStream;
use quote::quote;

use crate::model::Service;

/// The field's declaration, if it is needed.
pub(crate) fn field(service: &Service) -> Option<TokenStream> {
    let types: Vec<_> = service.generics().type_params().map(|p| &p.ident).collect();
    // As a function's result: neither type is `Send` or dropped because of it.
    (!types.is_empty()).then(|| quote!(types: ::core::marker::PhantomData<fn() -> (#(#types,)*)>,))
}

/// Its value.
pub(crate) fn value(service: &Service) -> Option<TokenStream> {
    field(service).map(|_| quote!(types: ::core::marker::PhantomData,))
}
