//! Reports of channels to the `metrics` facade. The documentation of `farcall::metrics` lists the names.

/// The reason for a further attempt of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Further {
    /// The server refused the call before it began, so it goes elsewhere.
    Elsewhere,
    /// The policy makes it again after a pause.
    Retry,
    /// The policy makes it beside the attempts that were not answered.
    Hedge,
}

/// Counts a further attempt of a call.
#[cfg(feature = "metrics")]
pub(super) fn count_attempt(why: Further) {
    let why = match why {
        Further::Elsewhere => "elsewhere",
        Further::Retry => "retry",
        Further::Hedge => "hedge",
    };
    metrics::counter!("farcall_client_further_attempts_total", "why" => why).increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(super) fn count_attempt(_: Further) {}

/// Counts the ejection of a server that has failed its calls.
#[cfg(feature = "metrics")]
pub(super) fn count_ejection() {
    metrics::counter!("farcall_client_ejections_total").increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(super) fn count_ejection() {}
