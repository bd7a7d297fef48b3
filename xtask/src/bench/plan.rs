//! The plan of what is measured.

use std::iter;

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
    /// Streams from server to client, both ends on one CPU; each item counts as a call.
    Streams,
    /// A short call beside long ones, by a connection of its own class.
    Urgent,
    /// Memory that is lent, and regions, both ends on one CPU.
    Memory,
    /// Encrypted calls, both ends on one CPU.
    Tls,
    /// The software device of a VM, against the device used by hand.
    Rdma,
    /// A short call beside long payloads by the software device of a VM, against the device used by hand.
    Beside,
    /// Encrypted calls by the software device of a VM.
    Sealed,
}

impl Part {
    pub(super) const ALL: &[Self] = &[
        Self::Counts,
        Self::Pinned,
        Self::Unpinned,
        Self::Connections,
        Self::Streams,
        Self::Urgent,
        Self::Memory,
        Self::Tls,
        Self::Rdma,
        Self::Beside,
        Self::Sealed,
    ];

    /// Those that are measured in a VM.
    pub(super) const GUEST: &[Self] = &[Self::Rdma, Self::Beside, Self::Sealed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Pinned => "pinned",
            Self::Unpinned => "unpinned",
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Urgent => "urgent",
            Self::Memory => "memory",
            Self::Tls => "tls",
            Self::Rdma => "rdma",
            Self::Beside => "beside",
            Self::Sealed => "sealed",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Counts => "Counts per call",
            Self::Pinned => "TCP, both ends on one CPU",
            Self::Unpinned => "TCP, on all CPUs",
            Self::Connections => "TCP, many connections, both ends on one CPU",
            Self::Streams => "TCP, items of streams, both ends on one CPU",
            Self::Urgent => "TCP, short calls beside long ones, on all CPUs",
            Self::Memory => "TCP, memory that is lent, and regions, both ends on one CPU",
            Self::Tls => "TLS, both ends on one CPU",
            Self::Rdma => "RDMA in a VM",
            Self::Beside => "RDMA in a VM, short calls beside long payloads",
            Self::Sealed => "Sealed RDMA in a VM",
        }
    }

    /// The command that both ends run under.
    pub(super) fn under(self) -> Vec<String> {
        match self {
            Self::Unpinned | Self::Urgent | Self::Rdma | Self::Beside | Self::Sealed => Vec::new(),
            Self::Counts | Self::Pinned | Self::Connections | Self::Streams | Self::Memory | Self::Tls => {
                words("taskset -c 0")
            }
        }
    }

    /// Returns the options of both ends.
    pub(super) fn options(self) -> Vec<String> {
        words(match self {
            Self::Unpinned | Self::Urgent => "--set transport=tcp",
            // Counts must not depend on how often an end polls in vain.
            Self::Counts => "--current-thread --set transport=tcp --set tcp.completion=event",
            Self::Pinned | Self::Connections | Self::Streams | Self::Memory | Self::Tls => {
                "--current-thread --set transport=tcp"
            }
            // Setting a link up takes long where the processor is emulated.
            Self::Rdma | Self::Beside => {
                "--current-thread --set transport=rdma --set liveness.connect_ms=60000"
            }
            Self::Sealed => {
                "--current-thread --set transport=rdma --set liveness.connect_ms=60000 --set rdma.completion=event"
            }
        })
    }

    /// Returns the contestant that the tables compare with.
    pub(super) fn compared(self) -> &'static str {
        match self {
            Self::Urgent => "Ratios are to the same call by a second channel.",
            Self::Memory => {
                "Ratios of memory that is lent are to the same payload in a call (`lend` to `put`, `fill` to `get`), \
                 of regions to an `echo`."
            }
            Self::Tls => "Ratios of short calls are to those without TLS, of long ones to `raw-tls`.",
            Self::Sealed => "Ratios are to those without TLS.",
            Self::Beside => {
                "Ratios beside long payloads are to the same contestant without them, the others to raw verbs. Raw verbs move payloads \
                 as a whole, or by the pieces and the window that farcall uses; `shared` on the queue pair of the short messages, \
                 `whole` and `pieces` on one of their own."
            }
            Self::Rdma => {
                "Ratios are to raw verbs in the same polling mode: READs, for payloads that are put, got or lent, and for `peek`; WRITEs for \
                 payloads that are filled. `adaptive` is compared with `busy`, and with `event` where calls are rare; many connections with one."
            }
            _ => "Ratios are to `raw-tokio`.",
        }
    }
}

/// The task of a contestant: figures of the same place are comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) part: Part,
    pub(super) size: usize,
    pub(super) method: String,
    pub(super) concurrency: usize,
    pub(super) connections: usize,
    /// How long a caller waits before it calls again.
    pub(super) pause_ms: u64,
    /// How many calls are in flight beside these, what each moves, and how.
    pub(super) load: usize,
    pub(super) load_size: usize,
    pub(super) load_method: String,
    /// How many streams there are beside these that nobody reads.
    pub(super) stalled: usize,
}

impl Place {
    pub(super) fn echo(part: Part, size: usize, concurrency: usize, connections: usize) -> Self {
        Self {
            part,
            method: "echo".to_owned(),
            size,
            concurrency,
            connections,
            pause_ms: 0,
            load: 0,
            load_size: LOAD_SIZE,
            load_method: "put".to_owned(),
            stalled: 0,
        }
    }

    /// So many streams at once.
    pub(super) fn streams(part: Part, size: usize, streams: usize) -> Self {
        Self { method: "stream".to_owned(), ..Self::echo(part, size, streams, 1) }
    }

    /// A long payload by RDMA.
    pub(super) fn bulk(method: &str, size: usize) -> Self {
        Self { method: method.to_owned(), ..Self::echo(Part::Rdma, size, BULK_IN_FLIGHT, 1) }
    }

    /// A long payload in memory that the client lends.
    pub(super) fn lent(part: Part, method: &str, size: usize) -> Self {
        Self { method: method.to_owned(), ..Self::echo(part, size, LENT_IN_FLIGHT, 1) }
    }

    /// 64 bytes of a region.
    pub(super) fn region(part: Part, method: &str) -> Self {
        Self { method: method.to_owned(), ..Self::echo(part, 64, 1, 1) }
    }

    /// Calls by RDMA that are rare.
    pub(super) fn rare() -> Self {
        Self { pause_ms: 10, ..Self::echo(Part::Rdma, 64, 1, 1) }
    }

    /// A short call beside long ones.
    pub(super) fn beside_load(part: Part) -> Self {
        Self { load: 8, ..Self::echo(part, 64, 1, 1) }
    }

    /// A short call by RDMA beside payloads in memory that the client lends.
    pub(super) fn beside_lent(method: &str) -> Self {
        let (load_size, load_method) = (1 << 20, method.to_owned());
        Self { load: LENT_IN_FLIGHT, load_size, load_method, ..Self::echo(Part::Beside, 64, 1, 1) }
    }

    /// Calls beside a stream that nobody reads, if there is one.
    pub(super) fn beside_stream(stalled: usize) -> Self {
        Self { stalled, ..Self::echo(Part::Streams, 64, 8, 1) }
    }

    /// How long it is measured: longer where so much is on its way that a call takes a good part of a second, and memory
    /// has to be had for all of it first.
    pub(super) fn seconds(&self, seconds: f64) -> f64 {
        let on_the_way = self.size * self.concurrency + self.load * self.load_size;
        seconds * (1.0 + on_the_way as f64 / f64::from(64 << 20))
    }

    /// Returns the contestant that another is compared with here.
    pub(super) fn base(&self, contestant: &str) -> (Self, String) {
        if self.load > 0 && self.part == Part::Beside {
            let alone = Self::echo(Part::Beside, self.size, self.concurrency, 1);
            return (alone, without_load(contestant).0.to_owned());
        }
        if self.load > 0 {
            return (self.clone(), BESIDE_LOAD[1].to_owned());
        }
        if self.part == Part::Tls {
            return (self.clone(), TLS_BASE[usize::from(self.size > 64)].to_owned());
        }
        if self.part == Part::Sealed {
            return (self.clone(), "farcall".to_owned());
        }
        if self.part == Part::Memory {
            let method = match self.method.as_str() {
                "lend" => "put",
                "fill" => "get",
                "peek" | "add" | "swap" => "echo",
                unary => unary,
            };
            return (Self { method: method.to_owned(), ..self.clone() }, contestant.to_owned());
        }
        if self.stalled > 0 {
            return (Self { stalled: 0, ..self.clone() }, contestant.to_owned());
        }
        let Some(mode) = contestant.split_once(' ').map(|(_, mode)| mode) else {
            return (self.clone(), BASE.to_owned());
        };
        if self.pause_ms > 0 {
            return (self.clone(), "farcall event".to_owned());
        }
        if self.connections > 1 {
            return (Self { connections: 1, ..self.clone() }, contestant.to_owned());
        }
        let place = match self.method.as_str() {
            "put" | "get" | "chain" | "stream" => Self::bulk("read", self.size),
            "lend" | "peek" => Self { method: "read".to_owned(), ..self.clone() },
            "fill" => Self { method: "write".to_owned(), ..self.clone() },
            _ => self.clone(),
        };
        let mode = if mode == "adaptive" { "busy" } else { mode };
        (place, format!("raw-verbs {mode}"))
    }

    /// Returns the options of both ends.
    pub(super) fn options(&self) -> Vec<String> {
        let Self {
            method,
            size,
            concurrency,
            connections,
            pause_ms,
            load,
            load_size,
            load_method,
            stalled,
            ..
        } = self;
        let mut options = words(&format!(
            "--method {method} --size {size} --concurrency {concurrency} --connections {connections} \
             --pause-ms {pause_ms} --stalled {stalled}"
        ));
        if *load > 0 {
            // The arguments are a little longer than the payload.
            let message = load_size + 1024;
            options.extend(words(&format!(
                "--load {load} --load-size {load_size} --load-method {load_method} --set limits.max_message={message} \
                 --set limits.max_assembly={}",
                load * message
            )));
        }
        options
    }

    /// Returns the options that stand behind a contestant's name.
    pub(super) fn mode(&self, mode: &str) -> Vec<String> {
        if self.load > 0 && self.part != Part::Beside {
            return words(&format!("--by {mode}"));
        }
        let (mode, load) = without_load(mode);
        let mut options = words(&format!("--set rdma.completion={mode}"));
        options.extend(load.map(words).unwrap_or_default());
        options
    }
}

/// Those who are compared in one place, one after the other in every round.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) place: Place,
    pub(super) contestants: &'static [&'static str],
}

pub(super) const ALL: &[&str] = &[BASE, "farcall", "tarpc", "tonic"];

/// The contestant that all others are compared with.
pub(super) const BASE: &str = "raw-tokio";

pub(super) const SIZES: &[usize] = &[64, 4 << 10, 64 << 10, 1 << 20];
pub(super) const IN_FLIGHT: &[usize] = &[1, 32, 256];

/// With how many in flight calls are counted through.
pub(super) const COUNTED_IN_FLIGHT: &[usize] = &[1, 32, 256];

/// How many connections are many.
pub(super) const MANY: usize = 256;

/// How many calls are in flight over all of them: one that goes round, which shows what a connection costs that is there;
/// and one on each, which shows how much less gathers for each write.
pub(super) const MANY_IN_FLIGHT: &[usize] = &[1, MANY];

/// How long the items of streams are, and how many streams there are at once.
pub(super) const STREAMED: &[usize] = &[64, 64 << 10];
pub(super) const STREAMS: &[usize] = &[1, 8];

/// How long the calls are that others are measured beside.
pub(super) const LOAD_SIZE: usize = 64 << 20;

/// By which connection a call goes beside such: that of its class, a second channel's, that of the load.
pub(super) const BESIDE_LOAD: &[&str] = &["farcall urgent", "farcall second", "farcall same"];

/// Ends of the names of raw verbs beside long payloads, and what they stand for: requests of the whole length, or pieces and a window
/// as farcall's; on a queue pair of their own, or on that of the short messages.
const RAW_LOADS: &[(&str, &str)] =
    &[(" whole", "--by second"), (" pieces", "--by second --load-pieces"), (" shared", "--load-pieces")];

/// Returns a name without such an end, and what that stands for.
fn without_load(name: &str) -> (&str, Option<&'static str>) {
    let mut found =
        RAW_LOADS.iter().filter_map(|(end, options)| Some((name.strip_suffix(end)?, Some(*options))));
    found.next().unwrap_or((name, None))
}

/// The contestants that others are compared with where calls are encrypted: for short calls, and for long ones.
pub(super) const TLS_BASE: &[&str] = &["farcall", "raw-tls tls"];

/// Returns the places of encrypted calls: of short ones, and of long ones.
pub(super) fn encrypted() -> [Place; 2] {
    [Place::echo(Part::Tls, 64, 32, 1), Place::echo(Part::Tls, 1 << 20, 8, 1)]
}

pub(super) fn native(options: &Options) -> Vec<Group> {
    let mut groups = Vec::new();
    for part in [Part::Pinned, Part::Unpinned] {
        for (size, in_flight) in SIZES.iter().flat_map(|size| IN_FLIGHT.iter().map(move |n| (*size, *n))) {
            groups.push(Group { place: Place::echo(part, size, in_flight, 1), contestants: ALL });
        }
    }
    for (in_flight, connections) in MANY_IN_FLIGHT.iter().flat_map(|n| [(*n, 1), (*n, MANY)]) {
        let place = Place::echo(Part::Connections, 64, in_flight, connections);
        groups.push(Group { place, contestants: &[BASE, "farcall"] });
    }
    for (size, streams) in STREAMED.iter().flat_map(|size| STREAMS.iter().map(move |n| (*size, *n))) {
        let place = Place::streams(Part::Streams, size, streams);
        groups.push(Group { place, contestants: &[BASE, "farcall"] });
    }
    groups.push(Group { place: Place::beside_stream(0), contestants: &[BASE, "farcall"] });
    groups.push(Group { place: Place::beside_stream(1), contestants: &["farcall"] });
    for place in encrypted() {
        groups.push(Group { place, contestants: &["raw-tls tls", "farcall tls", "farcall"] });
    }
    groups.push(Group { place: Place::beside_load(Part::Urgent), contestants: BESIDE_LOAD });
    let lent = LENT_SIZES.iter().flat_map(|size| LENT.map(|method| Place::lent(Part::Memory, method, *size)));
    let unary = LENT_SIZES
        .iter()
        .flat_map(|size| ["put", "get"].map(|method| Place::lent(Part::Memory, method, *size)));
    let regions = ["echo", "peek", "add", "swap"].map(|method| Place::region(Part::Memory, method));
    groups.extend(lent.chain(unary).chain(regions).map(|place| Group { place, contestants: &["farcall"] }));
    groups.retain(|group| options.includes(group.place.part));
    groups
}

/// How many long payloads are on their way by RDMA, and how long they are.
const BULK_IN_FLIGHT: usize = 8;
pub(super) const BULK_SIZES: &[usize] = &[64 << 10, 1 << 20];

/// Methods whose payload lies in memory that the client lends; how many such calls are in flight, and how long payloads are.
pub(super) const LENT: [&str; 2] = ["lend", "fill"];
const LENT_IN_FLIGHT: usize = 4;
pub(super) const LENT_SIZES: &[usize] = BULK_SIZES;

/// Behind the name stands how an end waits for the device.
pub(super) const MODES: &[&str] = &["busy", "event"];

/// Returns the groups that are measured inside of the VM.
pub(super) fn guest(options: &Options) -> Vec<Group> {
    let mut groups = by_rdma();
    groups.extend(beside_lent());
    let short = [1, 32].map(|in_flight| Place::echo(Part::Sealed, 64, in_flight, 1));
    let long = BULK_SIZES.iter().map(|size| Place { part: Part::Sealed, ..Place::bulk("put", *size) });
    for place in short.into_iter().chain(long) {
        groups.push(Group { place, contestants: &["farcall tls", "farcall"] });
    }
    groups.retain(|group| options.includes(group.place.part));
    groups
}

/// Returns the groups of short calls beside long payloads, and without.
fn beside_lent() -> Vec<Group> {
    const ALONE: &[&str] = &["raw-verbs busy", "farcall busy", "farcall event", "raw-verbs event"];
    const BESIDE: &[&str] = &[
        "raw-verbs busy whole",
        "raw-verbs busy pieces",
        "raw-verbs busy shared",
        "farcall busy",
        "farcall event",
        "raw-verbs event shared",
        "raw-verbs event pieces",
        "raw-verbs event whole",
    ];
    let alone = Group { place: Place::echo(Part::Beside, 64, 1, 1), contestants: ALONE };
    let beside = LENT.map(|method| Group { place: Place::beside_lent(method), contestants: BESIDE });
    iter::once(alone).chain(beside).collect()
}

fn by_rdma() -> Vec<Group> {
    const ONE: &[&str] = &[
        "perftest busy",
        "raw-verbs busy",
        "farcall busy",
        "farcall adaptive",
        "farcall event",
        "raw-verbs event",
        "perftest event",
    ];
    const READ: &[&str] = &["perftest busy", "raw-verbs busy", "raw-verbs event", "perftest event"];
    const CHAIN: &[&str] = &["raw-verbs busy", "raw-verbs event"];
    const BULK: &[&str] = &["farcall busy", "farcall adaptive", "farcall event"];
    let without_perftest = &ONE[1..ONE.len() - 1];
    let mut groups = vec![
        Group { place: Place::echo(Part::Rdma, 64, 1, 1), contestants: ONE },
        Group { place: Place::echo(Part::Rdma, 64, 32, 1), contestants: without_perftest },
        Group { place: Place::rare(), contestants: BULK },
    ];
    for size in BULK_SIZES {
        for (method, contestants) in [("read", READ), ("put", BULK), ("get", BULK)] {
            groups.push(Group { place: Place::bulk(method, *size), contestants });
        }
    }
    groups.push(Group { place: Place::streams(Part::Rdma, BULK_SIZES[0], 1), contestants: BULK });
    const RAW: &[&str] = &["raw-verbs busy", "raw-verbs event"];
    const OURS: &[&str] = &["farcall busy", "farcall event"];
    for size in LENT_SIZES {
        groups.extend(
            ["read", "write"]
                .map(|method| Group { place: Place::lent(Part::Rdma, method, *size), contestants: RAW }),
        );
        groups.extend(
            LENT.map(|method| Group { place: Place::lent(Part::Rdma, method, *size), contestants: OURS }),
        );
    }
    const BOTH: &[&str] = &["raw-verbs busy", "farcall busy", "farcall event", "raw-verbs event"];
    for (method, contestants) in [("read", RAW), ("peek", OURS), ("add", BOTH), ("swap", BOTH)] {
        groups.push(Group { place: Place::region(Part::Rdma, method), contestants });
    }
    // The worth of READs shows where they begin to be used; longer chains only take longer.
    groups.push(Group { place: Place::bulk("chain", BULK_SIZES[0]), contestants: CHAIN });
    // One over one connection is among the first.
    let place = Place::echo(Part::Rdma, 64, MANY, 1);
    groups.push(Group { place, contestants: &["raw-verbs busy", "farcall adaptive"] });
    for in_flight in MANY_IN_FLIGHT {
        let place = Place::echo(Part::Rdma, 64, *in_flight, MANY);
        groups.push(Group { place, contestants: &["farcall adaptive"] });
    }
    groups.push(Group { place: Place::beside_load(Part::Rdma), contestants: BESIDE_LOAD });
    groups
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_measured_in_the_same_round() {
        let options = Options::default();
        let groups = [native(&options), guest(&options)].concat();
        let is_measured = |place: &Place, name: &str| {
            groups.iter().any(|group| group.place == *place && group.contestants.contains(&name))
        };
        for Group { place, contestants } in &groups {
            for contestant in *contestants {
                let (at, base) = place.base(contestant);
                assert!(is_measured(&at, &base), "{contestant} at {place:?} against {base} at {at:?}");
            }
        }
    }

    #[test]
    fn nothing_is_measured_twice_in_a_round() {
        let groups = [native(&Options::default()), guest(&Options::default())].concat();
        let mut places: Vec<_> = groups.iter().map(|group| &group.place).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), groups.len());
    }
}
