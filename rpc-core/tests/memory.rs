//! Messages that are longer than the memory that a process may have.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::process::Command;

use bytes::Bytes;
use farcall_core::config::Limits;
use farcall_core::proto::wire::{CloseCode, FrameType};
use farcall_core::status::{Code, Executed};
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

/// Runs itself in another process, whose address space is limited.
#[test]
fn a_message_that_memory_has_no_room_for_ends_its_call_and_not_the_process() {
    let name = "a_message_that_memory_has_no_room_for_ends_its_call_and_not_the_process";
    if std::env::var_os(LIMITED).is_some() {
        return Builder::new_current_thread().enable_all().build().unwrap().block_on(in_little_memory());
    }
    let limited = format!("ulimit -v {MEMORY} && exec \"$0\" --exact --test-threads 1 {name}");
    let test = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", &limited]).arg(test).env(LIMITED, "1").output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{words}\n{output:?}");
}

fn large() -> Limits {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 30, 1 << 30);
    // More than there is, or the connection would be closed before memory runs out.
    limits.memory = 1 << 40;
    limits
}

/// Sends a message of zeros.
async fn send_long(peer: &mut Peer, kind: FrameType, of: u64) {
    let part = Bytes::from(vec![0; PART]);
    peer.begin(kind, of, LENGTH, b"");
    for _ in 0..LENGTH as usize / PART {
        peer.session_frame(FrameType::FRAGMENT, of, 0, part.clone());
        // Let the reader run.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
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
