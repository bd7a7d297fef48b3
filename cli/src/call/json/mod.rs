//! JSON as Postcard, and back, by the types of a signature.
//!
//! Structs are objects, enums are as serde_json has them (`"A"`, `{"B": 5}`), maps with keys of text are objects and others lists of
//! pairs. Bytes are text, a list of numbers, or `{"hex": "00ff"}`. Integers that JSON's numbers can't hold are text.

mod decode;
mod encode;

pub(crate) use decode::{decode, decode_all};
pub(crate) use encode::encode;
