//! Results as CSV (RFC 4180), a line for each measurement.

use super::Results;

/// The columns, each with its value. Times are in microseconds.
pub(super) fn render(results: &Results) -> String {
    let mut text = String::from(
        "transport,pattern,size,in_flight,connections,rate,seconds,calls,errors,not_begun,calls_per_second,megabytes_per_second,mean,p50,p90,p99,\
         p999,max,client_cpu,server_cpu,client,server,version,client_threads,server_threads,date\r\n",
    );
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
            results.client.version.clone(),
            results.client.threads.to_string(),
            results.server.threads.to_string(),
            results.date.clone(),
        ];
        text.push_str(&fields.join(","));
        text.push_str("\r\n");
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
