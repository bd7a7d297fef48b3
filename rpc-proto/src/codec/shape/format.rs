//! The parts of a description, and their text.

use std::fmt::Write;
use std::ops::Range;

/// The name of a value that asks the message for its type.
pub(super) const ANY: &str = "any";

/// One value. Its parts are named by their places in [`Formats`].
#[derive(Clone, Debug)]
pub(super) enum Format {
    /// Not seen.
    Unknown,
    /// A value without parts.
    Plain(&'static str),
    /// A struct or enum: its index among the types.
    Named(usize),
    /// A value with parts.
    Group(Group, Range<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Group {
    Option,
    Seq,
    /// Key and value.
    Map,
    /// A tuple or an array.
    Tuple,
    /// The rest are bodies of structs and variants; this one has nothing in it.
    Unit,
    Newtype,
    Unnamed,
    Fields(&'static [&'static str]),
}

/// A struct or enum.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: &'static str,
    /// The names of an enum's variants.
    pub(super) variants: Option<&'static [&'static str]>,
    /// The body of a struct, or of each variant.
    pub(super) bodies: Range<usize>,
}

/// Everything known of a type and of all that is in it.
#[derive(Debug, Default)]
pub(super) struct Formats {
    places: Vec<Format>,
    pub(super) types: Vec<Named>,
}

impl Formats {
    /// Makes room for things not seen yet.
    pub(super) fn allocate(&mut self, count: usize) -> Range<usize> {
        let first = self.places.len();
        self.places.resize(first + count, Format::Unknown);
        first..self.places.len()
    }

    /// Notes what is at `place`, unless that is known: the first sample decides.
    pub(super) fn set(&mut self, place: usize, format: Format) {
        if matches!(self.places[place], Format::Unknown) {
            self.places[place] = format;
        }
    }

    /// Notes that a group of `count` parts is at `place` and gives their places.
    pub(super) fn group(&mut self, place: usize, group: Group, count: usize) -> Range<usize> {
        match &self.places[place] {
            Format::Group(known, parts) if *known == group && parts.len() == count => parts.clone(),
            _ => {
                let parts = self.allocate(count);
                self.places[place] = Format::Group(group, parts.clone());
                parts
            }
        }
    }

    /// Whether something asks the message for its type.
    pub(super) fn has_any(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Format::Plain(ANY)))
    }

    /// Appends the text of what is at `place`. A struct or enum is written out where it is first met; after that, and
    /// inside itself, it is `Name#n`, the n-th that was written out: in what order they were found says nothing.
    pub(super) fn write(&self, place: usize, out: &mut String) {
        Writer { formats: self, written: Vec::new(), out }.place(place);
    }
}

struct Writer<'a> {
    formats: &'a Formats,
    written: Vec<usize>,
    out: &'a mut String,
}

impl Writer<'_> {
    fn place(&mut self, place: usize) {
        let formats = self.formats;
        match &formats.places[place] {
            Format::Unknown => self.out.push('?'),
            Format::Plain(name) => self.out.push_str(name),
            Format::Named(index) => self.named(*index, &formats.types[*index]),
            Format::Group(group, parts) => self.group(*group, parts.clone()),
        }
    }

    fn named(&mut self, index: usize, named: &Named) {
        self.out.push_str(named.name);
        if let Some(n) = self.written.iter().position(|&w| w == index) {
            return self.print(format_args!("#{n}"));
        }
        self.written.push(index);
        let Some(variants) = named.variants else { return self.body(named.bodies.start) };
        self.out.push('[');
        for (i, (name, body)) in variants.iter().zip(named.bodies.clone()).enumerate() {
            self.out.push_str(if i == 0 { "" } else { " | " });
            self.out.push_str(name);
            self.body(body);
        }
        self.out.push(']');
    }

    fn body(&mut self, place: usize) {
        match self.formats.places[place] {
            // Keeps a body that was never seen from looking like one that is empty.
            Format::Unknown => self.out.push_str("(?)"),
            _ => self.place(place),
        }
    }

    fn group(&mut self, group: Group, parts: Range<usize>) {
        match group {
            Group::Option => self.list("option<", parts, ">"),
            Group::Seq => self.list("[", parts, "]"),
            Group::Map => {
                self.list("{", parts.start..parts.start + 1, ": ");
                self.list("", parts.start + 1..parts.end, "}");
            }
            Group::Unit => {}
            Group::Newtype | Group::Unnamed => self.list("(", parts, ")"),
            Group::Tuple => match self.repeated(&parts) {
                Some(first) => {
                    self.list("[", first..first + 1, "; ");
                    self.print(format_args!("{}]", parts.len()));
                }
                None => self.list("(", parts, ")"),
            },
            Group::Fields(names) => {
                self.out.push_str(" {");
                for (i, (name, part)) in names.iter().zip(parts).enumerate() {
                    self.print(format_args!("{}{name}: ", if i == 0 { " " } else { ", " }));
                    self.place(part);
                }
                self.out.push_str(" }");
            }
        }
    }

    /// The first part of an array of plain values: arrays may be long.
    fn repeated(&self, parts: &Range<usize>) -> Option<usize> {
        let plain = |place: usize| match self.formats.places[place] {
            Format::Plain(name) => Some(name),
            _ => None,
        };
        let first = parts.clone().next().filter(|_| parts.len() > 1)?;
        let name = plain(first)?;
        parts.clone().all(|p| plain(p) == Some(name)).then_some(first)
    }

    fn list(&mut self, open: &str, parts: Range<usize>, close: &str) {
        self.out.push_str(open);
        for (i, part) in parts.enumerate() {
            self.out.push_str(if i == 0 { "" } else { ", " });
            self.place(part);
        }
        self.out.push_str(close);
    }

    fn print(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.out.write_fmt(text);
    }
}
