//! Processes that are stopped, continued and killed, as servers of one channel.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;
mod who;

use std::collections::BTreeMap;
use std::time::Duration;

use farcall::{BalancePolicy, Channel, Code, Config};
use process::Process;
use who::{WhoClient, ready, share};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn serve_one() {
    let Some(number) = process::told() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let number = number.parse().unwrap();
        let (address, _handle) = who::start_with(number, "127.0.0.1:0", Config::default()).await;
        process::say(&address);
        std::future::pending::<()>().await;
    });
}

/// Two servers, and a channel that calls them in turn.
async fn two_servers() -> ([Process; 2], Channel) {
    let mut servers = ["0", "1"].map(|number| Process::start("serve_one", number));
    let addresses = servers.each_mut().map(Process::said);
    let mut config = Config::default();
    config.calls.timeout_ms = 3000;
    let channel = Channel::builder().config(config).balance(BalancePolicy::RoundRobin);
    let channel = channel.connect(&format!("tcp://{}", addresses.join(","))).await.unwrap();
    ready(&channel, 2).await;
    (servers, channel)
}

/// Makes calls. The first server must answer each, or it fails with `code`. Returns how many fail.
async fn failures(client: &WhoClient, calls: usize, code: Code) -> usize {
    let mut failed = 0;
    for _ in 0..calls {
        match client.are_you().await {
            Ok(number) => assert_eq!(number, 0),
            Err(error) => {
                assert_eq!(error.code(), code);
                failed += 1;
            }
        }
    }
    failed
}

#[tokio::test]
async fn a_server_that_is_stopped_costs_one_call_and_is_used_again_when_it_continues() {
    let (servers, channel) = two_servers().await;
    assert_eq!(share(&channel, 10).await, BTreeMap::from([(0, 5), (1, 5)]));
    servers[1].stop();
    let client = WhoClient::new(&channel);
    assert_eq!(failures(&client, 20, Code::DeadlineExceeded).await, 1);
    servers[1].signal("CONT");
    let comes_back = async { while client.are_you().await.unwrap() == 0 {} };
    tokio::time::timeout(PATIENCE, comes_back).await.expect("the server that continues gets calls again");
}

#[tokio::test]
async fn a_server_that_is_killed_gets_no_call_after_the_first_that_fails() {
    let (servers, channel) = two_servers().await;
    let [_one, other] = servers;
    other.kill().await;
    let client = WhoClient::new(&channel);
    let failed = failures(&client, 100, Code::Unavailable).await;
    assert!(failed <= 1, "{failed} calls failed");
}
