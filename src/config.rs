//! The configuration of channels and servers.

mod server;
#[cfg(feature = "toml")]
mod toml;

use std::fmt;

use farcall_core::config::{Admission, Balance, Calls, Limits, Liveness, Policy, Retry};
#[cfg(feature = "tcp")]
use farcall_core::settings::Settings;
use serde::{Deserialize, Serialize};

pub use self::server::ServerConfig;
#[cfg(feature = "tcp")]
use crate::Address;

/// Everything that can be configured, for channels and servers alike.
///
/// It can be made in code, read from TOML ([`from_toml`](Self::from_toml)) or with any other serde format. Keys that
/// are not known are errors. The section of a transport that the build lacks is ignored, with a warning in the log.
///
/// # Which transport counts
///
/// The first of these that says one decides:
///
/// | | where it is said | who says it |
/// |---|---|---|
/// | 1 | the scheme of an [`Address`](crate::Address): `rdma://` or `tcp://` | client |
/// | 2 | `FARCALL_TRANSPORT`, if the builder has `with_env()` | client, server |
/// | 3 | `transport(..)` of the builder | client, server |
/// | 4 | [`Config::transport`], set in code, TOML or an address (`?transport=tcp`) | client, server |
/// | 5 | `FARCALL_TRANSPORT`: `auto`, `rdma` or `tcp`; an empty value counts as none | client, server |
/// | 6 | otherwise [`Policy::Auto`] | |
///
/// So the environment never overrides what a program says, unless the program asks for that. Where a program says nothing, an
/// operator can switch it.
///
/// ```
/// let config = farcall::Config::from_toml(r#"
///     transport = "auto"
///
///     [limits]
///     max_message = 16_777_216
///
///     [liveness]
///     connect_ms = 1000
/// "#)?;
/// assert_eq!(config.limits.max_message, 16 << 20);
/// # Ok::<(), farcall::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The transport to use. Default `None`: `FARCALL_TRANSPORT` decides, or else [`Policy::Auto`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Policy>,
    /// Limits on what this side accepts from the other.
    pub limits: Limits,
    /// How long to wait for the other side.
    pub liveness: Liveness,
    /// How calls are made, and answered.
    pub calls: Calls,
    /// For clients: how calls are shared among several servers.
    pub balance: Balance,
    /// For clients: whether and how calls are made again.
    pub retry: Retry,
    /// For servers: how many calls they take at once.
    pub admission: Admission,
    /// For servers: how they stop, and when they are stuck.
    pub server: ServerConfig,
    /// TCP sockets.
    #[cfg(feature = "tcp")]
    pub tcp: farcall_tcp::TcpConfig,
    /// RDMA devices.
    #[cfg(feature = "rdma")]
    pub rdma: farcall_rdma::RdmaConfig,
    /// Encryption and authentication. Default: none.
    #[cfg(feature = "tls")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<farcall_tcp::tls::TlsConfig>,
    #[cfg(not(feature = "tls"))]
    #[serde(deserialize_with = "absent::tls", skip_serializing)]
    tls: absent::Section,
    /// Settings of a transport that this build lacks.
    #[cfg(not(feature = "tcp"))]
    #[serde(deserialize_with = "absent::tcp", skip_serializing)]
    tcp: absent::Section,
    #[cfg(not(feature = "rdma"))]
    #[serde(deserialize_with = "absent::rdma", skip_serializing)]
    rdma: absent::Section,
}

/// Sections of what this build lacks. One configuration serves builds with and without a transport: so its section is no error. A
/// build without TLS must not connect in the clear where encryption is configured.
#[cfg(not(all(feature = "tcp", feature = "rdma", feature = "tls")))]
mod absent {
    use serde::de::Deserializer;
    #[cfg(not(all(feature = "tcp", feature = "rdma")))]
    use serde::de::{Deserialize, IgnoredAny};

    #[derive(Clone, Debug, Default, PartialEq)]
    pub(super) struct Section;

    #[cfg(not(feature = "tcp"))]
    pub(super) fn tcp<'de, D: Deserializer<'de>>(section: D) -> Result<Section, D::Error> {
        ignore("tcp", section)
    }

    #[cfg(not(feature = "rdma"))]
    pub(super) fn rdma<'de, D: Deserializer<'de>>(section: D) -> Result<Section, D::Error> {
        ignore("rdma", section)
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn tls<'de, D: Deserializer<'de>>(_: D) -> Result<Section, D::Error> {
        Err(serde::de::Error::custom("[tls] is set, and farcall was built without the feature `tls`"))
    }

    #[cfg(not(all(feature = "tcp", feature = "rdma")))]
    fn ignore<'de, D: Deserializer<'de>>(name: &str, section: D) -> Result<Section, D::Error> {
        tracing::warn!(
            "configuration: [{name}] is ignored because farcall was built without the feature `{name}`"
        );
        IgnoredAny::deserialize(section).map(|_| Section)
    }
}

/// A configuration or an address that can't be used. Its text says what is wrong, where, and how to write it instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    message: String,
}

/// The subject of a [`ConfigError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// The text of an address: its scheme, a host, a port.
    Address,
    /// A text that is no TOML, or has a key or a type of value that does not exist.
    Syntax,
    /// A setting whose value is out of range, or contradicts another.
    Setting,
    /// The environment variable `FARCALL_TRANSPORT`.
    Environment,
    /// Certificates, keys and names: the section `[tls]` and its files.
    Tls,
}

impl ConfigError {
    pub(crate) fn new(kind: ConfigErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls(error: farcall_tcp::tls::TlsError) -> Self {
        Self::new(ConfigErrorKind::Tls, format!("configuration: {error}"))
    }

    /// Returns what the error is about.
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The environment variable that chooses the transport.
#[cfg(feature = "tcp")]
const TRANSPORT_VARIABLE: &str = "FARCALL_TRANSPORT";

impl Config {
    /// Returns the first contradiction among values that can be read; the text begins with the setting.
    #[cfg(any(feature = "tcp", feature = "toml"))]
    fn contradiction(&self) -> Result<(), String> {
        self.limits.check()?;
        self.liveness.check()?;
        self.calls.check()?;
        self.balance.check()?;
        self.retry.check()?;
        self.admission.check()?;
        self.server.check()?;
        #[cfg(feature = "tcp")]
        self.tcp.check()?;
        #[cfg(feature = "rdma")]
        self.rdma.check()?;
        Ok(())
    }
}

/// The transport that the value of [`TRANSPORT_VARIABLE`] names. An empty value counts as none: that is how a shell or a
/// manifest switches a variable off.
#[cfg(feature = "tcp")]
fn wanted_by(value: Option<std::ffi::OsString>) -> Result<Option<Policy>, ConfigError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed = value.to_string_lossy().parse();
    let wrong = |why| ConfigError::new(ConfigErrorKind::Environment, format!("{TRANSPORT_VARIABLE}: {why}"));
    parsed.map(Some).map_err(|why: String| wrong(why))
}

/// Settings that only transports need.
#[cfg(feature = "tcp")]
impl Config {
    #[cfg(not(feature = "toml"))]
    fn with_settings(self, _: &[(String, String)]) -> Result<Self, ConfigError> {
        let message = "settings in an address need the feature `toml`, which this build lacks";
        Err(ConfigError::new(ConfigErrorKind::Setting, message))
    }

    /// Returns this configuration with what an address sets, and with the transport that counts. `env_first`: the
    /// environment overrides what the configuration says.
    pub(crate) fn resolve(self, address: Option<&Address>, env_first: bool) -> Result<Self, ConfigError> {
        self.resolve_by(address, env_first, std::env::var_os(TRANSPORT_VARIABLE))
    }

    fn resolve_by(
        self,
        address: Option<&Address>,
        env_first: bool,
        variable: Option<std::ffi::OsString>,
    ) -> Result<Self, ConfigError> {
        let mut config = match address {
            Some(address) if !address.settings().is_empty() => self.with_settings(address.settings())?,
            _ => self,
        };
        let said = config.transport.filter(|_| !env_first);
        config.transport = match address.and_then(Address::policy).or(said) {
            Some(policy) => Some(policy),
            None => wanted_by(variable)?.or(config.transport),
        };
        let wrong = |why| ConfigError::new(ConfigErrorKind::Setting, format!("configuration: {why}"));
        config.contradiction().map_err(wrong)?;
        Ok(config)
    }

    /// The transport of a resolved configuration.
    pub(crate) fn policy(&self) -> Policy {
        self.transport.unwrap_or_default()
    }

    /// Returns the settings that the core needs. Under `rdma`, fails at once if this side can't use RDMA.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            limits: self.limits.clone(),
            liveness: self.liveness.clone(),
            calls: self.calls.clone(),
            balance: self.balance.clone(),
            retry: self.retry.clone(),
            admission: self.admission.clone(),
            policy: self.policy(),
            upgrade: self.upgrade(),
            #[cfg(feature = "rdma")]
            plaintext_upgrade: self.rdma.plaintext.is_some(),
            #[cfg(not(feature = "rdma"))]
            plaintext_upgrade: false,
        }
    }

    #[cfg(feature = "rdma")]
    fn upgrade(
        &self,
    ) -> Result<std::sync::Arc<dyn farcall_core::transport::Upgrade>, farcall_core::transport::Unavailable>
    {
        Ok(std::sync::Arc::new(farcall_rdma::RdmaUpgrade::new(self.rdma.clone())))
    }

    #[cfg(not(feature = "rdma"))]
    fn upgrade(
        &self,
    ) -> Result<std::sync::Arc<dyn farcall_core::transport::Upgrade>, farcall_core::transport::Unavailable>
    {
        use farcall_core::transport::{Reason, Unavailable};
        Err(Unavailable::new(Reason::UnsupportedPlatform, "built without the feature `rdma`"))
    }
}

#[cfg(all(test, feature = "tcp", feature = "toml"))]
mod tests {
    use farcall_core::class::TrafficClass;
    use farcall_core::config::Priority;

    use super::*;

    #[cfg(feature = "tcp")]
    #[test]
    fn an_empty_variable_counts_as_none() {
        let wanted = |value: &str| wanted_by(Some(value.into())).map_err(|error| error.to_string());
        assert_eq!(wanted_by(None).unwrap(), None);
        assert_eq!(wanted(""), Ok(None));
        assert_eq!(wanted("rdma"), Ok(Some(Policy::Rdma)));
        assert!(wanted("udp").unwrap_err().starts_with("FARCALL_TRANSPORT: "));
    }

    #[test]
    fn the_first_that_says_a_transport_decides() {
        use Policy::{Auto, Rdma, Tcp};
        // Scheme, `with_env`, configuration, environment; and what counts.
        let cases = [
            ("tcp", true, Some(Rdma), Some("rdma"), Tcp),
            ("rdma", false, Some(Tcp), Some("tcp"), Rdma),
            ("farcall", true, Some(Rdma), Some("tcp"), Tcp),
            ("farcall", true, Some(Rdma), None, Rdma),
            ("farcall", true, Some(Rdma), Some(""), Rdma),
            ("farcall", false, Some(Auto), Some("rdma"), Auto),
            ("farcall", false, Some(Tcp), Some("nonsense"), Tcp),
            ("farcall", false, None, Some("rdma"), Rdma),
            ("farcall", false, None, Some(""), Auto),
            ("farcall", false, None, None, Auto),
        ];
        for (scheme, with_env, transport, variable, expected) in cases {
            let address: Address = format!("{scheme}://a:1").parse().unwrap();
            let config = Config { transport, ..Config::default() };
            let resolved = config.resolve_by(Some(&address), with_env, variable.map(Into::into)).unwrap();
            assert_eq!(resolved.policy(), expected, "{scheme} {with_env} {transport:?} {variable:?}");
        }
        let wrong = Config::default().resolve_by(None, false, Some("udp".into())).unwrap_err();
        assert!(wrong.to_string().starts_with("FARCALL_TRANSPORT: "), "{wrong}");
        assert_eq!(wrong.kind(), ConfigErrorKind::Environment);
    }

    #[cfg(not(feature = "rdma"))]
    #[test]
    fn the_section_of_a_transport_that_the_build_lacks_is_ignored() {
        let config = Config::from_toml("transport = \"tcp\"\n[rdma]\ndevice = \"mlx5_0\"").unwrap();
        assert_eq!(config.transport, Some(Policy::Tcp));
        let address: Address = "farcall://a:1?limits.max_message=4096".parse().unwrap();
        assert_eq!(config.resolve(Some(&address), false).unwrap().limits.max_message, 4096);
    }

    #[test]
    fn unknown_keys_are_errors() {
        for text in ["transprot = \"tcp\"", "[limits]\nmax_mesage = 1", "[nonsense]\nx = 1"] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
        assert!(Config::from_toml("transport = \"udp\"").is_err());
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_with_their_line() {
        let line = |text: &str| Config::from_toml(text).unwrap_err().to_string();
        let kind = |text: &str| Config::from_toml(text).unwrap_err().kind();
        assert_eq!(kind("[limits]\nmax_message = 1"), ConfigErrorKind::Setting);
        assert_eq!(kind("[limits]\nmax_mesage = 1"), ConfigErrorKind::Syntax);
        assert_eq!("udp://a:1".parse::<Address>().unwrap_err().kind(), ConfigErrorKind::Address);
        let error = line("transport = \"tcp\"\n\n[limits]\nmax_message = 10_000_000\nmax_assembly = 1000");
        assert!(error.starts_with("configuration: line 5: limits.max_assembly"), "{error}");
        // The other of the two, where the first is not set.
        let error = line("[limits]\nmax_message = 4_000_000_000");
        assert!(error.starts_with("configuration: line 2: limits.max_assembly"), "{error}");
        let error = line("# how long\nliveness = { connect_ms = 0 }");
        assert!(error.starts_with("configuration: line 2: liveness.connect_ms"), "{error}");
    }

    #[test]
    fn limits_that_contradict_each_other_are_errors() {
        let error = Config::from_toml("[limits]\nmax_message = 10000000\nmax_assembly = 1000").unwrap_err();
        assert!(error.to_string().contains("limits.max_assembly"), "{error}");
        let error = Config::from_toml("[limits]\nmemory = 1_000_000").unwrap_err();
        assert!(error.to_string().contains("limits.memory must be 0 or at least 16777216 bytes"), "{error}");
        assert!(Config::from_toml("[limits]\nmemory = 0").is_ok());
    }

    #[test]
    fn a_server_that_would_stop_for_days_is_an_error() {
        let config = Config::from_toml("[server]\ndrain_delay_ms = 5000").unwrap();
        assert_eq!((config.server.drain_delay_ms, config.server.drain_grace_ms), (5000, 30_000));
        let error = Config::from_toml("[server]\ndrain_grace_ms = 90_000_000").unwrap_err().to_string();
        assert!(error.starts_with("configuration: line 2: server.drain_grace_ms must be at most"), "{error}");
    }

    #[test]
    fn methods_have_priorities() {
        let text = "[admission]\nmax_calls = 500\n[admission.methods]\n\"shop.v1.Kv/scan\" = \"bulk\"";
        let config = Config::from_toml(text).unwrap();
        assert_eq!(config.admission.methods["shop.v1.Kv/scan"], Priority::Bulk);
        let error = Config::from_toml("[admission]\nmax_calls = 2").unwrap_err().to_string();
        assert!(error.contains("line 2: admission.max_calls must be 0 or at least"), "{error}");
    }

    #[test]
    fn packets_are_marked_by_class() {
        let config = Config::from_toml("[tcp.dscp]\nurgent = 46\nbulk = 8").unwrap();
        assert_eq!(
            [TrafficClass::Normal, TrafficClass::Urgent].map(|class| config.tcp.dscp.of(class)),
            [0, 46]
        );
        let address: Address = "tcp://a:1?tcp.dscp.urgent=18".parse().unwrap();
        let config = config.resolve(Some(&address), false).unwrap();
        assert_eq!(
            [TrafficClass::Urgent, TrafficClass::Bulk].map(|class| config.tcp.dscp.of(class)),
            [18, 8]
        );
        let error = Config::from_toml("tcp.dscp.urgent = 64").unwrap_err().to_string();
        assert!(error.contains("tcp.dscp.urgent must be at most 63"), "{error}");
        #[cfg(feature = "rdma")]
        for (setting, why) in [
            ("rdma.dscp.normal = 64", "rdma.dscp.normal must be at most 63"),
            ("rdma.service_level.bulk = 16", "rdma.service_level.bulk must be at most 15"),
        ] {
            let error = Config::from_toml(setting).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn limits_that_serve_no_peer_are_an_error() {
        for (text, why) in [
            ("memory = 1_000_000", "rdma.memory must be at least 2621440 bytes"),
            ("window = 0", "rdma.window must be at least 1"),
            ("connections = 0", "rdma.connections must be at least 1"),
            ("port = 0", "rdma.port is counted from 1"),
        ] {
            let error = Config::from_toml(&format!("[rdma]\n{text}")).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Config::from_toml("[rdma]\nmemory = 2_621_440").is_ok());
    }

    #[test]
    fn an_address_goes_before_the_configuration() {
        let address: Address = "tcp://a:1?limits.max_message=4096&liveness.connect_ms=7".parse().unwrap();
        let config = Config::default().resolve(Some(&address), false).unwrap();
        assert_eq!(config.transport, Some(Policy::Tcp));
        assert_eq!(config.limits.max_message, 4096);
        assert_eq!(config.liveness.connect_ms, 7);

        let address: Address = "tcp://a:1?calls.wait_for_ready=true".parse().unwrap();
        assert!(!Config::default().calls.wait_for_ready);
        assert!(Config::default().resolve(Some(&address), false).unwrap().calls.wait_for_ready);
    }

    #[test]
    fn a_wrong_setting_in_an_address_is_named() {
        for setting in ["limits.max_mesage=4096", "nonsense=1", "limits.max_message=many", "transport.x=1"] {
            let address: Address = format!("tcp://a:1?{setting}").parse().unwrap();
            let error = Config::default().resolve(Some(&address), false).unwrap_err().to_string();
            assert!(error.contains("setting in the address") && !error.contains('\n'), "{setting}: {error}");
        }
    }
}
