//! `farcall list`, `describe`, `call` and `health` against a server of an application.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;
mod input;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use farcall::health::{Reporter, Serving};
use farcall::{Bytes, CallError, Context, Server, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use common::{complaint, farcall, printed};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f64),
    Line(i8, i64),
    Named { name: String, parts: Vec<Self> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    truth: bool,
    small: (u8, i8, i16, u16),
    large: (u32, i32, u64, i64),
    largest: (u128, i128),
    real: (f32, f64),
    letter: char,
    text: String,
    #[serde(with = "farcall::attachment")]
    data: Bytes,
    bytes: Vec<u8>,
    four: [u8; 4],
    maybe: Option<u32>,
    nothing: Option<String>,
    unit: (),
    by_name: BTreeMap<String, u32>,
    by_number: BTreeMap<u32, String>,
    shapes: Vec<Shape>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Refusal {
    TooMany { most: u32 },
}

#[farcall::service(package = "zoo.v1")]
trait Zoo {
    async fn everything(&self, all: Everything) -> farcall::Result<Everything>;
    async fn refuse(&self, most: u32) -> Result<(), CallError<Refusal>>;
    async fn token(&self, cx: &Context) -> farcall::Result<Option<String>>;
    fn count(&self, from: u32, to: u32) -> impl Stream<Item = farcall::Result<u32>>;
    async fn sum(&self, first: i64, numbers: Streaming<i64>) -> farcall::Result<i64>;
    fn upper(&self, lines: Streaming<String>) -> impl Stream<Item = farcall::Result<String>>;
    async fn long(&self) -> farcall::Result<Bytes>;
    async fn borrow(&self, data: farcall::bulk::BulkRead) -> farcall::Result<()>;
    async fn sleep(&self) -> farcall::Result<()>;
}

struct Animals;

impl Zoo for Animals {
    async fn everything(&self, all: Everything) -> farcall::Result<Everything> {
        Ok(all)
    }

    async fn refuse(&self, most: u32) -> Result<(), CallError<Refusal>> {
        Err(CallError::App(Refusal::TooMany { most }))
    }

    async fn token(&self, cx: &Context) -> farcall::Result<Option<String>> {
        Ok(cx.metadata().get("token").map(str::to_owned))
    }

    fn count(&self, from: u32, to: u32) -> impl Stream<Item = farcall::Result<u32>> {
        stream::iter((from..to).map(|n| if n == 13 { Err(Status::out_of_range("not that")) } else { Ok(n) }))
    }

    async fn sum(&self, first: i64, mut numbers: Streaming<i64>) -> farcall::Result<i64> {
        let mut sum = first;
        while let Some(number) = numbers.message().await? {
            sum += number;
        }
        Ok(sum)
    }

    fn upper(&self, mut lines: Streaming<String>) -> impl Stream<Item = farcall::Result<String>> {
        stream::generate(async move |answers| {
            while let Some(line) = lines.message().await? {
                answers.send(line.to_uppercase()).await;
            }
            Ok(())
        })
    }

    async fn long(&self) -> farcall::Result<Bytes> {
        Ok(Bytes::from(vec![b'x'; 1 << 20]))
    }

    async fn borrow(&self, _: farcall::bulk::BulkRead) -> farcall::Result<()> {
        Ok(())
    }

    async fn sleep(&self) -> farcall::Result<()> {
        std::future::pending().await
    }
}

#[farcall::service(package = "zoo.v1", codec = farcall::Raw)]
trait Tunnel {
    async fn turn(&self, data: Bytes) -> farcall::Result<Bytes>;
}

struct Turn;

impl Tunnel for Turn {
    async fn turn(&self, data: Bytes) -> farcall::Result<Bytes> {
        Ok(data.iter().rev().copied().collect())
    }
}

/// A server, as long as its runtime.
struct Running {
    address: String,
    health: Reporter,
    _runtime: Runtime,
}

fn server() -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let health = Reporter::new();
    let server =
        Server::builder().add(ZooServer::new(Animals)).add(TunnelServer::new(Turn)).add(health.service());
    let server = runtime.block_on(server.with_reflection().bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    Running { address, health, _runtime: runtime }
}

/// Calls a method. Returns the lines of the answer.
fn call(server: &Running, method: &str, arguments: &[&str]) -> Result<String, String> {
    let output = farcall(&[&["call", &server.address, method], arguments].concat());
    match output.status.code() {
        Some(0) => Ok(printed(&output)),
        _ => Err(complaint(&output)),
    }
}

#[test]
fn services_and_methods_are_listed_with_their_types() {
    let server = server();
    let list = printed(&farcall(&["list", &server.address]));
    assert_eq!(
        list,
        "farcall.health.v1.Health\nfarcall.reflection.v1.Reflection\nzoo.v1.Tunnel\nzoo.v1.Zoo\n"
    );
    let all = printed(&farcall(&["describe", &server.address]));
    assert!(all.contains("sum(first: i64, numbers: stream<i64>) -> i64 | Status"), "{all}");
    let one = printed(&farcall(&["describe", &server.address, "Zoo/sum"]));
    assert!(one.contains("\"first\": 0") && one.contains("each line of standard input\n0\n"), "{one}");
}

#[test]
fn the_example_of_a_method_can_be_called() {
    let server = server();
    let text = printed(&farcall(&["describe", &server.address, "Zoo/everything"]));
    let (_, example) = text.split_once("arguments\n").unwrap();
    let answer = call(&server, "Zoo/everything", &[example]).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let example: Value = serde_json::from_str(example).unwrap();
    assert_eq!(answer, example["all"]);
}

#[test]
fn every_type_travels_as_serde_json_has_it() {
    let server = server();
    let all = Everything {
        truth: true,
        small: (u8::MAX, i8::MIN, i16::MIN, u16::MAX),
        large: (u32::MAX, i32::MIN, u64::MAX, i64::MIN),
        largest: (7, -7),
        real: (0.5, -1e300),
        letter: 'é',
        text: "naïve \"text\"".into(),
        data: Bytes::from_static(b"attached"),
        bytes: b"bytes".to_vec(),
        four: [0, 1, 254, 255],
        maybe: Some(0),
        nothing: None,
        unit: (),
        by_name: BTreeMap::from([("a".into(), 1), ("b".into(), 2)]),
        by_number: BTreeMap::from([(1, "one".into())]),
        shapes: vec![
            Shape::Point,
            Shape::Circle(1.5),
            Shape::Line(-1, i64::MAX),
            Shape::Named {
                name: "n".into(),
                parts: vec![Shape::Point, Shape::Named { name: String::new(), parts: vec![] }],
            },
        ],
    };
    let mut value = serde_json::to_value(&all).unwrap();
    // These are said otherwise than serde_json says them.
    value["data"] = json!("attached");
    value["bytes"] = json!("bytes");
    value["by_number"] = json!([[1, "one"]]);
    let answer = call(&server, "zoo.v1.Zoo/everything", &[&json!({ "all": value }).to_string()]).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), value);
}

#[test]
fn numbers_that_json_has_not_are_text() {
    let server = server();
    let text = printed(&farcall(&["describe", &server.address, "Zoo/everything"]));
    let mut value: Value = serde_json::from_str(text.split_once("arguments\n").unwrap().1).unwrap();
    value["all"]["largest"] = json!([u128::MAX.to_string(), i128::MIN.to_string()]);
    value["all"]["real"] = json!(["inf", "NaN"]);
    value["all"]["data"] = json!({ "hex": "00ff10" });
    value["all"]["bytes"] = json!([1, 2, 255]);
    let answer: Value =
        serde_json::from_str(&call(&server, "Zoo/everything", &[&value.to_string()]).unwrap()).unwrap();
    value["all"]["bytes"] = json!({ "hex": "0102ff" });
    assert_eq!(answer, value["all"]);
}

#[test]
fn streams_go_line_by_line_each_way() {
    let server = server();
    assert_eq!(call(&server, "Zoo/count", &[r#"{"from": 1, "to": 4}"#]).unwrap(), "1\n2\n3\n");
    assert_eq!(input::call(&server.address, "Zoo/sum", &["[100]"], "1\n2\n-3\n").unwrap(), "100\n");
    assert_eq!(input::call(&server.address, "Zoo/upper", &[], "\"a\"\n\"b\"\n").unwrap(), "\"A\"\n\"B\"\n");
    let wrong = input::call(&server.address, "Zoo/sum", &["[100]"], "1\ntwo\n").unwrap_err();
    assert!(wrong.contains("line 2 of standard input: it is no JSON"), "{wrong}");
    let broken = call(&server, "Zoo/count", &["[12, 20]"]).unwrap_err();
    assert!(broken.contains("OUT_OF_RANGE: not that"), "{broken}");
}

#[test]
fn arguments_come_from_files_and_standard_input() {
    let server = server();
    let file = files::path("arguments.json");
    std::fs::write(&file, "[\"abc\"]\n").unwrap();
    let given = format!("@{}", file.display());
    assert_eq!(call(&server, "Tunnel/turn", &[&given]).unwrap(), "\"cba\"\n");
    assert_eq!(input::call(&server.address, "Tunnel/turn", &["-"], "[\"xyz\"]\n").unwrap(), "\"zyx\"\n");
    std::fs::write(&file, "[100]").unwrap();
    assert_eq!(input::call(&server.address, "Zoo/sum", &[&given], "1\n2\n").unwrap(), "103\n");
    let both = input::call(&server.address, "Zoo/sum", &["-"], "1\n").unwrap_err();
    assert!(both.contains("give it as @FILE"), "{both}");
    let absent = call(&server, "Tunnel/turn", &["@/absent.json"]).unwrap_err();
    assert!(absent.contains("/absent.json can't be read: No such file"), "{absent}");
}

#[test]
fn other_codecs_errors_metadata_and_deadlines() {
    let server = server();
    assert_eq!(call(&server, "Tunnel/turn", &[r#"["abc"]"#]).unwrap(), "\"cba\"\n");
    let refused = call(&server, "Zoo/refuse", &["[7]"]).unwrap_err();
    assert!(refused.contains(r#"the application's error {"TooMany":{"most":7}}"#), "{refused}");
    assert_eq!(call(&server, "Zoo/token", &["--metadata", "token=let me in"]).unwrap(), "\"let me in\"\n");
    assert_eq!(call(&server, "Zoo/token", &[]).unwrap(), "null\n");
    assert_eq!(call(&server, "Zoo/long", &["--transport", "tcp"]).unwrap().len(), (1 << 20) + 3);
    let late = call(&server, "Zoo/sleep", &["--timeout", "0.1"]).unwrap_err();
    assert!(late.contains("DEADLINE_EXCEEDED"), "{late}");
}

#[test]
fn an_error_is_named_where_it_is() {
    let server = server();
    let cases: [(&str, &[&str], &str); 13] = [
        ("Zoo/count", &[], "arguments are missing; the arguments are like {\"from\":0,\"to\":0}"),
        ("Zoo/count", &["{"], "the arguments are no JSON"),
        ("Zoo/count", &["[1]"], "2 arguments are expected"),
        ("Zoo/count", &[r#"{"from": 1}"#], "the argument `to` is missing"),
        ("Zoo/count", &[r#"{"from": 1, "to": 2, "by": 3}"#], "there is no argument `by`"),
        ("Zoo/count", &["[1, -1]"], "to: a number from 0 to 4294967295 (u32) is expected, not -1"),
        ("Zoo/everything", &[r#"[{"truth": 1}]"#], "all.truth: true or false is expected, not 1"),
        ("Zoo/everything", &[r#"[{"true": 1}]"#], "all: there is no field `true`"),
        ("Zoo/borrow", &["[[1, 2]]"], "lends memory"),
        ("Zoo/coun", &[], "it has everything, refuse, token, count"),
        ("Zo/count", &[], "there is no service `Zo`"),
        ("count", &[], "write SERVICE/METHOD"),
        ("Zoo/token", &["--metadata", "token"], "write NAME=VALUE"),
    ];
    for (method, arguments, says) in cases {
        let why = call(&server, method, arguments).unwrap_err();
        assert!(why.contains(says), "{method} {arguments:?}: {why}");
    }
}

#[test]
fn a_server_can_not_move_the_cursor() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let health = Reporter::new();
    health.set("\x1b[2J\u{9b}31m", Serving::NotServing);
    let server = runtime.block_on(Server::builder().add(health.service()).bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    let text = printed(&farcall(&["health", &address]));
    assert!(text.contains("not serving  \u{fffd}[2J\u{fffd}31m"), "{text:?}");
    let wrong = farcall(&["health", &address, "\x1b[2J"]);
    assert!(complaint(&wrong).contains("`\u{fffd}[2J`"), "{:?}", complaint(&wrong));
}

#[test]
fn health_is_asked_for_and_watched() {
    let server = server();
    let health = |arguments: &[&str]| {
        let output = farcall(&[&["health", &server.address], arguments].concat());
        (output.status.code().unwrap(), printed(&output), complaint(&output))
    };
    assert_eq!(health(&[]), (0, "serving      the server\n".into(), String::new()));
    server.health.set("zoo.v1.Zoo", Serving::NotServing);
    assert_eq!(health(&["zoo.v1.Zoo"]), (1, "not serving  zoo.v1.Zoo\n".into(), String::new()));
    assert_eq!(health(&[]).0, 1);
    assert!(health(&["unheard.Of"]).2.contains("NOT_FOUND"));
    let mut watching = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["health", &server.address, "zoo.v1.Zoo", "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watching.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "not serving  zoo.v1.Zoo");
    server.health.set_all(Serving::Serving);
    assert_eq!(lines.next().unwrap().unwrap(), "serving      zoo.v1.Zoo");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn a_server_that_tells_nothing_is_said_to() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server =
        runtime.block_on(Server::builder().add(ZooServer::new(Animals)).bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    for (arguments, says) in [
        (&["list", &address][..], "with_reflection"),
        (&["call", &address, "Zoo/token"], "with_reflection"),
        (&["health", &address], "farcall::health::Reporter"),
    ] {
        let output = farcall(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(complaint(&output).contains(says), "{arguments:?}: {}", complaint(&output));
    }
}
