//! JSON as Postcard.

use serde_json::Value;

use crate::call::signature::{Body, Described, Named, Plain, Type};

/// Appends a value to a message.
///
/// # Errors
///
/// Where the value does not fit the type, and what would.
pub(crate) fn encode(
    described: &Described,
    value: &Value,
    name: &str,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    Writer { named: &described.named, out }
        .write(&described.root, value)
        .map_err(|why| format!("{name}{why}"))
}

struct Writer<'a> {
    named: &'a [Named],
    out: &'a mut Vec<u8>,
}

/// Says where in a value something is wrong.
fn at<T>(result: Result<T, String>, place: impl std::fmt::Display) -> Result<T, String> {
    result.map_err(|why| format!("{place}{why}"))
}

fn mismatch<T>(expected: &str, value: &Value) -> Result<T, String> {
    let mut found = value.to_string();
    if found.len() > 60 {
        found = format!("{}…", found.chars().take(60).collect::<String>());
    }
    Err(format!(": {expected} is expected, not {found}"))
}

impl Writer<'_> {
    fn write(&mut self, of: &Type, value: &Value) -> Result<(), String> {
        match of {
            Type::Plain(plain) => self.plain(*plain, value),
            Type::Option(_) if value.is_null() => {
                self.out.push(0);
                Ok(())
            }
            Type::Option(inner) => {
                self.out.push(1);
                self.write(inner, value)
            }
            Type::Seq(inner) => {
                if let (Type::Plain(Plain::Integer(8, false)), Some(bytes)) = (&**inner, bytes_of(value)?) {
                    return self.bytes(&bytes, 0);
                }
                let Value::Array(values) = value else { return mismatch("a list", value) };
                varint(self.out, values.len() as u128);
                self.all(values.iter().map(|value| (&**inner, value)))
            }
            Type::Map(types) => self.map(types, value),
            Type::Tuple(types) => self.tuple(types, value),
            Type::Array(inner, length) => match value {
                Value::Array(values) if values.len() == *length => {
                    self.all(values.iter().map(|value| (&**inner, value)))
                }
                _ => mismatch(&format!("a list of {length}"), value),
            },
            Type::Named(index) => match &self.named[*index] {
                Named::Struct(body) => self.body(body, value),
                Named::Enum(variants) => self.variant(variants, value),
                Named::Open => Err(": its type has no end".to_owned()),
            },
        }
    }

    fn all<'v>(&mut self, values: impl Iterator<Item = (&'v Type, &'v Value)>) -> Result<(), String> {
        values
            .enumerate()
            .try_for_each(|(index, (of, value))| at(self.write(of, value), format_args!("[{index}]")))
    }

    fn tuple(&mut self, types: &[Type], value: &Value) -> Result<(), String> {
        match value {
            Value::Array(values) if values.len() == types.len() => self.all(types.iter().zip(values)),
            Value::Null if types.is_empty() => Ok(()),
            _ => mismatch(&format!("a list of {}", types.len()), value),
        }
    }

    fn map(&mut self, (key, of): &(Type, Type), value: &Value) -> Result<(), String> {
        match value {
            Value::Object(entries) => {
                varint(self.out, entries.len() as u128);
                entries.iter().try_for_each(|(name, value)| {
                    // A key that is a number is text in JSON.
                    let text = Value::String(name.clone());
                    at(self.write(key, &text), format_args!(", the key {name}"))?;
                    at(self.write(of, value), format_args!("[{name:?}]"))
                })
            }
            Value::Array(pairs) => {
                varint(self.out, pairs.len() as u128);
                pairs.iter().try_for_each(|pair| match pair.as_array().map(Vec::as_slice) {
                    Some([name, value]) => {
                        self.write(key, name)?;
                        self.write(of, value)
                    }
                    _ => mismatch("a pair of key and value", pair),
                })
            }
            _ => mismatch("an object, or a list of pairs", value),
        }
    }

    fn variant(&mut self, variants: &[(String, Body)], value: &Value) -> Result<(), String> {
        let (name, content) = match value {
            Value::String(name) => (name, &Value::Null),
            Value::Object(one) if one.len() == 1 => one.iter().next().unwrap_or((&EMPTY, &Value::Null)),
            _ => return mismatch(&one_of(variants), value),
        };
        match variants.iter().position(|(known, _)| known == name) {
            Some(index) => {
                varint(self.out, index as u128);
                at(self.body(&variants[index].1, content), format_args!(".{name}"))
            }
            None => mismatch(&one_of(variants), value),
        }
    }

    fn body(&mut self, body: &Body, value: &Value) -> Result<(), String> {
        match body {
            Body::Unit => match value {
                Value::Null => Ok(()),
                _ => mismatch("null", value),
            },
            Body::Newtype(inner) => self.write(inner, value),
            Body::Tuple(types) => self.tuple(types, value),
            Body::Fields(fields) => {
                let Value::Object(given) = value else { return mismatch(&object_of(fields), value) };
                if let Some(unknown) =
                    given.keys().find(|name| !fields.iter().any(|(known, _)| known == *name))
                {
                    return Err(format!(
                        ": there is no field `{unknown}`; {} is expected",
                        object_of(fields)
                    ));
                }
                fields.iter().try_for_each(|(name, of)| match (given.get(name), of) {
                    (Some(value), _) => at(self.write(of, value), format_args!(".{name}")),
                    (None, Type::Option(_)) => self.write(of, &Value::Null),
                    (None, _) => {
                        Err(format!(": the field `{name}` is missing; {} is expected", object_of(fields)))
                    }
                })
            }
        }
    }

    fn plain(&mut self, plain: Plain, value: &Value) -> Result<(), String> {
        match plain {
            Plain::Bool => match value {
                Value::Bool(value) => self.out.push(u8::from(*value)),
                _ => return mismatch("true or false", value),
            },
            Plain::Integer(bits, signed) => return self.integer(bits, signed, value),
            Plain::F32 => self.out.extend_from_slice(&(float(value)? as f32).to_le_bytes()),
            Plain::F64 => self.out.extend_from_slice(&float(value)?.to_le_bytes()),
            Plain::Char => match value.as_str() {
                Some(text) if text.chars().count() == 1 => return self.bytes(text.as_bytes(), 0),
                _ => return mismatch("a text of one character", value),
            },
            Plain::String => match value.as_str() {
                Some(text) => return self.bytes(text.as_bytes(), 0),
                None => return mismatch("a text", value),
            },
            Plain::Bytes | Plain::Attachment => match bytes_of(value)? {
                // The lowest bit of an attachment's length is 0 if the bytes follow.
                Some(bytes) => return self.bytes(&bytes, u32::from(plain == Plain::Attachment)),
                None => return mismatch("a text, a list of bytes, or {\"hex\": \"00ff\"}", value),
            },
            Plain::Rest => match bytes_of(value)? {
                Some(bytes) => self.out.extend_from_slice(&bytes),
                None => return mismatch("a text, a list of bytes, or {\"hex\": \"00ff\"}", value),
            },
            Plain::Unit => match value {
                Value::Null => {}
                _ => return mismatch("null", value),
            },
        }
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8], shift: u32) -> Result<(), String> {
        varint(self.out, (bytes.len() as u128) << shift);
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn integer(&mut self, bits: u8, signed: bool, value: &Value) -> Result<(), String> {
        let name = format!("{}{bits}", if signed { 'i' } else { 'u' });
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => return mismatch(&format!("a number ({name})"), value),
        };
        let (number, byte) = match signed {
            false => {
                let most = u128::MAX >> (128 - u32::from(bits));
                let Some(number) = text.parse::<u128>().ok().filter(|number| *number <= most) else {
                    return mismatch(&format!("a number from 0 to {most} ({name})"), value);
                };
                (number, number as u8)
            }
            true => {
                let most = i128::MAX >> (128 - u32::from(bits));
                let Some(number) =
                    text.parse::<i128>().ok().filter(|number| (-most - 1..=most).contains(number))
                else {
                    return mismatch(&format!("a number from {} to {most} ({name})", -most - 1), value);
                };
                // Zigzag: small numbers are short, whatever their sign.
                (((number << 1) ^ (number >> 127)) as u128, number as u8)
            }
        };
        match bits {
            8 => self.out.push(byte),
            _ => varint(self.out, number),
        }
        Ok(())
    }
}

static EMPTY: String = String::new();

fn one_of(variants: &[(String, Body)]) -> String {
    let name = |(name, body): &(String, Body)| match body {
        Body::Unit => format!("{name:?}"),
        _ => format!("{{{name:?}: …}}"),
    };
    let names: Vec<_> = variants.iter().map(name).collect();
    names.join(" or ")
}

fn object_of(fields: &[(String, Type)]) -> String {
    let names: Vec<_> = fields.iter().map(|(name, _)| format!("{name:?}: …")).collect();
    format!("{{{}}}", names.join(", "))
}

fn float(value: &Value) -> Result<f64, String> {
    let special = value.as_str().and_then(|text| text.parse().ok());
    value.as_f64().or(special).map_or_else(|| mismatch("a number", value), Ok)
}

/// Returns bytes that are text, a list of numbers, or `{"hex": …}`. `None`: it is nothing of that.
fn bytes_of(value: &Value) -> Result<Option<Vec<u8>>, String> {
    let byte = |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok());
    match value {
        Value::String(text) => Ok(Some(text.clone().into_bytes())),
        Value::Array(values) => Ok(values.iter().map(byte).collect()),
        Value::Object(object) if object.len() == 1 => match object.get("hex").and_then(Value::as_str) {
            Some(text) => unhex(text)
                .map(Some)
                .ok_or_else(|| format!(": `{text}` is no list of bytes in hexadecimal digits")),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

fn varint(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
