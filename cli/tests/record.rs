//! `farcall record` and `replay`: calls of one server against another.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;

use std::collections::HashMap;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use farcall::{Bytes, CallError, Channel, Server, Status};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use common::{complaint, farcall, printed};
use files::path;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Full {
    most: u32,
}

#[farcall::service(package = "shop.v1")]
trait Kv {
    async fn get(&self, key: String) -> farcall::Result<String>;
    async fn page(&self, data: Bytes) -> farcall::Result<Bytes>;
    async fn put(&self, key: String) -> Result<(), CallError<Full>>;
    async fn miss(&self) -> farcall::Result<()>;
    async fn hang(&self) -> farcall::Result<()>;
    async fn all(&self) -> farcall::Result<(HashMap<String, u32>, HashMap<u32, bool>)>;
}

/// Answers with its name.
struct Store(&'static str);

impl Kv for Store {
    async fn get(&self, key: String) -> farcall::Result<String> {
        Ok(if key == "who" { self.0.to_owned() } else { key })
    }

    async fn page(&self, data: Bytes) -> farcall::Result<Bytes> {
        Ok(data)
    }

    async fn put(&self, _: String) -> Result<(), CallError<Full>> {
        Err(CallError::App(Full { most: 7 }))
    }

    async fn miss(&self) -> farcall::Result<()> {
        Err(Status::not_found(format!("not at {}", self.0)))
    }

    async fn hang(&self) -> farcall::Result<()> {
        std::future::pending().await
    }

    async fn all(&self) -> farcall::Result<(HashMap<String, u32>, HashMap<u32, bool>)> {
        // In another order each time.
        let by_name = (0..20).map(|number| (number.to_string(), number)).collect();
        Ok((by_name, (0..200).map(|number| (number, self.0 == "first" || number > 9)).collect()))
    }
}

fn serve(name: &'static str) -> (String, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::builder().add(KvServer::new(Store(name))).with_capture().with_reflection();
    let server = runtime.block_on(server.bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    (address, runtime)
}

/// Records `count` calls of all kinds, which are made as soon as the recorder listens.
fn record(address: &str, runtime: &Runtime, file: &str, more: &[&str]) -> Output {
    let calls = async |kv: &KvClient| {
        assert_eq!(kv.get("a").metadata("token", "secret").await.unwrap(), "a");
        kv.get("who").await.unwrap();
        kv.page(vec![b'x'; 20_000]).await.unwrap();
        kv.put("k").await.unwrap_err();
        kv.miss().await.unwrap_err();
    };
    record_these(address, runtime, file, more, calls)
}

/// Makes calls again and again, until the recorder has enough.
fn record_these(
    address: &str,
    runtime: &Runtime,
    file: &str,
    more: &[&str],
    calls: impl AsyncFn(&KvClient),
) -> Output {
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["record", address, file, "--seconds", "60"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    runtime.block_on(async {
        let kv = KvClient::new(Channel::connect(&format!("tcp://{address}")).await.unwrap());
        while recorder.try_wait().unwrap().is_none() {
            calls(&kv).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    recorder.wait_with_output().unwrap()
}

#[test]
fn a_recording_is_replayed_and_compared() {
    let (first, runtime) = serve("first");
    let (second, _second) = serve("second");
    let file = path("calls.jsonl");
    let file = file.to_str().unwrap();
    let output = record(&first, &runtime, file, &["--count", "100"]);
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    assert_eq!(printed(&output), "100 calls recorded\n");
    assert!(!std::fs::read_to_string(file).unwrap().contains("secret"), "metadata must be asked for");

    let same = farcall(&["replay", &first, file, "--rate", "5000"]);
    assert_eq!(same.status.code(), Some(0), "{}{}", printed(&same), complaint(&same));
    assert!(printed(&same).starts_with("100 calls, 100 as recorded, 0 different\n"), "{}", printed(&same));

    let other = farcall(&["replay", &second, file, "--speed", "10", "--show", "1"]);
    let text = printed(&other);
    assert_eq!(other.status.code(), Some(1), "{text}");
    assert!(text.starts_with("100 calls, 80 as recorded, 20 different\n"), "{text}");
    assert!(text.contains("shop.v1.Kv/get [\"who\"]\n  then  \"first\"\n  now   \"second\"\n"), "{text}");
    assert!(text.ends_with("and 19 more (--show)\n"), "{text}");
}

#[test]
fn calls_that_were_given_up_are_counted() {
    let (address, runtime) = serve("first");
    let file = path("given_up.jsonl");
    let calls = async |kv: &KvClient| {
        let given_up = tokio::time::timeout(Duration::from_millis(50), kv.hang().into_future()).await;
        given_up.unwrap_err();
        kv.get("a").await.unwrap();
    };
    let output = record_these(&address, &runtime, file.to_str().unwrap(), &["--count", "3"], calls);
    let text = printed(&output);
    assert!(text.starts_with("3 calls recorded, "), "{text}");
    assert!(text.contains(" more are missing: they had no answer"), "{text}");
}

#[test]
fn the_order_of_a_map_is_no_difference() {
    let (address, runtime) = serve("first");
    let file = path("maps.jsonl");
    let file = file.to_str().unwrap();
    let calls = async |kv: &KvClient| drop(kv.all().await.unwrap());
    record_these(&address, &runtime, file, &["--count", "5"], calls);
    let same = farcall(&["replay", &address, file, "--rate", "100"]);
    assert!(printed(&same).starts_with("5 calls, 5 as recorded, 0 different\n"), "{}", printed(&same));
    let (another, _another) = serve("second");
    let differs = farcall(&["replay", &another, file, "--rate", "100"]);
    assert!(printed(&differs).starts_with("5 calls, 0 as recorded, 5 different\n"), "{}", printed(&differs));
}

#[test]
fn one_method_and_its_metadata_are_recorded_if_asked_for() {
    let (address, runtime) = serve("first");
    let file = path("get.jsonl");
    let file = file.to_str().unwrap();
    record(&address, &runtime, file, &["--count", "10", "--only", "shop.v1.Kv/get", "--metadata"]);
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.lines().count(), 10);
    assert!(text.lines().all(|line| line.contains("shop.v1.Kv/get")) && text.contains("secret"), "{text}");
}

#[test]
fn a_call_that_can_not_be_recorded_or_replayed_is_named() {
    let (address, _runtime) = serve("first");
    let wrong = path("wrong.jsonl");
    std::fs::write(&wrong, "{}\n").unwrap();
    let unknown = path("unknown.jsonl");
    let line = r#"{"at_us":1,"path":"shop.v9.Kv/get","codec":"postcard","fingerprint":1,"metadata":[],"arguments":{"body":[],"attachments":[]},"took_us":1,"outcome":{"Status":["OK",""]},"missed":0}"#;
    std::fs::write(&unknown, format!("{line}\n{}\n", line.replace("v9", "v1"))).unwrap();
    let replay = |file: &std::path::Path| farcall(&["replay", &address, file.to_str().unwrap()]);
    assert!(complaint(&replay(&wrong)).contains("line 1: it is none of `farcall record`"));
    assert_eq!(replay(std::path::Path::new("/nonexistent")).status.code(), Some(64));
    let text = printed(&replay(&unknown));
    assert!(
        text.contains("shop.v9.Kv/get: there is no service")
            && text.contains("shop.v1.Kv/get: its signature is another"),
        "{text}"
    );
    let bare = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = bare.block_on(Server::builder().bind("127.0.0.1:0")).unwrap();
    let bare_address = server.local_addr().to_string();
    bare.spawn(server.serve());
    let admin = bare.block_on(Server::builder().with_admin().bind("127.0.0.1:0")).unwrap();
    let admin_address = admin.local_addr().to_string();
    bare.spawn(admin.serve());
    for address in [bare_address, admin_address] {
        let output = farcall(&["record", &address, path("none.jsonl").to_str().unwrap()]);
        assert!(complaint(&output).contains("with_capture"), "{}", complaint(&output));
    }
}
