//! Attacks on a server in a process of its own: what the whole process holds, and what an honest client notices.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Instant;

use farcall_core::client::RawChannel;

use super::*;
use crate::process::{self, Process};

/// How long each attack lasts, and the budget that the server is given: 0 is the default of the machine.
fn terms() -> (Duration, usize) {
    match std::env::var_os("FARCALL_LONG") {
        Some(_) => (Duration::from_secs(60), 0),
        None => (Duration::from_secs(2), LIMIT),
    }
}

/// What else a process holds: code, stacks, buffers for reuse, and what its allocator has not given back.
const BESIDES: usize = 96 * MIB;

type Attack = fn(SocketAddr, u8) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// The server's process: says where it listens, and its budget.
#[test]
fn serve_for_attackers() {
    let Some(memory) = process::told() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let setup = Setup::with(settings(memory.parse().unwrap())).await;
        let watched = setup.server.clone();
        tokio::spawn(async move { watched.watch().await });
        process::say(&format!("{} {}", setup.address, setup.budget().limit()));
        std::future::pending::<()>().await;
    });
}

/// Returns the memory of a process that is resident, in bytes.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// The honest client's process: makes calls one after the other for a time, and says how long the slowest hundredth takes.
#[tokio::test]
async fn call_honestly_for_a_while() {
    let Some(told) = process::told() else { return };
    let (address, time) = told.split_once(' ').unwrap();
    let (address, time) = (address.parse().unwrap(), Duration::from_millis(time.parse().unwrap()));
    let honest = RawChannel::new(To(address), settings(0));
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time || times.len() < 100 {
        let at = Instant::now();
        call_honestly(&honest).await;
        times.push(at.elapsed());
    }
    times.sort();
    process::say(&times[times.len() * 99 / 100].as_micros().to_string());
}

/// Lets an honest client make calls for a time, from a process of its own. Returns the time that the slowest hundredth takes
/// at least.
async fn honest_calls(server: SocketAddr, time: Duration) -> Duration {
    let argument = format!("{server} {}", time.as_millis());
    let mut client = Process::start("resident::call_honestly_for_a_while", &argument);
    let said = tokio::task::spawn_blocking(move || client.said());
    Duration::from_micros(said.await.expect("the honest client fails").parse().unwrap())
}

#[expect(clippy::print_stdout, reason = "the figures of a long run")]
async fn withstands(name: &str, attack: Attack) {
    let (time, memory) = terms();
    let mut server = Process::start("resident::serve_for_attackers", &memory.to_string());
    let said = server.said();
    let (address, limit) = said.split_once(' ').unwrap();
    let (address, limit): (SocketAddr, usize) = (address.parse().unwrap(), limit.parse().unwrap());
    let before = honest_calls(address, time / 10).await;
    let attackers: Vec<_> = (0..16).map(|n| tokio::spawn(attack(address, 2 + n % 4))).collect();
    let began = Instant::now();
    let mut during = tokio::spawn(honest_calls(address, time));
    let mut most = 0;
    let during = loop {
        most = most.max(resident(server.id()));
        if let Ok(during) = tokio::time::timeout(Duration::from_millis(20), &mut during).await {
            break during.unwrap();
        }
    };
    attackers.iter().for_each(tokio::task::JoinHandle::abort);
    println!(
        "{name}: {} MiB resident at most, the budget is {} MiB; p99 of an honest client {before:?} before, {during:?} during {:?}",
        most / MIB,
        limit / MIB,
        began.elapsed()
    );
    assert!(most <= limit + limit / 10 + BESIDES, "{name}: {most} bytes are resident, the budget is {limit}");
}

/// Attacks again and again, with a connection each time.
fn again<F: Future<Output = Attacker> + Send + 'static>(
    address: SocketAddr,
    n: u8,
    how: fn(Attacker) -> F,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        loop {
            if let Some(attacker) = Attacker::try_new(address, n).await {
                let attacker = how(attacker).await;
                // As long as the server lets it.
                tokio::time::sleep(Duration::from_millis(500)).await;
                drop(attacker);
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_messages() {
    withstands("half messages", |to, n| again(to, n, attackers::half_messages)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_calls() {
    withstands("hanging calls", |to, n| again(to, n, attackers::hanging_calls)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers() {
    withstands("unread answers", |to, n| again(to, n, attackers::unread_answers)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_hello() {
    withstands("connections without a HELLO", |to, n| {
        Box::pin(async move {
            let mut silent = std::collections::VecDeque::new();
            loop {
                silent.extend(attackers::connected(to, n).await);
                if silent.len() > 1000 {
                    silent.pop_front();
                }
            }
        })
    })
    .await;
}
