//! The configuration of channels and servers.

mod server;
#[cfg(all(test, feature = "tcp", feature = "toml"))]
mod tests;
#[cfg(feature = "toml")]
mod toml;

use std::fmt;

use farcall_core::config::{Admission, Balance, Calls, Limits, Liveness, MethodPolicy, Policy, Retry};
use farcall_core::explain::Explanation;
#[cfg(feature = "tcp")]
use farcall_core::settings::Settings;
use farcall_core::status::Blame;
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
    /// For clients: settings of some methods, which count in place of `calls` and `retry`. `[[methods]]` in TOML.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<MethodPolicy>,
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

impl ConfigErrorKind {
    /// All kinds.
    const ALL: [Self; 5] = [Self::Address, Self::Syntax, Self::Setting, Self::Environment, Self::Tls];

    fn explanation(self) -> Explanation {
        let (name, cause, remedy) = match self {
            Self::Address => (
                "Address",
                "The text of an address can't be used: its scheme, a host or a port is wrong.",
                "Write it as the message shows: `farcall://HOST:PORT`, `tcp://HOST:PORT`, `rdma://HOST:PORT` or `unix:PATH`.",
            ),
            Self::Syntax => (
                "Syntax",
                "The configuration is not valid TOML, or has an unknown key or a value of the wrong type.",
                "Change the line that the message names.",
            ),
            Self::Setting => (
                "Setting",
                "A setting is out of range, contradicts another, or needs a feature that this build lacks.",
                "Change the setting that the message names. The message says which values it may have.",
            ),
            Self::Environment => (
                "Environment",
                "The environment variable `FARCALL_TRANSPORT` names no transport.",
                "Set it to `auto`, `tcp` or `rdma`, or unset it.",
            ),
            Self::Tls => (
                "Tls",
                "A certificate, key or name of the section `[tls]` can't be used: a file can't be read, is no PEM, or does not go with the \
                 others.",
                "Correct the setting or the file that the message names, and let this user read it.",
            ),
        };
        Explanation::new("configuration error", name, cause, remedy).blaming(Blame::Environment)
    }
}

/// Returns the explanations of all kinds of [`ConfigError`].
pub(crate) fn explanations() -> impl Iterator<Item = Explanation> {
    ConfigErrorKind::ALL.into_iter().map(ConfigErrorKind::explanation)
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
        MethodPolicy::check_all(&self.methods)?;
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
            methods: self.methods.clone(),
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
