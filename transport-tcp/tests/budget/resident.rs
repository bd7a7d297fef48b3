//! Attacks on a server in a process of its own: what the whole process holds, and what an honest client notices.

use std::collections::VecDeque;
use std::time::Instant;

use super::*;
use crate::process::{self, Process, resident};
use crate::target::Attacked;

/// How long each attack lasts, and the budget that the server is given: 0 is the default of the machine.
fn terms() -> (Duration, usize) {
    match std::env::var_os("FARCALL_LONG") {
        Some(_) => (Duration::from_secs(60), 0),
        None => (Duration::from_secs(2), LIMIT),
    }
}

/// The memory that a process holds besides, in bytes: code, stacks, buffers for reuse, and what its allocator has not given back.
const BESIDES: usize = 64 * MIB;

const HALF_MESSAGES: &str = "half messages";
const HANGING_CALLS: &str = "hanging calls";
const UNREAD_ANSWERS: &str = "unread answers";
const RANDOM_FRAMES: &str = "random frames";
const HALF_FRAMES: &str = "half frames";
const UNREAD_ITEMS: &str = "unread items";
const EMPTY_ELEMENTS: &str = "lists of empty elements";
const COMPRESSED_ZEROS: &str = "compressed zeros";
const NO_HELLO: &str = "connections without a HELLO";
const ANNOUNCEMENTS: &str = "services without end";

/// The attacks,
const ATTACKS: [&str; 10] = [
    HALF_MESSAGES,
    HANGING_CALLS,
    UNREAD_ANSWERS,
    RANDOM_FRAMES,
    HALF_FRAMES,
    UNREAD_ITEMS,
    EMPTY_ELEMENTS,
    COMPRESSED_ZEROS,
    NO_HELLO,
    ANNOUNCEMENTS,
];

/// and the names of all at once.
const EVERYTHING: &str = "everything from 200 addresses";
const EVERYTHING_FROM_ONE: &str = "everything from one address";

/// The server's process: says its address, its CA, and its budget.
#[test]
fn serve_for_attackers() {
    let Some(told) = process::told() else { return };
    let (memory, encryption) = told.split_once(' ').unwrap();
    let authority = (encryption == TLS).then(|| Authority::new("ca"));
    let tls = authority.as_ref().map(tls_of);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let setup = Setup::with(settings(memory.parse().unwrap()), tls).await;
        let watched = setup.server.clone();
        tokio::spawn(async move { watched.watch().await });
        let ca = authority.as_ref().and_then(|authority| authority.trusted().ca);
        let target = Target { address: setup.address, ca };
        process::say(&format!("{} {}", target.told(), setup.budget().limit()));
        std::future::pending::<()>().await;
    });
}

/// The honest client's process: begins a call each millisecond for a time, and says how long the slowest hundredth takes. Calls
/// do not wait for each other, because a client that waits makes few calls while the server is slow, and hides that. By choice it waits
/// when so many are in progress. Another client connects each tenth of a second, and makes one call. The process says how long that
/// takes at most.
#[tokio::test]
async fn call_honestly_for_a_while() {
    let Some(told) = process::told() else { return };
    let (server, terms) = Target::of_words(&told);
    let (time, most) = terms.split_once(' ').unwrap();
    let (honest, time) = (server.honest(), Duration::from_millis(time.parse().unwrap()));
    let most = most.parse().unwrap();
    let newcomers =
        tokio::spawn(again_for(time, 2, most, Duration::from_millis(100), move || server.honest()));
    let times = again_for(time, 100, most, Duration::from_millis(1), move || honest.clone()).await;
    let slowest_newcomer = newcomers.await.unwrap().pop().unwrap();
    process::say(&format!("{} {}", times[times.len() * 99 / 100].as_micros(), slowest_newcomer.as_micros()));
}

/// Begins calls for a time, so many at least and so many at once at most, with pauses. Returns how long they take, the longest last.
async fn again_for(
    time: Duration,
    least: usize,
    most: usize,
    pause: Duration,
    client: impl Fn() -> RawChannel,
) -> Vec<Duration> {
    let (mut calls, mut times) = (tokio::task::JoinSet::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < time || calls.len() + times.len() < least {
        tokio::time::sleep(pause).await;
        let client = client();
        calls.spawn(async move {
            let at = Instant::now();
            call_honestly(&client).await;
            at.elapsed()
        });
        times.extend(calls.try_join_next().map(Result::unwrap));
        if calls.len() >= most {
            times.extend(calls.join_next().await.map(Result::unwrap));
        }
    }
    times.extend(calls.join_all().await);
    times.sort();
    times
}

/// The times of an honest client's calls.
#[derive(Debug)]
#[expect(dead_code, reason = "the figures of a long run")]
struct Times {
    /// The slowest hundredth takes this time at least.
    p99: Duration,
    /// Of the clients that connect and make one call, the slowest one takes this time.
    slowest_newcomer: Duration,
}

/// Lets an honest client make calls for a time, from a process of its own.
async fn honest_calls(server: Target, time: Duration) -> Times {
    // A server without optimisation may stand still for so long that a call each millisecond would be more than the client's share.
    let most = if std::env::var_os("FARCALL_LONG").is_some() { usize::MAX } else { 64 };
    honest_calls_at_once(server, time, most).await
}

/// Lets an honest client make calls for a time, so many at once at most.
async fn honest_calls_at_once(server: Target, time: Duration, most: usize) -> Times {
    let argument = format!("{} {} {most}", server.told(), time.as_millis());
    let mut client = Process::start("resident::call_honestly_for_a_while", &argument);
    let said = tokio::task::spawn_blocking(move || client.said()).await.expect("the honest client fails");
    let mut times = said.split(' ').map(|micros| Duration::from_micros(micros.parse().unwrap()));
    let mut next = || times.next().unwrap();
    Times { p99: next(), slowest_newcomer: next() }
}

/// The attackers' process: attacks of a kind, until it is killed. There are sixteen attackers, or 200 of all kinds together, on one
/// address; or 200 on one address each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_until_killed() {
    let Some(told) = process::told() else { return };
    let (server, name) = Target::of_words(&told);
    let server = server.attacked();
    let attackers: Vec<(&str, u8)> = match ATTACKS.iter().find(|attack| **attack == name) {
        Some(attack) => [(*attack, 2); 16].into(),
        None if name == EVERYTHING_FROM_ONE => {
            ATTACKS.into_iter().cycle().map(|attack| (attack, 2)).take(200).collect()
        }
        None => ATTACKS.into_iter().cycle().zip(2..202).collect(),
    };
    for (attack, from) in attackers {
        match attack {
            HALF_MESSAGES => tokio::spawn(again(server.clone(), from, attackers::half_messages)),
            HANGING_CALLS => tokio::spawn(again(server.clone(), from, attackers::hanging_calls)),
            UNREAD_ANSWERS => tokio::spawn(again(server.clone(), from, attackers::unread_answers)),
            RANDOM_FRAMES => tokio::spawn(again(server.clone(), from, attackers::random_frames)),
            UNREAD_ITEMS => tokio::spawn(again(server.clone(), from, attackers::unread_items)),
            EMPTY_ELEMENTS => tokio::spawn(again(server.clone(), from, attackers::empty_elements)),
            COMPRESSED_ZEROS => tokio::spawn(again(server.clone(), from, attackers::compressed_zeros)),
            HALF_FRAMES => tokio::spawn(again_and_keep(server.clone(), from, attackers::half_a_frame)),
            ANNOUNCEMENTS => {
                tokio::spawn(again_and_keep(server.clone(), from, attackers::announced_services))
            }
            _ => tokio::spawn(silent_connections(server.clone(), from)),
        };
    }
    std::future::pending::<()>().await;
}

/// Starts a process that attacks. It has only the time of the processors that others leave: a host that attacks has processors
/// of its own, and takes none of the server's time but by what it sends.
fn attackers(server: &Target, name: &str) -> Process {
    let argument = format!("{} {name}", server.told());
    Process::start_by(&["chrt", "--idle", "0"], "resident::attack_until_killed", &argument)
}

const PLAIN: &str = "plain";
const TLS: &str = "tls";

/// Starts a server by a command. Returns its process, the way to it, and its budget in bytes.
fn server(command: &[&str], memory: usize, encryption: &str) -> (Process, Target, usize) {
    let argument = format!("{memory} {encryption}");
    let mut server = Process::start_by(command, "resident::serve_for_attackers", &argument);
    let said = server.said();
    let (target, limit) = Target::of_words(&said);
    (server, target, limit.parse().unwrap())
}

/// Has the allocator give memory back, as TUNING says for servers that strangers reach. With its defaults glibc keeps a sixth more than
/// is used when thousands of connections come and go. With a higher threshold it searched its free pieces for up to 0.4 s.
///
/// Opens the highest descriptor, so that the kernel makes the table of descriptors once. Before it lets a table grow that threads share, it
/// waits until whatever reads by RCU has ended (`expand_files`). The attackers run only where a processor is idle, so that took a second
/// and more, and the server accepted nothing meanwhile.
const FOR_STRANGERS: &[&str] = &[
    "bash",
    "-c",
    "eval \"exec $(($(ulimit -n) - 1))</dev/null\" && MALLOC_MMAP_THRESHOLD_=65536 exec \"$0\" \"$@\"",
];

/// Beside the attacked server runs another one, with an honest client of its own, which nobody attacks. Its times show how much of
/// what the attack does is because all of them share the processors.
#[expect(clippy::print_stdout, reason = "the figures of a long run")]
async fn withstands(name: &str, encryption: &str) {
    let (time, memory) = terms();
    let (attacked, target, limit) = server(FOR_STRANGERS, memory, encryption);
    let (_spared, spared_target, _) = server(FOR_STRANGERS, memory, encryption);
    let before = honest_calls(target.clone(), time / 10).await;
    let at_first = resident(attacked.id());
    let attackers = attackers(&target, name);
    // These two fill no memory. All others show that they have reached the server.
    if ![RANDOM_FRAMES, NO_HELLO].contains(&name) {
        let filling = async {
            while resident(attacked.id()) < at_first + 16 * MIB {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, filling).await.expect("the attack has no effect");
    }
    let began = Instant::now();
    let mut during = tokio::spawn(honest_calls(target, time));
    let spared = tokio::spawn(honest_calls(spared_target, time));
    let mut most = 0;
    let during = loop {
        most = most.max(resident(attacked.id()));
        if let Ok(during) = tokio::time::timeout(Duration::from_millis(20), &mut during).await {
            break during.unwrap();
        }
    };
    let spared = spared.await.unwrap();
    drop(attackers);
    println!(
        "{name}, {encryption}: {} MiB resident at most, the budget is {} MiB; an honest client: {before:?} before, {during:?} during {:?}, \
         {spared:?} at the server that is spared",
        most / MIB,
        limit / MIB,
        began.elapsed()
    );
    assert!(most <= limit + BESIDES, "{name}: {most} bytes are resident, the budget is {limit}");
}

/// Attacks again and again, with a connection each time.
async fn again<F: Future<Output = Attacker> + Send + 'static>(
    server: Attacked,
    n: u8,
    how: fn(Attacker) -> F,
) {
    loop {
        if let Some(attacker) = server.connect(n).await {
            let attacker = how(attacker).await;
            // As long as the server lets it.
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(attacker);
        }
    }
}

/// The connections that one attacker keeps.
const KEPT: usize = 500;

/// Connects again and again, and says nothing, or not all of a greeting.
async fn silent_connections(server: Attacked, n: u8) {
    let (mut silent, greeting) = (VecDeque::new(), server.greeting());
    loop {
        if let Some(mut socket) = attackers::connected(server.address, n).await {
            // The server may have closed it.
            let _ = socket.write_all(&greeting[..silent.len() % greeting.len()]).await;
            silent.push_back(socket);
        }
        if silent.len() > KEPT {
            silent.pop_front();
        }
    }
}

/// Attacks again and again, with a connection each time, and keeps many of them.
async fn again_and_keep<F: Future<Output = Attacker> + Send + 'static>(
    server: Attacked,
    n: u8,
    how: fn(Attacker) -> F,
) {
    let mut kept = VecDeque::new();
    loop {
        if let Some(attacker) = server.connect(n).await {
            kept.push_back(how(attacker).await);
        }
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_messages() {
    withstands(HALF_MESSAGES, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_calls() {
    withstands(HANGING_CALLS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers() {
    withstands(UNREAD_ANSWERS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_frames() {
    withstands(RANDOM_FRAMES, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_of_many_connections() {
    withstands(HALF_FRAMES, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_items() {
    withstands(UNREAD_ITEMS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_empty_elements() {
    withstands(EMPTY_ELEMENTS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_zeros() {
    withstands(COMPRESSED_ZEROS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_without_end() {
    withstands(ANNOUNCEMENTS, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_hello() {
    withstands(NO_HELLO, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_from_200_addresses() {
    withstands(EVERYTHING, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_from_200_addresses_over_tls() {
    withstands(EVERYTHING, TLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_from_one_address() {
    withstands(EVERYTHING_FROM_ONE, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_from_one_address_over_tls() {
    withstands(EVERYTHING_FROM_ONE, TLS).await;
}

/// A connection has no thread of its own, and needs none of the runtime's for work that blocks.
#[tokio::test]
async fn threads_do_not_grow_with_silent_connections() {
    let (server, target, _) = server(&[], LIMIT, PLAIN);
    let address = target.address;
    let threads = || std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count();
    let mut attackers = vec![answered(address).await];
    let mut mute = vec![greeted(address).await];
    let before = threads();
    for _ in 0..300 {
        attackers.push(answered(address).await);
        mute.push(greeted(address).await);
    }
    assert!(threads() <= before, "{} threads, {before} before", threads());
}

/// Connects and says nothing, and waits until the server has greeted.
async fn greeted(server: SocketAddr) -> tokio::net::TcpStream {
    let mut socket = attackers::connected(server, 3).await.unwrap();
    let mut preface = [0; PREFACE.len()];
    let greeting = tokio::time::timeout(PATIENCE, socket.read_exact(&mut preface));
    greeting.await.expect("the server does not greet").unwrap();
    socket
}

/// Connects, and waits until the server has answered.
async fn answered(server: SocketAddr) -> Attacker {
    let mut attacker = Attacker::new(server, 2).await;
    let mut preface = [0; PREFACE.len()];
    attacker.socket.read_exact(&mut preface).await.unwrap();
    assert!(attacker.read().await.is_some_and(|(header, _)| header.kind == FrameType::HELLO));
    attacker
}

/// The server's budget is a part of the address space that it may have. It lives within that, whatever it is sent. Its honest client makes so
/// few calls at once that they hold no more than any client may hold, however slow the server is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_little_address_space_survives() {
    const FEW: usize = 8;
    let limited = ["sh", "-c", "ulimit -v 786432; exec \"$0\" \"$@\""];
    let (_server, target, limit) = server(&limited, 0, PLAIN);
    assert_eq!(limit, 192 * MIB);
    let time = terms().0 / 4;
    for name in ATTACKS.into_iter().chain([EVERYTHING]) {
        let attackers = attackers(&target, name);
        honest_calls_at_once(target.clone(), time, FEW).await;
        drop(attackers);
    }
    honest_calls_at_once(target, Duration::ZERO, FEW).await;
}

/// All attacks at once, beside which the server's budget is looked at. Afterwards all memory is given back.
#[tokio::test]
async fn nothing_is_left_of_everything() {
    let (time, _) = terms();
    let setup = Setup::new().await;
    let attackers = attackers(&Target { address: setup.address, ca: None }, EVERYTHING);
    setup.until("the attacks have no effect", || setup.budget().peak() > LIMIT / 8 * 5).await;
    let began = Instant::now();
    while began.elapsed() < time {
        for _ in 0..100 {
            setup.honest_call().await;
        }
    }
    drop(attackers);
    setup.until_free().await;
}
