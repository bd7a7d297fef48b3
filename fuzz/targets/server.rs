//! Feeds `farcall_fuzz::server`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::server);
