//! From the trait as written to the model, with a message for everything that can't be a service. All of them are
//! reported at once, each at the tokens to change.

mod arguments;
mod streams;
mod types;

use std::collections::HashMap;
use std::fmt::Display;

use proc_macro2::Span;
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::{
    Attribute, Error, FnArg, GenericParam, ItemTrait, LitStr, Path, Result, ReturnType, Signature, TraitItem,
    TraitItemFn, TypeParamBound, parse_quote,
};

use self::arguments::arguments;
use self::types::{check_type, written};
use crate::model::{Answer, Method, Service};
use crate::parse::{self, Options};

pub(crate) fn service(options: Options, mut item: ItemTrait) -> Result<Service> {
    let mut errors = Errors::default();
    check_trait(&item, &mut errors);
    let wire_name = wire_name(&options, &item, &mut errors);
    let codec = options.codec.unwrap_or_else(|| default_codec(options.farcall.as_ref()));
    let farcall = options.farcall.unwrap_or_else(|| parse_quote!(::farcall));
    let mut methods = Vec::new();
    for member in &mut item.items {
        match member {
            TraitItem::Fn(function) => methods.extend(method(function, &farcall, &mut errors)),
            TraitItem::Type(other) => errors.add(
                other,
                "a service has no associated types, which the other side could not know: name the type, or make the \
                 trait generic",
            ),
            other => errors.add(other, "a service has nothing but methods, for only they can be called from afar"),
        }
    }
    check_names(&methods, &item, &mut errors);
    let is_dyn = options.is_dyn.is_some();
    errors.finish(Service { item, wire_name, codec, farcall, methods, is_dyn })
}

fn default_codec(farcall: Option<&Path>) -> Path {
    match farcall {
        Some(farcall) => parse_quote!(#farcall::__private::Postcard),
        None => parse_quote!(::farcall::__private::Postcard),
    }
}

fn check_trait(item: &ItemTrait, errors: &mut Errors) {
    if let Some(token) = &item.unsafety {
        errors.add(token, "a service is a safe trait: the client implements it too");
    }
    for parameter in item.generics.lifetimes() {
        errors.add(parameter, "a service has no lifetimes: what travels is owned");
    }
    for supertrait in item.supertraits.iter().filter(|bound| !is_of_clients(bound)) {
        let (name, client) = (written(supertrait), format_ident!("{}Client", item.ident));
        errors.add(
            supertrait,
            format_args!(
                "`{client}` implements the trait, too, and is no `{name}`: write the methods here, or make `{name}` a \
                 service of its own and add both to the server"
            ),
        );
    }
    for attribute in item.attrs.iter().filter(|a| a.path().is_ident("cfg")) {
        errors.add(attribute, "put this above `#[service]`: server and client depend on it as well");
    }
}

/// Whether clients, which implement the trait too, are what this bound asks for.
fn is_of_clients(bound: &TypeParamBound) -> bool {
    match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last().is_some_and(|last| {
            ["Send", "Sync", "Clone", "Debug", "Sized", "Unpin"].iter().any(|name| last.ident == name)
        }),
        TypeParamBound::Lifetime(lifetime) => lifetime.ident == "static",
        _ => false,
    }
}

/// The service's name on the wire; `None` if each instance has its own.
fn wire_name(options: &Options, item: &ItemTrait, errors: &mut Errors) -> Option<String> {
    for name in [&options.package, &options.name].into_iter().flatten() {
        check_wire_name(name, errors);
        if !item.generics.params.is_empty() {
            errors.add(
                name,
                "each instance of a generic trait has a wire name of its own: give it whole to `named`, and not here",
            );
        }
    }
    if !item.generics.params.is_empty() {
        return None;
    }
    let name = options.name.as_ref().map_or_else(|| item.ident.unraw().to_string(), LitStr::value);
    Some(match &options.package {
        Some(package) => format!("{}.{name}", package.value()),
        None => name,
    })
}

fn check_wire_name(name: &LitStr, errors: &mut Errors) {
    let value = name.value();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if value.is_empty() || value.len() > 200 || !value.chars().all(plain) {
        errors.add(name, "a name on the wire has 1 to 200 letters, digits, `_`, `-` and `.`");
    }
}

/// A method, and its declaration without what is ours. `None` if it is too far off to say more about it.
fn method(function: &mut TraitItemFn, farcall: &Path, errors: &mut Errors) -> Option<Method> {
    let rpc = errors.keep(parse::rpc(&mut function.attrs)).unwrap_or_default();
    if let Some(span) = rpc.default {
        errors.add_at(span, "`default` goes on arguments");
    }
    if let Some(name) = &rpc.name {
        check_wire_name(name, errors);
    }
    for attribute in function.attrs.iter().filter(|a| a.path().is_ident("cfg")) {
        errors.add(
            attribute,
            "a method is always there or never; put it into a trait of its own, under `#[cfg]`",
        );
    }
    let signature = &mut function.sig;
    check_qualifiers(signature, errors);
    let receiver = check_receiver(signature, errors);
    let (context, arguments) = arguments(signature, receiver, errors);
    let answer = answer(signature, farcall, errors)?;
    let ident = signature.ident.clone();
    Some(Method {
        wire_name: rpc.name.map_or_else(|| ident.unraw().to_string(), |name| name.value()),
        ident,
        attributes: function.attrs.iter().filter(|a| is_for_client(a)).cloned().collect(),
        context,
        spawn: rpc.spawn.is_some(),
        idempotent: rpc.idempotent.is_some(),
        class: rpc.class,
        arguments,
        answer,
    })
}

fn is_for_client(attribute: &Attribute) -> bool {
    attribute.path().is_ident("doc") || attribute.path().is_ident("deprecated")
}

fn check_qualifiers(signature: &Signature, errors: &mut Errors) {
    let ident = &signature.ident;
    match (&signature.asyncness, streams::is_returned(&signature.output)) {
        (None, false) => errors.add(
            signature.fn_token,
            format_args!(
                "a method of a service is async: write `async fn {ident}(..)`; only one that returns a stream, `fn \
                 {ident}(..) -> impl Stream<..>`, is not"
            ),
        ),
        (Some(token), true) => errors.add(
            token,
            format_args!(
                "a stream is returned at once, and what it waits for it waits for itself: write `fn {ident}(..)`; or, if it \
                 may be refused before it begins, `async fn {ident}(..) -> farcall::Result<impl Stream<..>>`"
            ),
        ),
        _ => {}
    }
    if let Some(token) = &signature.unsafety {
        errors.add(token, "a method of a service is safe: the client implements it too");
    }
    if let Some(abi) = &signature.abi {
        errors.add(abi, "a method of a service is an ordinary `async fn`");
    }
    for parameter in &signature.generics.params {
        errors.add(
            parameter,
            match parameter {
                GenericParam::Lifetime(_) => "a method of a service has no lifetimes: its arguments are owned",
                _ => {
                    "a generic method is refused, for the other side can't know its instances: make the trait generic, \
                     `trait Name<T: ..>`"
                }
            },
        );
    }
    if let Some(clause) = &signature.generics.where_clause {
        errors.add(clause, "a method of a service has no `where` clause: put it on the trait");
    }
}

/// Whether the first input is a receiver of any kind.
fn check_receiver(signature: &Signature, errors: &mut Errors) -> bool {
    let why = "a service is called by many at once: write `&self`, and keep what changes behind a lock";
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => {
            if receiver.colon_token.is_some() || receiver.reference.is_none() || receiver.mutability.is_some()
            {
                errors.add(receiver, why);
            } else if let Some((_, Some(lifetime))) = &receiver.reference {
                errors.add(lifetime, "a method of a service has no lifetimes: write `&self`");
            }
            true
        }
        _ => {
            errors
                .add_at(signature.ident.span(), format_args!("`{}` has no `&self`: {why}", signature.ident));
            false
        }
    }
}

fn answer(signature: &Signature, farcall: &Path, errors: &mut Errors) -> Option<Answer> {
    match &signature.output {
        ReturnType::Default => {
            errors.add_at(
                signature.paren_token.span.close(),
                "a method of a service returns a `Result`, for every call can fail: write `-> farcall::Result<()>`",
            );
            None
        }
        ReturnType::Type(_, ty) => streams::answer(ty, farcall, errors),
    }
}

fn check_names(methods: &[Method], item: &ItemTrait, errors: &mut Errors) {
    let made_with: &[&str] =
        if item.generics.params.is_empty() { &["new", "in_process"] } else { &["named", "in_process"] };
    let mut seen: HashMap<&str, &Method> = HashMap::new();
    for method in methods {
        let ident = &method.ident;
        if made_with.iter().any(|name| ident == name) {
            errors.add(
                ident,
                format_args!(
                    "`{}Client::{ident}` makes the client: call the method something else; #[rpc(name = \"{ident}\")] \
                     keeps the name on the wire",
                    item.ident
                ),
            );
        }
        if let Some(other) = seen.insert(&method.wire_name, method) {
            errors.add(
                ident,
                format_args!(
                    "`{}` and `{ident}` are both called `{}` on the wire: rename one, in Rust or with #[rpc(name = \
                     \"..\")]",
                    other.ident, method.wire_name
                ),
            );
        }
    }
}

/// The errors found so far.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(Error::new_spanned(tokens, message));
    }

    fn add_at(&mut self, span: Span, message: impl Display) {
        self.push(Error::new(span, message));
    }

    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.push(e)).ok()
    }

    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn finish<T>(self, value: T) -> Result<T> {
        self.0.map_or(Ok(value), Err)
    }
}
