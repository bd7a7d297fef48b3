//! Has a device do what farcall asks of devices, with itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::transport::{Atomic, Words};

use super::finding::kinds;
use super::report::{DeviceView, Step, StepResult};
use super::{Finding, Report};
use crate::config::RdmaConfig;
use crate::device::{
    Arena, Completion, Cq, Device, DeviceError, ExposeError, Exposure, Host, LocalPath, NUMBER, PostError,
    QpSize, QueuePair, QueueSize, Queues, ReadTarget, RegisteredWords, RemoteAccess, RemoteRange, SlabLayout,
    Unavailable, WcError, WcStatus, Work, choose, connect_with_itself,
};
use crate::dma::SharedExtent;
use crate::machine::Machine;
use crate::resources::Memory;
use crate::verbs::SystemHost;

kinds! { KINDS:
    FAILED = "trial-failed", Fault, Trial,
        "The device failed at something that farcall needs of it. Connections would fail over to TCP, or go by TCP from the beginning.";
    NO_WINDOWS = "no-windows", Note, Trial,
        "Without memory windows that belong to one queue pair (type 2B), no memory is exposed to peers. Long messages are copied, and the \
         owner's runtime does what peers ask of regions.";
    NO_ATOMICS = "no-atomics", Note, Trial,
        "The device changes no numbers for peers. The owner's runtime does it.";
    FEW_QPS = "few-queue-pairs", Warning, Trial,
        "Each peer has a queue pair of the device, and other programs have some, too. Peers for which none is left stay on TCP.";
    MTU = "mtu-mismatch", Warning, Trial,
        "The port's packets are smaller than the network interface would allow. The MTU was changed after the device was set up, or the \
         port has a limit of its own.";
}

/// The longest time that one step may take. A device gives up by itself long before.
const LIMIT: Duration = Duration::from_secs(5);

/// Each request has a completion, because each is waited for.
const QP_SIZE: QpSize = QpSize { sends: 8, signal_every: 1, inline: 0 };

/// Bytes that are read and written. Some packets of any size.
const LENGTH: usize = 64 << 10;

/// Bytes of a message.
const MESSAGE: usize = 4096;

/// Has the device that a connection would use send, read, write, change a number, wake this process, and let go of memory; and adds to
/// the report what it did, and what failed first.
///
/// Opens the device and connects two of its queue pairs with each other. Blocks for up to some seconds. Does nothing if the report has
/// no address that a connection would leave from.
pub fn trial(report: &mut Report, config: &RdmaConfig) {
    if report.chosen.is_some() {
        try_host(&SystemHost::default(), report, config);
    }
}

pub(super) fn try_host(host: &dyn Host, report: &mut Report, config: &RdmaConfig) {
    let mut steps = Steps::default();
    // Waiting for events takes a runtime. The caller may be within one, which must not be blocked by another.
    let devices = &report.devices;
    let findings = thread::scope(|scope| {
        let tried = scope.spawn(|| run(host, config, devices, &mut steps));
        tried.join().unwrap_or_else(|_| {
            vec![Finding::new(&FAILED, "the trial panicked", "report this, with the command's output")]
        })
    });
    report.tried = steps.0;
    let is_known = |new: &Finding| {
        report.findings.iter().any(|known| (known.code, known.severity) == (new.code, new.severity))
    };
    let findings: Vec<_> = findings.into_iter().filter(|finding| !is_known(finding)).collect();
    report.extend(findings);
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps(Vec<Step>);

impl Steps {
    /// Does one thing, and notes what came of it.
    fn step<T>(&mut self, what: &'static str, step: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
        let began = Instant::now();
        let done = step();
        let result = if done.is_ok() { StepResult::Worked } else { StepResult::Failed };
        self.0.push(Step { what, result, micros: began.elapsed().as_micros() as u64 });
        done
    }

    fn skip(&mut self, what: &'static str) {
        self.0.push(Step { what, result: StepResult::Skipped, micros: 0 });
    }
}

/// The reason why a step failed.
#[derive(Debug)]
enum Stop {
    Unavailable(Unavailable),
    Completion(WcError),
    Other(String),
}

impl From<Unavailable> for Stop {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Self::Unavailable(error.into())
    }
}

impl From<PostError> for Stop {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Device(error) => error.into(),
            error => Self::Other(format!("a request was not posted: {error:?}")),
        }
    }
}

impl From<ExposeError> for Stop {
    fn from(error: ExposeError) -> Self {
        Self::Other(format!("memory was not exposed: {error:?}"))
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

fn run(host: &dyn Host, config: &RdmaConfig, devices: &[DeviceView], steps: &mut Steps) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(stop) = run_steps(host, config, devices, steps, &mut findings) {
        let at = steps.0.last().map_or("the trial", |step| step.what);
        findings.push(match stop {
            Stop::Unavailable(unavailable) => Finding::from(&unavailable),
            Stop::Completion(error) => {
                Finding::new(&FAILED, format!("{at} failed: {error}"), error.status.remedy())
            }
            Stop::Other(why) => {
                Finding::new(&FAILED, format!("{at} failed: {why}"), "see the kernel's log, and report this")
            }
        });
    }
    findings
}

fn run_steps(
    host: &dyn Host,
    config: &RdmaConfig,
    devices: &[DeviceView],
    steps: &mut Steps,
    findings: &mut Vec<Finding>,
) -> Result<(), Stop> {
    let (device, path) = steps.step("open the device", || open(host, config))?;
    findings.extend(missing(&*device));
    let resources = Machine::this().run(&["rdma", "resource", "show"]).unwrap_or_default();
    findings.extend(queue_pairs(&*device, &resources, config));
    findings.extend(mtu(devices, device.name(), &path));
    steps.step("register memory", || Ok(Memory::try_out(&*device)?))?;
    let mut pair = steps.step("connect", || Pair::new(&device, &path))?;
    steps.step("SEND", || pair.send())?;
    steps.step("wake up by an event", || pair.event())?;
    let limits = device.limits();
    if limits.windows == 0 || limits.reads == 0 {
        ["READ", "WRITE", "atomic addition", "end access"].into_iter().for_each(|what| steps.skip(what));
        return Ok(());
    }
    let read = steps.step("READ", || pair.read())?;
    let words = pair.words()?;
    steps.step("WRITE", || pair.write(&words))?;
    match limits.atomics {
        true => steps.step("atomic addition", || pair.add(&words))?,
        false => steps.skip("atomic addition"),
    }
    // The refusal is the end of both queue pairs.
    steps.step("end access", || pair.end_access(read))
}

fn open(host: &dyn Host, config: &RdmaConfig) -> Result<(Arc<dyn Device>, LocalPath), Stop> {
    let devices = host.devices()?;
    let chosen = choose(&devices, &host.interfaces(), config, None)?;
    let gone = || Unavailable::NoDevice { detail: format!("{} has just vanished", chosen.device) };
    let summary = devices.iter().find(|device| device.name == chosen.device).ok_or_else(gone)?;
    let device = host.open(summary, config)?;
    let status = device.port(chosen.port)?;
    let path = LocalPath::new(chosen.port, &chosen.gid, status, config);
    Ok((device, path))
}

/// Finds what the device can't do, and farcall does without.
fn missing(device: &dyn Device) -> Vec<Finding> {
    let (limits, name) = (device.limits(), device.name());
    let mut found = Vec::new();
    let fix = "if that is too slow, use a device and a driver that have it";
    if limits.windows == 0 {
        found.push(Finding::new(&NO_WINDOWS, format!("{name} has no memory windows of type 2B"), fix));
    }
    if !limits.atomics {
        found.push(Finding::new(&NO_ATOMICS, format!("{name} has no atomic operations"), fix));
    }
    found
}

/// Finds that the device has fewer queue pairs left than connections are configured. `resources` are as in rdma-resource(8): a line
/// `INDEX: DEVICE: pd N cq N qp N …` for each device.
fn queue_pairs(device: &dyn Device, resources: &str, config: &RdmaConfig) -> Option<Finding> {
    let (name, most) = (device.name(), device.limits().max_qp);
    let line =
        resources.lines().find_map(|line| line.split_once(": ")?.1.strip_prefix(name)?.strip_prefix(": "))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "qp").skip(1);
    let used: u32 = words.next()?.parse().ok()?;
    let left = most.saturating_sub(used);
    let seen = format!(
        "{name} has {left} of {most} queue pairs left, {} connections are configured",
        config.connections
    );
    let fix = "see who has them: `rdma resource show qp`; or lower `rdma.connections`";
    (left < config.connections).then(|| Finding::new(&FEW_QPS, seen, fix))
}

/// Finds that packets are smaller than the network interface's.
fn mtu(devices: &[DeviceView], name: &str, path: &LocalPath) -> Option<Finding> {
    let mut ports = devices.iter().filter(|device| device.name == name).flat_map(|device| &device.ports);
    let port = ports.find(|port| port.number == path.port && port.link_layer == "Ethernet")?;
    let (netdev, netdev_mtu) = (port.netdev.as_deref()?, port.netdev_mtu?);
    let (active, fits) = (path.status.active_mtu.bytes() as u64, super::addresses::payload(netdev_mtu));
    let seen =
        format!("packets of {name} carry {active} bytes, {netdev} has MTU {netdev_mtu}, where {fits} fit");
    let fix =
        format!("set the MTU again (`ip link set {netdev} mtu {netdev_mtu}`), or set the device up again");
    (active < fits).then(|| Finding::new(&MTU, seen, fix))
}

/// Two queue pairs of the device that are connected with each other. One asks, the other owns the memory.
struct Pair {
    asking: Arc<dyn QueuePair>,
    owning: Arc<dyn QueuePair>,
    queues: Arc<dyn Queues>,
    arena: Arc<Arena>,
    device: Arc<dyn Device>,
}

impl Pair {
    fn new(device: &Arc<dyn Device>, path: &LocalPath) -> Result<Self, Stop> {
        let queues = device.create_queues(QueueSize { receives: 4, sends: 2 * QP_SIZE.reserve() })?;
        let [asking, owning] = connect_with_itself(&**device, &*queues, QP_SIZE, path)?;
        let slab = device.add_slab(SlabLayout { slot_size: MESSAGE, slots: 4 })?;
        let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        queues.post_receives(&mut slots)?;
        let arena = device.add_arena(8 * LENGTH)?;
        Ok(Self { asking, owning, queues, arena, device: Arc::clone(device) })
    }

    /// Returns registered memory with numbers in it.
    fn filled(&self, length: usize) -> Result<Bytes, Stop> {
        let mut extent =
            self.arena.take(length).ok_or_else(|| Stop::Other("the memory is used up".to_owned()))?;
        extent.iter_mut().zip(0..).for_each(|(byte, i): (&mut u8, u32)| *byte = ((i * 31) >> 3) as u8);
        Ok(extent.freeze(0..length))
    }

    fn send(&mut self) -> Result<(), Stop> {
        let message = self.filled(MESSAGE)?;
        self.post_message(message.clone())?;
        let arrived = |completion| match completion {
            Completion::Received { slot, len, .. } => Some(slot.freeze(0..len)),
            _ => None,
        };
        let arrived = self.wait(Cq::Receive, arrived)?;
        self.sent()?;
        same(&arrived, &message)
    }

    fn post_message(&self, message: Bytes) -> Result<(), Stop> {
        let parts = [message, Bytes::new()];
        self.post(&self.asking, Work::Send { parts, signaled: true, solicited: true })
    }

    /// Sleeps until the device says that a message is there.
    fn event(&mut self) -> Result<(), Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let _inside = runtime.enter();
        let mut channel = self.queues.channel()?;
        self.queues.arm(Cq::Receive, true)?;
        self.post_message(self.filled(64)?)?;
        let woken = runtime
            .block_on(async { tokio::time::timeout(LIMIT, poll_fn(|cx| channel.poll_event(cx))).await });
        woken.map_err(|_| silent())??;
        self.wait(Cq::Receive, |completion| matches!(completion, Completion::Received { .. }).then_some(()))?;
        self.sent()
    }

    /// Reads what the other queue pair exposes. Returns the exposure, which lasts.
    fn read(&mut self) -> Result<Exposure, Stop> {
        self.owning.alloc_windows(2)?;
        let source = self.filled(LENGTH)?;
        let exposure = self.owning.expose(&source)?;
        self.post(&self.owning, Work::Bind(exposure))?;
        self.sent()?;
        let read = self.read_from(&exposure)?;
        same(&read, &source)?;
        Ok(exposure)
    }

    fn read_from(&self, exposure: &Exposure) -> Result<Bytes, Stop> {
        let into = self.target(LENGTH)?;
        let from = range(exposure);
        let work = Work::Read { into: Arc::clone(&into), at: 0, len: LENGTH, from, tag: 0 };
        self.post(&self.asking, work)?;
        self.moved()?;
        bytes_of(into)
    }

    /// Returns words that the peer may write to, and change numbers in.
    fn words(&mut self) -> Result<(Words, Exposure), Stop> {
        let extent =
            self.arena.take(LENGTH).ok_or_else(|| Stop::Other("the memory is used up".to_owned()))?;
        let words: Words = SharedExtent::new(extent);
        let registered = Arc::new(RegisteredWords::within_arena(Arc::clone(&words), LENGTH));
        let access = RemoteAccess { read: false, write: true, atomics: self.device.limits().atomics };
        let exposure = self.owning.expose_words(registered, access)?;
        self.post(&self.owning, Work::Bind(exposure))?;
        self.sent()?;
        Ok((words, exposure))
    }

    fn write(&mut self, (words, exposure): &(Words, Exposure)) -> Result<(), Stop> {
        let bytes = self.filled(LENGTH)?;
        self.post(&self.asking, Work::Write { bytes: bytes.clone(), to: range(exposure), tag: 0 })?;
        self.moved()?;
        let words = (**words).as_ref().iter().take(LENGTH / NUMBER);
        let written: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        same(&written, &bytes)
    }

    fn add(&mut self, (words, exposure): &(Words, Exposure)) -> Result<(), Stop> {
        let number = || (**words).as_ref().first().map_or(0, |word| word.load(Ordering::Relaxed));
        let before = number();
        let into = self.target(NUMBER)?;
        let work = Work::Atomic {
            atomic: Atomic::FetchAdd(7),
            on: range(exposure),
            into: Arc::clone(&into),
            tag: 0,
        };
        self.post(&self.asking, work)?;
        self.moved()?;
        let returned = bytes_of(into)?;
        same(&returned[..NUMBER], &before.to_ne_bytes())?;
        same(&number().to_ne_bytes(), &before.wrapping_add(7).to_ne_bytes())
    }

    /// Ends an exposure, and sees that the device then refuses to read.
    fn end_access(&mut self, exposure: Exposure) -> Result<(), Stop> {
        self.post(&self.owning, Work::Invalidate(exposure))?;
        self.sent()?;
        match self.read_from(&exposure) {
            Err(Stop::Completion(error)) if error.status == WcStatus::REM_ACCESS_ERR => Ok(()),
            Err(stop) => Err(stop),
            Ok(_) => Err(Stop::Other("the device read memory whose window is gone".to_owned())),
        }
    }

    fn target(&self, length: usize) -> Result<Arc<ReadTarget>, Stop> {
        let extent =
            self.arena.take(length).ok_or_else(|| Stop::Other("the memory is used up".to_owned()))?;
        Ok(ReadTarget::new(extent))
    }

    fn post(&self, qp: &Arc<dyn QueuePair>, work: Work) -> Result<(), Stop> {
        match qp.post(&mut [work].into())? {
            1 => Ok(()),
            _ => Err(Stop::Other("the send queue is full".to_owned())),
        }
    }

    fn sent(&self) -> Result<(), Stop> {
        self.wait(Cq::Send, |completion| matches!(completion, Completion::Sent { .. }).then_some(()))
    }

    fn moved(&self) -> Result<(), Stop> {
        self.wait(Cq::Send, |completion| matches!(completion, Completion::Moved { .. }).then_some(()))
    }

    /// Asks the device until there is a completion of a kind.
    fn wait<T>(&self, cq: Cq, mut wanted: impl FnMut(Completion) -> Option<T>) -> Result<T, Stop> {
        let (began, mut completions) = (Instant::now(), Vec::new());
        while began.elapsed() < LIMIT {
            self.queues.poll(cq, 16, &mut completions)?;
            for completion in completions.drain(..) {
                match completion {
                    Completion::SendFailed { error, .. } | Completion::ReceiveFailed { error, .. } => {
                        return Err(Stop::Completion(error));
                    }
                    other => {
                        if let Some(found) = wanted(other) {
                            return Ok(found);
                        }
                    }
                }
            }
            thread::yield_now();
        }
        Err(silent())
    }
}

fn silent() -> Stop {
    Stop::Other(format!("the device said nothing for {} s", LIMIT.as_secs()))
}

fn range(exposure: &Exposure) -> RemoteRange {
    RemoteRange { addr: exposure.addr(), rkey: exposure.rkey() }
}

fn bytes_of(target: Arc<ReadTarget>) -> Result<Bytes, Stop> {
    let extent =
        ReadTarget::into_extent(target).map_err(|_| Stop::Other("the device keeps its memory".to_owned()))?;
    let length = extent.len();
    Ok(extent.freeze(0..length))
}

fn same(found: &[u8], expected: &[u8]) -> Result<(), Stop> {
    match found == expected {
        true => Ok(()),
        false => Err(Stop::Other("other bytes came than were sent".to_owned())),
    }
}

#[cfg(test)]
mod tests;
