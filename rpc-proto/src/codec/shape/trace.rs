//! The deserializer that makes up what it is asked for and writes down what that was.

use std::any::type_name;
use std::ops::Range;

use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::format::{ANY, Format, Group};
use super::search::{Known, Refused};
use crate::codec::attachment;

/// How deep the made-up values are nested at most; a type that needs more has no finite value.
const DEPTH: usize = 128;

/// How many numbers, strings, characters and lengths are tried one after the other.
pub(super) const SAMPLES: usize = 16;
const NUMBERS: [i64; SAMPLES] = [1, 0, 2, 3, 4, 8, 10, 16, 32, 64, 100, 127, 1000, 1024, 2000, 1_000_000_000];
const STRINGS: [&str; SAMPLES] = [
    "a",
    "",
    "1",
    "A",
    "a@b.cc",
    "http://a.bc/",
    "2000-01-01T00:00:00Z",
    "2000-01-01",
    "00:00:00",
    "00000000-0000-4000-8000-000000000000",
    "127.0.0.1",
    "127.0.0.1:80",
    "::1",
    "1.0.0",
    "/",
    "UTC",
];
const CHARS: [u8; SAMPLES] = *b"a A0.-_/1zZ%$\n\t\0";
const LENGTHS: [usize; SAMPLES] = [1, 0, 16, 4, 8, 32, 6, 12, 20, 24, 2, 3, 5, 33, 48, 64];

/// The deserializer: makes up one value, and writes down at its place what it was asked for. A value without a place is
/// as small as can be.
pub(super) struct Tracer<'a> {
    pub(super) known: &'a mut Known,
    pub(super) place: Option<usize>,
    pub(super) depth: usize,
}

impl<'a> Tracer<'a> {
    fn plain(&mut self, name: &'static str) -> usize {
        if let Some(place) = self.place {
            self.known.formats.set(place, Format::Plain(name));
        }
        self.known.sample
    }

    /// Writes down a value of `parts` parts; `count` of them, or of pairs of them, will be visited.
    fn group(self, group: Group, parts: usize, count: usize) -> Elements<'a> {
        let places = match self.place {
            Some(place) => self.known.formats.group(place, group, parts),
            None => 0..0,
        };
        Elements { known: self.known, places, left: count, depth: self.depth + 1 }
    }

    /// Whether to leave a container of the type `name` empty.
    fn is_minimal(&self, name: &'static str) -> bool {
        self.place.is_none() || self.depth > DEPTH || self.known.empty.contains(name)
    }

    fn length(&self, name: &'static str) -> usize {
        if self.is_minimal(name) { 0 } else { LENGTHS[self.known.sample] }
    }

    /// Writes down that a struct or enum is here. Returns its index, and whether its inside is to be found out now.
    fn named<T>(
        &mut self,
        name: &'static str,
        names: &'static [&'static str],
        is_enum: bool,
    ) -> Result<(usize, bool), Refused> {
        if self.depth > DEPTH {
            return Err(Refused);
        }
        let index = self.known.find(name, (type_name::<T>(), names), is_enum);
        let Some(place) = self.place else { return Ok((index, false)) };
        self.known.formats.set(place, Format::Named(index));
        let progress = &self.known.progress[index];
        Ok((index, !progress.visiting && !progress.done))
    }

    /// Visits a struct of any kind.
    fn body<'de, V: Visitor<'de>>(
        mut self,
        name: &'static str,
        group: Group,
        count: usize,
        visit: impl FnOnce(Elements<'_>) -> Result<V::Value, Refused>,
    ) -> Result<V::Value, Refused> {
        let names = if let Group::Fields(names) = group { names } else { &[] };
        let (index, explore) = self.named::<V::Value>(name, names, false)?;
        let Self { known, depth, .. } = self;
        if !explore {
            return visit(Tracer { known, place: None, depth }.group(group, count, count));
        }
        let place = Some(known.formats.types[index].bodies.start);
        known.explore(index, |known| visit(Tracer { known, place, depth }.group(group, count, count)))
    }
}

macro_rules! plain {
    ($($method:ident $visit:ident $name:literal $value:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Refused> {
            let sample = self.plain($name);
            visitor.$visit($value(sample))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Tracer<'_> {
    type Error = Refused;

    plain! {
        deserialize_bool visit_bool "bool" |i| i % 2 == 0;
        deserialize_i8 visit_i8 "i8" |i| NUMBERS[i] as i8;
        deserialize_i16 visit_i16 "i16" |i| NUMBERS[i] as i16;
        deserialize_i32 visit_i32 "i32" |i| NUMBERS[i] as i32;
        deserialize_i64 visit_i64 "i64" |i| NUMBERS[i];
        deserialize_i128 visit_i128 "i128" |i| NUMBERS[i] as i128;
        deserialize_u8 visit_u8 "u8" |i| NUMBERS[i] as u8;
        deserialize_u16 visit_u16 "u16" |i| NUMBERS[i] as u16;
        deserialize_u32 visit_u32 "u32" |i| NUMBERS[i] as u32;
        deserialize_u64 visit_u64 "u64" |i| NUMBERS[i] as u64;
        deserialize_u128 visit_u128 "u128" |i| NUMBERS[i] as u128;
        deserialize_f32 visit_f32 "f32" |i| NUMBERS[i] as f32;
        deserialize_f64 visit_f64 "f64" |i| NUMBERS[i] as f64;
        deserialize_char visit_char "char" |i| char::from(CHARS[i]);
        deserialize_str visit_str "string" |i| STRINGS[i];
        deserialize_string visit_str "string" |i| STRINGS[i];
        deserialize_bytes visit_bytes "bytes" |i| &[b'a'; 64][..LENGTHS[i]];
        deserialize_byte_buf visit_bytes "bytes" |i| &[b'a'; 64][..LENGTHS[i]];
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(mut self, _: V) -> Result<V::Value, Refused> {
        self.plain(ANY);
        Err(Refused)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let name = type_name::<V::Value>();
        let minimal = self.is_minimal(name);
        let mut inside = self.group(Group::Option, 1, 1);
        if minimal {
            return visitor.visit_none();
        }
        let (place, depth) = (inside.places.next(), inside.depth);
        inside.known.container(name, |known| {
            known.value(name, |known| visitor.visit_some(Tracer { known, place, depth }))
        })
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Refused> {
        self.plain("unit");
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.body::<V>(name, Group::Unit, 0, |_| visitor.visit_unit())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if name == attachment::NAME {
            self.plain("attachment");
            attachment::hand_over(Default::default());
            return visitor.visit_unit();
        }
        self.body::<V>(name, Group::Newtype, 1, |mut inside| {
            let (place, depth) = (inside.places.next(), inside.depth);
            visitor.visit_newtype_struct(Tracer { known: inside.known, place, depth })
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let name = type_name::<V::Value>();
        let length = self.length(name);
        let Elements { known, places, left, depth } = self.group(Group::Seq, 1, length);
        known.container(name, |known| visitor.visit_seq(Elements { known, places, left, depth }))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_seq(self.group(Group::Tuple, count, count))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.body::<V>(name, Group::Unnamed, count, |elements| visitor.visit_seq(elements))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let name = type_name::<V::Value>();
        let length = self.length(name);
        let Elements { known, places, left, depth } = self.group(Group::Map, 2, length);
        known.container(name, |known| visitor.visit_map(Elements { known, places, left, depth }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.body::<V>(name, Group::Fields(fields), fields.len(), |elements| visitor.visit_seq(elements))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (index, explore) = self.named::<V::Value>(name, variants, true)?;
        let Self { known, depth, .. } = self;
        let choice = known.choose(index, explore)?;
        let place = explore.then_some(known.formats.types[index].bodies.start + choice);
        let visit = |known: &mut Known| {
            visitor.visit_enum(Choice { index: choice as u32, body: Tracer { known, place, depth } })
        };
        if explore {
            known.explore(index, |known| known.variant(index, choice, true, visit))
        } else {
            known.variant(index, choice, false, visit)
        }
    }
}

/// The parts of a group. The first time around each has its place; a sequence's later elements have none.
struct Elements<'a> {
    known: &'a mut Known,
    places: Range<usize>,
    left: usize,
    depth: usize,
}

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Refused> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.known.seed(seed, self.places.next(), self.depth).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_> {
    type Error = Refused;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Refused> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Refused> {
        self.known.seed(seed, self.places.next(), self.depth)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant of an enum.
struct Choice<'a> {
    index: u32,
    body: Tracer<'a>,
}

impl<'de, 'a> de::EnumAccess<'de> for Choice<'a> {
    type Error = Refused;
    type Variant = Tracer<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Tracer<'a>), Refused> {
        let index: U32Deserializer<Refused> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, self.body))
    }
}

impl<'de> de::VariantAccess<'de> for Tracer<'_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        self.group(Group::Unit, 0, 0);
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Refused> {
        let mut inside = self.group(Group::Newtype, 1, 1);
        inside.known.seed(seed, inside.places.next(), inside.depth)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_seq(self.group(Group::Unnamed, count, count))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(self.group(Group::Fields(fields), fields.len(), fields.len()))
    }
}
