//! Feeds `farcall_fuzz::client`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::client);
