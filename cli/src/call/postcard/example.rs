//! Values to begin from, by the types of a signature.

use serde_json::{Map, Value};

use crate::call::signature::{Body, Described, Named, Plain, Type};

/// Returns a value of a type.
pub(crate) fn value(described: &Described) -> Value {
    Maker { named: &described.named, open: Vec::new(), left: MOST }.of(&described.root)
}

/// The most values of an example. A hostile server can describe types of any size.
const MOST: usize = 4096;

struct Maker<'a> {
    named: &'a [Named],
    /// The structs and enums that a value is within. One that is within itself ends there.
    open: Vec<usize>,
    left: usize,
}

impl Maker<'_> {
    fn of(&mut self, root: &Type) -> Value {
        if self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        match root {
            Type::Plain(plain) => match plain {
                Plain::Bool => false.into(),
                Plain::Integer(..) => 0.into(),
                Plain::F32 | Plain::F64 => 0.5.into(),
                Plain::Char => "a".into(),
                Plain::String | Plain::Bytes | Plain::Attachment | Plain::Rest => "text".into(),
                Plain::Unit => Value::Null,
            },
            Type::Option(inner) => self.of(inner),
            Type::Seq(inner) => match **inner {
                Type::Plain(Plain::Integer(8, false)) => "text".into(),
                _ => vec![self.of(inner)].into(),
            },
            Type::Map(types) => {
                let (key, value) = (self.of(&types.0), self.of(&types.1));
                match key.as_str() {
                    Some(key) => Value::Object(Map::from_iter([(key.to_owned(), value)])),
                    None => vec![Value::Array(vec![key, value])].into(),
                }
            }
            Type::Tuple(types) => self.all(types.iter()),
            Type::Array(inner, length) => self.all(std::iter::repeat_n(&**inner, (*length).min(MOST))),
            Type::Named(index) if self.open.contains(index) => Value::Null,
            Type::Named(index) => {
                self.open.push(*index);
                let value = self.named(*index);
                self.open.pop();
                value
            }
        }
    }

    fn all<'t>(&mut self, types: impl Iterator<Item = &'t Type>) -> Value {
        types.map(|of| self.of(of)).collect()
    }

    fn named(&mut self, index: usize) -> Value {
        let named = self.named;
        match &named[index] {
            Named::Struct(body) => self.body(body),
            Named::Enum(variants) => match variants.first() {
                Some((name, Body::Unit)) => name.clone().into(),
                Some((name, body)) => Value::Object(Map::from_iter([(name.clone(), self.body(body))])),
                None => Value::Null,
            },
            Named::Open => Value::Null,
        }
    }

    fn body(&mut self, body: &Body) -> Value {
        match body {
            Body::Unit => Value::Null,
            Body::Newtype(inner) => self.of(inner),
            Body::Tuple(types) => self.all(types.iter()),
            Body::Fields(fields) => {
                let field = |(name, inner): &(String, Type)| {
                    self.left = self.left.saturating_sub(name.len() / 16);
                    (name.clone(), self.of(inner))
                };
                Value::Object(fields.iter().map(field).collect())
            }
        }
    }
}
