//! `farcall serve`: the other side of `farcall perf` and `farcall doctor HOST`.

use clap::Args;
use farcall::health::Reporter;
use farcall::{Server, ServerBuilder};

use crate::doctor::service::{DoctorServer, Looking};
use crate::output::{self, Failure};
use crate::perf::service::{PerfServer, Service};
use crate::target::{PORT, Settings, is_unix};

/// Serve what `farcall perf` measures and `farcall doctor HOST` looks at.
///
/// Everybody who reaches the port may make this machine work, unless `--ca` says whose certificates count. Run it for as long as you
/// measure.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall serve                              on all IPv4 addresses, port 7400
  farcall serve --listen 127.0.0.1:0         on a port that the system chooses
  farcall serve --listen unix:/tmp/a.sock    on a Unix-domain socket
  farcall serve --config service.toml        with the settings of a service")]
pub(crate) struct Arguments {
    /// The address to listen on, HOST:PORT or unix:PATH. Several addresses: give it several times
    #[arg(long, value_name = "ADDRESS", default_values_t = [format!("0.0.0.0:{PORT}")])]
    listen: Vec<String>,
    /// Threads that serve. One, as is the default, is what most others measure with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Serve `farcall top`, too. Counting costs each call some hundred nanoseconds
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let config = arguments.settings.read()?;
    crate::runtime(arguments.threads)?.block_on(async {
        let health = Reporter::new();
        let doctor = DoctorServer::new(Looking::new(config.rdma.clone()));
        let perf = PerfServer::new(Service::new(arguments.threads, config.clone()));
        let server = Server::builder().add(perf).add(doctor).with_health(&health);
        let server = server.with_reflection().config(config);
        let server = if arguments.admin { server.with_admin() } else { server };
        let server = arguments.listen.iter().fold(server, ServerBuilder::listen);
        let server = server.build().await.map_err(Failure::no)?;
        let sockets = arguments.listen.iter().filter(|address| is_unix(address)).cloned();
        let all = server.local_addrs().into_iter().map(|address| address.to_string()).chain(sockets);
        output::print(&all.map(|address| format!("listening on {address}\n")).collect::<String>())?;
        server.serve_until_stopped().await.map_err(Failure::no)?;
        Ok(0)
    })
}
