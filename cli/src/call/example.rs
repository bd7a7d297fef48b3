//! Values to begin from, by the types of a signature.

use serde_json::{Map, Value, json};

use super::signature::{Body, Described, Named, Plain, Signature, Type};

/// Returns arguments of a method, an object by their names.
pub(crate) fn arguments(signature: &Signature) -> Value {
    let all = signature.arguments.iter().map(|(name, described)| (name.clone(), value(described)));
    Value::Object(all.collect())
}

/// Returns a value of a type.
pub(crate) fn value(described: &Described) -> Value {
    of(&described.root, &described.named, &mut Vec::new())
}

/// `open` are the structs and enums that this is within, which end there.
fn of(root: &Type, named: &[Named], open: &mut Vec<usize>) -> Value {
    match root {
        Type::Plain(plain) => match plain {
            Plain::Bool => false.into(),
            Plain::Integer(..) => 0.into(),
            Plain::F32 | Plain::F64 => 0.5.into(),
            Plain::Char => "a".into(),
            Plain::String | Plain::Bytes | Plain::Attachment | Plain::Rest => "text".into(),
            Plain::Unit => Value::Null,
        },
        Type::Option(inner) => of(inner, named, open),
        Type::Seq(inner) => match **inner {
            Type::Plain(Plain::Integer(8, false)) => "text".into(),
            _ => json!([of(inner, named, open)]),
        },
        Type::Map(types) => {
            let (key, value) = (of(&types.0, named, open), of(&types.1, named, open));
            match key.as_str() {
                Some(key) => Value::Object(Map::from_iter([(key.to_owned(), value)])),
                None => json!([[key, value]]),
            }
        }
        Type::Tuple(types) => types.iter().map(|inner| of(inner, named, open)).collect(),
        // Long ones are not worth reading.
        Type::Array(inner, length) => vec![of(inner, named, open); (*length).min(64)].into(),
        Type::Named(index) if open.contains(index) => Value::Null,
        Type::Named(index) => {
            open.push(*index);
            let value = match &named[*index] {
                Named::Struct(inner) => body(inner, named, open),
                Named::Enum(variants) => match variants.first() {
                    Some((name, Body::Unit)) => name.clone().into(),
                    Some((name, inner)) => {
                        Value::Object(Map::from_iter([(name.clone(), body(inner, named, open))]))
                    }
                    None => Value::Null,
                },
                Named::Open => Value::Null,
            };
            open.pop();
            value
        }
    }
}

fn body(body: &Body, named: &[Named], open: &mut Vec<usize>) -> Value {
    match body {
        Body::Unit => Value::Null,
        Body::Newtype(inner) => of(inner, named, open),
        Body::Tuple(types) => types.iter().map(|inner| of(inner, named, open)).collect(),
        Body::Fields(fields) => {
            Value::Object(fields.iter().map(|(name, inner)| (name.clone(), of(inner, named, open))).collect())
        }
    }
}
