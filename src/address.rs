//! Addresses of servers.

use std::fmt;
use std::str::FromStr;

use farcall_core::config::Policy;

use crate::{ConfigError, ConfigErrorKind};

/// Where a server is, and how to get there.
///
/// ```text
/// farcall://db1:7400                      RDMA where both ends have it, else TCP (or as configured)
/// rdma://db1:7400                         RDMA, or an error
/// tcp://db1:7400                          TCP
/// farcall://db1:7400,db2:7400             several servers that are equivalent, tried in order
/// farcall://[fd00::7]:7400                an IPv6 address
/// farcall://_rpc._tcp.example.com         the servers of a service, by SRV records. Needs the feature `dns`
/// farcall://db1:7400?rdma.device=mlx5_0   a setting of [`Config`](crate::Config) for this channel
/// farcall+tls://db1:7400                  encrypted; also rdma+tls, tcp+tls. Needs the section `[tls]`, or a channel with TLS
/// unix:/run/app.sock                      a Unix-domain socket; also unix:///run/app.sock
/// ```
///
/// With a section `[tls]` every address is encrypted, with `+tls` or without, except Unix-domain sockets. Calls by these never go
/// by RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    policy: Option<Policy>,
    tls: bool,
    hosts: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Address {
    /// The transport that the scheme chooses; `None` for `farcall://`, which leaves it to the configuration. A Unix-domain socket
    /// counts as TCP.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// Whether the scheme asks for encryption.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The servers, each as `host:port`, or a service as `_SERVICE._PROTO.NAME`; at least one. A Unix-domain socket is a single one, as
    /// `unix:PATH`.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Whether the server is at a Unix-domain socket.
    #[cfg(feature = "tcp")]
    pub(crate) fn is_unix(&self) -> bool {
        unix_path(&self.hosts[0]).is_some()
    }

    /// Whether a host is a service, which stands for several servers.
    #[cfg(feature = "tcp")]
    pub(crate) fn has_service(&self) -> bool {
        self.hosts.iter().any(|host| is_service(host))
    }

    /// The settings after `?`, as written.
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }
}

impl FromStr for Address {
    type Err = ConfigError;

    fn from_str(address: &str) -> Result<Self, ConfigError> {
        let wrong =
            |why: &str| ConfigError::new(ConfigErrorKind::Address, format!("address `{address}`: {why}"));
        if let Some(path) = unix_path(address) {
            let (path, query) =
                path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
            if path.is_empty() {
                return Err(wrong(UNIX_FORM));
            }
            let settings = settings(query).map_err(wrong)?;
            let hosts = vec![format!("unix:{path}")];
            return Ok(Self { policy: Some(Policy::Tcp), tls: false, hosts, settings });
        }
        let Some((scheme, rest)) = address.split_once("://") else {
            return Err(wrong(
                "it has no scheme; write `farcall://HOST:PORT`, `rdma://…`, `tcp://…` or `unix:PATH`",
            ));
        };
        let (transport, tls) = match scheme.strip_suffix("+tls") {
            Some(transport) => (transport, true),
            None => (scheme, false),
        };
        let policy = match transport {
            "farcall" => None,
            "rdma" => Some(Policy::Rdma),
            "tcp" => Some(Policy::Tcp),
            _ => {
                return Err(wrong(
                    "the scheme is not `farcall`, `rdma` or `tcp`, or one of these with `+tls`, nor `unix`",
                ));
            }
        };
        if tls && cfg!(not(feature = "tls")) {
            return Err(wrong("farcall was built without the feature `tls`"));
        }
        let (hosts, query) = match rest.split_once('?') {
            Some((hosts, query)) => (hosts, Some(query)),
            None => (rest, None),
        };
        let wrong_host = |why| wrong(&format!("{why}; write HOST:PORT, as in `farcall://db1:7400`"));
        let host = |host: &str| {
            if is_service(host) {
                check_service(host).map_err(wrong)?;
            } else if check_host(host).map_err(wrong_host)? == 0 {
                return Err(wrong_host("no server is at port 0"));
            }
            Ok(host.to_owned())
        };
        let hosts = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        let settings = settings(query).map_err(wrong)?;
        Ok(Self { policy, tls, hosts, settings })
    }
}

const UNIX_FORM: &str = "a Unix-domain socket has no path; write `unix:PATH`, as in `unix:/run/app.sock`";

/// Returns what follows `unix:` or `unix://`.
fn unix_path(address: &str) -> Option<&str> {
    let path = address.strip_prefix("unix:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

/// Returns the settings after `?`.
fn settings(query: Option<&str>) -> Result<Vec<(String, String)>, &'static str> {
    let pair = |setting: &str| {
        let (key, value) = setting.split_once('=').ok_or("a setting after `?` is not `key=value`")?;
        Ok((key.to_owned(), value.to_owned()))
    };
    query.unwrap_or("").split('&').filter(|setting| !setting.is_empty()).map(pair).collect()
}

/// Refuses what is no address to listen on.
#[cfg(feature = "tcp")]
pub(crate) fn check_listen(address: &str) -> Result<(), ConfigError> {
    let checked = match unix_path(address) {
        Some(path) if path.is_empty() || path.starts_with('?') => Err(UNIX_FORM),
        Some(_) => Ok(()),
        None => check_host(address).map(drop),
    };
    let why = match checked {
        Ok(()) => return Ok(()),
        Err(_) if address.contains("://") => "a server listens for every transport, so there is no scheme",
        Err(why) => why,
    };
    Err(ConfigError::new(
        ConfigErrorKind::Address,
        format!(
            "can't listen on `{address}`: {why}; write HOST:PORT, as in `0.0.0.0:7400`, `[::]:7400` or, for a free port, \
         `127.0.0.1:0`; or `unix:PATH`"
        ),
    ))
}

/// The port of `HOST:PORT`.
fn check_host(host: &str) -> Result<u16, &'static str> {
    let Some((name, port)) = host.rsplit_once(':') else {
        return Err("a host has no port");
    };
    if name.is_empty() {
        return Err("a host has no name");
    }
    if name.contains(':') && !(name.starts_with('[') && name.ends_with(']')) {
        return Err("an IPv6 address stands in brackets, as in `[fd00::7]:7400`");
    }
    port.parse().map_err(|_| "a port is not a number up to 65535")
}

/// Whether a host is a service, as in `_rpc._tcp.example.com`, which has SRV records.
pub(crate) fn is_service(host: &str) -> bool {
    host.starts_with('_') && !host.contains(':')
}

/// Returns the domain in `_SERVICE._PROTO.NAME`, or the whole name if it has no such labels.
#[cfg(feature = "tls")]
pub(crate) fn domain(name: &str) -> &str {
    let mut domain = name;
    while domain.starts_with('_')
        && let Some((_, rest)) = domain.split_once('.')
    {
        domain = rest;
    }
    domain
}

#[cfg(feature = "dns")]
fn check_service(service: &str) -> Result<(), &'static str> {
    match service.split('.').collect::<Vec<_>>()[..] {
        [_, proto, name, ..] if proto.starts_with('_') && !name.is_empty() && !name.starts_with('_') => {
            Ok(())
        }
        _ => Err("a service is written `_SERVICE._PROTO.NAME`, as in `farcall://_rpc._tcp.example.com`"),
    }
}

#[cfg(not(feature = "dns"))]
fn check_service(_: &str) -> Result<(), &'static str> {
    Err(
        "a host without a port that begins with `_` is a service, which is looked up by DNS (SRV records); farcall was built without the \
         feature `dns`",
    )
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.policy {
            Some(Policy::Rdma) => "rdma",
            Some(Policy::Tcp) => "tcp",
            _ => "farcall",
        };
        let tls = if self.tls { "+tls" } else { "" };
        match &self.hosts[..] {
            [unix] if unix_path(unix).is_some() => f.write_str(unix)?,
            hosts => write!(f, "{scheme}{tls}://{}", hosts.join(","))?,
        }
        for (i, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_what_they_mean() {
        let a: Address = "farcall://a:1,[fd00::7]:2?rdma.device=rxe0&liveness.connect_ms=5".parse().unwrap();
        assert_eq!(a.policy(), None);
        assert_eq!(a.hosts(), ["a:1", "[fd00::7]:2"]);
        assert_eq!(a.settings()[0], ("rdma.device".into(), "rxe0".into()));
        assert_eq!(a.to_string().parse::<Address>().unwrap(), a);
        assert_eq!("rdma://a:1".parse::<Address>().unwrap().policy(), Some(Policy::Rdma));
        assert_eq!("tcp://a:1".parse::<Address>().unwrap().policy(), Some(Policy::Tcp));
        for text in ["unix:/run/a,b.sock?liveness.connect_ms=5", "unix:///run/a,b.sock?liveness.connect_ms=5"]
        {
            let a: Address = text.parse().unwrap();
            assert_eq!((a.policy(), a.hosts()), (Some(Policy::Tcp), &["unix:/run/a,b.sock".to_owned()][..]));
            assert_eq!(a.settings()[0], ("liveness.connect_ms".into(), "5".into()));
            assert_eq!(a.to_string(), "unix:/run/a,b.sock?liveness.connect_ms=5");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_scheme_can_ask_for_encryption() {
        for (text, policy) in
            [("farcall+tls", None), ("rdma+tls", Some(Policy::Rdma)), ("tcp+tls", Some(Policy::Tcp))]
        {
            let address: Address = format!("{text}://a:1").parse().unwrap();
            assert!(address.is_tls() && address.policy() == policy);
            assert_eq!(address.to_string(), format!("{text}://a:1"));
        }
        assert!(!"tcp://a:1".parse::<Address>().unwrap().is_tls());
    }

    #[cfg(feature = "dns")]
    #[test]
    fn a_service_has_no_port() {
        let text = "farcall://_rpc._tcp.example.com,a:1?balance.policy=by-key";
        let address: Address = text.parse().unwrap();
        assert!(address.has_service());
        assert_eq!(address.hosts(), ["_rpc._tcp.example.com", "a:1"]);
        assert_eq!(address.to_string(), text);
        assert!(!"tcp://_rpc:1".parse::<Address>().unwrap().has_service());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_service_is_of_a_domain() {
        for (name, expected) in
            [("_rpc._tcp.example.com", "example.com"), ("example.com", "example.com"), ("_rpc", "_rpc")]
        {
            assert_eq!(domain(name), expected);
        }
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn a_wrong_address_to_listen_on_is_told_the_form() {
        for address in ["127.0.0.1:0", "localhost:7400", "[::]:7400", "unix:/run/a", "unix://a?mode=660"] {
            assert_eq!(check_listen(address), Ok(()));
        }
        for (address, why) in [
            ("127.0.0.1", "no port"),
            ("farcall://0.0.0.0:7400", "no scheme"),
            ("farcall://0.0.0.0", "no scheme"),
            (":7400", "no name"),
            ("::1:7400", "brackets"),
            ("db1:http", "port"),
            ("unix:", "no path"),
            ("unix:?mode=660", "no path"),
        ] {
            let error = check_listen(address).unwrap_err().to_string();
            assert!(error.contains(&format!("`{address}`: ")) && error.contains(why), "{address}: {error}");
            assert!(error.contains("HOST:PORT, as in `0.0.0.0:7400`"), "{error}");
        }
    }

    #[test]
    fn an_error_says_its_cause() {
        for (address, why) in [
            ("db1:7400", "no scheme"),
            ("http://db1:7400", "not `farcall`"),
            ("http+tls://db1:7400", "not `farcall`"),
            #[cfg(not(feature = "tls"))]
            ("farcall+tls://db1:7400", "feature `tls`"),
            ("farcall://db1", "no port"),
            ("farcall://:7400", "no name"),
            ("farcall://fd00::7:7400", "brackets"),
            ("farcall://a:1,,b:2", "no port"),
            ("farcall://_rpc._tcp.a:x", "port"),
            #[cfg(not(feature = "dns"))]
            ("farcall://_rpc._tcp.a", "feature `dns`"),
            #[cfg(feature = "dns")]
            ("farcall://_rpc", "`_SERVICE._PROTO.NAME`"),
            #[cfg(feature = "dns")]
            ("farcall://_rpc.a", "`_SERVICE._PROTO.NAME`"),
            #[cfg(feature = "dns")]
            ("farcall://_rpc._tcp.", "`_SERVICE._PROTO.NAME`"),
            ("farcall://a:99999", "port"),
            ("farcall://a:0", "port"),
            ("farcall://a:1?x", "key=value"),
            ("unix://", "no path"),
            ("unix:/a?x", "key=value"),
            ("rdma+unix:///a", "nor `unix`"),
        ] {
            let error = address.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(address), "{address}: {error}");
        }
    }
}
