//! `farcall health`: whether a server's services do their work.

use std::time::Duration;

use clap::Args;
use farcall::health::{HealthClient, Serving};

use crate::output::{self, BAD, FAINT, Failure, GOOD, foreign};
use crate::target::{By, Target};

/// Ask whether a server's services do their work.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall health db1                   the server, and all services that it knows of
  farcall health db1 shop.v1.Kv        one service, for scripts and probes
  farcall health db1 --watch           each change of the server as a whole

Exit status: 0 serving, 1 not serving or not known, 64 wrong arguments

The server needs `Server::builder().with_health(&reporter)`, with a `farcall::health::Reporter`.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The service's full name. Without it all are asked for
    service: Option<String>,
    /// Print each change of one service, or of the server as a whole, until it is stopped
    #[arg(long)]
    watch: bool,
}

/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    crate::runtime(1)?.block_on(async {
        let client = HealthClient::new(&arguments.target.connect(By::Auto).await?);
        let service = arguments.service.clone().unwrap_or_default();
        if arguments.watch {
            return watch(&client, &service).await;
        }
        let states = match &arguments.service {
            Some(name) => vec![(name.clone(), client.check(name).timeout(PATIENCE).await.map_err(refused)?)],
            None => client.list().timeout(PATIENCE).await.map_err(refused)?,
        };
        output::print(&states.iter().map(|(name, state)| line(name, *state)).collect::<String>())?;
        let is_good = states.iter().all(|(_, state)| *state == Serving::Serving);
        Ok(if is_good && !states.is_empty() { 0 } else { 1 })
    })
}

async fn watch(client: &HealthClient, service: &str) -> Result<u8, Failure> {
    let mut states = client.watch(service).await.map_err(refused)?;
    let mut last = Serving::Unknown;
    while let Some(state) = states.message().await.map_err(refused)? {
        last = state;
        output::print(&line(service, state))?;
    }
    Ok(if last == Serving::Serving { 0 } else { 1 })
}

fn line(name: &str, state: Serving) -> String {
    let name = if name.is_empty() { "the server".to_owned() } else { foreign(name) };
    match state {
        Serving::Serving => format!("{GOOD}serving{GOOD:#}      {name}\n"),
        Serving::NotServing => format!("{BAD}not serving{BAD:#}  {name}\n"),
        Serving::Unknown => format!("{FAINT}unknown{FAINT:#}      {name}\n"),
    }
}

fn refused(status: farcall::Status) -> Failure {
    Failure::of_call(&status, "with_health(&farcall::health::Reporter::new())")
}
