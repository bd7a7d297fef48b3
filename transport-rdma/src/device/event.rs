//! The meaning of asynchronous events, whose fault they are, and what to do about them.

use std::fmt;

use farcall_core::explain::{Explanation, sentence};

use super::{Blame, DeviceEvent};

impl DeviceEvent {
    /// Whose fault it is.
    pub fn blame(self) -> Blame {
        match self {
            Self::QpFailed { .. }
            | Self::DeviceFailed
            | Self::PortDown { .. }
            | Self::PortUp { .. }
            | Self::PortChanged { .. } => Blame::Environment,
            // Queues are as large as all that can complete on them.
            Self::QueueFailed { .. } => Blame::Bug,
            Self::Other { code } => other(code).1,
        }
    }

    /// Returns what to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::QpFailed { .. } => {
                "nothing, if it is rare: calls go on over TCP, and a new queue pair follows; else look at the kernel's log"
            }
            Self::QueueFailed { .. } => "report this as a bug, with the kernel's log",
            Self::DeviceFailed => {
                "calls go on over TCP, and the device is opened again; see the kernel's log for why it was reset or removed"
            }
            Self::PortDown { .. } => {
                "check cable, switch and `ip link`; calls go on over TCP unless it comes back within a second"
            }
            Self::PortUp { .. } => "nothing to do",
            Self::PortChanged { .. } => {
                "nothing to do: links whose address is gone go on over TCP, and new ones use the new address"
            }
            Self::Other { code } => other(code).2,
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QpFailed { qp_num } => write!(f, "queue pair {qp_num} has failed"),
            Self::QueueFailed { queue_id } => write!(f, "queue {queue_id} has overflowed or failed"),
            Self::DeviceFailed => f.write_str("the device has failed or was removed"),
            Self::PortDown { port } => write!(f, "port {port} is down"),
            Self::PortUp { port } => write!(f, "port {port} is up"),
            Self::PortChanged { port } => {
                write!(f, "port {port} has changed its addresses, partitions or subnet manager")
            }
            Self::Other { code } => write!(f, "{} (event {code})", other(*code).0),
        }
    }
}

/// Returns the explanations of all events.
pub(super) fn explanations() -> impl Iterator<Item = Explanation> {
    let named = [
        ("qp-failed", DeviceEvent::QpFailed { qp_num: 0 }, "A queue pair has failed."),
        ("queue-failed", DeviceEvent::QueueFailed { queue_id: 0 }, "A queue has overflowed or failed."),
        ("device-failed", DeviceEvent::DeviceFailed, "The device has failed or was removed."),
        ("port-lost", DeviceEvent::PortDown { port: 0 }, "A port is down."),
        ("port-up", DeviceEvent::PortUp { port: 0 }, "A port is up."),
        (
            "port-changed",
            DeviceEvent::PortChanged { port: 0 },
            "A port has changed its addresses, partitions or subnet manager.",
        ),
    ];
    named.into_iter().map(|(name, event, cause)| {
        let explanation = Explanation::new("device event", name, cause, &sentence(event.remedy()));
        explanation.blaming(event.blame().into())
    })
}

const HARMLESS: &str = "nothing to do";

/// Meaning, blame and remedy of an event that nothing follows from, by its number in `enum ibv_event_type`.
fn other(code: u32) -> (&'static str, Blame, &'static str) {
    use Blame::{Bug, Environment};
    match code {
        4 => ("data came before the connection was complete", Environment, HARMLESS),
        5 => ("a send queue is drained", Environment, HARMLESS),
        6 => ("a path has migrated", Environment, HARMLESS),
        7 => ("a path could not migrate", Environment, HARMLESS),
        15 => ("a receive queue is below its limit, which is not set here", Bug, "report this as a bug"),
        16 => ("a queue pair takes no more receives", Environment, HARMLESS),
        19 => ("a work queue has failed, which is not used here", Bug, "report this as a bug"),
        _ => ("an event that this program does not know", Environment, "see the device's documentation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_says_what_happened_and_what_to_do() {
        let events = [
            DeviceEvent::QpFailed { qp_num: 17 },
            DeviceEvent::QueueFailed { queue_id: 3 },
            DeviceEvent::DeviceFailed,
            DeviceEvent::PortDown { port: 1 },
            DeviceEvent::PortUp { port: 1 },
            DeviceEvent::PortChanged { port: 1 },
        ];
        for event in events.into_iter().chain((0..30).map(|code| DeviceEvent::Other { code })) {
            assert!(event.to_string().len() > 10 && event.remedy().len() > 10, "{event:?}");
        }
        assert_eq!(DeviceEvent::QueueFailed { queue_id: 3 }.blame(), Blame::Bug);
        assert_eq!(DeviceEvent::PortDown { port: 1 }.blame(), Blame::Environment);
    }

    /// Numbers of `enum ibv_event_type` that are no variants of their own have a name here.
    #[test]
    fn every_number_of_the_header_is_known() {
        let translated = [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 17, 18];
        for code in 0..=19 {
            let named = !other(code).0.contains("does not know");
            assert_eq!(named, !translated.contains(&code), "event {code}");
        }
    }
}
