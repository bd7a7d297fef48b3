//! Misuses of farcall's macros, and the compiler's messages. `tests/misuse.rs` compares them.
