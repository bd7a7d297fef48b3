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
fn every_kind_of_error_is_explained() {
    // A kind that is added to the enumeration has to be added here, too.
    let name = |kind: ConfigErrorKind| match kind {
        ConfigErrorKind::Address => "Address",
        ConfigErrorKind::Syntax => "Syntax",
        ConfigErrorKind::Setting => "Setting",
        ConfigErrorKind::Environment => "Environment",
        ConfigErrorKind::Tls => "Tls",
    };
    let explained: Vec<_> = explanations().map(|explanation| explanation.name).collect();
    use ConfigErrorKind::{Address, Environment, Setting, Syntax, Tls};
    assert_eq!(explained, [Address, Syntax, Setting, Environment, Tls].map(name));
    let all = crate::explain::explanations();
    assert_eq!(all.iter().filter(|known| known.group == "configuration error").count(), explained.len());
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
fn methods_have_settings_of_their_own() {
    let text = "[[methods]]\nname = [\"Kv\", \"Kv/scan\"]\ntimeout_ms = 5\nretry = { max_attempts = 2 }";
    let config = Config::from_toml(text).unwrap();
    assert_eq!((config.methods.len(), config.methods[0].timeout_ms), (1, Some(5)));
    assert_eq!(
        (config.methods[0].wait_for_ready, config.methods[0].retry.as_ref().unwrap().max_attempts),
        (None, 2)
    );
    assert_eq!(Config::from_toml(&::toml::to_string(&config).unwrap()).unwrap(), config);
    for (wrong, why) in [
        ("timeout_ms = 5", "methods.name must name"),
        ("name = [\"Kv/\"]", "\"Kv/\", which is neither"),
        ("name = [\"/get\"]", "neither SERVICE nor SERVICE/METHOD"),
        ("name = [\"a/b/c\"]", "neither SERVICE nor SERVICE/METHOD"),
        ("name = [\"Kv\", \"Kv\"]", "\"Kv\" twice"),
        ("name = [\"Kv\"]\n[[methods]]\nname = [\"Kv\"]", "\"Kv\" twice"),
        (
            "name = [\"Kv\"]\nretry = { max_attempts = 0 }",
            "methods.retry.max_attempts must be from 1 to 10 (for Kv)",
        ),
        ("name = [\"Kv\"]\nretry = { max_tokens = 7 }", "configuration: methods.retry.max_tokens and"),
        (
            "name = [\"Kv\"]\nretry = { max_backoff_ms = 1 }\n[retry]\ninitial_backoff_ms = 1",
            "configuration: methods.retry.max_backoff_ms must be at least methods.retry.initial_backoff_ms",
        ),
        ("name = [\"Kv\"]\ntimeout = 7", "unknown field"),
    ] {
        let error = Config::from_toml(&format!("[[methods]]\n{wrong}")).unwrap_err().to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}

#[test]
fn packets_are_marked_by_class() {
    let config = Config::from_toml("[tcp.dscp]\nurgent = 46\nbulk = 8").unwrap();
    assert_eq!([TrafficClass::Normal, TrafficClass::Urgent].map(|class| config.tcp.dscp.of(class)), [0, 46]);
    let address: Address = "tcp://a:1?tcp.dscp.urgent=18".parse().unwrap();
    let config = config.resolve(Some(&address), false).unwrap();
    assert_eq!([TrafficClass::Urgent, TrafficClass::Bulk].map(|class| config.tcp.dscp.of(class)), [18, 8]);
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
