//! A million calls and streams, given up at random points. A program by itself: it looks at the memory of its process.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod flow;

use std::time::Duration;

use farcall::{Bytes, Channel, Config, Server};
use tokio::sync::Mutex;

use flow::storm::storm;
use flow::{FlowClient, FlowServer, Log};

/// One after the other, so that each sees its own memory.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many calls the server has at once, which is less than there are callers: then more wait than run, and a handler that
/// was given up is still there when the next call comes.
const LIMIT: u32 = 24;

/// Returns the resident memory of the process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The memory that the windows of both ends may have had at their peak: not more after a million calls than after
/// thousands.
const GROWTH_KIB: u64 = 128 << 10;

#[expect(clippy::print_stdout, reason = "how to have the same run again, and what it came to")]
async fn leaves_nothing(flow: FlowClient, log: &Log, limit: u32) {
    let calls = match std::env::var_os("FARCALL_LONG") {
        None => 6_000,
        // A million take half an hour without optimisation.
        Some(_) if cfg!(debug_assertions) => 100_000,
        Some(_) => 1_000_000,
    };
    let seed = std::env::var("FARCALL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("FARCALL_SEED={seed}");
    let mut given_up = storm(&flow, log, seed, calls / 10, PATIENCE).await;
    let warm = resident();
    given_up += storm(&flow, log, !seed, calls / 10 * 9, PATIENCE).await;
    let (now, most) = (resident(), log.most());
    println!(
        "{given_up} of {calls} given up; {most} handlers at once, at most; resident {warm} KiB, then {now} KiB"
    );
    assert!(most <= limit as usize, "{most} handlers at once, but the limit is {limit}");
    assert!((calls / 4..calls).contains(&given_up), "{given_up} of {calls} calls were given up");
    assert!(now <= warm + GROWTH_KIB, "resident memory has grown from {warm} KiB to {now} KiB");
    let (echoed, parts) = flow.echo(Bytes::from_static(b"on it goes")).with_parts().await;
    assert_eq!(echoed.unwrap(), "on it goes");
    let windows = format!("{:?}", parts.connection.unwrap());
    assert!(windows.contains("stream_memory: 0"), "windows are left: {windows}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_given_up_at_random_points_leave_nothing_over_tcp() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let mut config = Config::default();
    config.limits.concurrent_calls = LIMIT;
    let server = Server::builder().add(FlowServer::new(log.clone())).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    leaves_nothing(FlowClient::new(Channel::connect(&address).await.unwrap()), &log, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_given_up_at_random_points_leave_nothing_in_process() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let limit = Config::default().limits.concurrent_calls;
    leaves_nothing(FlowClient::in_process(log.clone()), &log, limit).await;
}
