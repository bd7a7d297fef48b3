//! The simulated device does what a real one does: the scenarios of `vm_verbs.rs`, without a device.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod common;

use common::{Machine, scenarios};
use farcall_rdma::device::RdmaConfig;
use farcall_rdma::sim::Fabric;

fn machine() -> Machine {
    let host = Fabric::new(1).host([10, 0, 0, 1].into());
    Machine::open(&host, &RdmaConfig::default())
}

macro_rules! on_the_simulated_device {
    ($($scenario:ident)*) => { $(
        #[test]
        fn $scenario() {
            scenarios::$scenario(machine());
        }
    )* };
}

on_the_simulated_device! {
    ping_pong_by_polling
    ping_pong_by_events
    completion_before_arming_makes_no_event
    missing_receive_fails_the_send_at_once
    missing_peer_fails_the_send_after_its_retries
    marker_comes_after_every_outstanding_send
    completions_are_asked_for_every_so_often
    full_send_queue_takes_what_fits
    message_of_two_parts_arrives_as_one
    only_small_messages_may_lie_anywhere
    message_larger_than_a_slot_fails_both_ends
    posting_before_the_connection_is_refused
    send_completion_queue_cannot_be_oversubscribed
    undrained_queue_pair_leaves_nothing_behind
    views_outlive_the_device
}
