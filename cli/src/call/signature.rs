//! The types in a method's signature, as servers describe them (docs/EVOLUTION.md, "What is compared").

use std::fmt;

use farcall::reflection::Method;

use crate::output::Failure;

/// A signature, understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Signature {
    /// The arguments that are no stream, each with its name.
    pub(crate) arguments: Vec<(String, Described)>,
    /// The items of the argument that is a stream.
    pub(crate) requests: Option<Described>,
    /// The result, or the items of the stream.
    pub(crate) answer: Described,
    /// The error in place of the answer. `None`: a status.
    pub(crate) error: Option<Described>,
    /// The error that a stream ends with. `None`: a status.
    pub(crate) stream_error: Option<Described>,
}

/// A type with the structs and enums that are in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Described {
    pub(crate) root: Type,
    /// The structs and enums, in the order in which they are first written.
    pub(crate) named: Vec<Named>,
}

/// A type as Postcard carries it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Type {
    Plain(Plain),
    Option(Box<Self>),
    Seq(Box<Self>),
    Map(Box<(Self, Self)>),
    Tuple(Vec<Self>),
    Array(Box<Self>, usize),
    /// A struct or enum, by its index in [`Described::named`].
    Named(usize),
}

/// A type without parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    Bool,
    /// Bits, and whether it has a sign.
    Integer(u8, bool),
    F32,
    F64,
    Char,
    String,
    Bytes,
    /// Bytes that may travel beside the message.
    Attachment,
    /// All of the message, as `Raw` has it.
    Rest,
    Unit,
}

/// A struct or enum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Named {
    /// It is being read.
    Open,
    Struct(Body),
    Enum(Vec<(String, Body)>),
}

/// The fields of a struct or variant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    Unit,
    Newtype(Type),
    Tuple(Vec<Type>),
    Fields(Vec<(String, Type)>),
}

/// A signature that is not understood: where, and what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotUnderstood {
    expected: &'static str,
    found: String,
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is expected at `{}`", self.expected, self.found)
    }
}

type Result<T, E = NotUnderstood> = std::result::Result<T, E>;

/// Bytes of a name, of which each value has a copy.
const LONGEST: usize = 1024;

/// Structs within structs, which a hostile server may nest without end.
const DEEPEST: usize = 100;

impl Signature {
    /// Reads the signature of a method.
    pub(crate) fn of(method: &Method) -> Result<Self, Failure> {
        let no = |why| format!("the signature `{}` is not understood: {why}", method.signature);
        Self::parse(&method.signature).map_err(|why| Failure::no(no(why)))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut reader = Reader { rest: text, named: Vec::new(), depth: 0 };
        reader.name();
        reader.expect("(", "a list of arguments")?;
        let (mut arguments, mut requests) = (Vec::new(), None);
        while !reader.eat(")") {
            if !(arguments.is_empty() && requests.is_none()) {
                reader.expect(", ", "another argument")?;
            }
            // `Prost` and `Raw` leave the name out.
            let before = reader.rest;
            let mut name = reader.name().to_owned();
            if !reader.eat(": ") {
                reader.rest = before;
                name = String::new();
            }
            if reader.eat("stream<") {
                requests = Some(reader.described()?);
                reader.expect(">", "the end of the stream's type")?;
            } else {
                arguments.push((name, reader.described()?));
            }
        }
        reader.expect(" -> ", "a result")?;
        let (answer, stream_error) = match reader.eat("stream<") {
            false => (reader.described()?, None),
            true => {
                let items = reader.described()?;
                reader.expect(" | ", "the error of the stream")?;
                let error = reader.error()?;
                reader.expect(">", "the end of the stream's type")?;
                (items, error)
            }
        };
        reader.expect(" | ", "an error")?;
        let error = reader.error()?;
        match reader.rest {
            "" => Ok(Self { arguments, requests, answer, error, stream_error }),
            _ => Err(reader.not_understood("the end")),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    /// The structs and enums of the type that is being read.
    named: Vec<Named>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn not_understood(&self, expected: &'static str) -> NotUnderstood {
        NotUnderstood { expected, found: self.rest.chars().take(40).collect() }
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, text: &str, expected: &'static str) -> Result<()> {
        if self.eat(text) { Ok(()) } else { Err(self.not_understood(expected)) }
    }

    /// Takes what may be a name. It can be empty.
    fn name(&mut self) -> &'a str {
        let end = self.rest.find([' ', ',', ':', ';', '|', '<', '>', '[', ']', '(', ')', '{', '}', '#']);
        let end = end.unwrap_or(self.rest.len());
        // A name this long is an attack.
        let (name, rest) = self.rest.split_at(if end > LONGEST { 0 } else { end });
        self.rest = rest;
        name
    }

    fn described(&mut self) -> Result<Described> {
        self.named.clear();
        let root = self.value()?;
        Ok(Described { root, named: std::mem::take(&mut self.named) })
    }

    /// Takes the type of an error, of which a status does not go through the codec.
    fn error(&mut self) -> Result<Option<Described>> {
        let before = self.rest;
        if self.name() == "Status"
            && (self.rest.is_empty() || self.rest.starts_with(['>', ' ']))
            && !self.rest.starts_with(" {")
        {
            return Ok(None);
        }
        self.rest = before;
        self.described().map(Some)
    }

    fn value(&mut self) -> Result<Type> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.not_understood("a type that is nested less deep"));
        }
        let value = self.nested();
        self.depth -= 1;
        value
    }

    fn nested(&mut self) -> Result<Type> {
        if self.eat("option<") {
            let inner = self.value()?;
            self.expect(">", "the end of the option's type")?;
            return Ok(Type::Option(inner.into()));
        }
        if self.eat("[") {
            let inner = Box::new(self.value()?);
            if !self.eat("; ") {
                self.expect("]", "the end of the list's type")?;
                return Ok(Type::Seq(inner));
            }
            let length = self.name().parse().map_err(|_| self.not_understood("a length"))?;
            self.expect("]", "the end of the array's type")?;
            return Ok(Type::Array(inner, length));
        }
        if self.eat("{") {
            let key = self.value()?;
            self.expect(": ", "the type of the map's values")?;
            let value = self.value()?;
            self.expect("}", "the end of the map's type")?;
            return Ok(Type::Map(Box::new((key, value))));
        }
        if self.eat("(") {
            return self.list().map(Type::Tuple);
        }
        let name = self.name();
        match plain(name) {
            Some(plain) => Ok(Type::Plain(plain)),
            None if name.is_empty() => Err(self.not_understood("a type")),
            None => self.named(name),
        }
    }

    /// Takes the types up to `)`.
    fn list(&mut self) -> Result<Vec<Type>> {
        let mut types = Vec::new();
        while !self.eat(")") {
            if !types.is_empty() {
                self.expect(", ", "another type")?;
            }
            types.push(self.value()?);
        }
        Ok(types)
    }

    fn named(&mut self, name: &str) -> Result<Type> {
        if name == "?" {
            return Err(self.not_understood("a type that the server could see"));
        }
        if self.eat("#") {
            let index = self.name().parse().ok().filter(|index| *index < self.named.len());
            return index.map(Type::Named).ok_or_else(|| self.not_understood("a type that was named before"));
        }
        let index = self.named.len();
        self.named.push(Named::Open);
        let named = if self.eat("[") { Named::Enum(self.variants()?) } else { Named::Struct(self.body()?) };
        self.named[index] = named;
        Ok(Type::Named(index))
    }

    fn variants(&mut self) -> Result<Vec<(String, Body)>> {
        let mut variants = Vec::new();
        while !self.eat("]") {
            if !variants.is_empty() {
                self.expect(" | ", "another variant")?;
            }
            let name = self.name();
            if name.is_empty() {
                return Err(self.not_understood("a variant"));
            }
            variants.push((name.to_owned(), self.body()?));
        }
        Ok(variants)
    }

    fn body(&mut self) -> Result<Body> {
        if self.eat("(") {
            let mut types = self.list()?;
            return Ok(if types.len() == 1 { Body::Newtype(types.remove(0)) } else { Body::Tuple(types) });
        }
        if !self.eat(" {") {
            return Ok(Body::Unit);
        }
        let mut fields = Vec::new();
        while !self.eat(" }") {
            self.expect(if fields.is_empty() { " " } else { ", " }, "a field")?;
            let name = self.name();
            self.expect(": ", "the type of a field")?;
            fields.push((name.to_owned(), self.value()?));
        }
        Ok(Body::Fields(fields))
    }
}

fn plain(name: &str) -> Option<Plain> {
    Some(match name {
        "bool" => Plain::Bool,
        "i8" => Plain::Integer(8, true),
        "i16" => Plain::Integer(16, true),
        "i32" => Plain::Integer(32, true),
        "i64" => Plain::Integer(64, true),
        "i128" => Plain::Integer(128, true),
        "u8" => Plain::Integer(8, false),
        "u16" => Plain::Integer(16, false),
        "u32" => Plain::Integer(32, false),
        "u64" => Plain::Integer(64, false),
        "u128" => Plain::Integer(128, false),
        "f32" => Plain::F32,
        "f64" => Plain::F64,
        "char" => Plain::Char,
        "string" => Plain::String,
        "bytes" => Plain::Bytes,
        "attachment" => Plain::Attachment,
        "unit" => Plain::Unit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_the_documentation_are_understood() {
        let put = Signature::parse(
            "put(key: string, value: attachment) -> option<Entry { key: string, written: u64 }> | Status",
        )
        .unwrap();
        assert_eq!(put.arguments.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["key", "value"]);
        assert_eq!(put.answer.root, Type::Option(Type::Named(0).into()));
        assert_eq!(put.error, None);
        let watch = Signature::parse(
            "watch(prefix: string) -> stream<Event { key: string, version: u64 } | Status> | Status",
        )
        .unwrap();
        assert_eq!((watch.answer.root, watch.requests), (Type::Named(0), None));
        let load =
            Signature::parse("load(table: string, rows: stream<Row { id: u64 }>) -> u64 | Status").unwrap();
        assert_eq!((load.arguments.len(), load.requests.unwrap().root), (1, Type::Named(0)));
    }

    #[test]
    fn every_kind_of_type_is_understood() {
        let text = "f(a: [u8; 4], b: {string: [u8]}, c: (u8, bool), d: Tree { left: option<Tree#0>, kind: Kind[A | B(u8) | C(u8, u8) | D { x: f64 }] }, \
                    e: Unit) -> () | Wrong[Bad(string)]";
        let signature = Signature::parse(text).unwrap();
        let types: Vec<_> = signature.arguments.iter().map(|(_, described)| &described.root).collect();
        assert_eq!(*types[0], Type::Array(Box::new(Type::Plain(Plain::Integer(8, false))), 4));
        assert!(matches!(types[1], Type::Map(_)));
        assert_eq!(signature.arguments[3].1.named.len(), 2);
        assert_eq!(signature.arguments[4].1.named, [Named::Struct(Body::Unit)]);
        assert_eq!(signature.answer.root, Type::Tuple(Vec::new()));
        assert!(signature.error.is_some());
    }

    #[test]
    fn a_signature_that_is_not_understood_is_shown() {
        for text in [
            "",
            "f",
            "f(",
            "f(a: )",
            "f(a: u8) -> ",
            "f() -> X#7 | Status",
            "f() -> ? | Status",
            "f() -> u8 | Status x",
        ] {
            assert!(Signature::parse(text).is_err(), "{text}");
        }
        let deep = format!("f() -> {}u8 | Status", "option<".repeat(100_000));
        assert!(Signature::parse(&deep).is_err());
    }
}
