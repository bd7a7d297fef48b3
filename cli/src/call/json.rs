//! JSON as Postcard, and back, by the types of a signature.
//!
//! Structs are objects, enums are as serde_json has them (`"A"`, `{"B": 5}`), maps with keys of text are objects and others lists of
//! pairs. Bytes are text, a list of numbers, or `{"hex": "00ff"}`. Integers that JSON's numbers can't hold are text.

use farcall::Bytes;
use farcall::dynamic::Payload;
use serde_json::{Map, Number, Value};

use super::signature::{Body, Described, Named, Plain, Type};

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

/// Reads the one value of a message.
pub(crate) fn decode(described: &Described, payload: &Payload) -> Result<Value, String> {
    let attachments = payload.attachments();
    let left = payload.body_len().saturating_add(MOST);
    let mut reader = Reader { named: &described.named, rest: payload.body(), attachments, depth: 0, left };
    let value = reader.read(&described.root)?;
    match reader.rest.len() {
        0 => Ok(value),
        more => Err(format!("the message has {more} bytes after its end")),
    }
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
                // Those of an attachment have a bit that says that they are here.
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

/// Values within values, as the types of a hostile server may ask for.
const DEEPEST: usize = 128;

/// Values that take no bytes of the message, of which a hostile server may announce any number.
const MOST: usize = 1 << 16;

struct Reader<'a> {
    named: &'a [Named],
    rest: &'a [u8],
    attachments: &'a [Bytes],
    depth: usize,
    /// How many values may still come.
    left: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self, of: &Type) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("the message is nested too deep".to_owned());
        }
        self.left = self.left.checked_sub(1).ok_or("the message has more values than bytes")?;
        let value = self.nested(of);
        self.depth -= 1;
        value
    }

    fn nested(&mut self, of: &Type) -> Result<Value, String> {
        match of {
            Type::Plain(plain) => self.plain(*plain),
            Type::Option(inner) => match self.byte()? {
                0 => Ok(Value::Null),
                1 => self.read(inner),
                other => Err(format!("an option that is neither there nor absent ({other})")),
            },
            Type::Seq(inner) => {
                let count = self.count()?;
                if **inner == Type::Plain(Plain::Integer(8, false)) {
                    return self.take(count).map(shown);
                }
                self.list(count, inner)
            }
            Type::Map(types) => self.map(types),
            Type::Tuple(types) => types.iter().map(|of| self.read(of)).collect(),
            Type::Array(inner, length) => self.list(*length, inner),
            Type::Named(index) => match &self.named[*index] {
                Named::Struct(body) => self.body(body),
                Named::Enum(variants) => {
                    let index = self.count()?;
                    let (name, body) =
                        variants.get(index).ok_or_else(|| format!("there is no variant {index}"))?;
                    let content = self.body(body)?;
                    Ok(match body {
                        Body::Unit => Value::String(name.clone()),
                        _ => Value::Object(Map::from_iter([(name.clone(), content)])),
                    })
                }
                Named::Open => Err("its type has no end".to_owned()),
            },
        }
    }

    fn list(&mut self, count: usize, of: &Type) -> Result<Value, String> {
        (0..count).map(|_| self.read(of)).collect()
    }

    fn map(&mut self, (key, of): &(Type, Type)) -> Result<Value, String> {
        let count = self.count()?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push((self.read(key)?, self.read(of)?));
        }
        let is_text = pairs.iter().all(|(key, _)| key.is_string());
        Ok(match is_text {
            true => {
                let text = |key: Value| key.as_str().unwrap_or_default().to_owned();
                Value::Object(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
            }
            false => pairs.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect(),
        })
    }

    fn body(&mut self, body: &Body) -> Result<Value, String> {
        match body {
            Body::Unit => Ok(Value::Null),
            Body::Newtype(inner) => self.read(inner),
            Body::Tuple(types) => types.iter().map(|of| self.read(of)).collect(),
            Body::Fields(fields) => {
                let read = |(name, of): &(String, Type)| Ok((name.clone(), self.read(of)?));
                fields.iter().map(read).collect::<Result<Map<_, _>, String>>().map(Value::Object)
            }
        }
    }

    fn plain(&mut self, plain: Plain) -> Result<Value, String> {
        Ok(match plain {
            Plain::Bool => Value::Bool(self.byte()? != 0),
            Plain::Integer(8, false) => self.byte()?.into(),
            Plain::Integer(8, true) => (self.byte()? as i8).into(),
            Plain::Integer(_, false) => {
                let number = self.varint()?;
                u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
            }
            Plain::Integer(_, true) => {
                let zigzag = self.varint()?;
                let number = (zigzag >> 1) as i128 ^ -((zigzag & 1) as i128);
                i64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
            }
            Plain::F32 => real(f64::from(f32::from_le_bytes(self.array()?))),
            Plain::F64 => real(f64::from_le_bytes(self.array()?)),
            Plain::Char | Plain::String => {
                let length = self.count()?;
                let bytes = self.take(length)?;
                String::from_utf8(bytes.to_vec()).map_err(|_| "a text that is no UTF-8".to_owned())?.into()
            }
            Plain::Bytes => {
                let length = self.count()?;
                shown(self.take(length)?)
            }
            Plain::Attachment => {
                let number = self.count()?;
                match number & 1 {
                    0 => shown(self.take(number >> 1)?),
                    _ => shown(
                        self.attachments
                            .get(number >> 1)
                            .ok_or("it names an attachment that is not there")?,
                    ),
                }
            }
            Plain::Rest => shown(std::mem::take(&mut self.rest)),
            Plain::Unit => Value::Null,
        })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("the message ends too early")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| "the message ends too early".to_owned())
    }

    fn count(&mut self) -> Result<usize, String> {
        usize::try_from(self.varint()?).map_err(|_| "a length that no message has".to_owned())
    }

    fn varint(&mut self) -> Result<u128, String> {
        let mut value = 0;
        for shift in (0..133).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number that is too long".to_owned())
    }
}

/// Returns bytes as text, if they are, and else in hexadecimal digits.
fn shown(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => text.into(),
        _ => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Value::Object(Map::from_iter([("hex".to_owned(), digits.into())]))
        }
    }
}

/// Returns a number, or its name if JSON has none for it.
fn real(number: f64) -> Value {
    Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}
