//! The server that a command talks to.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use farcall::{Channel, Code, Config, Status};

use crate::output::Failure;

/// The port that `farcall serve` listens on.
pub(crate) const PORT: u16 = 7400;

/// The remedy for a host on which nothing listens.
const REFUSED: &str =
    "start `farcall serve` there, or the server that is meant, or check the port (7400 where none is given)";

/// The link that calls go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// TCP
    Tcp,
    /// RDMA
    Rdma,
    /// RDMA where both ends have it, else TCP
    Auto,
}

impl By {
    /// Returns the scheme of an address.
    fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Auto => "farcall",
        }
    }
}

/// A server's address, and how to reach it.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The server: HOST, HOST:PORT (7400 if it is left out), unix:PATH, or an address such as farcall+tls://HOST:PORT?rdma.device=mlx5_0
    host: String,
    #[command(flatten)]
    settings: ClientSettings,
}

/// A configuration for connections to servers.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClientSettings {
    #[command(flatten)]
    settings: Settings,
    /// The name that the server's certificate must have, if it is not the host's
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "NAME", help_heading = ENCRYPTION)]
    server_name: Option<String>,
}

impl ClientSettings {
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "encryption alone changes it"))]
        let mut config = self.settings.read()?;
        #[cfg(feature = "tls")]
        if self.server_name.is_some() {
            config.tls.get_or_insert_default().server_name.clone_from(&self.server_name);
        }
        Ok(config)
    }
}

/// The heading of arguments for encryption.
#[cfg(feature = "tls")]
const ENCRYPTION: &str = "Encryption";

/// A configuration, for either side.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Settings {
    /// Take settings from a TOML file: rdma, tcp, tls, limits
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: Tls,
}

/// Files of a section `[tls]`. They count before those of the configuration.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, Default, Args)]
struct Tls {
    /// Encrypt, and trust certificates that these CAs have signed (PEM)
    #[arg(long, value_name = "FILE", help_heading = ENCRYPTION)]
    ca: Option<PathBuf>,
    /// Show the other side this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key", help_heading = ENCRYPTION)]
    cert: Option<PathBuf>,
    /// The private key of `--cert` (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = ENCRYPTION)]
    key: Option<PathBuf>,
}

#[cfg(feature = "tls")]
impl Tls {
    /// Returns a configuration with these files.
    fn applied(&self, mut config: Config) -> Config {
        if self.ca.is_none() && self.cert.is_none() {
            return config;
        }
        let tls = config.tls.get_or_insert_default();
        for (given, setting) in
            [(&self.ca, &mut tls.ca), (&self.cert, &mut tls.cert), (&self.key, &mut tls.key)]
        {
            if given.is_some() {
                setting.clone_from(given);
            }
        }
        config
    }
}

impl Settings {
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        let config = self.config.as_deref().map_or_else(|| Ok(Config::default()), read)?;
        #[cfg(feature = "tls")]
        let config = self.tls.applied(config);
        Ok(config)
    }
}

/// Reads a configuration.
fn read(file: &Path) -> Result<Config, Failure> {
    let unusable = |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| unusable(&error))?;
    Config::from_toml(&text).map_err(|error| unusable(&error))
}

impl Target {
    /// Returns a server that is reached with these settings.
    pub(crate) fn of(host: &str, settings: &ClientSettings) -> Self {
        Self { host: host.to_owned(), settings: settings.clone() }
    }

    /// Returns the settings, without those in the address.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        self.settings.read()
    }

    /// Connects by a link. The address and the configuration may narrow `Auto` down.
    pub(crate) async fn connect(&self, by: By) -> Result<Channel, Failure> {
        let config = self.config()?;
        let address = self.address(by);
        if is_unix(&address) && by == By::Rdma {
            return Err(Failure::no(format!("{address}: calls by a Unix-domain socket never go by RDMA")));
        }
        Channel::builder().config(config).connect(&address).await.map_err(|status| match status.code() {
            Code::InvalidArgument => Failure::usage(status),
            _ if status.message().contains("Connection refused") => {
                Failure::no(status).with_fix(Some(REFUSED))
            }
            _ => Failure::no(status),
        })
    }

    /// Returns the address for a link.
    fn address(&self, by: By) -> String {
        if is_unix(&self.host) {
            return self.host.clone();
        }
        let (given, rest) = self.host.split_once("://").unwrap_or(("farcall", &self.host));
        let (given, tls) = given.strip_suffix("+tls").map_or((given, ""), |given| (given, "+tls"));
        let scheme = match (given, by) {
            ("tcp" | "rdma", By::Auto) => given,
            ("farcall" | "tcp" | "rdma", by) => by.scheme(),
            // The channel's error names what is wrong with it.
            (unknown, _) => unknown,
        };
        let (hosts, settings) =
            rest.split_once('?').map_or((rest, None), |(hosts, settings)| (hosts, Some(settings)));
        let hosts: Vec<_> = hosts.split(',').map(with_port).collect();
        let settings = settings.map_or_else(String::new, |settings| format!("?{settings}"));
        format!("{scheme}{tls}://{}{settings}", hosts.join(","))
    }
}

/// Whether an address is that of a Unix-domain socket.
pub(crate) fn is_unix(address: &str) -> bool {
    address.starts_with("unix:")
}

/// Returns the ends of a channel's connection: this host's address, at which the kernel's route to the server begins, and the server's.
pub(crate) async fn ends(channel: &Channel) -> farcall::Result<(IpAddr, SocketAddr)> {
    let unknown = || Status::unavailable("the server's address is not known");
    let peer = channel.connection().await?.peer().ok_or_else(unknown)?;
    let peer = match peer.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, peer.port()).into(),
        // With its scope, which a link-local address needs.
        IpAddr::V6(_) => peer,
    };
    let own = own_address(peer).map_err(|error| Status::unavailable(format!("{peer}: {error}")))?;
    Ok((own, peer))
}

/// Returns the address of this host that the kernel's route to a peer begins with.
fn own_address(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the host with a port.
fn with_port(host: &str) -> String {
    let after = host.rsplit(']').next().unwrap_or(host);
    let is_bare_v6 = host.matches(':').count() > 1 && !host.starts_with('[');
    match (is_bare_v6, after.contains(':')) {
        (true, _) => format!("[{host}]:{PORT}"),
        (false, true) => host.to_owned(),
        (false, false) => format!("{host}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        let target = |host: &str| Target::of(host, &ClientSettings::default());
        let address = |host: &str| target(host).address(By::Rdma);
        assert_eq!(address("db1"), "rdma://db1:7400");
        assert_eq!(address("db1:99"), "rdma://db1:99");
        assert_eq!(address("fd00::7"), "rdma://[fd00::7]:7400");
        assert_eq!(address("[fd00::7]:99"), "rdma://[fd00::7]:99");
        assert_eq!(address("farcall+tls://db1,db2:5?rdma.port=2"), "rdma+tls://db1:7400,db2:5?rdma.port=2");
        assert_eq!(address("tcp://db1"), "rdma://db1:7400");
        assert_eq!(address("http://db1"), "http://db1:7400");
        assert_eq!(address("unix:/run/a.sock?rdma.port=2"), "unix:/run/a.sock?rdma.port=2");
        assert_eq!(target("tcp+tls://db1").address(By::Auto), "tcp+tls://db1:7400");
    }
}
