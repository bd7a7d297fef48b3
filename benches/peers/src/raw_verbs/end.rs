//! One end of a queue pair, and of a second one for the load.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use farcall_rdma::testing::device::{
    Channel, Completion, Cq, Device, Exposure, Gid, Host, LocalPath, QpSize, QpTuning, QueuePair, QueueSize,
    Queues, ReadTarget, RegisteredWords, RemoteAccess, RemoteQp, RemoteRange, Slab, SlabLayout, Slot, Work,
    choose,
};
use farcall_rdma::testing::verbs::SystemHost;
use farcall_rdma::{Completion as Waiting, RdmaConfig};

use super::bulk::{Load, Local, reads};
use crate::args::{Args, By, Role};
use crate::{Result, load};

/// The longest message.
pub(super) const SLOT: usize = 8 << 10;

/// Twice what is in flight at the most, because receives are posted again after the answers.
const RECEIVES: u32 = 512;
const SENDS: u16 = 256;

/// The most requests of the load at a time.
const LOADS: u16 = 64;

/// Half of what is sent may wait for its completion to be looked at.
const REAP_AT: usize = 128;

/// Any will do.
const PSN: u32 = 0x00_1234;

pub(super) struct End {
    qp: Arc<dyn QueuePair>,
    queues: Arc<dyn Queues>,
    /// To sleep by; none if it never sleeps.
    channel: Option<Box<dyn Channel>>,
    slab: Arc<Slab>,
    device: Arc<dyn Device>,
    /// Where the other end is told what no queue pair tells.
    socket: BufReader<TcpStream>,
    /// Long transfers beside the messages.
    load: Option<Load>,
    /// The load's queue pair where the other end moves its bytes, and the memory where they are.
    lent: Option<Lent>,
    // Memory that is used again.
    works: VecDeque<Work>,
    done: Vec<Completion>,
    slots: Vec<Slot>,
}

/// Keeps what the other end uses by itself.
type Lent = (Arc<dyn QueuePair>, Arc<RegisteredWords>);

impl End {
    /// Connects with what the other end says of itself over `socket`.
    pub(super) async fn connect(args: &Args, socket: TcpStream) -> Result<Self> {
        let config = farcall::Config::from_toml(&args.settings)?.rdma;
        let (device, path) = open(&config)?;
        let slab = device.add_slab(SlabLayout { slot_size: SLOT, slots: 2 * RECEIVES }).map_err(shown)?;
        let sends = u32::from(SENDS + LOADS) + 2;
        let queues = device.create_queues(QueueSize { receives: RECEIVES, sends }).map_err(shown)?;
        let qp = queues.create_qp(QpSize { sends: SENDS, signal_every: 16, inline: 220 }).map_err(shown)?;
        let channel = match config.completion {
            Waiting::Busy => None,
            _ => Some(queues.channel()?),
        };
        let mut slots: Vec<_> = (0..RECEIVES).map_while(|_| slab.take()).collect();
        queues.post_receives(&mut slots).map_err(shown)?;

        let mut socket = BufReader::new(socket);
        join(&*qp, &path, &mut socket)?;
        let (works, done) = (VecDeque::new(), Vec::new());
        let mut end =
            Self { qp, queues, channel, slab, device, socket, load: None, lent: None, works, done, slots };
        if args.load > 0 {
            end.add_load(args, &config, &path).await?;
        }
        Ok(end)
    }

    /// Makes the server read or write the client's memory for ever, as it would lent memory.
    async fn add_load(&mut self, args: &Args, config: &RdmaConfig, path: &LocalPath) -> Result<()> {
        let qp = match args.by {
            By::Same => Arc::clone(&self.qp),
            _ => {
                let size = QpSize { sends: LOADS, signal_every: 1, inline: 0 };
                let qp = self.queues.create_qp(size).map_err(shown)?;
                join(&*qp, path, &mut self.socket)?;
                qp
            }
        };
        if args.role == Role::Client {
            let words = self.words(args.load_size)?;
            qp.alloc_windows(1).map_err(shown)?;
            let access = RemoteAccess { read: true, write: true, atomics: false };
            let exposure = qp.expose_words(words.clone(), access).map_err(shown)?;
            self.lent = Some((Arc::clone(&qp), words));
            return self.bind(&*qp, exposure).await;
        }
        let remote = self.exposed()?;
        // The message behind the bind.
        self.completed(Cq::Receive).await?;
        let local = match reads(args)? {
            true => Local::Into(self.targets(args.load, args.load_size)?),
            false => Local::From(self.payload(args.load_size)?),
        };
        let mut load = Load::new(args, config.bulk_window, qp, local, remote);
        load.begin()?;
        self.load = Some(load);
        let socket = self.socket.get_ref().try_clone()?;
        std::thread::spawn(|| tell_what_moved(BufReader::new(socket)));
        Ok(())
    }

    /// Counts what the other end's load has moved.
    pub(super) fn note_load(&mut self) -> Result<()> {
        if self.lent.is_some() {
            let moved: usize = exchange(&mut self.socket, "moved?")?.trim_end().parse()?;
            load::moved_beside(moved - load::beside() as usize);
        }
        Ok(())
    }

    /// A message in registered memory.
    pub(super) fn message(&self, len: usize) -> Result<Bytes> {
        Ok(self.slab.take().ok_or("no slot is free")?.freeze(0..len))
    }

    /// A long payload in registered memory.
    pub(super) fn payload(&self, len: usize) -> Result<Bytes> {
        let arena = self.device.add_arena(len).map_err(shown)?;
        Ok(arena.take(len).ok_or("the arena is too small")?.freeze(0..len))
    }

    /// Posts all of it, and then what there is to receive into: it is not needed for as long as the peer takes.
    pub(super) fn post(&mut self, works: impl IntoIterator<Item = Work>) -> Result<()> {
        self.works.extend(works);
        while !self.works.is_empty() {
            if self.qp.post(&mut self.works).map_err(shown)? == 0 {
                self.reap()?;
            }
        }
        if !self.slots.is_empty() {
            self.queues.post_receives(&mut self.slots).map_err(shown)?;
        }
        Ok(())
    }

    /// Makes room for what is sent. A message that was sent has arrived or fails; nobody waits for it.
    fn reap(&mut self) -> Result<()> {
        self.queues.poll(Cq::Send, 64, &mut self.done).map_err(shown)?;
        self.look().map(drop)
    }

    /// Waits until something has completed; how much.
    pub(super) async fn completed(&mut self, cq: Cq) -> Result<usize> {
        while self.polled(cq)? == 0 {
            if self.channel.is_none() {
                continue;
            }
            self.queues.arm(cq, false).map_err(shown)?;
            if self.load.is_some() {
                self.queues.arm(Cq::Send, false).map_err(shown)?;
            }
            if self.polled(cq)? > 0 {
                break;
            }
            let Some(channel) = &mut self.channel else { continue };
            poll_fn(|cx| channel.poll_event(cx)).await?;
        }
        let completed = self.look()?;
        if cq == Cq::Receive && self.qp.sends_outstanding() >= REAP_AT {
            self.reap()?;
        }
        Ok(completed)
    }

    /// Polls, and keeps the load going.
    fn polled(&mut self, cq: Cq) -> Result<usize> {
        if self.load.is_some() {
            self.reap()?;
        }
        self.queues.poll(cq, 32, &mut self.done).map_err(shown)
    }

    /// Looks at what has completed: nothing may have failed.
    fn look(&mut self) -> Result<usize> {
        let count = self.done.len();
        for completion in self.done.drain(..) {
            match (completion, &mut self.load) {
                (Completion::Received { slot, .. }, _) => self.slots.push(slot),
                (Completion::Moved { qp_num, .. }, Some(load)) if load.is_of(qp_num) => load.moved()?,
                (Completion::Sent { .. } | Completion::Moved { .. }, _) => {}
                (failed, _) => return Err(format!("{failed:?}").into()),
            }
        }
        Ok(count)
    }

    /// Lets the other end read so many bytes, and tells it where. They can be read as long as this end is there.
    pub(super) async fn expose(&mut self, len: usize) -> Result<()> {
        let bytes = self.payload(len)?;
        self.qp.alloc_windows(1).map_err(shown)?;
        let exposure = self.qp.expose(&bytes).map_err(shown)?;
        self.bind(&*Arc::clone(&self.qp), exposure).await
    }

    /// Lets the other end write to so many bytes, or have this device change numbers there, and tells it where.
    pub(super) async fn expose_words(&mut self, len: usize, access: RemoteAccess) -> Result<()> {
        let words = self.words(len)?;
        self.qp.alloc_windows(1).map_err(shown)?;
        let exposure = self.qp.expose_words(words, access).map_err(shown)?;
        self.bind(&*Arc::clone(&self.qp), exposure).await
    }

    fn words(&self, len: usize) -> Result<Arc<RegisteredWords>> {
        let words = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Ok(Arc::new(self.device.add_words(Arc::new(words), true).map_err(shown)?))
    }

    async fn bind(&mut self, qp: &dyn QueuePair, exposure: Exposure) -> Result<()> {
        // It can be used when something posted later has completed.
        let marker = Work::Send { parts: [Bytes::new(), Bytes::new()], signaled: true, solicited: false };
        let mut works = VecDeque::from([Work::Bind(exposure), marker]);
        while !works.is_empty() {
            qp.post(&mut works).map_err(shown)?;
        }
        self.completed(Cq::Send).await?;
        exchange(&mut self.socket, &format!("{} {}", exposure.addr(), exposure.rkey())).map(drop)
    }

    /// Where the other end lets this one read, write, or change numbers.
    pub(super) fn exposed(&mut self) -> Result<RemoteRange> {
        let told = exchange(&mut self.socket, "where?")?;
        let (addr, rkey) = told.trim_end().split_once(' ').ok_or_else(|| format!("no range: {told}"))?;
        Ok(RemoteRange { addr: addr.parse()?, rkey: rkey.parse()? })
    }

    pub(super) fn targets(&self, count: usize, len: usize) -> Result<Vec<Arc<ReadTarget>>> {
        // Extents are whole pages, of which the arena has some more than asked for at the most.
        let arena = self.device.add_arena(count * (len + (16 << 10))).map_err(shown)?;
        let extents = (0..count).map(|_| arena.take(len).ok_or("the arena is too small".into()));
        extents.map(|extent| extent.map(ReadTarget::new)).collect()
    }
}

fn open(config: &RdmaConfig) -> Result<(Arc<dyn Device>, LocalPath)> {
    let host = SystemHost::default();
    let devices = host.devices().map_err(shown)?;
    let chosen = choose(&devices, &host.interfaces(), config, None).map_err(shown)?;
    let summary = devices.iter().find(|device| device.name == chosen.device).ok_or("the device is gone")?;
    let device = host.open(summary, config).map_err(shown)?;
    let status = device.port(chosen.port).map_err(shown)?;
    Ok((device, LocalPath::new(chosen.port, &chosen.gid, status, config)))
}

/// Connects a queue pair with that of the other end.
fn join(qp: &dyn QueuePair, path: &LocalPath, socket: &mut BufReader<TcpStream>) -> Result<()> {
    qp.to_init(path).map_err(shown)?;
    let Gid(gid) = path.gid;
    let own = format!("{} {} {}", qp.number(), Ipv6Addr::from(gid), path.status.lid);
    let remote = exchange(socket, &own)?;
    let words: Vec<_> = remote.split_whitespace().collect();
    let [number, gid, lid] = words[..] else { return Err(format!("no address: {remote}").into()) };
    let gid = Gid(gid.parse::<Ipv6Addr>()?.octets());
    let remote = RemoteQp { qp_num: number.parse()?, psn: PSN, gid, lid: lid.parse()? };
    let tuning = QpTuning::new(path.status.active_mtu);
    qp.to_rtr(path, &remote, &tuning).map_err(shown)?;
    qp.to_rts(PSN, &tuning).map_err(shown)?;
    exchange(socket, "ready").map(drop)
}

/// Says what the load has moved so far, whenever the other end asks.
fn tell_what_moved(mut socket: BufReader<TcpStream>) {
    let mut asked = String::new();
    while socket.read_line(&mut asked).is_ok_and(|len| len > 0)
        && writeln!(socket.get_mut(), "{}", load::beside()).is_ok()
    {}
}

/// Sends a line, and returns the line of the other end.
fn exchange(socket: &mut BufReader<TcpStream>, line: &str) -> Result<String> {
    socket.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut said = String::new();
    socket.read_line(&mut said)?;
    Ok(said)
}

/// Not all of the device's errors are `std::error::Error`.
pub(super) fn shown(error: impl std::fmt::Debug) -> crate::Error {
    format!("{error:?}").into()
}
