//! Hostile peers that speak the session's protocol: what they can do with long messages.

use std::future::pending;

use farcall_core::client::{Call, Connector, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::{Limits, Liveness};
use farcall_core::payload::{Encoder, Payload};
use farcall_core::proto::wire::{
    Answer, Bind, BindMethod, Content, Done, Down, Hello, Offer, Pull, RequestHead, Up, Upgrade, features,
    flags,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::testing::Peer;
use farcall_core::transport::{BoxFuture, Reason, Unavailable, memory};

use super::*;

const ECHO: u16 = 0;
const HANG: u16 = 1;

/// A service with a method that returns its argument, and one that never ends.
struct Echo(Arc<ServiceInfo>, Arc<Mutex<usize>>);

impl Service for Echo {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        *self.1.lock().unwrap() += 1;
        if method == HANG.into() {
            return Box::pin(pending());
        }
        Box::pin(async move { Reply::Ok(request.payload) })
    }
}

struct ToHost(Arc<ServerCore>);

impl Connector for ToHost {
    fn connect(&self, _: usize) -> BoxFuture<farcall_core::status::Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        self.0.serve(far);
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "there".into()
    }
}

/// A server and an honest client of it, whose session is on RDMA.
struct Setup {
    fabric: Arc<Fabric>,
    host: Arc<ServerCore>,
    honest: RawChannel,
    info: Arc<ServiceInfo>,
    executed: Arc<Mutex<usize>>,
    far: Node,
}

impl Setup {
    async fn new() -> Self {
        Self::with(RdmaConfig::default(), Limits::default()).await
    }

    /// A server with this configuration and these limits.
    async fn with(config: RdmaConfig, limits: Limits) -> Self {
        let fabric = Fabric::new(1);
        let [near, far] = [node(&fabric, 1, RdmaConfig::default()), node(&fabric, 2, config)];
        let [client, server] = [(&near, Limits::default()), (&far, limits)].map(|(node, limits)| {
            let mut liveness = Liveness::default();
            liveness.retry_ms = 0;
            let upgrade = Ok(Arc::new(node.upgrade.clone()) as _);
            let plain = Settings::plain(limits, liveness, Unavailable::new(Reason::Disabled, ""));
            Settings { upgrade, ..plain }
        });
        let methods = ["echo", "hang"].map(|name| Method::unary(name, name)).to_vec();
        let info = Arc::new(ServiceInfo { name: "echo".into(), codec: "raw".into(), methods });
        let executed = Arc::<Mutex<usize>>::default();
        let host =
            ServerCore::new(vec![Arc::new(Echo(Arc::clone(&info), Arc::clone(&executed)))], server).unwrap();
        let honest = RawChannel::new(ToHost(Arc::clone(&host)), client);
        let setup = Self { fabric, host, honest, info, executed, far };
        setup.honest_calls().await;
        setup
    }

    fn call(&self, len: usize) -> Call<farcall_core::status::Result<Bytes>, Raw> {
        let mut arguments = Encoder::new();
        arguments.put_bytes(&vec![9; len].into());
        Stub::new(self.honest.clone(), self.info.clone()).call(0, Ok(arguments.finish()))
    }

    /// They come back unharmed, by RDMA.
    async fn honest_calls(&self) {
        for len in [10, 9000, 100_000, 1 << 20] {
            let answer = tokio::time::timeout(LIMIT, self.call(len)).await.expect("hangs").unwrap();
            assert!(answer.len() == len && answer.iter().all(|&byte| byte == 9), "{len} bytes");
        }
        let transport = self.honest.connection().await.unwrap().transport();
        assert!(transport.why_not_rdma.is_none(), "{transport:?}");
    }

    fn executed(&self) -> usize {
        *self.executed.lock().unwrap()
    }

    /// Bytes of long messages that the server keeps.
    fn kept(&self) -> usize {
        self.far.shard().device.rendezvous_pool.in_use()
    }
}

/// A client whose session is on RDMA, and that says what a test wants.
struct Liar {
    rdma: Hostile,
    stream: Peer,
    seq: u32,
    /// The server's grant, and how many frames have been sent.
    granted: u32,
    used: u32,
    /// By RDMA; not looked at yet.
    frames: VecDeque<(Header, Bytes)>,
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    out.freeze()
}

fn request(method: u16, argument: &[u8]) -> Vec<u8> {
    let payload = Payload::from_body(Bytes::copy_from_slice(argument));
    let head = RequestHead { service: 0, method, attempt: 1, timeout_us: 0 };
    let content = Content { metadata: Bytes::new(), payload };
    let mut out = encoded(|out| head.encode(&content, out).unwrap()).to_vec();
    out.extend_from_slice(argument);
    out
}

impl Liar {
    async fn risen(t: &Setup) -> Self {
        let (stream, far) = memory::pair();
        t.host.serve(far);
        let mut stream = Peer::new(stream);
        stream.read();
        let (rdma, data) = Hostile::new(&t.fabric, 16);
        let mut liar = Self { rdma, stream, seq: 0, granted: 0, used: 1, frames: VecDeque::new() };
        let upgrades = vec![Upgrade { name: "rdma".into(), reason: 0, data: Bytes::new() }];
        let hello = Hello { features: features::DESCRIBED, upgrades, ..testing::hello() };
        liar.stream.hello(&hello);
        let offer = Offer { epoch: 1, name: "rdma".into(), data };
        liar.stream.link_frame(FrameType::OFFER, encoded(|out| offer.encode(out)));
        let (_, answer) = liar.stream.expect(FrameType::ANSWER).await;
        let answer = Answer::decode(answer).unwrap().data;
        liar.granted = Bootstrap::decode(answer.clone()).unwrap().grant;
        liar.rdma.join(answer, true);
        liar.stream.expect(FrameType::UP).await;
        liar.stream.link_frame(FrameType::UP, encoded(|out| Up { epoch: 1, first_seq: 1 }.encode(out)));
        let methods = t.info.methods.iter();
        let methods = methods.map(|m| BindMethod { hash: m.hash(), kind: 0, fingerprint: m.fingerprint });
        let bind = Bind { service: 0, name: "echo".into(), codec: "raw".into(), methods: methods.collect() };
        liar.send(FrameType::BIND, 0, 0, &encoded(|out| bind.encode(out))).await;
        liar
    }

    /// Takes what has come by RDMA.
    fn poll(&mut self) {
        for (_, header, payload) in self.rdma.received() {
            self.granted = header.grant;
            self.frames.push_back((header, payload));
        }
    }

    /// A session frame by RDMA, when there is a credit for it.
    async fn send(&mut self, kind: FrameType, call: u64, flags: u8, payload: &[u8]) {
        self.seq += 1;
        let header =
            Header { seq: self.seq, flags, len: payload.len() as u32, grant: 250, ..Header::new(kind, call) };
        while self.granted == self.used {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.poll();
        }
        self.used += 1;
        self.rdma.send_raw(&[&header.encode(), payload].concat());
    }

    /// The next message of this kind by RDMA.
    async fn receive(&mut self, kind: FrameType) -> (Header, Bytes) {
        let received = async {
            loop {
                self.poll();
                while let Some((header, payload)) = self.frames.pop_front() {
                    if header.kind == kind {
                        return (header, payload);
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, received).await.expect("no such frame comes")
    }

    /// A REQUEST of which so many bytes are to be read, at an address and with a key that nobody granted.
    async fn describe_what_is_not_there(&mut self, call: u64, rest: u32) {
        let mut begin = request(ECHO, &vec![0; rest as usize]);
        begin.truncate(begin.len() - rest as usize);
        let descriptor = [&7_u64.to_le_bytes()[..], &0x1234_u32.to_le_bytes(), &rest.to_le_bytes()].concat();
        let total = begin.len() as u32 + rest;
        let payload = [&total.to_le_bytes()[..], &16_u16.to_le_bytes(), &descriptor, &begin].concat();
        self.send(FrameType::REQUEST, call, flags::FRAGMENTED | flags::DESCRIBED, &payload).await;
    }

    /// A REQUEST with so long an argument, in fragments.
    async fn ask(&mut self, call: u64, len: usize) {
        let whole = request(ECHO, &vec![5; len]);
        let first = [&(whole.len() as u32).to_le_bytes()[..], &whole[..4000]].concat();
        self.send(FrameType::REQUEST, call, flags::FRAGMENTED, &first).await;
        for piece in whole[4000..].chunks(8000) {
            self.send(FrameType::FRAGMENT, call, 0, piece).await;
        }
    }

    /// Agrees to the end of the link, of which the server has said so much.
    async fn fall(&mut self, rx_seq: u32) -> Down {
        let (_, down) = self.stream.expect(FrameType::DOWN).await;
        let own = Down { epoch: 1, rx_seq, reason: 15, pulls: Vec::new(), detail: String::new() };
        self.stream.link_frame(FrameType::DOWN, encoded(|out| own.encode(out)));
        Down::decode(down).unwrap()
    }
}

#[tokio::test]
async fn a_message_that_can_not_be_read_costs_the_link_and_must_be_sent() {
    // A key that was never granted, and a peer whose device does not answer.
    for (reason, failure) in
        [("REM_ACCESS_ERR", None), ("RETRY_EXC_ERR", Some(crate::device::WcStatus::RETRY_EXC_ERR))]
    {
        let t = Setup::new().await;
        let mut liar = Liar::risen(&t).await;
        let executed = t.executed();
        if let Some(failure) = failure {
            t.fabric.fail_read(failure);
        }
        liar.describe_what_is_not_there(1, 50_000).await;
        let seq = liar.seq;
        let down = liar.fall(0).await;
        assert_eq!((down.rx_seq, down.pulls), (seq, vec![Pull { seq }]));
        assert!(down.detail.contains(reason), "{}", down.detail);
        assert_eq!(t.executed(), executed, "it was not whole");
        let rest = Header { seq: seq + 1, ..Header::new(FrameType::FRAGMENT, 1) };
        liar.stream.send(rest, vec![5; 50_000]);
        liar.stream.expect(FrameType::RESPONSE).await;
        assert_eq!(t.executed(), executed + 1);
        t.honest_calls().await;
        until("what was to be read into stays taken", || t.kept() == 0).await;
    }
}

#[tokio::test]
async fn peer_that_never_says_done_loses_the_link_when_its_lease_ends() {
    // Half of it is for responses.
    let t =
        Setup::with(RdmaConfig { bulk_memory: 4 << 20, ..RdmaConfig::default() }, Limits::default()).await;
    let mut liar = Liar::risen(&t).await;
    // Each answer is described and none is ever read, until there is no memory for another.
    let mut held = 0;
    loop {
        liar.ask(held + 1, 300_000).await;
        let (header, _) = liar.receive(FrameType::RESPONSE).await;
        if header.flags & flags::DESCRIBED == 0 {
            break;
        }
        held += 1;
    }
    assert!(held >= 3, "{held}");
    until("nothing is exposed", || t.fabric.windows().1 as u64 == held).await;
    t.honest_calls().await;
    tokio::time::pause();
    let (_, down) = liar.stream.expect(FrameType::DOWN).await;
    tokio::time::resume();
    let down = Down::decode(down).unwrap();
    let lease = format!("the oldest of {held} long messages within its lease");
    assert!(down.detail.contains(&lease), "{}", down.detail);
    until("windows stay bound", || t.fabric.windows().1 == 0).await;
    t.honest_calls().await;
    // It does not say DOWN, either.
    tokio::time::pause();
    let (_, close) = liar.stream.expect(FrameType::CLOSE).await;
    tokio::time::resume();
    let close = Close::decode(close).unwrap();
    assert!(close.code == CloseCode::Silent && close.reason.contains("DOWN"), "{}", close.reason);
    drop(liar);
    until("its connection stays", || t.host.connections().len() == 1).await;
    until("the memory is not given back", || t.kept() == 0).await;
}

#[tokio::test]
async fn peer_that_reads_all_but_one_loses_the_link_too() {
    let t = Setup::new().await;
    let mut liar = Liar::risen(&t).await;
    liar.ask(1, 50_000).await;
    let (held, _) = liar.receive(FrameType::RESPONSE).await;
    assert_eq!(held.flags, flags::FRAGMENTED | flags::DESCRIBED);
    let mut answered = 0;
    while t.fabric.windows().1 > 0 {
        assert!(answered < 20, "its lease goes on and on");
        // Only for this: threads that time does not wait for have a part in the rest.
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(3)).await;
        tokio::time::resume();
        let answer = async {
            liar.ask(answered + 2, 30_000).await;
            liar.receive(FrameType::RESPONSE).await
        };
        // The link may be over, and its windows on their way out.
        let (header, _) = tokio::select! {
            answer = answer => answer,
            () = until("no answer comes", || t.fabric.windows().1 == 0) => break,
        };
        let done = Done { seq: header.seq, outcome: Done::READ };
        liar.send(FrameType::DONE, 0, 0, &encoded(|out| done.encode(out))).await;
        answered += 1;
    }
    let (_, down) = liar.stream.expect(FrameType::DOWN).await;
    let down = Down::decode(down).unwrap();
    assert!(answered > 0 && down.detail.contains("within its lease"), "{answered}: {}", down.detail);
    t.honest_calls().await;
}

#[tokio::test]
async fn descriptor_that_makes_no_sense_ends_the_connection() {
    let t = Setup::new().await;
    for (words, size, len) in
        [("a descriptor has 15 bytes", 15_u16, 100_u32), ("of 99 bytes is not what a message lacks", 16, 99)]
    {
        let mut liar = Liar::risen(&t).await;
        let begin = request(ECHO, b"");
        let total = begin.len() as u32 + 100;
        let descriptor = [&[7; 12][..], &len.to_le_bytes()].concat();
        let descriptor = &descriptor[..size.into()];
        let payload = [&total.to_le_bytes()[..], &size.to_le_bytes(), descriptor, &begin].concat();
        liar.send(FrameType::REQUEST, 1, flags::FRAGMENTED | flags::DESCRIBED, &payload).await;
        let (_, close) = liar.stream.expect(FrameType::CLOSE).await;
        let close = Close::decode(close).unwrap();
        assert!(close.code == CloseCode::Protocol && close.reason.contains(words), "{}", close.reason);
    }
    t.honest_calls().await;
}

#[tokio::test]
async fn peer_that_says_done_of_what_it_has_not_read_only_harms_itself() {
    let t = Setup::new().await;
    let mut liar = Liar::risen(&t).await;
    liar.send(FrameType::DONE, 0, 0, &encoded(|out| Done { seq: 3, outcome: Done::READ }.encode(out))).await;
    let (_, close) = liar.stream.expect(FrameType::CLOSE).await;
    let close = Close::decode(close).unwrap();
    assert!(close.code == CloseCode::Protocol && close.reason.contains("done.seq"), "{}", close.reason);
    t.honest_calls().await;
}

/// A link by RDMA reads on while its peer holds more than its share. The peer's credits bound what comes meanwhile, and all of it
/// counts.
#[tokio::test]
async fn peer_whose_calls_hang_is_closed_before_memory_is_used_up() {
    const MEMORY: usize = 16 << 20;
    let mut limits = Limits::default();
    limits.memory = MEMORY as u64;
    let t = Setup::with(RdmaConfig::default(), limits).await;
    let mut greedy = Liar::risen(&t).await;
    let mut calls = 0;
    while t.host.connections().len() == 2 {
        calls += 1;
        let hangs = request(HANG, &[5; 4000]);
        tokio::select! {
            () = greedy.send(FrameType::REQUEST, calls, 0, &hangs) => {}
            () = until("its connection stays", || t.host.connections().len() == 1) => {}
        }
    }
    let peak = t.host.memory().peak();
    assert!(peak > MEMORY / 8 * 7 && peak <= MEMORY, "{calls} calls, {peak} bytes");
    let (_, close) = greedy.stream.expect(FrameType::CLOSE).await;
    let close = Close::decode(close).unwrap();
    assert!(close.reason.contains("limits.memory is 16777216 bytes"), "{}", close.reason);
    until("the memory is not given back", || t.host.memory().used() <= 1 << 20).await;
    t.honest_calls().await;
}
