//! Feeds `farcall_fuzz::tcp`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::tcp);
