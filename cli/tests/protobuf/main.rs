//! `farcall describe`, `call` and `replay` with services of protobuf messages.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../files/mod.rs"]
mod files;
#[path = "../input/mod.rs"]
mod input;
mod service;

use std::process::{Command, Output, Stdio};

use farcall::{Channel, Server};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use common::{complaint, farcall, printed};
use service::{Animals, ZooClient, ZooServer};

/// Returns the descriptors, as prost-build writes them.
fn descriptors() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protobuf");
    protox::compile(["zoo.proto"], [folder]).unwrap().encode_to_vec()
}

/// A server, as long as its runtime.
struct Running {
    address: String,
    runtime: Runtime,
}

fn serve(name: &'static str, with: impl FnOnce(farcall::ServerBuilder) -> farcall::ServerBuilder) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = with(Server::builder().add(ZooServer::new(Animals(name))).with_reflection());
    let server = runtime.block_on(server.bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    Running { address, runtime }
}

fn server() -> Running {
    serve("first", |server| server.with_descriptors(&descriptors()))
}

impl Running {
    /// Calls a method with these lines on standard input.
    fn call(&self, method: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        input::call(&self.address, method, arguments, input)
    }
}

const DESCRIPTION: &str = r#"zoo.v1.Zoo  prost
  echo(zoo.v1.Animal) -> zoo.v1.Animal | Status

message zoo.v1.Animal {
  string name = 1;
  zoo.v1.Kind kind = 2;
  repeated zoo.v1.Animal young = 3;
  map<string, uint64> weights = 4;
  oneof home {
    string cage = 5;
    zoo.v1.Animal.Place place = 6;
  }
  bytes picture = 7;
  google.protobuf.Timestamp born = 8;
  optional int32 age = 9;
  repeated sint32 marks = 10;
  zoo.food.Diet diet = 11;
}

enum zoo.v1.Kind {
  KIND_UNKNOWN = 0;
  KIND_CAT = 1;
}

message zoo.v1.Animal.Place {
  double x = 1;
  double y = 2;
}

message zoo.food.Diet {
  required zoo.food.Diet.Kind kind = 1;
  string of = 2;
}

enum zoo.food.Diet.Kind {
  MEAT = 1;
  PLANTS = 2;
}

arguments
"#;

#[test]
fn a_method_is_described_by_its_messages() {
    let server = server();
    let all = printed(&farcall(&["describe", &server.address, "Zoo"]));
    assert!(
        all.contains("  young(zoo.v1.Animal) -> stream<zoo.v1.Animal | zoo.v1.Refusal> | zoo.v1.Refusal\n"),
        "{all}"
    );
    assert!(
        all.contains(
            "  names(stream<zoo.v1.Animal.Place>) -> stream<google.protobuf.StringValue | Status> | Status\n"
        ),
        "{all}"
    );
    let one = printed(&farcall(&["describe", &server.address, "Zoo/echo"]));
    let example = one.strip_prefix(DESCRIPTION).unwrap_or_else(|| panic!("{one}"));
    let example: Value = serde_json::from_str(example).unwrap();
    let answer: Value =
        serde_json::from_str(&server.call("Zoo/echo", &[&example.to_string()], "").unwrap()).unwrap();
    // All but what is 0 comes back.
    let expected = json!({
        "name": "text",
        "weights": {"key": "0"},
        "cage": "text",
        "picture": "dGV4dA==",
        "born": "2000-01-01T00:00:00Z",
        "age": 0,
        "marks": [0],
        "diet": {"kind": "MEAT", "of": "text"},
    });
    assert_eq!(answer, expected);
    let streaming = printed(&farcall(&["describe", &server.address, "Zoo/names"]));
    assert!(
        streaming.ends_with("arguments\n{}\n\neach line of standard input\n{\"x\":0.5,\"y\":0.5}\n"),
        "{streaming}"
    );
}

#[test]
fn every_type_travels_as_protobuf_has_it() {
    let server = server();
    let animal = json!({
        "name": "naïve \"cat\"",
        "kind": "KIND_CAT",
        "young": [{"name": "a", "young": [{}]}, {"kind": "KIND_CAT"}],
        "weights": {"a": "18446744073709551615", "b": "0"},
        "place": {"x": -0.25, "y": "Infinity"},
        "picture": "AP8Q",
        "born": "1999-12-31T23:59:59.500Z",
        "age": 0,
        "marks": [-1, 0, i32::MAX],
        "diet": {"kind": "PLANTS"},
    });
    let answer = server.call("zoo.v1.Zoo/echo", &[&animal.to_string()], "").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), animal);
    // Other ways to say it.
    let said = r#"{"kind": 1, "born": null, "weights": {"a": 7}, "picture": "_w", "marks": ["5"]}"#;
    let answer = server.call("Zoo/echo", &[said], "").unwrap();
    let heard = json!({"kind": "KIND_CAT", "weights": {"a": "7"}, "picture": "/w==", "marks": [5]});
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), heard);
}

#[test]
fn streams_go_line_by_line_each_way() {
    let server = server();
    let young = server.call("Zoo/young", &[r#"{"young": [{"name": "a"}, {"name": "b"}]}"#], "");
    assert_eq!(young.unwrap(), "{\"name\":\"a\"}\n{\"name\":\"b\"}\n");
    let count = server.call("Zoo/count", &[r#"{"animals": "40"}"#], "{}\n{\"name\": \"a\"}\n");
    assert_eq!(count.unwrap(), "{\n  \"animals\": \"42\"\n}\n");
    let names = server.call("Zoo/names", &[], "{\"x\": 1}\n{\"y\": 2.5}\n");
    assert_eq!(names.unwrap(), "\"1, 0\"\n\"0, 2.5\"\n");
    let wrong = server.call("Zoo/names", &[], "{\"x\": 1}\n{\"z\": 2}\n").unwrap_err();
    assert!(wrong.contains("line 2 of standard input: unrecognized field name 'z'"), "{wrong}");
    // Messages that are no message of the application.
    assert_eq!(server.call("Zoo/now", &[], "").unwrap(), "\"1970-01-01T00:00:01Z\"\n");
    assert_eq!(server.call("Zoo/rest", &["{}"], "").unwrap(), "{}\n");
    // A message of another package, with the name of one in this.
    assert_eq!(server.call("Zoo/meals", &[], "").unwrap(), "{\n  \"meals\": 3\n}\n");
}

#[test]
fn errors_of_the_application_are_shown() {
    let server = server();
    let refused = server.call("Zoo/refuse", &[r#"{"name": "tiger"}"#], "").unwrap_err();
    assert!(refused.contains(r#"the application's error {"why":"no tiger"}"#), "{refused}");
    let cut =
        server.call("Zoo/young", &[r#"{"young": [{"name": "a"}, {"kind": "KIND_CAT"}]}"#], "").unwrap_err();
    assert!(cut.contains(r#"the application's error {"why":"no cats"}"#), "{cut}");
}

#[test]
fn an_error_is_named_where_it_is() {
    let server = server();
    for (method, arguments, says) in [
        ("Zoo/echo", &[][..], "arguments are missing; the arguments are like {\"name\":\"text\""),
        ("Zoo/echo", &["{"], "the arguments are no JSON"),
        ("Zoo/echo", &["[]"], "invalid type: sequence, expected a map"),
        ("Zoo/echo", &[r#"{"nam": ""}"#], "unrecognized field name 'nam'; the arguments are like"),
        (
            "Zoo/echo",
            &[r#"{"young": [{}, {"name": 7}]}"#],
            "young[1].name: invalid type: integer `7`, expected a string",
        ),
        ("Zoo/echo", &[r#"{"kind": "DOG"}"#], "kind: unrecognized enum value 'DOG'"),
        ("Zoo/echo", &[r#"{"picture": "~"}"#], "picture: invalid base64"),
        ("Zoo/echo", &[r#"{"born": "today"}"#], "born: "),
        ("Zoo/echo", &[r#"{"cage": "", "place": {}}"#], "multiple fields provided for oneof 'home'"),
        ("Zoo/rest", &[r#"{"a": 1}"#], "the method has no arguments"),
        (
            "Zoo/hidden",
            &[],
            "no message for the Rust type `protobuf::service::zoo::Hidden`: it needs `with_descriptors(set)`",
        ),
    ] {
        let why = server.call(method, arguments, "").unwrap_err();
        assert!(why.contains(says), "{method} {arguments:?}: {why}");
    }
}

#[test]
fn a_server_without_descriptors_is_said_to_lack_them() {
    let server = serve("first", |server| server);
    assert!(printed(&farcall(&["list", &server.address])).contains("zoo.v1.Zoo\n"));
    let all = printed(&farcall(&["describe", &server.address]));
    assert!(all.contains("  echo(protobuf) -> protobuf | Status\n"), "{all}");
    for arguments in [["call", &server.address, "Zoo/echo"], ["describe", &server.address, "Zoo/echo"]] {
        let output = farcall(&arguments);
        assert_eq!(output.status.code(), Some(1));
        let why = complaint(&output);
        assert!(why.contains("with_descriptors(set)") && why.contains("file_descriptor_set_path"), "{why}");
    }
    // Those of protobuf itself need none.
    assert_eq!(server.call("Zoo/now", &[], "").unwrap(), "\"1970-01-01T00:00:01Z\"\n");
}

#[test]
fn recorded_messages_are_shown_as_json() {
    let first = serve("first", |server| server.with_descriptors(&descriptors()).with_capture());
    let second = serve("second", |server| server.with_descriptors(&descriptors()));
    let file = files::path("protobuf.jsonl");
    let file = file.to_str().unwrap();
    let recorder = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["record", &first.address, file, "--only", "zoo.v1.Zoo/", "--count", "1", "--seconds", "60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let channel = first.runtime.block_on(Channel::connect(&format!("tcp://{}", first.address))).unwrap();
    let zoo = ZooClient::new(&channel);
    let calls = first.runtime.spawn(async move {
        // Until the recorder has one.
        loop {
            zoo.whose(service::zoo::Animal { name: "cat".into(), ..Default::default() }).await.unwrap();
        }
    });
    let recorded: Output = recorder.wait_with_output().unwrap();
    calls.abort();
    assert_eq!(recorded.status.code(), Some(0));
    let replayed = printed(&farcall(&["replay", &second.address, file]));
    let shown =
        "zoo.v1.Zoo/whose {\"name\":\"cat\"}\n  then  {\"name\":\"first\"}\n  now   {\"name\":\"second\"}\n";
    assert!(replayed.ends_with(shown), "{replayed}");
}
