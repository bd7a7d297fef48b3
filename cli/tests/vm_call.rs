//! `farcall list`, `call` and `health` by RDMA.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;
mod serving;

use common::{complaint, farcall, printed};
use files::path;
use serving::Server;

/// Starts `farcall serve` with a configuration.
fn serve(name: &str, config: &str) -> Server {
    let file = path(name);
    // An emulated machine on a busy host is slow.
    std::fs::write(&file, format!("{config}\n[liveness]\nconnect_ms = 60000\n")).unwrap();
    Server::start(&["--config", file.to_str().unwrap()])
}

#[test]
fn services_are_asked_and_called_by_rdma() {
    let server = serve("call-auto.toml", "");
    let address = format!("rdma://{}?liveness.connect_ms=60000", server.address);
    for (arguments, answer) in [
        (&["list"][..], "farcall.perf.v1.Perf\n"),
        (&["call", "Perf/echo", r#"{"data": "attached"}"#], "\"attached\"\n"),
        (&["call", "Perf/stream_down", r#"{"count": 2, "size": 1}"#], "{\"hex\":\"00\"}\n{\"hex\":\"00\"}\n"),
        (&["call", "Perf/put", r#"{"data": "attached"}"#, "--transport", "rdma"], "8\n"),
        (&["health"], "serving      the server\n"),
    ] {
        let output = farcall(&[&[arguments[0], &address], &arguments[1..]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", complaint(&output));
        assert!(printed(&output).contains(answer), "{arguments:?}: {}", printed(&output));
    }
}

#[test]
fn a_call_by_rdma_is_not_made_by_tcp() {
    let server = serve("call-tcp.toml", "transport = \"tcp\"");
    let output = farcall(&["call", &server.address, "Perf/usage", "--transport", "rdma"]);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let why = complaint(&output);
    assert!(why.contains("transport = \"rdma\" is required") && why.contains("not executed"), "{why}");
}
