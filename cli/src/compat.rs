//! `farcall compat`: what a rolling upgrade would refuse.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use farcall::reflection::{Method, Service};

use crate::describe::services;
use crate::output::{self, BAD, BOLD, FAINT, Failure, GOOD};
use crate::target::{By, ClientSettings, Target};

/// Find out what a rolling upgrade would refuse: calls of old clients to new servers, and the reverse.
///
/// A version is a file that `farcall describe HOST --json` has written, or a running server. Servers are upgraded first, so the calls of
/// old clients must work. Those of new clients to old servers matter when you roll back, and while both run (docs/EVOLUTION.md).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall describe db1 --json > v1.json      keep what a version has
  farcall compat v1.json localhost           against a server of the next version
  farcall compat v1.json v2.json

Exit status: 0 old clients can call new servers, 1 some of their calls would be refused, 64 wrong arguments")]
pub(crate) struct Arguments {
    /// The old version: a file, or a server
    old: String,
    /// The new version: a file, or a server
    new: String,
    #[command(flatten)]
    settings: ClientSettings,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let read = |version: &str| read(version, &arguments.settings);
    let (mut old, mut new) = (read(&arguments.old)?, read(&arguments.new)?);
    // A server has those of farcall, or not. No application calls them.
    for services in [&mut old, &mut new] {
        services.retain(|service| !service.name.starts_with("farcall."));
    }
    let forwards = refused(&old, &new);
    let backwards = refused(&new, &old);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = section(&mut text, "old clients, new servers", &forwards);
    let _ = section(&mut text, "new clients, old servers", &backwards);
    output::print(&text)?;
    Ok(if forwards.is_empty() { 0 } else { 1 })
}

/// Reads the services of a version.
fn read(version: &str, settings: &ClientSettings) -> Result<Vec<Service>, Failure> {
    // A pipe is no regular file.
    let path = Path::new(version);
    if path.exists() && !path.is_dir() {
        let unusable = |why: &dyn std::fmt::Display| Failure::usage(format!("{version}: {why}"));
        let text = std::fs::read_to_string(version).map_err(|error| unusable(&error))?;
        return serde_json::from_str(&text)
            .map_err(|error| unusable(&format!("it is none of `farcall describe --json`: {error}")));
    }
    if version.ends_with(".json") {
        return Err(Failure::usage(format!("{version}: there is no such file")));
    }
    let target = Target::of(version, settings);
    crate::runtime(1)?.block_on(async { services(&target.connect(By::Auto).await?).await })
}

/// A call that would be refused.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    name: String,
    why: &'static str,
    /// The signatures of client and server, if they differ.
    signatures: Option<(String, String)>,
}

/// Returns the calls of clients that these servers would refuse.
fn refused(clients: &[Service], servers: &[Service]) -> Vec<Refused> {
    let mut found = Vec::new();
    for service in clients {
        let Some(server) = servers.iter().find(|server| server.name == service.name) else {
            found.push(Refused {
                name: service.name.clone(),
                why: "UNIMPLEMENTED: the server has no such service",
                signatures: None,
            });
            continue;
        };
        if service.codec != server.codec {
            let signatures = Some((service.codec.clone(), server.codec.clone()));
            found.push(Refused {
                name: service.name.clone(),
                why: "FAILED_PRECONDITION: another codec",
                signatures,
            });
            continue;
        }
        found.extend(service.methods.iter().filter_map(|method| of_method(service, method, server)));
    }
    found
}

fn of_method(service: &Service, method: &Method, server: &Service) -> Option<Refused> {
    let name = format!("{}/{}", service.name, method.name);
    let Some(known) = server.methods.iter().find(|known| known.name == method.name) else {
        return Some(Refused { name, why: "UNIMPLEMENTED: the server has no such method", signatures: None });
    };
    let understood = known.fingerprint == method.fingerprint || known.accepts.contains(&method.fingerprint);
    let signatures = Some((method.signature.clone(), known.signature.clone()));
    (!understood).then_some(Refused { name, why: "FAILED_PRECONDITION: another signature", signatures })
}

fn section(text: &mut String, title: &str, refused: &[Refused]) -> std::fmt::Result {
    write!(text, "{BOLD}{title}{BOLD:#}  ")?;
    if refused.is_empty() {
        return writeln!(text, "{GOOD}all calls are understood{GOOD:#}");
    }
    writeln!(text, "{BAD}{} refused{BAD:#}", refused.len())?;
    for Refused { name, why, signatures } in refused {
        writeln!(text, "  {name}  {why}")?;
        if let Some((client, server)) = signatures {
            writeln!(text, "    {FAINT}client{FAINT:#}  {client}\n    {FAINT}server{FAINT:#}  {server}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Forms;
    use crate::call::protobuf::Messages;
    use crate::describe::Told;
    use crate::mutations;

    /// A version as `farcall describe HOST --json` writes it.
    const VERSION: &str = r#"[
  {
    "name": "shop.v1.Kv",
    "codec": "postcard",
    "methods": [
      {
        "name": "get",
        "streams_requests": false,
        "streams_answers": false,
        "signature": "get(key: string) -> option<attachment> | Status",
        "fingerprint": 1234567890123456789,
        "accepts": [17, 18446744073709551615],
        "messages": []
      },
      {
        "name": "scan",
        "streams_requests": false,
        "streams_answers": true,
        "signature": "scan(from: struct Key { at: u64, names: seq<string> }) -> stream<enum Item { A, B { x: tuple(u8, f64) } }> | Status",
        "fingerprint": 42,
        "accepts": [],
        "messages": []
      }
    ]
  },
  { "name": "shop.v1.Carts", "codec": "prost", "methods": [
    { "name": "add", "streams_requests": true, "streams_answers": false, "signature": "add(stream<protobuf>) -> protobuf | Status",
      "fingerprint": 7, "accepts": [], "messages": [
        { "rust_type": "shop::v1::Item", "names": ["shop.v1.Item"] }, { "rust_type": "()", "names": [] } ] }
  ] }
]
"#;

    #[test]
    fn no_file_of_a_version_panics() {
        let version: Vec<Service> = serde_json::from_str(VERSION).unwrap();
        assert_eq!(refused(&version, &version), []);
        let mut accepted = 0;
        for mutation in mutations::of(VERSION, 1).take(10_000) {
            let Ok(other) = serde_json::from_str::<Vec<Service>>(&mutation) else { continue };
            accepted += 1;
            let mut text = String::new();
            for refused in [refused(&version, &other), refused(&other, &version)] {
                section(&mut text, "", &refused).unwrap();
            }
            // A server may say that, too, and `describe` and `call` read it.
            let told = Told { services: other, messages: Messages::of(Ok(Vec::new())) };
            for service in &told.services {
                for method in &service.methods {
                    let _ =
                        Forms::of(&told, service, method).map(|forms| forms.arguments.example().to_string());
                }
            }
        }
        assert!(accepted > 500, "{accepted}");
    }
}
