//! Finds out what a type looks like by deserialising it from a deserializer that makes up what it is asked for and
//! writes down what that was.
//!
//! One run shows one variant of each enum, so there are as many runs as it takes: every enum goes through its variants,
//! and stays with one until what is inside it is known. A struct or enum that is known, or is being visited further up,
//! is not looked into again; its value is made up with as little in it as possible, which also ends recursion.
//!
//! A type may refuse what was made up. The innermost value that did is given other samples in the runs that follow,
//! until it accepts one; if it accepts none, the sequence, option or variant around it does without.

use std::any::type_name;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::mem;

use serde::de::{self, Deserialize, DeserializeSeed};

use super::format::{Formats, Named};
use super::trace::{SAMPLES, Tracer};

/// A bound for types that never give the same answer twice; each run of any other finds something out.
const RUNS: usize = 10_000;

/// Appends the description of `T`. Returns whether it, or a type in it, asks the message for its type.
pub(super) fn trace<T: for<'de> Deserialize<'de>>(out: &mut String) -> bool {
    let mut known = Known::default();
    let root = known.formats.allocate(1).start;
    for _ in 0..RUNS {
        known.pending = false;
        known.refused = false;
        known.hopeless = false;
        let finished = match known.seed(PhantomData::<T>, Some(root), 0) {
            Ok(_) => !known.pending,
            Err(_) => mem::take(&mut known.hopeless),
        };
        if finished {
            break;
        }
    }
    known.formats.write(root, out);
    known.formats.has_any()
}

/// The findings of the runs so far, and the place of the present one.
#[derive(Default)]
pub(super) struct Known {
    pub(super) formats: Formats,
    /// The progress of each type in `formats`.
    pub(super) progress: Vec<Progress>,
    /// The sample that a type is at, for those that refused the first.
    samples: HashMap<&'static str, usize>,
    /// Options and sequences that must be empty because what is inside them accepts no sample.
    pub(super) empty: HashSet<&'static str>,
    /// The sample of the innermost value being visited.
    pub(super) sample: usize,
    /// Whether something of what is being visited is left for another run.
    pending: bool,
    /// Whether a value has refused its sample in this run.
    refused: bool,
    /// Whether that was the last sample, and nothing around that value can do without it.
    hopeless: bool,
}

/// How far a struct or enum is known.
pub(super) struct Progress {
    /// The Rust type and the names in it: with its own name, what tells it from other types.
    identity: Identity,
    pub(super) visiting: bool,
    pub(super) done: bool,
    /// The variants of an enum.
    variants: Vec<Variant>,
}

type Identity = (&'static str, &'static [&'static str]);

#[derive(Clone, Default)]
struct Variant {
    visiting: bool,
    done: bool,
    /// Whether a value of it could be made.
    possible: bool,
}

impl Known {
    pub(super) fn seed<'de, S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
        place: Option<usize>,
        depth: usize,
    ) -> Result<S::Value, Refused> {
        self.value(type_name::<S::Value>(), |known| seed.deserialize(Tracer { known, place, depth }))
    }

    /// Visits a value with the sample that its type is at, and goes on to the next if it was this type that refused.
    pub(super) fn value<R>(
        &mut self,
        name: &'static str,
        visit: impl FnOnce(&mut Self) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let sample = self.samples.get(name).copied().unwrap_or(0);
        let outer = mem::replace(&mut self.sample, sample);
        let result = visit(self);
        self.sample = outer;
        if result.is_err() && !mem::replace(&mut self.refused, true) {
            if sample + 1 < SAMPLES {
                self.samples.insert(name, sample + 1);
            } else {
                self.hopeless = true;
            }
        }
        result
    }

    /// Visits what can be empty, and makes it so in later runs if what is inside it is hopeless.
    pub(super) fn container<R>(
        &mut self,
        name: &'static str,
        visit: impl FnOnce(&mut Self) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let result = visit(self);
        if result.is_err() && mem::take(&mut self.hopeless) {
            self.empty.insert(name);
        }
        result
    }

    /// The index of the struct or enum with this name and identity.
    pub(super) fn find(&mut self, name: &'static str, identity: Identity, is_enum: bool) -> usize {
        let same = |(t, p): (&Named, &Progress)| t.name == name && p.identity == identity;
        if let Some(index) = self.formats.types.iter().zip(&self.progress).position(same) {
            return index;
        }
        let (_, names) = identity;
        let bodies = self.formats.allocate(if is_enum { names.len() } else { 1 });
        let variants = vec![Variant::default(); if is_enum { names.len() } else { 0 }];
        self.formats.types.push(Named { name, variants: is_enum.then_some(names), bodies });
        self.progress.push(Progress { identity, visiting: false, done: false, variants });
        self.progress.len() - 1
    }

    /// Visits a struct or enum whose inside is to be found out.
    pub(super) fn explore<R>(
        &mut self,
        index: usize,
        visit: impl FnOnce(&mut Self) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let outer = mem::take(&mut self.pending);
        self.progress[index].visiting = true;
        let result = visit(self);
        self.progress[index].visiting = false;
        self.progress[index].done |= result.is_ok() && !self.pending;
        self.pending |= outer;
        result
    }

    /// Returns the variant of an enum to visit: one that is not known if it is explored, else one that leads to a value.
    pub(super) fn choose(&self, index: usize, explore: bool) -> Result<usize, Refused> {
        let variants = &self.progress[index].variants;
        let choice = if explore {
            variants.iter().position(|v| !v.done)
        } else {
            let possible = variants.iter().position(|v| v.possible);
            possible.or_else(|| variants.iter().position(|v| !v.visiting && !v.done))
        };
        choice.ok_or(Refused)
    }

    /// Visits a variant; `explore` says whether its inside is to be found out.
    pub(super) fn variant<R>(
        &mut self,
        index: usize,
        choice: usize,
        explore: bool,
        visit: impl FnOnce(&mut Self) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let outer = mem::replace(&mut self.progress[index].variants[choice].visiting, true);
        let result = visit(self);
        let known = match result {
            Ok(_) => !self.pending,
            Err(_) => explore && mem::take(&mut self.hopeless),
        };
        let progress = &mut self.progress[index];
        let variant = &mut progress.variants[choice];
        variant.visiting = outer;
        variant.possible |= result.is_ok();
        variant.done |= explore && known;
        progress.done = progress.variants.iter().all(|v| v.done);
        self.pending |= explore && !progress.done;
        result
    }
}

/// The type did not take what was made up for it. Its error text does not matter.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}
