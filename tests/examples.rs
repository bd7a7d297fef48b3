//! The examples do what they say.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(unreachable_pub, reason = "in an application a service is a library of its own")]

use std::collections::HashMap;
use std::env::current_exe;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{Channel, EndReason, Server, Streaming, stream};

#[path = "../examples/chat/rooms.rs"]
mod chat;

use chat::{ChatClient, ChatServer, Event, JoinError, Rooms};

async fn heard(events: &mut Streaming<Event>) -> Event {
    events.message().await.unwrap().unwrap()
}

#[tokio::test]
async fn people_chat() {
    let server = Server::builder().add(ChatServer::new(Rooms::default())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let ann = ChatClient::new(Channel::connect(&address).await.unwrap());
    let bob = ChatClient::new(Channel::connect(&address).await.unwrap());
    let name = |name: &str| name.to_owned();

    let (ann_says, lines) = stream::channel(1);
    let mut ann_hears = ann.join("lobby", "ann", lines).await.unwrap();
    let (bob_says, lines) = stream::channel(1);
    let mut bob_hears = bob.join("lobby", "bob", lines).await.unwrap();
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("ann") });
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("bob") });
    assert_eq!(heard(&mut bob_hears).await, Event::Joined { name: name("bob") });

    // A name is taken in its room alone.
    let nothing = || stream::iter::<[String; 0]>([]);
    assert_eq!(bob.join("lobby", "ann", nothing()).await.unwrap_err(), JoinError::NameTaken);
    drop(bob.join("kitchen", "ann", nothing()).await.unwrap());

    for text in ["hello", "is anybody here?"] {
        ann_says.send(text.to_owned()).await.unwrap();
        let said = Event::Said { name: name("ann"), text: text.to_owned() };
        assert_eq!(heard(&mut bob_hears).await, said);
        assert_eq!(heard(&mut ann_hears).await, said);
    }

    // One leaves by saying no more, the other is cut off: either way the room hears of it.
    drop(ann_says);
    assert_eq!(ann_hears.message().await.unwrap(), None);
    assert_eq!(ann_hears.end_reason(), Some(EndReason::Completed));
    assert_eq!(heard(&mut bob_hears).await, Event::Left { name: name("ann") });
    let (_says, lines) = stream::channel(1);
    let mut ann_hears = ann.join("lobby", "ann", lines).await.unwrap();
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("ann") });
    drop(bob_hears);
    assert_eq!(heard(&mut ann_hears).await, Event::Left { name: name("bob") });
    drop(bob_says);
}

/// Returns the output of an example. `cargo test` builds them all, unless it is told which targets.
fn run(example: &str) -> String {
    let target = current_exe().unwrap().parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let program = target.join(example);
    let built = "`cargo test --all-features` builds the examples, or `cargo build --examples --all-features`";
    let command = Command::new(&program).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = command.unwrap_or_else(|error| panic!("{}: {error}: {built}", program.display()));
    // Only against one that hangs.
    let give_up = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > give_up {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert!(status.success(), "{example}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn hello_says_hello() {
    let said = run("hello");
    let [over_network, in_process] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(over_network.starts_with("Hello, world! (over "), "{said}");
    assert_eq!(in_process, "Hello, test!");
}

#[test]
fn deadlines_reach_through_three_services() {
    let said = run("deadlines");
    let lines: Vec<_> = said.lines().collect();
    let left = |line: &str| line.contains(": at most Some(") && line.ends_with(" left");
    assert!(lines[..3].iter().all(|line| left(line)), "{said}");
    assert_eq!(lines[3], "done by the third");
    assert!(lines[7].starts_with("DEADLINE_EXCEEDED: "), "{said}");
    let all = r#"stopped: ["first", "second", "third"]"#;
    assert_eq!((lines[8], lines[12], lines[13]), (all, "given up", all), "{said}");
}

#[test]
fn middleware_checks_and_limits() {
    let said = run("middleware");
    let lines = [
        "without a token: UNAUTHENTICATED: a call needs a token (not executed)",
        "with a token: ali",
        "the third call had to wait: true",
        "a long one ends: DEADLINE_EXCEEDED",
    ];
    assert!(said.lines().eq(lines), "{said}");
}

#[test]
fn tokens_are_signed_and_checked() {
    let said = run("tokens");
    let lines = [
        "with a token: ann",
        "without one: UNAUTHENTICATED: Desk/whoami needs a token (not executed)",
        "with a forged one: UNAUTHENTICATED: the token is not one of ours (not executed)",
        "with one of another user: UNAUTHENTICATED: the token is not one of ours (not executed)",
        "with one that goes on: UNAUTHENTICATED: the token is not one of ours (not executed)",
        "with one that has expired: UNAUTHENTICATED: the token has expired (not executed)",
    ];
    assert!(said.lines().eq(lines), "{said}");
}

#[test]
fn errors_say_what_to_do_and_what_they_were_caused_by() {
    let said = run("errors");
    let lines = [
        "sold out, but there is the matinee",
        "whose fault: Application, executed: Yes",
        "ticket is not a number",
        "again in 60s",
        "INVALID_ARGUMENT: that is no ticket of ours: invalid digit found in string",
    ];
    assert!(said.lines().eq(lines), "{said}");
}

#[test]
fn prost_messages_travel() {
    let said = run("prost");
    let lines = [
        "summit at Point { latitude: 47421000, longitude: 10985000 }",
        "nowhere at Point { latitude: 0, longitude: 0 }",
    ];
    assert!(said.lines().eq(lines), "{said}");
}

#[test]
fn pages_come_and_go_through_a_cache() {
    let said = run("pages");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("1024 pages of 4096 bytes, 256 frames, by "), "{said}");
    assert!(lines[1].starts_with("1600 pages used, ") && lines[1].contains("hit rate "), "{said}");
    assert!(lines[2].ends_with(", all as written"), "{said}");
    assert_eq!(lines[3..], ["the file has every page as it was written"], "{said}");
}

#[test]
fn tickets_are_distinct_and_locks_lock() {
    let said = run("sequencer");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[1].starts_with("3600 tickets, all distinct, 0 missing, "), "{said}");
    assert!(lines[2].starts_with("total 270 after 270 additions; 2 servers closed, "), "{said}");
    assert!(lines[3].ends_with(": fencing number 3 after 1"), "{said}");
}

#[test]
fn look_ups_run_no_handler_and_are_never_torn() {
    let said = run("index");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("4000 look-ups by "), "{said}");
    assert!(lines[1].ends_with(": none for a look-up"), "{said}");
    assert!(lines[2].starts_with("by tcp the owner's runtime did each read"), "{said}");
    assert_eq!(lines[3], "every key has the value that was written last", "{said}");
    assert!(lines[4].ends_with(" torn reads, and found the new value"), "{said}");
    assert!(lines[5].contains(" mixtures of two versions of a bucket were refused, "), "{said}");
}

/// Each span of the two services, and of their customer, has the one before it as its parent.
#[test]
fn tracing_exports_one_trace_of_two_services() {
    let said = run("tracing");
    let spans: Vec<HashMap<&str, &str>> = said
        .lines()
        .map(|line| {
            let fields = line.trim_matches(['{', '}']).split(',');
            fields
                .filter_map(|field| field.split_once(':'))
                .map(|(k, v)| (k.trim_matches('"'), v.trim_matches('"')))
                .collect()
        })
        .collect();
    assert!(spans.len() == 4 && spans.iter().all(|span| span["trace"] == spans[0]["trace"]), "{said}");
    let mut parent = "0".repeat(16);
    for (service, name, kind) in [
        ("customer", "shop.Orders/order", "Client"),
        ("orders", "shop.Orders/order", "Server"),
        ("orders", "shop.Stock/take", "Client"),
        ("stock", "shop.Stock/take", "Server"),
    ] {
        let span = spans.iter().find(|span| span["parent"] == parent).unwrap_or_else(|| panic!("{said}"));
        assert_eq!((span["service"], span["name"], span["kind"]), (service, name, kind), "{said}");
        parent = span["span"].to_owned();
    }
}
