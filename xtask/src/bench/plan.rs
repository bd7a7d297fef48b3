//! What is measured.

use serde::{Deserialize, Serialize};

use super::options::Options;

/// One subject, by which it can be asked for alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Part {
    /// Instructions, allocations and system calls.
    Counts,
    /// Both ends on one CPU, each on a thread: least noise, for nobody waits for another CPU to wake.
    Pinned,
    /// On all CPUs, as an application runs.
    Unpinned,
    /// Many connections, and as many calls in flight over one.
    Connections,
}

impl Part {
    pub(super) const ALL: &[Self] = &[Self::Counts, Self::Pinned, Self::Unpinned, Self::Connections];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Pinned => "pinned",
            Self::Unpinned => "unpinned",
            Self::Connections => "connections",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Counts => "Counts per call",
            Self::Pinned => "TCP, both ends on one CPU",
            Self::Unpinned => "TCP, on all CPUs",
            Self::Connections => "TCP, many connections, both ends on one CPU",
        }
    }

    /// The command that both ends run under.
    pub(super) fn under(self) -> Vec<String> {
        match self {
            Self::Unpinned => Vec::new(),
            Self::Counts | Self::Pinned | Self::Connections => words("taskset -c 0"),
        }
    }

    /// The runtime of both ends.
    pub(super) fn options(self) -> Vec<String> {
        match self {
            Self::Unpinned => words("--set transport=tcp"),
            Self::Counts | Self::Pinned | Self::Connections => words("--current-thread --set transport=tcp"),
        }
    }
}

/// What a contestant is asked to do: figures of the same place are comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) part: Part,
    pub(super) method: String,
    pub(super) size: usize,
    pub(super) concurrency: usize,
    pub(super) connections: usize,
}

impl Place {
    pub(super) fn echo(part: Part, size: usize, concurrency: usize, connections: usize) -> Self {
        Self { part, method: "echo".to_owned(), size, concurrency, connections }
    }

    /// What it tells the client.
    pub(super) fn options(&self) -> Vec<String> {
        let Self { method, size, concurrency, connections, .. } = self;
        words(&format!(
            "--method {method} --size {size} --concurrency {concurrency} --connections {connections}"
        ))
    }
}

/// Those who are compared in one place, one after the other in every round.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) place: Place,
    pub(super) contestants: &'static [&'static str],
}

pub(super) const ALL: &[&str] = &[BASE, "farcall", "tarpc", "tonic"];

/// Whom all others are compared with.
pub(super) const BASE: &str = "raw-tokio";

pub(super) const SIZES: &[usize] = &[64, 4 << 10, 64 << 10, 1 << 20];
pub(super) const IN_FLIGHT: &[usize] = &[1, 32, 256];

/// With how many in flight calls are counted through.
pub(super) const COUNTED_IN_FLIGHT: &[usize] = &[1, 32, 256];

/// How many connections are many, and how many calls are in flight over them, or over one.
pub(super) const MANY: usize = 256;

pub(super) fn native(options: &Options) -> Vec<Group> {
    let mut groups = Vec::new();
    for part in [Part::Pinned, Part::Unpinned] {
        for (size, in_flight) in SIZES.iter().flat_map(|size| IN_FLIGHT.iter().map(move |n| (*size, *n))) {
            groups.push(Group { place: Place::echo(part, size, in_flight, 1), contestants: ALL });
        }
    }
    for connections in [1, MANY] {
        let place = Place::echo(Part::Connections, 64, MANY, connections);
        groups.push(Group { place, contestants: &[BASE, "farcall"] });
    }
    groups.retain(|group| options.includes(group.place.part));
    groups
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}
