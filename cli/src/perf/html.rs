//! Results as a page that needs no other file: the table, and plots as SVG.

use std::fmt::Write;

use super::Results;
use super::case::{Outcome, bytes};

/// Colours of curves, which people with any kind of colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a00"];

pub(super) fn render(results: &Results) -> String {
    let mut page = String::from(HEAD);
    // Writing to a string does not fail.
    let _ = write(&mut page, results);
    page.push_str("</body></html>\n");
    page
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>farcall perf</title>
<meta name=\"viewport\" content=\"width=device-width\">
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:86rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th{border-bottom:2px solid #888;white-space:normal;vertical-align:bottom}td.name,th.name{text-align:left}
dl{display:grid;grid-template-columns:auto 1fr;gap:0 1rem;color:#555}dd{margin:0}
.plot{overflow-x:auto}svg{width:100%;min-width:40rem;height:auto;font:12px system-ui,sans-serif}.missing{color:#a00}
</style></head><body>
<h1>farcall perf</h1>
";

fn write(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "<dl><dt>date</dt><dd>{}</dd><dt>client</dt><dd>{}</dd><dt></dt><dd>{}</dd><dt>server</dt><dd>{}</dd><dt></dt><dd>{}</dd></dl>",
        escaped(&results.date),
        escaped(&results.client.line()),
        escaped(&results.client.command),
        escaped(&results.server.line()),
        escaped(&results.server.command)
    )?;
    for missing in &results.missing {
        writeln!(page, "<p class=\"missing\">not measured: {}</p>", escaped(missing))?;
    }
    if results.outcomes.is_empty() {
        return Ok(());
    }
    for outcome in results.outcomes.iter().filter(|outcome| outcome.not_begun > 0) {
        writeln!(
            page,
            "<p class=\"missing\">{}: {} calls not begun when the time was over, so the rate is too high, and latencies are of the calls that were \
             made</p>",
            escaped(&outcome.case.name()),
            outcome.not_begun
        )?;
    }
    write_table(page, &results.outcomes)?;
    writeln!(page, "<h2>Latency: the share of calls that took no longer</h2>")?;
    write_distributions(page, &results.outcomes)?;
    let p50s: Vec<_> = results.outcomes.iter().map(|outcome| outcome.latency.p50).collect();
    write_bars(page, "Median latency", "us", &results.outcomes, &p50s)?;
    let rates: Vec<_> = results.outcomes.iter().map(|outcome| outcome.calls_per_second).collect();
    write_bars(page, "Calls a second", "", &results.outcomes, &rates)?;
    let moved: Vec<_> = results.outcomes.iter().map(|outcome| outcome.megabytes_per_second).collect();
    write_bars(page, "Payload, both directions together", "MB/s", &results.outcomes, &moved)
}

fn write_table(page: &mut String, outcomes: &[Outcome]) -> std::fmt::Result {
    page.push_str(
        "<h2>Measurements</h2><table><tr><th class=\"name\">link</th><th class=\"name\">pattern</th><th>size</th><th>in flight</th>\
         <th>connections</th><th>rate</th><th>calls/s</th><th>MB/s</th><th>p50 us</th><th>p90 us</th><th>p99 us</th><th>p99.9 us</th>\
         <th>max us</th><th>client CPU us</th><th>server CPU us</th><th>errors</th></tr>\n",
    );
    for outcome in outcomes {
        let (case, latency) = (&outcome.case, &outcome.latency);
        let cpu = |micros: Option<f64>| {
            micros.map_or_else(|| "&ndash;".to_owned(), |micros| format!("{micros:.1}"))
        };
        let rate = case.rate.map_or_else(|| "most".to_owned(), |rate| rate.to_string());
        writeln!(
            page,
            "<tr title=\"{}\"><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{rate}</td>\
             <td>{:.0}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>",
            escaped(&outcome.transport),
            case.by,
            case.pattern,
            bytes(case.size),
            case.in_flight,
            case.connections,
            outcome.calls_per_second,
            outcome.megabytes_per_second,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.max,
            cpu(outcome.client_cpu),
            cpu(outcome.server_cpu),
            outcome.errors,
        )?;
    }
    page.push_str("</table>\n");
    Ok(())
}

/// The drawing's size and margins, in its own units.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 40.0;
const BOTTOM: f64 = 40.0;

/// Draws a curve for each measurement: latency upwards, and to the right the share of calls, so that each further nine takes as much room.
fn write_distributions(page: &mut String, outcomes: &[Outcome]) -> std::fmt::Result {
    const NINES: f64 = 5.0;
    let legend = 18.0 * outcomes.len() as f64;
    let all = || {
        outcomes.iter().flat_map(|outcome| &outcome.latency.distribution).map(|(_, micros)| micros.max(0.1))
    };
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.1, f64::max));
    let (low, high) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let x = |percent: f64| LEFT + (nines(percent) / NINES).min(1.0) * (WIDTH - LEFT - RIGHT);
    let y = |micros: f64| 20.0 + (high - micros.max(0.1).log10()) / (high - low) * (HEIGHT - 20.0 - BOTTOM);
    writeln!(
        page,
        "<div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"latency by percentile\">",
        HEIGHT + legend
    )?;
    for (percent, label) in [
        (0.0, "0"),
        (90.0, "90 %"),
        (99.0, "99 %"),
        (99.9, "99.9 %"),
        (99.99, "99.99 %"),
        (99.999, "99.999 %"),
    ] {
        let at = x(percent);
        writeln!(page, "<path d=\"M{at:.1} 20V{:.1}\" stroke=\"#ddd\"/>", HEIGHT - BOTTOM)?;
        writeln!(
            page,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - BOTTOM + 18.0
        )?;
    }
    let mut decade = low;
    while decade <= high {
        let at = y(10f64.powf(decade));
        writeln!(page, "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/>", WIDTH - RIGHT)?;
        let label = micros(10f64.powf(decade));
        writeln!(
            page,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        )?;
        decade += 1.0;
    }
    for (index, outcome) in outcomes.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // Curves of a second round of colours are dashed.
        let dashes = if index < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let points = outcome
            .latency
            .distribution
            .iter()
            .map(|(percent, micros)| format!("{:.1},{:.1}", x(*percent), y(*micros)));
        let points: Vec<_> = points.collect();
        writeln!(
            page,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes} points=\"{}\"/>",
            points.join(" ")
        )?;
        let line = HEIGHT + 18.0 * index as f64 + 4.0;
        writeln!(page, "<path d=\"M{LEFT} {line:.1}h24\" stroke=\"{colour}\" stroke-width=\"3\"{dashes}/>")?;
        writeln!(
            page,
            "<text x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT + 32.0,
            line + 4.0,
            escaped(&outcome.case.name())
        )?;
    }
    page.push_str("</svg></div>\n");
    Ok(())
}

/// Returns how many nines a share has: 0 for 0 %, 1 for 90 %, 2 for 99 %.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).max(1e-9).log10()
}

fn micros(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} s", v / 1e6),
        v if v >= 1e3 => format!("{} ms", v / 1e3),
        v => format!("{v} us"),
    }
}

/// Draws a bar for each measurement.
fn write_bars(
    page: &mut String,
    title: &str,
    unit: &str,
    outcomes: &[Outcome],
    values: &[f64],
) -> std::fmt::Result {
    const NAMES: f64 = 320.0;
    const ROW: f64 = 24.0;
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    writeln!(page, "<h2>{}</h2>", escaped(title))?;
    writeln!(
        page,
        "<div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">",
        ROW * values.len() as f64,
        escaped(title)
    )?;
    for (index, (outcome, value)) in outcomes.iter().zip(values).enumerate() {
        let (top, length) = (ROW * index as f64, value / most * (WIDTH - NAMES - 110.0));
        let colour = COLOURS[index % COLOURS.len()];
        let decimals = usize::from(*value < 1000.0);
        writeln!(
            page,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            NAMES - 8.0,
            top + 16.0,
            escaped(&outcome.case.name())
        )?;
        writeln!(
            page,
            "<rect x=\"{NAMES}\" y=\"{}\" width=\"{length:.1}\" height=\"16\" fill=\"{colour}\"/>",
            top + 4.0
        )?;
        writeln!(
            page,
            "<text x=\"{:.1}\" y=\"{}\">{value:.decimals$} {unit}</text>",
            NAMES + length + 6.0,
            top + 16.0
        )?;
    }
    page.push_str("</svg></div>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_machines_are_text() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }

    #[test]
    fn each_nine_takes_as_much_room() {
        assert!((nines(90.0) - 1.0).abs() < 1e-9 && (nines(99.9) - 3.0).abs() < 1e-9);
        assert!(nines(100.0).is_finite());
    }
}
