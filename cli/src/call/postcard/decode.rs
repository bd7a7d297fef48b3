//! Postcard as JSON.

use farcall::Bytes;
use farcall::dynamic::Payload;
use serde_json::{Map, Number, Value};

use crate::call::signature::{Body, Described, Named, Plain, Type};

/// Reads the one value of a message.
pub(crate) fn decode(described: &Described, payload: &Payload) -> Result<Value, String> {
    decode_all(std::iter::once(described), payload).map(|mut values| values.pop().unwrap_or_default())
}

/// Reads the values of a message.
pub(crate) fn decode_all<'d>(
    types: impl Iterator<Item = &'d Described>,
    payload: &Payload,
) -> Result<Vec<Value>, String> {
    let mut values = Vec::new();
    let left = payload.body_len().saturating_mul(64).saturating_add(MOST);
    let (mut rest, mut left, mut taken) = (payload.body(), left, 0);
    for described in types {
        let attachments = payload.attachments();
        let mut reader = Reader { named: &described.named, rest, attachments, taken, depth: 0, left };
        values.push(reader.read(&described.root)?);
        (rest, left, taken) = (reader.rest, reader.left, reader.taken);
    }
    match rest.len() {
        0 => Ok(values),
        more => Err(format!("the message has {more} bytes after its end")),
    }
}

/// Values within values, as the types of a hostile server may ask for.
const DEEPEST: usize = 128;

/// Values, and bytes of their names, beside those that the message is long enough for. A hostile server may announce any number of values
/// that take no bytes.
const MOST: usize = 1 << 20;

struct Reader<'a> {
    named: &'a [Named],
    rest: &'a [u8],
    attachments: &'a [Bytes],
    depth: usize,
    /// How many attachments were read: each is read once, in order.
    taken: usize,
    /// How many values, and bytes of names, may still come.
    left: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self, of: &Type) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("the message is nested too deep".to_owned());
        }
        self.spend(1)?;
        let value = self.nested(of);
        self.depth -= 1;
        value
    }

    fn spend(&mut self, count: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(count).ok_or("the message has more values than bytes")?;
        Ok(())
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
                    self.spend(name.len())?;
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
            // In an order that does not depend on how they were hashed. Numbers are in order of their size.
            false => {
                pairs.sort_by_cached_key(|(key, _)| {
                    let key = key.to_string();
                    (key.len(), key)
                });
                pairs.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect()
            }
        })
    }

    fn body(&mut self, body: &Body) -> Result<Value, String> {
        match body {
            Body::Unit => Ok(Value::Null),
            Body::Newtype(inner) => self.read(inner),
            Body::Tuple(types) => types.iter().map(|of| self.read(of)).collect(),
            Body::Fields(fields) => {
                let read = |(name, of): &(String, Type)| {
                    self.spend(name.len())?;
                    Ok((name.clone(), self.read(of)?))
                };
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
                    _ if number >> 1 == self.taken => {
                        let bytes = self
                            .attachments
                            .get(self.taken)
                            .ok_or("it names an attachment that is not there")?;
                        self.taken += 1;
                        shown(bytes)
                    }
                    _ => return Err("its attachments are not in order".to_owned()),
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
