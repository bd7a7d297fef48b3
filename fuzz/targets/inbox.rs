//! Feeds `farcall_fuzz::inbox`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::inbox);
