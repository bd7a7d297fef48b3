//! A report for people: the worst first, and little if all is good.

use std::fmt::Write;

use farcall::rdma::probe::{DeviceView, Finding, PortView, Report, Severity, StepResult};

use serde_json::Value;

use super::between::{Between, Other};
use crate::output::{BAD, BOLD, FAINT, GOOD, foreign, style};

/// Returns the report as lines for a terminal, with colours.
pub(super) fn render(report: &Report, verbose: bool) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, report, verbose);
    text
}

/// Returns the reports of this machine and of another, and what is between them. A machine with a fault comes first: it is the cause.
pub(super) fn render_both(here: &Report, other: &Other, verbose: bool) -> String {
    let is_faulty = |report: &Value| worst_of(report) == Some(Severity::Fault);
    let at_here = format!("{BOLD}here{BOLD:#}\n{}\n", render(here, verbose));
    let at_there =
        other.there.as_ref().map(|there| format!("{BOLD}there{BOLD:#}\n{}\n", of_other(there, verbose)));
    let at_there = at_there.unwrap_or_default();
    let between = format!("{BOLD}between{BOLD:#}\n{}\n", of_way(other));
    match (here.worst() == Some(Severity::Fault), other.there.as_ref().is_some_and(is_faulty)) {
        (true, _) => [at_here, at_there, between].concat(),
        (false, true) => [at_there, at_here, between].concat(),
        (false, false) => [between, at_here, at_there].concat(),
    }
}

/// Returns how bad the worst finding of another machine is.
pub(super) fn worst_of(report: &Value) -> Option<Severity> {
    let findings = report["findings"].as_array().into_iter().flatten();
    let severities = findings.filter_map(|finding| match finding["severity"].as_str()? {
        "fault" => Some(Severity::Fault),
        "warning" => Some(Severity::Warning),
        _ => Some(Severity::Note),
    });
    severities.max()
}

fn of_way(other: &Other) -> String {
    let mut text = String::new();
    if other.between.iter().all(|finding| finding.severity < Severity::Warning) {
        text += &format!("{GOOD}all good:{GOOD:#} calls of all sizes go by RDMA, both ways\n");
    }
    for Between { severity, seen, means, fix, code, .. } in &other.between {
        let style = style(*severity);
        text += &format!(
            "{style}{severity}:{style:#} {}. {BOLD}Fix:{BOLD:#} {fix}\n  {FAINT}{means} [{code}]{FAINT:#}\n",
            foreign(seen)
        );
    }
    text + &format!("`auto` chooses {}\n", foreign(&other.auto))
}

/// Returns the findings of another machine, which may be of another version.
fn of_other(report: &Value, verbose: bool) -> String {
    let mut text = String::new();
    let word = |value: &Value| foreign(value.as_str().unwrap_or_default());
    if let Some(chosen) = report["chosen"].as_str() {
        text += &format!("connections can leave from {}\n", foreign(chosen));
    }
    for finding in report["findings"].as_array().into_iter().flatten() {
        let severity = word(&finding["severity"]);
        let style = match severity.as_str() {
            "fault" => style(Severity::Fault),
            "warning" => style(Severity::Warning),
            _ => style(Severity::Note),
        };
        text += &format!(
            "{style}{severity}:{style:#} {}. {BOLD}Fix:{BOLD:#} {}\n",
            word(&finding["seen"]),
            word(&finding["fix"])
        );
        if verbose || severity != "note" {
            text += &format!("  {FAINT}{} [{}]{FAINT:#}\n", word(&finding["means"]), word(&finding["code"]));
        }
    }
    text
}

fn write(text: &mut String, report: &Report, verbose: bool) -> std::fmt::Result {
    let is_good = report.worst().is_none_or(|worst| worst < Severity::Warning);
    if is_good && let Some(chosen) = &report.chosen {
        // Nothing is said about what programs did not tell.
        let as_far = if report.is_partial() { ", as far as it was looked at" } else { "" };
        writeln!(text, "{GOOD}all good:{GOOD:#} connections can leave from {chosen}{as_far}")?;
    }
    for finding in &report.findings {
        let in_full = verbose || finding.severity > Severity::Note;
        write_finding(text, finding, in_full)?;
    }
    for device in &report.devices {
        writeln!(text)?;
        write_device(text, device, verbose)?;
    }
    write_trial(text, report)
}

fn write_finding(text: &mut String, finding: &Finding, in_full: bool) -> std::fmt::Result {
    let style = style(finding.severity);
    writeln!(
        text,
        "{style}{}:{style:#} {}. {BOLD}Fix:{BOLD:#} {}",
        finding.severity, finding.seen, finding.fix
    )?;
    if in_full {
        writeln!(text, "  {FAINT}{} [{}]{FAINT:#}", finding.means, finding.code)?;
    }
    Ok(())
}

fn write_device(text: &mut String, device: &DeviceView, verbose: bool) -> std::fmt::Result {
    let mut facts = Vec::new();
    facts.extend(device.driver.as_ref().map(|driver| format!("driver {driver}")));
    facts.extend(device.firmware.as_ref().map(|firmware| format!("firmware {firmware}")));
    facts.extend(device.numa_node.map(|node| format!("NUMA node {node}")));
    if device.is_software {
        facts.push("software".to_owned());
    }
    writeln!(text, "{BOLD}{}{BOLD:#}  {}", device.name, facts.join(", "))?;
    device.ports.iter().try_for_each(|port| write_port(text, port, verbose))
}

fn write_port(text: &mut String, port: &PortView, verbose: bool) -> std::fmt::Result {
    let mut facts = vec![port.link_layer.to_owned()];
    facts.extend(port.rate.clone());
    facts.extend(port.netdev.as_ref().map(|netdev| match port.netdev_mtu {
        Some(mtu) => format!("{netdev} with MTU {mtu}"),
        None => netdev.clone(),
    }));
    facts.extend(port.switch.as_ref().map(|switch| format!("switch {switch}")));
    let state = if port.state == "ACTIVE" { GOOD } else { BAD };
    writeln!(text, "  port {} {state}{}{state:#}  {}", port.number, port.state, facts.join(", "))?;
    for address in port.addresses.iter().filter(|address| verbose || address.is_chosen) {
        let netdev = address.netdev.as_ref().map_or_else(String::new, |netdev| format!(", {netdev}"));
        let chosen = address.reason.as_ref().map_or_else(String::new, |reason| format!(", chosen: {reason}"));
        writeln!(text, "    {}  entry {}, {}{netdev}{chosen}", address.address, address.index, address.kind)?;
    }
    let others = port.addresses.iter().filter(|address| !address.is_chosen).count();
    if others > 0 && !verbose {
        writeln!(text, "    {FAINT}{others} more in its table (--verbose){FAINT:#}")?;
    }
    Ok(())
}

fn write_trial(text: &mut String, report: &Report) -> std::fmt::Result {
    if report.tried.is_empty() {
        return Ok(());
    }
    write!(text, "\n{BOLD}tried{BOLD:#}")?;
    for (index, step) in report.tried.iter().enumerate() {
        let separator = if index == 0 { "  " } else { ", " };
        match step.result {
            StepResult::Worked => write!(text, "{separator}{}", step.what)?,
            StepResult::Failed => write!(text, "{separator}{BAD}{} failed{BAD:#}", step.what)?,
            _ => write!(text, "{separator}{FAINT}{} skipped{FAINT:#}", step.what)?,
        }
    }
    writeln!(text)
}
