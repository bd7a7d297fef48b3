use anstream::adapter::strip_str;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::mutations;

/// A server at work, as its answer to programs is.
fn busy(number: u64) -> Snapshot {
    let methods: Vec<_> = (0..30)
        .map(|method| {
            serde_json::json!({
                "path": format!("payments.v1.Ledger/transfer_between_accounts_{method}"),
                "running": method, "answered": number * 1000 * method, "failed": number * (method % 3),
                "handler_us": [[10, number * 500 * method], [20_000, number * 500 * method]],
            })
        })
        .collect();
    let connections: Vec<_> = (0..40)
        .map(|peer| {
            serde_json::json!({
                "number": peer, "peer": format!("[2001:db8:1:2:3:4:5:{peer}]:54321"), "identity": "CN=client.example.org",
                "transport": "rdma (mlx5_0 port 1, RoCE v2)", "is_encrypted": true, "class": "normal",
                "bytes": [number * 1_000_000, number * 2_000_000], "unsent": 3, "waited_us": number * 200_000,
                "credits": 64, "round_trip_us": 17,
            })
        })
        .collect();
    let memory: Vec<_> = (0..20)
        .map(|peer| {
            serde_json::json!({
                "address": format!("10.0.0.{peer}"), "connections": 2, "sessions": 1 << 20, "partial": 0,
                "arguments": 4096, "items": 0, "unsent": 77,
            })
        })
        .collect();
    serde_json::from_value(serde_json::json!({
        "age_us": number * 1_000_000, "methods": methods, "connections": connections,
        "memory_limit": 6_u64 << 30, "memory_used": 5_u64 << 30, "memory_peak": 5_u64 << 30, "memory": memory,
        "devices": [{ "device": "mlx5_0", "polls": number * 5000, "spins": 0, "sleeps": 10, "credit_waits": 0, "direct_accesses": 7 }],
    }))
    .unwrap()
}

/// Returns the lines of a page, without colours.
fn lines(last: &Snapshot, now: &Snapshot, width: usize, height: usize) -> Vec<String> {
    let page = render(last, now, Size { width, height });
    strip_str(&page).to_string().lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_fits(lines: &[String], width: usize, height: usize) {
    assert!(lines.len() <= height, "{} lines of {height}: {lines:#?}", lines.len());
    for line in lines {
        assert!(line.width() <= width, "{} columns of {width}: {line:?}", line.width());
    }
}

#[test]
fn a_page_fits_its_screen_and_uses_it() {
    for (width, height) in [(80, 24), (120, 40), (40, 10), (300, 100)] {
        let lines = lines(&busy(1), &busy(2), width, height);
        assert_fits(&lines, width, height);
        // All that is left over by more rows than fit is used.
        assert_eq!(lines.len(), height.min(1 + 4 * 2 + 30 + 40 + 20 + 1), "{width}x{height}: {lines:#?}");
    }
}

#[test]
fn a_terminal_of_80_columns_shows_all_times_and_all_parts() {
    let lines = lines(&busy(1), &busy(2), 80, 24);
    assert_eq!(lines[0], "up 2000 ms   435030 calls/s   30 failed/s   435 running");
    assert_eq!(lines[2], "method (5 of 30)             calls/s failed/s running      p50      p99    p99.9");
    assert_eq!(lines[3], "…nsfer_between_accounts_29     29002        2      29    10 us    20 ms    20 ms");
    for part in ["connection (", "travels by", "round trip", "device", "memory held for ("] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
}

#[test]
fn a_server_that_bounds_its_calls_shows_how_many_it_refuses() {
    let with = |refused: u64| {
        let mut snapshot = busy(1 + refused);
        let admission =
            serde_json::json!({ "limit": 40, "running": 40, "refused": refused * 5, "too_late": refused });
        snapshot.admission = serde_json::from_value(admission).unwrap();
        snapshot
    };
    assert!(lines(&with(0), &with(1), 100, 24)[0].contains("30 failed/s   6 refused/s   435 running"));
    assert!(!lines(&busy(1), &busy(2), 100, 24)[0].contains("refused"));
}

#[test]
fn a_wide_terminal_leaves_no_column_out() {
    let lines = lines(&busy(1), &busy(2), 120, 40);
    assert!(lines[0].ends_with("memory 5120 MiB of 6144 MiB   40 connections"), "{lines:#?}");
    for column in ["class", "credits", "p99.9", "partial", "spins/s"] {
        assert!(lines.iter().any(|line| line.contains(column)), "{column}: {lines:#?}");
    }
}

#[test]
fn a_tiny_terminal_shows_what_matters_most() {
    let lines = lines(&busy(1), &busy(2), 40, 10);
    assert_eq!(lines[0], "up 2000 ms   435030 calls/s");
    assert!(lines[2].starts_with("method (1 of 30)") && lines[2].contains("calls/s"), "{lines:#?}");
    assert!(lines[5].starts_with("connection (1 of 4") && lines[5].contains("travels by"), "{lines:#?}");
    for (width, height) in [(0, 0), (1, 1), (5, 3), (17, 7)] {
        let lines = self::lines(&busy(1), &busy(2), width, height);
        assert_fits(&lines, width, height.max(1));
    }
}

#[test]
fn without_a_screen_nothing_is_left_out() {
    let lines = lines(&busy(1), &busy(2), usize::MAX, usize::MAX);
    assert_eq!(lines.len(), 1 + 4 * 2 + 30 + 40 + 20 + 1);
    assert!(lines.iter().any(|line| line.contains("payments.v1.Ledger/transfer_between_accounts_7 ")));
    assert!(lines.iter().any(|line| line.ends_with("RoCE v2), encrypted, CN=client.example.org")));
}

#[test]
fn a_server_that_lies_moves_no_cursor_and_breaks_no_line() {
    let mut now = busy(2);
    for calls in &mut now.methods {
        calls.path = "a\u{1b}[2J\nb\t\u{301}\u{202e}\u{1f600}漢".repeat(50);
        (calls.answered, calls.failed, calls.running) = (u64::MAX, u64::MAX, u64::MAX);
        calls.handler_us = vec![(u64::MAX, u64::MAX), (1, u64::MAX)];
    }
    for connection in &mut now.connections {
        connection.bytes = (u64::MAX, u64::MAX);
        (connection.unsent, connection.waited_us) = (u64::MAX, u64::MAX);
        connection.transport = "\r\n\u{7}".repeat(1000);
        connection.round_trip_us = Some(u64::MAX);
    }
    now.age_us = 1;
    for last in [Snapshot::default(), busy(1), now.clone()] {
        let page = render(&last, &now, Size { width: 80, height: 24 });
        assert!(!page.contains("\u{1b}[2J") && !page.contains('\u{202e}'), "{page}");
        assert_fits(&lines(&last, &now, 80, 24), 80, 24);
    }
}

#[test]
fn no_answer_of_a_server_panics_or_leaves_the_screen() {
    let (text, last) = (serde_json::to_string_pretty(&busy(2)).unwrap(), busy(1));
    let mut accepted = 0;
    for mutation in mutations::of(&text, 1).take(10_000) {
        let Ok(now) = serde_json::from_str::<Snapshot>(&mutation) else { continue };
        accepted += 1;
        assert_fits(&lines(&last, &now, 80, 24), 80, 24);
        assert_fits(&lines(&now, &last, 40, 10), 40, 10);
    }
    assert!(accepted > 500, "{accepted}");
}
