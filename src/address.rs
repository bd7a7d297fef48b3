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
/// farcall://db1:7400?rdma.device=mlx5_0   a setting of [`Config`](crate::Config) for this channel
/// farcall+tls://db1:7400                  encrypted; also rdma+tls, tcp+tls. Needs the section `[tls]`, or a channel with TLS
/// ```
///
/// With a section `[tls]` every address is encrypted, with `+tls` or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    policy: Option<Policy>,
    tls: bool,
    hosts: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Address {
    /// The transport that the scheme chooses; `None` for `farcall://`, which leaves it to the configuration.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// Whether the scheme asks for encryption.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The servers, each as `host:port`; at least one.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
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
        let Some((scheme, rest)) = address.split_once("://") else {
            return Err(wrong("it has no scheme; write `farcall://HOST:PORT`, `rdma://…` or `tcp://…`"));
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
                    "the scheme is not `farcall`, `rdma` or `tcp`, or one of these with `+tls`",
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
        let host = |host: &str| match check_host(host)? {
            0 => Err("no server is at port 0"),
            _ => Ok(host.to_owned()),
        };
        let wrong_host = |why| wrong(&format!("{why}; write HOST:PORT, as in `farcall://db1:7400`"));
        let hosts = hosts.split(',').map(|h| host(h).map_err(wrong_host)).collect::<Result<_, _>>()?;
        let mut settings = Vec::new();
        for setting in query.unwrap_or("").split('&').filter(|s| !s.is_empty()) {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(wrong("a setting after `?` is not `key=value`"));
            };
            settings.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self { policy, tls, hosts, settings })
    }
}

/// Refuses what is no address to listen on.
#[cfg(feature = "tcp")]
pub(crate) fn check_listen(address: &str) -> Result<(), ConfigError> {
    let why = match check_host(address) {
        Ok(_) => return Ok(()),
        Err(_) if address.contains("://") => "a server listens for every transport, so there is no scheme",
        Err(why) => why,
    };
    Err(ConfigError::new(
        ConfigErrorKind::Address,
        format!(
            "can't listen on `{address}`: {why}; write HOST:PORT, as in `0.0.0.0:7400`, `[::]:7400` or, for a free port, \
         `127.0.0.1:0`"
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.policy {
            Some(Policy::Rdma) => "rdma",
            Some(Policy::Tcp) => "tcp",
            _ => "farcall",
        };
        let tls = if self.tls { "+tls" } else { "" };
        write!(f, "{scheme}{tls}://{}", self.hosts.join(","))?;
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

    #[cfg(feature = "tcp")]
    #[test]
    fn what_can_not_be_listened_on_is_told_the_form() {
        for address in ["127.0.0.1:0", "localhost:7400", "[::]:7400"] {
            assert_eq!(check_listen(address), Ok(()));
        }
        for (address, why) in [
            ("127.0.0.1", "no port"),
            ("farcall://0.0.0.0:7400", "no scheme"),
            ("farcall://0.0.0.0", "no scheme"),
            (":7400", "no name"),
            ("::1:7400", "brackets"),
            ("db1:http", "port"),
        ] {
            let error = check_listen(address).unwrap_err().to_string();
            assert!(error.contains(&format!("`{address}`: ")) && error.contains(why), "{address}: {error}");
            assert!(error.contains("HOST:PORT, as in `0.0.0.0:7400`"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
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
            ("farcall://a:99999", "port"),
            ("farcall://a:0", "port"),
            ("farcall://a:1?x", "key=value"),
        ] {
            let error = address.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(address), "{address}: {error}");
        }
    }
}
