//! The names of all commands.

pub(crate) const COMMANDS: [&str; 15] = [
    "doctor",
    "perf",
    "serve",
    "connect",
    "list",
    "describe",
    "call",
    "health",
    "top",
    "record",
    "replay",
    "compat",
    "explain",
    "completions",
    "manual",
];
