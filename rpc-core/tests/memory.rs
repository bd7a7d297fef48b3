//! Messages that are longer than the memory that a process may have.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::process::Command;

use bytes::{Bytes, BytesMut};
#[cfg(feature = "prost")]
use farcall_core::codec::Prost;
use farcall_core::codec::{Decode, Postcard, from_payload};
use farcall_core::config::Limits;
use farcall_core::payload::Payload;
#[cfg(any(feature = "lz4", feature = "zstd"))]
use farcall_core::proto::compress::{self, CantUnpack, Workspace};
use farcall_core::proto::compression::Compression;
use farcall_core::proto::wire::{
    Bind, BindMethod, CloseCode, FrameType, ItemHead, Items, MAX_ATTACHMENTS, RequestHead, decode_status,
    encode_status,
};
use farcall_core::status::{Code, Executed, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use tokio::runtime::Builder;

use support::peer::played_with;
use support::{ECHO, call, info, plain, setup};

/// The memory of the process in KiB, and the length of a message that does not fit into it.
const MEMORY: usize = 512 << 10;
const LENGTH: u32 = 600 << 20;

const PART: usize = 128 << 10;

/// An environment variable of the process whose memory is limited.
const LIMITED: &str = "FARCALL_TEST_LIMITED";

/// Runs a test again, in a process whose address space has so many KiB. Returns whether this is that process.
fn is_limited(memory: usize, test: &str) -> bool {
    if std::env::var_os(LIMITED).is_some() {
        return true;
    }
    let limited = format!("ulimit -v {memory} && exec \"$0\" --exact --test-threads 1 {test}");
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", &limited]).arg(program).env(LIMITED, "1").output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{words}\n{output:?}");
    false
}

#[test]
fn a_message_that_memory_has_no_room_for_ends_its_call_and_not_the_process() {
    let name = "a_message_that_memory_has_no_room_for_ends_its_call_and_not_the_process";
    if is_limited(MEMORY, name) {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(in_little_memory());
    }
}

/// Decodes a message that there would be no memory for.
fn decode<C: Decode<T>, T>(body: Vec<u8>) {
    let Err(why) = from_payload::<C, T>(Payload::from_body(body.into())) else {
        panic!("there was memory for all of {}", std::any::type_name::<T>());
    };
    assert!(why.is_too_large() && why.to_string().contains("no memory"), "{why}");
}

/// Returns a message of Postcard: a length, and so many bytes `x` or other elements.
fn long_postcard(length: usize, element: u8) -> Vec<u8> {
    let mut body = postcard::to_allocvec(&length).unwrap();
    body.resize(body.len() + length, element);
    body
}

#[test]
fn values_that_memory_has_no_room_for_end_their_call_and_not_the_process() {
    if !is_limited(270 << 10, "values_that_memory_has_no_room_for_end_their_call_and_not_the_process") {
        return;
    }
    decode::<Postcard, Vec<Vec<u8>>>(long_postcard(9 << 20, 0));
    decode::<Postcard, String>(long_postcard(150 << 20, b'x'));
    decode::<Postcard, Vec<u8>>(long_postcard(150 << 20, b'x'));
    #[cfg(feature = "prost")]
    {
        let mut body = vec![0x0a];
        prost::encode_length_delimiter(150 << 20, &mut body).unwrap();
        body.resize(body.len() + (150 << 20), b'x');
        decode::<Prost, String>(body);
        decode::<Prost, Wide>([0x0a, 0].repeat(900_000));
    }
    // Others go on.
    let text = from_payload::<Postcard, String>(Payload::from_body(long_postcard(1 << 20, b'x').into()));
    assert_eq!(text.unwrap().len(), 1 << 20);
}

/// A message whose struct takes as much memory as a message counts as, nearly.
#[cfg(feature = "prost")]
#[derive(Clone, PartialEq, prost::Message)]
struct Wide {
    #[prost(message, repeated, tag = "1")]
    children: Vec<Self>,
    #[prost(string, tag = "2")]
    a: String,
    #[prost(string, tag = "3")]
    b: String,
    #[prost(string, tag = "4")]
    c: String,
    #[prost(string, tag = "5")]
    d: String,
    #[prost(string, tag = "6")]
    e: String,
    #[prost(string, tag = "7")]
    f: String,
    #[prost(string, tag = "8")]
    g: String,
    #[prost(string, tag = "9")]
    h: String,
}

/// Takes memory until there is none for another piece of this length.
fn taken_but_for(piece: usize) -> Vec<Vec<u8>> {
    let mut taken = Vec::with_capacity(16_384);
    for len in [16 << 20, 1 << 20, piece] {
        loop {
            let mut more = Vec::new();
            if more.try_reserve_exact(len).is_err() {
                break;
            }
            taken.push(more);
        }
    }
    taken
}

/// A message with as many attachments as there can be. The list of them takes two mebibytes where it is decoded.
fn many_attachments(by: Compression) -> Vec<u8> {
    let mut message = vec![0, 0, ECHO as u8, 0, 1, by.to_wire(), 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    // The lengths of body, metadata and attachments.
    message.resize(message.len() + 4 + 1 + 4 * MAX_ATTACHMENTS, 0);
    message
}

fn many_methods() -> Bytes {
    let methods = vec![BindMethod { hash: 1, kind: 0, fingerprint: 1 }; 60_000];
    let mut out = BytesMut::new();
    Bind { service: 0, name: "test".into(), codec: "raw".into(), methods }.encode(&mut out);
    out.freeze()
}

#[test]
fn lists_and_texts_that_memory_has_no_room_for_are_told_from_malformed_ones() {
    if !is_limited(256 << 10, "lists_and_texts_that_memory_has_no_room_for_are_told_from_malformed_ones") {
        return;
    }
    let plain = Bytes::from(many_attachments(Compression::None));
    let compressed = Bytes::from(many_attachments(Compression::Zstd));
    let bind = many_methods();
    let status = encode_status(&Status::new(Code::Internal, "x".repeat(16 << 10)));
    let (_, content) = RequestHead::decode(plain.clone()).unwrap();
    let mut items = Items::default();
    items.go_on_in(ItemHead { more: 0 }, content);

    let taken = taken_but_for(128 << 10);
    let lost = [
        // Decodes clones: a message that is freed here would make room.
        RequestHead::decode(plain.clone()).map(drop),
        RequestHead::decode(compressed.clone()).map(drop),
        Bind::decode(bind.clone()).map(drop),
        items.advance().unwrap(),
    ];
    let short = decode_status(status);
    drop(taken);
    for lost in lost {
        let error = lost.unwrap_err();
        assert!(error.is_no_memory() && !error.to_string().contains("malformed"), "{error}");
    }
    assert_eq!(short.unwrap().message().len(), 16 << 10);
}

#[cfg(any(feature = "lz4", feature = "zstd"))]
#[test]
fn messages_that_memory_has_no_room_to_compress_go_as_they_are() {
    if !is_limited(256 << 10, "messages_that_memory_has_no_room_to_compress_go_as_they_are") {
        return;
    }
    let zeros = Bytes::from(vec![0; 1 << 20]);
    let one_piece = Payload::from_body(zeros.clone());
    let two_pieces = Payload::new(zeros.clone(), vec![zeros]);
    let many = Payload::new(vec![0; 2000].into(), vec![Bytes::new(); MAX_ATTACHMENTS]);
    for by in [Compression::Lz4, Compression::Zstd].into_iter().filter(|by| by.is_built_in()) {
        let packed = compress::pack(&mut Workspace::new(), by, &many).unwrap();
        let taken = taken_but_for(128 << 10);
        let lost =
            [&one_piece, &two_pieces].map(|payload| compress::pack(&mut Workspace::new(), by, payload));
        let unpacked = compress::unpack(&mut Workspace::new(), packed);
        drop(taken);
        assert_eq!((lost, unpacked), ([None, None], Err(CantUnpack::NoMemory)), "{by:?}");
        assert!(compress::pack(&mut Workspace::new(), by, &two_pieces).is_some());
    }
}

#[test]
fn a_list_that_memory_has_no_room_for_ends_its_call_alone() {
    if is_limited(256 << 10, "a_list_that_memory_has_no_room_for_ends_its_call_alone") {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(without_memory_for_lists());
    }
}

/// Leaves room for messages with many attachments, and none for the lists of them.
fn but_for_lists() -> Vec<Vec<u8>> {
    let mut taken = taken_but_for(768 << 10);
    taken.pop();
    taken
}

async fn without_memory_for_lists() {
    // A server.
    let t = setup(plain(Limits::default()), plain(Limits::default()));
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    let request = many_attachments(Compression::None);
    let taken = but_for_lists();
    send_fragments(&mut peer, FrameType::REQUEST, 1, &request).await;
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    drop(taken);
    let words = String::from_utf8_lossy(&payload);
    assert!(
        header.call == 1 && words.contains("the server has no memory for content.attachments"),
        "{words}"
    );
    peer.request(2, ECHO, b"others go on");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    assert!(header.call == 2 && payload.ends_with(b"others go on"), "{payload:?}");

    // A client.
    let (caller, mut links, _) = played_with(memory::pair, Limits::default());
    let ask = |text: &'static str| tokio::spawn(call(&caller, &info("test"), ECHO, text).into_future());
    let answer = ask("x");
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    let mut response = vec![0, 0, 0xff, 0xff];
    response.resize(response.len() + 4 + 1 + 4 * MAX_ATTACHMENTS, 0);
    let taken = but_for_lists();
    send_fragments(&mut peer, FrameType::RESPONSE, header.call, &response).await;
    let answer = answer.await;
    drop(taken);
    let error = answer.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Maybe), "{error}");
    let answer = ask("y");
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"well");
    assert_eq!(answer.await.unwrap().unwrap(), "well");
}

fn large() -> Limits {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 30, 1 << 30);
    // More than there is, or the connection would be closed before memory runs out.
    limits.memory = 1 << 40;
    limits
}

/// Sends a message of so many bytes in FRAGMENTs.
async fn send_parts(
    peer: &mut Peer,
    kind: FrameType,
    of: u64,
    total: u32,
    parts: impl Iterator<Item = Bytes>,
) {
    peer.begin(kind, of, total, b"");
    for part in parts {
        peer.session_frame(FrameType::FRAGMENT, of, 0, part);
        // Let the reader run.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
}

async fn send_fragments(peer: &mut Peer, kind: FrameType, of: u64, message: &[u8]) {
    let parts = message.chunks(PART).map(Bytes::copy_from_slice);
    send_parts(peer, kind, of, message.len() as u32, parts).await;
}

/// Sends a message of zeros.
async fn send_long(peer: &mut Peer, kind: FrameType, of: u64) {
    let parts = std::iter::repeat_n(Bytes::from(vec![0; PART]), LENGTH as usize / PART);
    send_parts(peer, kind, of, LENGTH, parts).await;
}

async fn in_little_memory() {
    // A server without memory for a request.
    let t = setup(plain(Limits::default()), plain(large()));
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    send_long(&mut peer, FrameType::REQUEST, 1).await;
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    let words = String::from_utf8_lossy(&payload);
    assert!(header.call == 1 && words.contains("no memory"), "{words}");
    peer.request(2, ECHO, b"others go on");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    assert!(header.call == 2 && payload.ends_with(b"others go on"), "{payload:?}");

    #[cfg(feature = "zstd")]
    {
        // Nor for the unpacked length that a short request claims: a frame with that content size and an empty block.
        let mut short = vec![0, 0, ECHO as u8, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        short.extend_from_slice(&LENGTH.to_le_bytes());
        short.extend_from_slice(&[0, 0x28, 0xb5, 0x2f, 0xfd, 0xa0]);
        short.extend_from_slice(&LENGTH.to_le_bytes());
        short.extend_from_slice(&[1, 0, 0]);
        peer.session_frame(FrameType::REQUEST, 3, 0, short);
        let (header, payload) = peer.expect(FrameType::RESPONSE).await;
        let words = String::from_utf8_lossy(&payload);
        assert!(header.call == 3 && words.contains("no memory"), "{words}");
    }

    // A message that is neither a request nor an answer can't be refused.
    send_long(&mut peer, FrameType::ITEM, 2).await;
    peer.expect_close(CloseCode::Internal, "no memory").await;

    // A client without memory for an answer.
    let (caller, mut links, _) = played_with(memory::pair, large());
    let ask = |text: &'static str| tokio::spawn(call(&caller, &info("test"), ECHO, text).into_future());
    let answer = ask("x");
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    send_long(&mut peer, FrameType::RESPONSE, header.call).await;
    let error = answer.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Maybe), "{error}");
    let answer = ask("y");
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"well");
    assert_eq!(answer.await.unwrap().unwrap(), "well");
}
