//! Two ends of a connection that use all that the wire has.
//!
//! `cargo xtask test versions` builds this program at an earlier commit and now, and lets each call the other.
//!
//! ```text
//! farcall-versions serve ADDRESS          print the address that it listens on, and serve until the input ends
//! farcall-versions call PROGRAM ADDRESS   start another build's server, make every kind of call, check the answers
//! ```
//!
//! `FARCALL_TRANSPORT` chooses the transport.

mod calls;
mod service;

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use farcall::Server;

use service::{Everything, VersionsServer};

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address).await,
        ["call", program, address] => call(program, address).await,
        _ => Err("serve ADDRESS, or call PROGRAM ADDRESS".into()),
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::builder().add(VersionsServer::new(Everything)).bind(address).await?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", server.local_addr())?;
    out.flush()?;
    let handle = server.handle();
    let served = tokio::spawn(server.serve());
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    handle.drain(Duration::from_secs(10)).await;
    served.await?;
    Ok(())
}

async fn call(program: &str, address: &str) -> Result<(), Box<dyn Error>> {
    let mut serve = Command::new(program);
    let mut server = serve.args(["serve", address]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    let address = format!("farcall://{}", address.trim());
    let transport =
        tokio::time::timeout(PATIENCE, calls::make_all(&address)).await.map_err(|_| "calls hang")?;
    // The server drains when its input ends.
    drop(server.stdin.take());
    let ended = server.wait()?;
    writeln!(std::io::stdout(), "every call came back over {}", transport?)?;
    if ended.success() { Ok(()) } else { Err(format!("the server: {ended}").into()) }
}
