//! Results as CSV (RFC 4180), a line for each measurement.

use std::collections::BTreeMap;

use super::Results;
use super::environment::Environment;

/// Returns a header and a line for each measurement. Times are in microseconds. The last columns describe both environments, and
/// repeat in each line.
pub(super) fn render(results: &Results) -> String {
    let mut text = String::from(
        "transport,pattern,size,in_flight,connections,rate,seconds,calls,errors,not_begun,calls_per_second,megabytes_per_second,mean,p50,p90,p99,\
         p999,max,client_cpu,server_cpu,client,server,client_threads,server_threads,date",
    );
    let sides = [("client", &results.client), ("server", &results.server)];
    let facts = sides.iter().flat_map(|(side, environment)| facts(side, environment));
    let (names, facts): (Vec<_>, Vec<_>) = facts.unzip();
    let facts = facts.join(",");
    text.push_str(&format!(",{}\r\n", names.join(",")));
    for outcome in &results.outcomes {
        let (case, latency) = (&outcome.case, &outcome.latency);
        let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let fields = [
            case.by.to_string(),
            case.pattern.to_string(),
            case.size.to_string(),
            case.in_flight.to_string(),
            case.connections.to_string(),
            case.rate.map_or_else(String::new, |rate| rate.to_string()),
            outcome.seconds.to_string(),
            outcome.calls.to_string(),
            outcome.errors.to_string(),
            outcome.not_begun.to_string(),
            outcome.calls_per_second.to_string(),
            outcome.megabytes_per_second.to_string(),
            latency.mean.to_string(),
            latency.p50.to_string(),
            latency.p90.to_string(),
            latency.p99.to_string(),
            latency.p999.to_string(),
            latency.max.to_string(),
            optional(outcome.client_cpu),
            optional(outcome.server_cpu),
            quoted(&results.client.host),
            quoted(&results.server.host),
            results.client.threads.to_string(),
            results.server.threads.to_string(),
            results.date.clone(),
        ];
        text.push_str(&format!("{},{facts}\r\n", fields.join(",")));
    }
    text
}

/// Returns the columns about one side that `render` does not list itself, each with its value.
fn facts(side: &str, environment: &Environment) -> [(String, String); 9] {
    // All fields by name, so that a new one is not forgotten.
    let Environment {
        host: _,
        kernel,
        processor,
        cpus,
        version,
        devices,
        threads: _,
        governor,
        mtu,
        configuration,
        command,
    } = environment;
    [
        ("kernel", quoted(kernel)),
        ("processor", quoted(processor)),
        ("cpus", cpus.to_string()),
        ("version", quoted(version)),
        ("devices", quoted(&devices.join("; "))),
        ("governor", quoted(governor)),
        ("mtu", quoted(&pairs(mtu))),
        ("configuration", quoted(&pairs(configuration))),
        ("command", quoted(command)),
    ]
    .map(|(name, value)| (format!("{side}_{name}"), value))
}

fn pairs(map: &BTreeMap<String, impl std::fmt::Display>) -> String {
    map.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join("; ")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
