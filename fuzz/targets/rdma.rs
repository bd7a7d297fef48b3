//! Feeds `farcall_fuzz::rdma`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::rdma);
