//! The commands of the program.

mod cluster;
mod keys;
mod load;
mod members;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use farcall::{Config, Policy};
use raft_kv::client::{Client, Options};

/// A replicated key-value store.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The transport that carries calls. It overrides the configuration.
    #[arg(long, global = true, value_enum)]
    transport: Option<Transport>,
    /// The configuration of farcall: transport, TLS, limits and all.
    #[arg(long, global = true, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// RDMA where both ends have it, else TCP.
    Auto,
    Rdma,
    Tcp,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node.
    Serve(serve::Serve),
    /// Run a cluster of several nodes on this machine.
    Cluster(cluster::Cluster),
    /// Make a cluster of nodes that run.
    Init(members::Init),
    /// Add a node to the cluster: first it catches up, then it votes.
    Add(members::Add),
    /// Remove a node from the cluster.
    Remove(members::Remove),
    /// Show what the nodes know.
    Status(members::Status),
    /// Print the value of a key.
    Get(keys::Get),
    /// Set the value of a key.
    Put(keys::Put),
    /// Remove a key.
    Delete(keys::Delete),
    /// Set the value of a key if it has a certain value.
    Cas(keys::Cas),
    /// Put values for a while, and report rate, times, and the longest time without an answer.
    Load(load::Load),
}

/// The cluster that a command is for.
#[derive(Debug, clap::Args)]
struct To {
    /// Nodes of the cluster; one that runs is enough.
    #[arg(
        long = "nodes",
        env = "RAFT_KV_NODES",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        default_value = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
    )]
    nodes: Vec<String>,
    /// How long to try, in seconds.
    #[arg(long, default_value_t = 10)]
    patience: u64,
}

impl To {
    fn client(&self, config: &Config) -> Result<Client> {
        let options = Options {
            config: config.clone(),
            patience: Duration::from_secs(self.patience),
            ..Options::default()
        };
        Client::new(self.nodes.iter().cloned(), options)
    }
}

/// Runs a command.
pub(crate) async fn run(mut arguments: Arguments) -> Result<()> {
    let mut config = arguments.read_config()?;
    if matches!(arguments.command, Command::Cluster(_)) && config.transport.is_none() {
        // On one machine RDMA has nothing to give, and most have none.
        arguments.transport = Some(Transport::Tcp);
        config.transport = Some(Policy::Tcp);
    }
    match &arguments.command {
        Command::Serve(serve) => serve.run(config).await,
        Command::Cluster(cluster) => cluster.run(&arguments, &config).await,
        Command::Init(init) => init.run(&config).await,
        Command::Add(add) => add.run(&config).await,
        Command::Remove(remove) => remove.run(&config).await,
        Command::Status(status) => status.run(&config).await,
        Command::Get(get) => get.run(&config).await,
        Command::Put(put) => put.run(&config).await,
        Command::Delete(delete) => delete.run(&config).await,
        Command::Cas(cas) => cas.run(&config).await,
        Command::Load(load) => load.run(&config).await,
    }
}

impl Arguments {
    /// Returns what is logged unless `RUST_LOG` says otherwise. The results of a command are what it prints.
    pub(crate) fn log_filter(&self) -> &'static str {
        match self.command {
            // openraft tells of each message that a node which is away does not get.
            Command::Serve(_) => "warn,raft_kv=info,openraft=error,openraft::replication=off",
            _ => "error",
        }
    }

    fn read_config(&self) -> Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
                Config::from_toml(&text).with_context(|| format!("{}", file.display()))?
            }
        };
        if let Some(transport) = self.transport {
            config.transport = Some(match transport {
                Transport::Auto => Policy::Auto,
                Transport::Rdma => Policy::Rdma,
                Transport::Tcp => Policy::Tcp,
            });
        }
        Ok(config)
    }

    /// Returns the options that a child process needs in order to have this configuration.
    fn of_config(&self) -> Vec<std::ffi::OsString> {
        let mut options = Vec::new();
        if let Some(file) = &self.config {
            options.extend(["--config".into(), file.into()]);
        }
        if let Some(transport) = self.transport.and_then(|transport| transport.to_possible_value()) {
            options.extend(["--transport".into(), transport.get_name().into()]);
        }
        options
    }
}
