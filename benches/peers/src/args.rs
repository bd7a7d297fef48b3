//! The command line.

use std::str::FromStr;
use std::time::Duration;

use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// The method that the client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// The payload goes there and back.
    Echo,
    /// It goes there, and nothing comes back.
    Put,
    /// It comes back for a number.
    Get,
    /// It is read from the server's memory (raw verbs).
    Read,
    /// It is written to the server's memory (raw verbs).
    Write,
    /// It comes again and again, as a stream.
    Stream,
    /// It goes there in pieces, and one byte comes back (raw verbs).
    Chain,
    /// The server reads it from memory that the client lends (Farcall).
    Lend,
    /// The server writes it to memory that the client lends (Farcall).
    Fill,
    /// It is read from a region of the server's (Farcall).
    Peek,
    /// A number in memory of the server's grows (Farcall, raw verbs).
    Add,
    /// A number in memory of the server's is compared and replaced (Farcall, raw verbs).
    Swap,
}

impl Method {
    const ALL: [(&str, Self); 12] = [
        ("echo", Self::Echo),
        ("put", Self::Put),
        ("get", Self::Get),
        ("read", Self::Read),
        ("write", Self::Write),
        ("stream", Self::Stream),
        ("chain", Self::Chain),
        ("lend", Self::Lend),
        ("fill", Self::Fill),
        ("peek", Self::Peek),
        ("add", Self::Add),
        ("swap", Self::Swap),
    ];

    fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(of, _)| *of == name);
        found.map(|(_, method)| *method).ok_or_else(|| format!("no method {name}").into())
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }
}

/// The connection that calls go by where another load uses the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The connection of the load.
    Same,
    /// Another channel's.
    Second,
    /// The connection of the channel's urgent calls.
    Urgent,
}

#[derive(Clone, Debug)]
pub(crate) struct Args {
    pub(crate) contestant: String,
    pub(crate) role: Role,
    /// Where the server listens, or where it is.
    pub(crate) address: String,
    /// A runtime of one thread, else of `workers`.
    pub(crate) current_thread: bool,
    pub(crate) workers: usize,
    /// Settings of Farcall's, as TOML.
    pub(crate) settings: String,
    pub(crate) method: Method,
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// Calls in flight, over all connections.
    pub(crate) concurrency: usize,
    pub(crate) connections: usize,
    /// How long each caller waits before it calls again.
    pub(crate) pause: Duration,
    /// Calls in flight beside them, each of which moves so many bytes (Farcall, raw verbs).
    pub(crate) load: usize,
    pub(crate) load_size: usize,
    pub(crate) load_method: Method,
    /// Move them by the pieces and the window that Farcall uses (raw verbs).
    pub(crate) load_pieces: bool,
    pub(crate) by: By,
    /// Streams beside them of which nothing is read any more (Farcall).
    pub(crate) stalled: usize,
    pub(crate) warmup: f64,
    pub(crate) seconds: f64,
    /// Make so many calls instead, from the first to the last without a warm-up: for counting what they take.
    pub(crate) calls: Option<u64>,
    /// The server's process, to say what the calls took there.
    pub(crate) server_pid: Option<u32>,
}

impl Args {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            contestant: args.next().ok_or("whose server or client?")?,
            role: match args.next().as_deref() {
                Some("server") => Role::Server,
                Some("client") => Role::Client,
                _ => return Err("server or client?".into()),
            },
            address: "127.0.0.1:0".to_owned(),
            current_thread: false,
            workers: 2,
            settings: String::new(),
            method: Method::Echo,
            size: 64,
            concurrency: 1,
            connections: 1,
            pause: Duration::ZERO,
            load: 0,
            load_size: 64 << 20,
            load_method: Method::Put,
            load_pieces: false,
            by: By::Same,
            stalled: 0,
            warmup: 0.5,
            seconds: 2.0,
            calls: None,
            server_pid: None,
        };
        while let Some(option) = args.next() {
            match option.as_str() {
                "--current-thread" => parsed.current_thread = true,
                "--load-pieces" => parsed.load_pieces = true,
                _ => {
                    let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
                    parsed.set(&option, value)?;
                }
            }
        }
        Ok(parsed)
    }

    fn set(&mut self, option: &str, value: String) -> Result<()> {
        match option {
            "--listen" | "--connect" => self.address = value,
            "--workers" => self.workers = number(option, &value)?,
            "--set" => self.settings += &setting(&value)?,
            "--method" => self.method = Method::named(&value)?,
            "--size" => self.size = number(option, &value)?,
            "--concurrency" => self.concurrency = number(option, &value)?,
            "--connections" => self.connections = number(option, &value)?,
            "--pause-ms" => self.pause = Duration::from_millis(number(option, &value)?),
            "--load" => self.load = number(option, &value)?,
            "--load-size" => self.load_size = number(option, &value)?,
            "--load-method" => self.load_method = Method::named(&value)?,
            "--by" => {
                self.by = match value.as_str() {
                    "same" => By::Same,
                    "second" => By::Second,
                    "urgent" => By::Urgent,
                    _ => return Err(format!("no connection is {value}").into()),
                }
            }
            "--stalled" => self.stalled = number(option, &value)?,
            "--warmup" => self.warmup = number(option, &value)?,
            "--seconds" => self.seconds = number(option, &value)?,
            "--calls" => self.calls = Some(number(option, &value)?),
            "--server-pid" => self.server_pid = Some(number(option, &value)?),
            _ => return Err(format!("no option {option}").into()),
        }
        Ok(())
    }
}

fn number<T: FromStr>(option: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| format!("{option} is not {value}").into())
}

/// `KEY=VALUE`, as in `rdma.completion=busy`, as a line of TOML.
fn setting(text: &str) -> Result<String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("--set KEY=VALUE, not {text}"))?;
    let is_string = value.parse::<u64>().is_err() && value.parse::<bool>().is_err();
    Ok(if is_string { format!("{key} = {value:?}\n") } else { format!("{key} = {value}\n") })
}
