//! The model of a service that has passed all checks.

use syn::punctuated::Punctuated;
use syn::{
    Attribute, GenericArgument, Generics, Ident, ItemTrait, LitStr, Path, PathArguments, Token, Type,
    TypePath, parse_quote,
};

/// A service.
pub(crate) struct Service {
    /// The trait as it was written, without the attributes that are ours.
    pub(crate) item: ItemTrait,
    /// Its name on the wire; a generic trait has one for each instance.
    pub(crate) wire_name: Option<String>,
    pub(crate) codec: Path,
    /// The path of farcall.
    pub(crate) farcall: Path,
    pub(crate) methods: Vec<Method>,
    /// Whether it has a form for trait objects.
    pub(crate) is_dyn: bool,
}

/// A method of it.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    pub(crate) wire_name: String,
    /// Those that the client's method has, too.
    pub(crate) attributes: Vec<Attribute>,
    /// Whether it takes `cx: &Context`.
    pub(crate) context: bool,
    /// Whether the handler begins in a task of its own.
    pub(crate) spawn: bool,
    /// Whether clients may make a call again that may have been executed.
    pub(crate) idempotent: bool,
    /// The variant of `TrafficClass` that its calls go by, instead of the channel's.
    pub(crate) class: Option<Ident>,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) answer: Answer,
}

/// The answer of a method.
pub(crate) enum Answer {
    /// A value or an error: a result of this type.
    Once(Type),
    /// A stream.
    Stream(Items),
    /// A stream, or an error: a result of this type, whose first argument is the stream.
    TryStream(TypePath, Items),
}

/// A stream's type: `impl Stream<Item = farcall::Result<Row>>`, or `Streaming<Row>`.
pub(crate) struct Items {
    pub(crate) ty: Type,
    /// `farcall::Result<Row>`.
    pub(crate) item: Type,
}

/// An argument that travels.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    /// With the span of the type: the compiler may complain of the type where this is passed.
    pub(crate) wire_name: LitStr,
    pub(crate) ty: Type,
    /// Whether a caller may not know of it.
    pub(crate) default: bool,
    /// `Row`, if it is a `Streaming<Row>`.
    pub(crate) rows: Option<Type>,
}

impl Method {
    /// The arguments that are values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| argument.rows.is_none())
    }

    /// The argument that is a stream, and what it is a stream of.
    pub(crate) fn rows(&self) -> Option<(&Argument, &Type)> {
        self.arguments.iter().find_map(|argument| Some((argument, argument.rows.as_ref()?)))
    }
}

/// The arguments of a generic type: those of `Result<T, E>` are `T` and `E`.
pub(crate) fn arguments_of(ty: &TypePath) -> Option<&Punctuated<GenericArgument, Token![,]>> {
    match &ty.path.segments.last()?.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    }
}

/// A result of this type, but of `value`.
pub(crate) fn result_of(ty: &TypePath, value: &Type) -> Type {
    let mut ty = ty.clone();
    if let Some(last) = ty.path.segments.last_mut()
        && let PathArguments::AngleBracketed(arguments) = &mut last.arguments
        && let Some(first) = arguments.args.first_mut()
    {
        *first = parse_quote!(#value);
    }
    Type::Path(ty)
}

impl Service {
    pub(crate) fn ident(&self) -> &Ident {
        &self.item.ident
    }

    pub(crate) fn generics(&self) -> &Generics {
        &self.item.generics
    }

    /// How documentation names a method.
    pub(crate) fn full_name(&self, method: &Method) -> String {
        let service = self.wire_name.clone().unwrap_or_else(|| self.ident().to_string());
        format!("{service}/{}", method.wire_name)
    }
}
