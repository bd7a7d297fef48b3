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
    let (old, new) = (read(&arguments.old)?, read(&arguments.new)?);
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
    if Path::new(version).is_file() {
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
