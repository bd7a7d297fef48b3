//! A name server on the loopback device, whose answers a test changes.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, Metadata, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The answer to a question.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Records that are good for so many seconds.
    Records(u32, Vec<RData>),
    Failure(ResponseCode),
    Silence,
}

/// The reply with the addresses of a host.
pub(crate) fn hosts(ttl: u32, addresses: impl IntoIterator<Item = [u8; 4]>) -> Reply {
    Reply::Records(
        ttl,
        addresses.into_iter().map(|address| RData::A(Ipv4Addr::from(address).into())).collect(),
    )
}

/// A server of a service: priority, weight, port, target.
pub(crate) type Place<'a> = (u16, u16, u16, &'a str);

/// The reply with the servers of a service.
pub(crate) fn service(ttl: u32, places: &[Place<'_>]) -> Reply {
    let record = |(priority, weight, port, target): &Place<'_>| {
        RData::SRV(SRV::new(*priority, *weight, *port, Name::from_ascii(target).unwrap()))
    };
    Reply::Records(ttl, places.iter().map(record).collect())
}

/// A name server. Names that it does not know do not exist.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    zone: Arc<Zone>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Zone {
    replies: Mutex<HashMap<(Name, RecordType), Reply>>,
    /// All questions so far.
    questions: watch::Sender<Vec<Name>>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // Another program may have the port for TCP.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let (zone, mut tasks) = (Arc::new(Zone::default()), JoinSet::new());
        tasks.spawn(by_udp(udp, Arc::clone(&zone)));
        tasks.spawn(by_tcp(tcp, Arc::clone(&zone)));
        Self { address, zone, _tasks: tasks }
    }

    /// Returns the setting of an address that has names looked up here.
    pub(crate) fn setting(&self) -> String {
        format!("balance.name_servers=[\"{}\"]", self.address)
    }

    pub(crate) fn set(&self, name: &str, reply: Reply) {
        let kind = match &reply {
            Reply::Records(_, records) => records[0].record_type(),
            _ if name.starts_with('_') => RecordType::SRV,
            _ => RecordType::A,
        };
        self.zone.replies.lock().unwrap().insert((fqdn(name), kind), reply);
    }

    /// Waits until a name was asked for so many times more.
    pub(crate) async fn asked(&self, name: &str, more: usize) {
        let mut questions = self.zone.questions.subscribe();
        let name = fqdn(name);
        let count = |all: &Vec<Name>| all.iter().filter(|asked| **asked == name).count();
        let enough = count(&questions.borrow_and_update()) + more;
        questions.wait_for(|all| count(all) >= enough).await.unwrap();
    }
}

fn fqdn(name: &str) -> Name {
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    name
}

impl Zone {
    /// Returns the answer to a question.
    fn answer(&self, question: &[u8]) -> Option<Message> {
        let question = Message::from_vec(question).unwrap();
        let mut answer = Message::response(0, question.metadata.op_code);
        answer.metadata = Metadata::response_from_request(&question.metadata);
        answer.metadata.recursion_available = true;
        let query = question.queries[0].clone();
        let name = query.name().clone();
        let reply = {
            let replies = self.replies.lock().unwrap();
            let reply = replies.get(&(name.clone(), query.query_type())).cloned();
            // A name with other records exists.
            let is_known = replies.keys().any(|(known, _)| *known == name);
            let none = if is_known { ResponseCode::NoError } else { ResponseCode::NXDomain };
            reply.unwrap_or(Reply::Failure(none))
        };
        self.questions.send_modify(|questions| questions.push(name.clone()));
        answer.add_query(query);
        match reply {
            Reply::Records(ttl, records) => {
                answer
                    .add_answers(records.into_iter().map(|data| Record::from_rdata(name.clone(), ttl, data)));
            }
            Reply::Failure(code) => answer.metadata.response_code = code,
            Reply::Silence => return None,
        }
        Some(answer)
    }
}

async fn by_udp(socket: UdpSocket, zone: Arc<Zone>) {
    let mut question = [0; 1500];
    loop {
        let (len, from) = socket.recv_from(&mut question).await.unwrap();
        let Some(mut answer) = zone.answer(&question[..len]) else { continue };
        let mut bytes = answer.to_vec().unwrap();
        if bytes.len() > 1200 {
            answer.answers.clear();
            answer.metadata.truncation = true;
            bytes = answer.to_vec().unwrap();
        }
        socket.send_to(&bytes, from).await.unwrap();
    }
}

async fn by_tcp(listener: TcpListener, zone: Arc<Zone>) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let zone = Arc::clone(&zone);
        connections.spawn(async move {
            while let Ok(len) = stream.read_u16().await {
                let mut question = vec![0; len.into()];
                stream.read_exact(&mut question).await.unwrap();
                if let Some(answer) = zone.answer(&question) {
                    let bytes = answer.to_vec().unwrap();
                    stream.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&bytes).await.unwrap();
                }
            }
        });
    }
}
