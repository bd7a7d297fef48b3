//! The shape of a type on the wire, as text.

mod format;
mod search;
mod trace;

use serde::de::DeserializeOwned;

/// Why a type cannot be carried that is deserialised by asking the message what comes next.
const ASKS: &str = "asks the message for the type of what comes next, which a format without types cannot say: it, or a \
    type in it, has #[serde(untagged)], #[serde(tag = ..)] or #[serde(flatten)], or holds anything, as serde_json::Value does";

/// A description of types as a codec puts them on the wire, from which a method's signature fingerprint is made.
///
/// The description of a serde type is what its `Deserialize` implementation asks of a deserializer: names and order of
/// fields and variants, their types, the names of structs and enums (`#[serde(rename = ..)]` keeps an old one). It is
/// found without a derive of our own, by deserialising sample values until every variant of every enum has been
/// visited, and does not depend on machine, compiler or build.
///
/// Where a type refuses every sample (a validating `Deserialize` that accepts only, say, prime numbers), what follows
/// it in the same struct is not seen and appears as `?`. Field names and their order are known all the same.
///
/// ```
/// # mod farcall { pub use farcall_proto::codec; }
/// use farcall::codec::{Decode, Postcard, Shape};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Entry {
///     key: String,
///     expires: Option<std::time::Duration>,
/// }
///
/// let mut shape = Shape::default();
/// <Postcard as Decode<Vec<Entry>>>::shape(&mut shape);
/// assert_eq!(
///     shape.text(),
///     "[Entry { key: string, expires: option<Duration { secs: u64, nanos: u32 }> }]"
/// );
/// ```
#[derive(Clone, Debug, Default)]
pub struct Shape {
    text: String,
    messages: Vec<&'static str>,
    refusal: Option<String>,
}

impl Shape {
    /// Appends a name, for types that are not described any further.
    pub fn opaque(&mut self, name: &str) {
        self.text.push_str(name);
    }

    /// Appends the name `protobuf`, which says nothing of the message, and notes the message's Rust type beside the description.
    pub fn protobuf<T>(&mut self) {
        self.opaque("protobuf");
        self.messages.push(std::any::type_name::<T>());
    }

    /// Appends the description of a serde type. [Refuses](Self::refuse) one that asks the message for its type.
    ///
    /// # Panics
    ///
    /// If the type's `Deserialize` panics on a value that it does not like, as it would on a peer's message.
    pub fn trace<T: DeserializeOwned>(&mut self) {
        if search::trace::<T>(&mut self.text) {
            self.refuse(format!("`{}` {ASKS}", std::any::type_name::<T>()));
        }
    }

    /// Notes that the codec cannot carry a type, and why: a sentence that begins with the type. A server or client of a service
    /// with such a type is refused when it is made. The first reason counts.
    pub fn refuse(&mut self, why: impl Into<String>) {
        self.refusal.get_or_insert_with(|| why.into());
    }

    /// Returns why the codec cannot carry one of the types, if so.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The description so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The Rust types of the [messages of protobuf](Self::protobuf) in the description, in order.
    pub fn messages(&self) -> &[&'static str] {
        &self.messages
    }
}

#[cfg(test)]
mod tests;
