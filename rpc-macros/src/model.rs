//! What is known of a service once it is found to be in order.

use syn::{Attribute, Generics, Ident, ItemTrait, LitStr, Path, Type};

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
}

/// A method of it.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    pub(crate) wire_name: String,
    /// Those that the client's method has, too.
    pub(crate) attributes: Vec<Attribute>,
    /// Whether it takes `cx: &Context`.
    pub(crate) context: bool,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) output: Type,
}

/// An argument that travels.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    /// With the span of the type: the compiler may complain of the type where this is passed.
    pub(crate) wire_name: LitStr,
    pub(crate) ty: Type,
    /// Whether a caller may not know of it.
    pub(crate) default: bool,
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
