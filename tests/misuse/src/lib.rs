//! Misuses of farcall's macros, and the compiler's messages: see `tests/misuse.rs`.
