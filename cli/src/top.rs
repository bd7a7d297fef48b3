//! `farcall top`: what a server does, second by second.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use farcall::PeerMemory;
use farcall::admin::{AdminClient, ConnectionState, DeviceWork, MethodCalls, Snapshot};

use crate::number;
use crate::output::{self, BAD, BOLD, FAINT, Failure, GOOD, foreign};
use crate::target::{By, Target};

/// Watch what a server does: calls, connections, memory, devices.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall top db1
  farcall top db1 --every 5
  farcall top db1 --count 1        once, for scripts; --json for programs

The server needs `Server::builder().with_admin()`. Ctrl-C ends it.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_parser = number(0.1..=3600.0))]
    every: f64,
    /// Look so many times, and end
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,
}

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lines of each part: the rest would push the others off the screen.
const LINES: usize = 12;

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    crate::runtime(1)?.block_on(async {
        let admin = AdminClient::new(&arguments.target.connect(By::Auto).await?);
        let mut last = look(&admin).await?;
        let is_screen = std::io::stdout().is_terminal() && !arguments.json;
        for number in 1.. {
            // Rates take two looks.
            tokio::time::sleep(Duration::from_secs_f64(arguments.every)).await;
            let now = look(&admin).await?;
            match (arguments.json, is_screen) {
                (true, _) => {
                    output::print_answer(&format!(
                        "{}\n",
                        serde_json::to_string(&now).map_err(Failure::no)?
                    ))?;
                }
                // Home, and clear what was below.
                (false, true) => output::print(&format!("\x1b[H\x1b[J{}", render(&last, &now)))?,
                (false, false) => output::print(&format!("{}\n", render(&last, &now)))?,
            }
            if arguments.count == Some(number) {
                break;
            }
            last = now;
        }
        Ok(0)
    })
}

async fn look(admin: &AdminClient) -> Result<Snapshot, Failure> {
    let snapshot = admin.snapshot().timeout(PATIENCE).await;
    snapshot.map_err(|status| Failure::of_call(&status, "with_admin()"))
}

fn render(last: &Snapshot, now: &Snapshot) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, last, now);
    text
}

fn write(text: &mut String, last: &Snapshot, now: &Snapshot) -> std::fmt::Result {
    let seconds = (now.age_us.saturating_sub(last.age_us) as f64 / 1e6).max(1e-6);
    let sum = |of: &Snapshot, count: fn(&MethodCalls) -> u64| of.methods.iter().map(count).sum::<u64>();
    let rate =
        |count: fn(&MethodCalls) -> u64| sum(now, count).saturating_sub(sum(last, count)) as f64 / seconds;
    let share = now.memory_used as f64 / (now.memory_limit as f64).max(1.0);
    let style = if share > 0.8 { BAD } else { GOOD };
    writeln!(
        text,
        "{BOLD}up {}{BOLD:#}   {:.0} calls/s   {:.0} failed/s   {} running   {} connections   memory {style}{}{style:#} of {} (most {})",
        duration(now.age_us),
        rate(|calls| calls.answered + calls.failed),
        rate(|calls| calls.failed),
        sum(now, |calls| calls.running),
        now.connections.len(),
        bytes(now.memory_used),
        bytes(now.memory_limit),
        bytes(now.memory_peak),
    )?;
    write_methods(text, last, now, seconds)?;
    write_connections(text, last, now, seconds)?;
    write_memory(text, &now.memory)?;
    write_devices(text, last, &now.devices, seconds)
}

fn write_methods(text: &mut String, last: &Snapshot, now: &Snapshot, seconds: f64) -> std::fmt::Result {
    if now.methods.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{BOLD}{:<40} {:>9} {:>9} {:>8} {:>10} {:>10} {:>10}{BOLD:#}",
        "method", "calls/s", "failed/s", "running", "p50", "p99", "p99.9"
    )?;
    let mut lines: Vec<_> = now.methods.iter().map(|calls| (calls, recent(last, calls))).collect();
    // The busiest first.
    lines.sort_by_key(|(_, recent)| std::cmp::Reverse(recent.answered + recent.failed));
    for (calls, recent) in lines.iter().take(LINES) {
        // Of a method that was not called lately the times of all its calls are shown.
        let is_quiet = recent.handler_us.is_empty();
        let at = |percent| or_none(if is_quiet { calls } else { recent }.percentile(percent), duration);
        let style = if recent.failed > 0 { BAD } else { FAINT };
        writeln!(
            text,
            "{:<40} {:>9.0} {style}{:>9.0}{style:#} {:>8} {:>10} {:>10} {:>10}",
            clipped(&calls.path, 40),
            (recent.answered + recent.failed) as f64 / seconds,
            recent.failed as f64 / seconds,
            calls.running,
            at(50.0),
            at(99.0),
            at(99.9),
        )?;
    }
    more(text, lines.len())
}

/// Returns the calls of a method since the last look.
fn recent(last: &Snapshot, now: &MethodCalls) -> MethodCalls {
    let Some(last) = last.methods.iter().find(|last| last.path == now.path) else { return now.clone() };
    let before =
        |limit: u64| last.handler_us.iter().find(|(known, _)| *known == limit).map_or(0, |(_, count)| *count);
    let mut recent = now.clone();
    recent.answered = now.answered.saturating_sub(last.answered);
    recent.failed = now.failed.saturating_sub(last.failed);
    recent.handler_us =
        now.handler_us.iter().map(|(limit, count)| (*limit, count.saturating_sub(before(*limit)))).collect();
    recent.handler_us.retain(|(_, count)| *count > 0);
    recent
}

fn write_connections(text: &mut String, last: &Snapshot, now: &Snapshot, seconds: f64) -> std::fmt::Result {
    writeln!(
        text,
        "\n{BOLD}{:<24} {:<7} {:>10} {:>10} {:>7} {:>6} {:>7} {:>10}  travels by{BOLD:#}",
        "connection", "class", "in/s", "out/s", "unsent", "waits", "credits", "round trip"
    )?;
    let mut lines: Vec<_> =
        now.connections.iter().map(|connection| (connection, moved(last, connection))).collect();
    lines.sort_by_key(|(_, moved)| std::cmp::Reverse(moved.bytes.0 + moved.bytes.1));
    for (connection, moved) in lines.iter().take(LINES) {
        let rate = |moved: u64| bytes((moved as f64 / seconds) as u64);
        let waits = moved.waited_us as f64 / 1e4 / seconds;
        let style = if waits >= 10.0 { BAD } else { FAINT };
        let encrypted = if connection.is_encrypted { ", encrypted" } else { "" };
        let identity =
            connection.identity.as_ref().map_or_else(String::new, |name| format!(", {}", clipped(name, 40)));
        writeln!(
            text,
            "{:<24} {:<7} {:>10} {:>10} {:>7} {style}{waits:>5.0}%{style:#} {:>7} {:>10}  {}{encrypted}{identity}",
            clipped(connection.peer.as_deref().unwrap_or("-"), 24),
            clipped(&connection.class, 7),
            rate(moved.bytes.1),
            rate(moved.bytes.0),
            connection.unsent,
            or_none(connection.credits, |credits| credits.to_string()),
            or_none(connection.round_trip_us, duration),
            clipped(&connection.transport, 60),
        )?;
    }
    more(text, lines.len())
}

/// Returns a connection whose counts are those since the last look.
fn moved(last: &Snapshot, now: &ConnectionState) -> ConnectionState {
    let last = last.connections.iter().find(|last| last.number == now.number).cloned().unwrap_or_default();
    let mut moved = now.clone();
    moved.bytes = (now.bytes.0.saturating_sub(last.bytes.0), now.bytes.1.saturating_sub(last.bytes.1));
    moved.waited_us = now.waited_us.saturating_sub(last.waited_us);
    moved
}

fn or_none<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn write_memory(text: &mut String, memory: &[PeerMemory]) -> std::fmt::Result {
    writeln!(
        text,
        "\n{BOLD}{:<24} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10}{BOLD:#}",
        "memory held for", "conns", "sessions", "partial", "arguments", "items", "unsent"
    )?;
    for held in memory.iter().take(LINES) {
        let address = held.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        write!(text, "{address:<24} {:>6}", held.connections)?;
        for size in [held.sessions, held.partial, held.arguments, held.items, held.unsent] {
            write!(text, " {:>10}", bytes(size as u64))?;
        }
        writeln!(text)?;
    }
    more(text, memory.len())
}

fn write_devices(
    text: &mut String,
    last: &Snapshot,
    devices: &[DeviceWork],
    seconds: f64,
) -> std::fmt::Result {
    if devices.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{BOLD}{:<16} {:>10} {:>10} {:>10} {:>14} {:>12}{BOLD:#}",
        "device", "polls/s", "spins/s", "sleeps/s", "credit waits/s", "one-sided/s"
    )?;
    for device in devices {
        let before =
            last.devices.iter().find(|last| last.device == device.device).cloned().unwrap_or_default();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        writeln!(
            text,
            "{:<16} {:>10.0} {:>10.0} {:>10.0} {:>14.0} {:>12.0}",
            clipped(&device.device, 16),
            rate(device.polls, before.polls),
            rate(device.spins, before.spins),
            rate(device.sleeps, before.sleeps),
            rate(device.credit_waits, before.credit_waits),
            rate(device.direct_accesses, before.direct_accesses),
        )?;
    }
    Ok(())
}

/// Says how many lines were left out.
fn more(text: &mut String, lines: usize) -> std::fmt::Result {
    if lines > LINES { writeln!(text, "{FAINT}and {} more{FAINT:#}", lines - LINES) } else { Ok(()) }
}

fn clipped(text: &str, most: usize) -> String {
    let text = foreign(text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn bytes(size: u64) -> String {
    match size {
        _ if size >= 10 << 30 => format!("{} GiB", size >> 30),
        _ if size >= 10 << 20 => format!("{} MiB", size >> 20),
        _ if size >= 10 << 10 => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

fn duration(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{micros} us"),
        10_000..10_000_000 => format!("{} ms", micros / 1000),
        10_000_000..7_200_000_000 => format!("{} s", micros / 1_000_000),
        _ => format!("{} h", micros / 3_600_000_000),
    }
}
