//! A wire between two hosts that is cut whole, TCP and all, and a host that is gone.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod flow;
mod work;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use farcall::{Channel, Code, Config, Executed};
use tokio::sync::Notify;

use flow::{ENDLESS, FlowClient, FlowServer, Plan, cut_short};
use work::{Load, Log, PATIENCE, SIZES, WorkClient, connect, until};

#[farcall::service(package = "test")]
trait Far {
    /// This host's end of the wire is cut soon after the answer, for so long.
    async fn cut(&self, how: Cut, seconds: u32) -> farcall::Result<()>;
    /// The other host needs this one no more.
    async fn finish(&self) -> farcall::Result<()>;
}

#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
enum Cut {
    /// Nothing leaves.
    Wire,
    /// The port is down: nothing leaves or arrives.
    Port,
}

impl Cut {
    fn run(commands: &[&str]) {
        for command in commands {
            let status = Command::new("bash").args(["-c", command]).status().unwrap();
            assert!(status.success(), "{command}");
        }
    }

    fn begin(self) {
        match self {
            Self::Wire => Self::run(&["tc qdisc add dev eth0 root netem loss 100%"]),
            Self::Port => Self::run(&["ip link set eth0 down"]),
        }
    }

    fn end(self) {
        match self {
            Self::Wire => Self::run(&["tc qdisc del dev eth0 root"]),
            Self::Port => Self::run(&["ip link set eth0 up"]),
        }
    }
}

struct Host(Arc<Notify>);

impl Far for Host {
    async fn cut(&self, how: Cut, seconds: u32) -> farcall::Result<()> {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            how.begin();
            tokio::time::sleep(Duration::from_secs(seconds.into())).await;
            how.end();
        });
        Ok(())
    }

    async fn finish(&self) -> farcall::Result<()> {
        self.0.notify_one();
        Ok(())
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 10_000;
    config.liveness.retry_ms = 500;
    config
}

/// Host 1 serves until host 2 has done `client`.
async fn together(port: u16, config: Config, client: impl AsyncFnOnce(&Channel)) {
    let there = format!("10.99.0.1:{port}");
    if std::env::var("FARCALL_HOST").unwrap() == "1" {
        let finished = Arc::new(Notify::new());
        let log = Log::default();
        let server = farcall::Server::builder()
            .add(work::WorkServer::new(log.clone()))
            .add(FlowServer::new(flow::Log::default()))
            .add(FarServer::new(Host(finished.clone())))
            .config(config);
        let server = server.bind(&there).await.unwrap();
        log.is_of(&server);
        let served = tokio::time::timeout(2 * PATIENCE, server.serve_until(finished.notified())).await;
        return served.expect("the other host must finish");
    }
    let channel = connect(&format!("farcall://{there}"), &config).await;
    client(&channel).await;
    FarClient::new(connect(&format!("farcall://{there}"), &config).await).finish().await.unwrap();
}

async fn executed(work: &WorkClient) -> std::collections::HashMap<u64, u32> {
    work.executed().await.unwrap().into_iter().collect()
}

/// On a busy host two seconds may become five, and TCP takes as long again to come back.
fn patient() -> Config {
    let mut config = config();
    config.liveness.missed_pings = 20;
    config.tcp.user_timeout_ms = 60_000;
    config
}

#[tokio::test]
async fn a_wire_that_is_cut_for_a_while_costs_no_call_and_no_item_and_repeats_none() {
    together(7411, patient(), async |channel| {
        assert_eq!(channel.transport().await.unwrap().name, "rdma");
        let (work, far) = (WorkClient::new(channel), FarClient::new(channel));
        let flow = FlowClient::new(channel);
        let load = Load::start(&work, 0, 8, &SIZES);
        let streams = flow::Load::start(&flow, 4);
        load.go_on(10).await;
        far.cut(Cut::Wire, 2).await.unwrap();
        Cut::Wire.begin();
        tokio::time::sleep(Duration::from_secs(2)).await;
        Cut::Wire.end();
        load.go_on(30).await;
        until("RDMA comes back", async || channel.transport().await.unwrap().name == "rdma").await;
        load.go_on(30).await;
        let outcomes = load.stop().await;
        outcomes.all_answered();
        outcomes.agree_with(&executed(&work).await);
        let streams = streams.stop(PATIENCE).await;
        println!("{} calls, the longest took {} ms", outcomes.calls.len(), outcomes.longest_ms);
        println!("{} streams", streams.len());
        assert!(flow.were_whole(streams).await.unwrap());
    })
    .await;
}

/// Found to be silent after 2 s, at most.
fn impatient() -> Config {
    let mut config = config();
    config.liveness.ping_ms = 500;
    config.liveness.missed_pings = 2;
    config
}

#[tokio::test]
async fn calls_to_a_host_that_is_gone_end_and_say_so() {
    for (i, cut) in [Cut::Wire, Cut::Port].into_iter().enumerate() {
        together(7412 + i as u16, impatient(), async |channel| {
            let (work, far) = (WorkClient::new(channel), FarClient::new(channel));
            let hanging: Vec<_> = (0..8)
                .map(|i| work.hang(1000 << 32 | i))
                .map(|call| tokio::spawn(call.into_future()))
                .collect();
            let plan = Plan { id: 0, len: 1000, count: ENDLESS };
            let mut stream = FlowClient::new(channel).watch(plan).await.unwrap();
            let stream = tokio::spawn(async move { cut_short(plan, 0, &mut stream).await });
            let load = Load::start(&work, 0, 8, &SIZES);
            load.go_on(10).await;
            far.cut(cut, 8).await.unwrap();
            if let Cut::Wire = cut {
                Cut::Wire.begin();
            }
            for call in hanging {
                let call = tokio::time::timeout(PATIENCE, call).await.expect("every call must end");
                let error = call.unwrap().unwrap_err();
                assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
                assert!(error.message().contains("no sign of the peer"), "{error}");
            }
            let error = tokio::time::timeout(PATIENCE, stream).await.expect("the stream must end").unwrap();
            assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
            // A call of which the host had not all is made again, and answered if the host comes back in time.
            let outcomes = load.stop().await;
            outcomes.all_say(&["no sign of the peer"]);
            if let Cut::Wire = cut {
                Cut::Wire.end();
            }
            // Calls that had arrived there may be executed yet.
            until("the server gives up what it had of this host", async || {
                work.connections().await.is_ok_and(|count| count == 1)
            })
            .await;
            outcomes.agree_with(&executed(&work).await);
        })
        .await;
    }
}
