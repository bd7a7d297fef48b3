//! The attributes' own syntax.

use proc_macro2::{Ident, Span, TokenStream};
use syn::meta::ParseNestedMeta;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Error, Item, ItemTrait, LitStr, Path, Result};

/// The options of `#[service(..)]`.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) package: Option<LitStr>,
    pub(crate) name: Option<LitStr>,
    pub(crate) codec: Option<Path>,
    pub(crate) farcall: Option<Path>,
    pub(crate) is_dyn: Option<()>,
}

/// The options of `#[rpc(..)]`.
#[derive(Default)]
pub(crate) struct Rpc {
    pub(crate) name: Option<LitStr>,
    pub(crate) default: Option<Span>,
    pub(crate) spawn: Option<Span>,
    pub(crate) idempotent: Option<Span>,
    pub(crate) class: Option<Ident>,
}

pub(crate) fn options(tokens: TokenStream) -> Result<Options> {
    let mut options = Options::default();
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("package") {
            once(&meta, &mut options.package, meta.value()?.parse()?)
        } else if meta.path.is_ident("name") {
            once(&meta, &mut options.name, meta.value()?.parse()?)
        } else if meta.path.is_ident("codec") {
            once(&meta, &mut options.codec, codec(meta.value()?)?)
        } else if meta.path.is_ident("dyn") {
            once(&meta, &mut options.is_dyn, ())
        } else if meta.path.is_ident("crate") {
            let path: LitStr = meta.value()?.parse()?;
            once(&meta, &mut options.farcall, path.parse_with(Path::parse_mod_style)?)
        } else {
            Err(meta.error(
                "unknown option; there are `package = \"..\"`, `name = \"..\"`, `codec = ..`, `dyn` and `crate = \"..\"`",
            ))
        }
    });
    parser.parse2(tokens)?;
    Ok(options)
}

/// A codec is a type; its name on the wire, or its path in quotes, is what one may think of first.
fn codec(input: ParseStream<'_>) -> Result<Path> {
    let Some(text) = input.peek(LitStr).then(|| input.parse::<LitStr>()).transpose()? else {
        return input.parse();
    };
    let value = text.value();
    let known = ["Postcard", "Prost", "Raw"].into_iter().find(|name| name.eq_ignore_ascii_case(&value));
    let write = match known {
        Some(name) => format!("farcall::{name}"),
        None if text.parse::<Path>().is_ok() => value,
        None => "farcall::Prost".to_owned(),
    };
    Err(Error::new_spanned(text, format!("a codec is a type, not a string: write `codec = {write}`")))
}

pub(crate) fn item(tokens: TokenStream) -> Result<ItemTrait> {
    match syn::parse2(tokens)? {
        Item::Trait(item) => Ok(item),
        other => Err(Error::new_spanned(other, "`#[service]` goes on a trait")),
    }
}

/// Takes `#[rpc(..)]` from the attributes of a method or an argument.
pub(crate) fn rpc(attributes: &mut Vec<Attribute>) -> Result<Rpc> {
    let mut rpc = Rpc::default();
    let mut result = Ok(());
    attributes.retain(|attribute| {
        let ours = attribute.path().is_ident("rpc");
        if ours && result.is_ok() {
            result = attribute.parse_nested_meta(|meta| {
                let span = meta.path.get_ident().map_or_else(Span::call_site, |ident| ident.span());
                if meta.path.is_ident("name") {
                    once(&meta, &mut rpc.name, meta.value()?.parse()?)
                } else if meta.path.is_ident("default") {
                    once(&meta, &mut rpc.default, span)
                } else if meta.path.is_ident("spawn") {
                    once(&meta, &mut rpc.spawn, span)
                } else if meta.path.is_ident("idempotent") {
                    once(&meta, &mut rpc.idempotent, span)
                } else if meta.path.is_ident("class") {
                    once(&meta, &mut rpc.class, class(meta.value()?)?)
                } else {
                    Err(meta.error(
                        "unknown option; there are `name = \"..\"`, `default` for arguments, `spawn`, `idempotent` and `class = ..` for \
                         methods",
                    ))
                }
            });
        }
        !ours
    });
    result.map(|()| rpc)
}

/// Reads the name of a variant of `TrafficClass`.
fn class(input: ParseStream<'_>) -> Result<Ident> {
    let class: Ident = input.parse()?;
    if ["Normal", "Urgent", "Bulk"].iter().any(|known| class == known) {
        return Ok(class);
    }
    Err(Error::new_spanned(class, "a class is `Normal`, `Urgent` or `Bulk`: write `class = Bulk`"))
}

fn once<T>(meta: &ParseNestedMeta<'_>, option: &mut Option<T>, value: T) -> Result<()> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(meta.error("given twice")),
    }
}
