//! A page about a server: what it did between two looks.

use anstyle::Style;
use farcall::PeerMemory;
use farcall::admin::{ConnectionState, DeviceWork, MethodCalls, Snapshot};

use super::table::{Cell, Column, Size, Table, fitted, rows};
use crate::output::{BAD, BOLD, FAINT, GOOD};

/// Returns the page, whose lines and columns fit. Where there is no room, the less important parts are left out.
pub(super) fn render(last: &Snapshot, now: &Snapshot, size: Size) -> String {
    let seconds = (now.age_us.saturating_sub(last.age_us) as f64 / 1e6).max(1e-6);
    let mut text = heading(last, now, seconds, size.width);
    let tables = [
        methods(last, now, seconds),
        connections(last, now, seconds),
        devices(last, now, seconds),
        memory(&now.memory),
    ];
    for (table, rows) in tables.iter().zip(rows(&tables, size.height.saturating_sub(1))) {
        if rows > 0 {
            text.push('\n');
            // Writing to a string does not fail.
            let _ = table.write(&mut text, size.width, rows);
        }
    }
    text
}

/// Returns the page that was seen last of a server that does not answer any more, below a line that says why.
pub(super) fn render_last(why: &str, last: &Snapshot, now: &Snapshot, size: Size) -> String {
    let (line, _) = fitted(&format!("No answer: {why}"), size.width, false);
    let below = Size { height: size.height.saturating_sub(1), ..size };
    format!("{BAD}{line}{BAD:#}\n{}", render(last, now, below))
}

/// Returns the first line: facts about the whole server, as many as fit.
fn heading(last: &Snapshot, now: &Snapshot, seconds: f64, width: usize) -> String {
    let sum = |of: &Snapshot, count: fn(&MethodCalls) -> u64| {
        of.methods.iter().map(count).fold(0, u64::saturating_add)
    };
    let rate =
        |count: fn(&MethodCalls) -> u64| sum(now, count).saturating_sub(sum(last, count)) as f64 / seconds;
    let refused = |of: &Snapshot| of.admission.map(|all| all.refused.saturating_add(all.too_late));
    let refused = refused(now).map(|now| now.saturating_sub(refused(last).unwrap_or(0)) as f64 / seconds);
    let refused = refused.map(|rate| (if rate > 0.0 { BAD } else { GOOD }, format!("{rate:.0} refused/s")));
    let is_nearly_full = now.memory_used as f64 > 0.8 * now.memory_limit as f64;
    let facts = [
        (BOLD, format!("up {}", duration(now.age_us))),
        (Style::new(), format!("{:.0} calls/s", rate(all))),
        (Style::new(), format!("{:.0} failed/s", rate(|calls| calls.failed))),
        (Style::new(), format!("{} running", sum(now, |calls| calls.running))),
        (
            if is_nearly_full { BAD } else { GOOD },
            format!("memory {} of {}", bytes(now.memory_used), bytes(now.memory_limit)),
        ),
        (Style::new(), format!("{} connections", now.connections.len())),
        (FAINT, format!("most memory {}", bytes(now.memory_peak))),
    ];
    let (mut line, mut left) = (String::new(), width);
    let (rates, rest) = facts.split_at(3);
    for (number, (style, fact)) in rates.iter().chain(&refused).chain(rest).enumerate() {
        let separator = if number == 0 { "" } else { "   " };
        let (fact, taken) = fitted(fact, if number == 0 { left } else { usize::MAX }, false);
        match left.checked_sub(separator.len() + taken) {
            Some(rest) => left = rest,
            None => break,
        }
        line += &format!("{separator}{style}{fact}{style:#}");
    }
    line + "\n"
}

fn methods(last: &Snapshot, now: &Snapshot, seconds: f64) -> Table {
    const COLUMNS: &[Column] = &[
        Column::text("method", 18, 60, 0).keeping_end(),
        Column::number("calls/s", 9, 1),
        Column::number("failed/s", 8, 3),
        Column::number("running", 7, 4),
        Column::number("p50", 8, 5),
        Column::number("p99", 8, 2),
        Column::number("p99.9", 8, 6),
    ];
    let mut lines: Vec<_> = now.methods.iter().map(|calls| (calls, recent(last, calls))).collect();
    // The busiest first.
    lines.sort_by_key(|(_, recent)| std::cmp::Reverse(all(recent)));
    let row = |(calls, recent): &(&MethodCalls, MethodCalls)| {
        // Of a method that was not called lately the times of all its calls are shown.
        let timed = if recent.handler_us.is_empty() { calls } else { recent };
        let at = |percent| or_none(timed.percentile(percent), duration).into();
        vec![
            calls.path.as_str().into(),
            per_second(all(recent), seconds).into(),
            marked(per_second(recent.failed, seconds), recent.failed > 0),
            calls.running.to_string().into(),
            at(50.0),
            at(99.0),
            at(99.9),
        ]
    };
    Table { columns: COLUMNS, rows: lines.iter().map(row).collect() }
}

/// Returns how many calls have ended.
fn all(calls: &MethodCalls) -> u64 {
    calls.answered.saturating_add(calls.failed)
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

fn connections(last: &Snapshot, now: &Snapshot, seconds: f64) -> Table {
    const COLUMNS: &[Column] = &[
        Column::text("connection", 18, 46, 0),
        Column::text("class", 7, 7, 8),
        Column::number("in/s", 8, 2),
        Column::number("out/s", 8, 3),
        Column::number("unsent", 6, 6),
        Column::number("waits", 5, 4),
        Column::number("credits", 7, 7),
        Column::number("round trip", 10, 5),
        Column::text("travels by", 10, 120, 1),
    ];
    let mut lines: Vec<_> =
        now.connections.iter().map(|connection| (connection, moved(last, connection))).collect();
    lines.sort_by_key(|(_, moved)| std::cmp::Reverse(moved.bytes.0.saturating_add(moved.bytes.1)));
    let row = |(connection, moved): &(&ConnectionState, ConnectionState)| {
        let rate = |moved: u64| bytes((moved as f64 / seconds) as u64).into();
        let waits = moved.waited_us as f64 / 1e4 / seconds;
        let encrypted = if connection.is_encrypted { ", encrypted" } else { "" };
        let identity = connection.identity.as_ref().map_or_else(String::new, |name| format!(", {name}"));
        vec![
            connection.peer.as_deref().unwrap_or("-").into(),
            connection.class.as_str().into(),
            rate(moved.bytes.1),
            rate(moved.bytes.0),
            connection.unsent.to_string().into(),
            marked(format!("{waits:.0}%"), waits >= 10.0),
            or_none(connection.credits, |credits| credits.to_string()).into(),
            or_none(connection.round_trip_us, duration).into(),
            format!("{}{encrypted}{identity}", connection.transport).into(),
        ]
    };
    Table { columns: COLUMNS, rows: lines.iter().map(row).collect() }
}

/// Returns a connection whose counts are those since the last look.
fn moved(last: &Snapshot, now: &ConnectionState) -> ConnectionState {
    let last = last.connections.iter().find(|last| last.number == now.number).cloned().unwrap_or_default();
    let mut moved = now.clone();
    moved.bytes = (now.bytes.0.saturating_sub(last.bytes.0), now.bytes.1.saturating_sub(last.bytes.1));
    moved.waited_us = now.waited_us.saturating_sub(last.waited_us);
    moved
}

fn memory(memory: &[PeerMemory]) -> Table {
    const COLUMNS: &[Column] = &[
        Column::text("memory held for", 18, 46, 0),
        Column::number("conns", 6, 1),
        Column::number("sessions", 8, 2),
        Column::number("partial", 8, 5),
        Column::number("arguments", 9, 3),
        Column::number("items", 8, 6),
        Column::number("unsent", 8, 4),
    ];
    let row = |held: &PeerMemory| {
        let address = held.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let sizes = [held.sessions, held.partial, held.arguments, held.items, held.unsent];
        let sizes = sizes.map(|size| bytes(size as u64).into());
        [address.into(), held.connections.to_string().into()].into_iter().chain(sizes).collect()
    };
    Table { columns: COLUMNS, rows: memory.iter().map(row).collect() }
}

fn devices(last: &Snapshot, now: &Snapshot, seconds: f64) -> Table {
    const COLUMNS: &[Column] = &[
        Column::text("device", 10, 16, 0),
        Column::number("polls/s", 9, 3),
        Column::number("spins/s", 9, 5),
        Column::number("sleeps/s", 9, 4),
        Column::number("credit waits/s", 14, 1),
        Column::number("one-sided/s", 11, 2),
    ];
    let row = |device: &DeviceWork| {
        let before =
            last.devices.iter().find(|last| last.device == device.device).cloned().unwrap_or_default();
        let counts = [
            (device.polls, before.polls),
            (device.spins, before.spins),
            (device.sleeps, before.sleeps),
            (device.credit_waits, before.credit_waits),
            (device.direct_accesses, before.direct_accesses),
        ];
        let rates = counts.map(|(now, before)| per_second(now.saturating_sub(before), seconds).into());
        std::iter::once(device.device.as_str().into()).chain(rates).collect()
    };
    Table { columns: COLUMNS, rows: now.devices.iter().map(row).collect() }
}

fn or_none<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn per_second(count: u64, seconds: f64) -> String {
    format!("{:.0}", count as f64 / seconds)
}

/// Returns a number that people should see if it is bad, and need not see otherwise.
fn marked(text: String, is_bad: bool) -> Cell {
    Cell { text, style: if is_bad { BAD } else { FAINT } }
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

#[cfg(test)]
mod tests;
