use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::half::Half;
use super::*;
use crate::config::RdmaConfig;
use crate::device::{Cq, Host, Slab, StreamEnds, WcStatus, choose};
use crate::probe::stop::Stop;
use crate::sim::{Fabric, SimHost};
use crate::{DeviceError, Unavailable};

const HERE: [u8; 4] = [10, 0, 0, 1];
const THERE: [u8; 4] = [10, 0, 0, 2];

fn hosts(seed: u64) -> (Arc<Fabric>, SimHost, SimHost) {
    let fabric = Fabric::new(seed);
    let (here, there) = (fabric.host(HERE.into()), fabric.host(THERE.into()));
    (fabric, here, there)
}

fn plan(operation: Operation, size: u32, in_flight: u16) -> Plan {
    Plan { operation, size, in_flight }
}

fn asking(host: &SimHost, plan: Plan) -> Result<Asking, Failed> {
    Asking::open_at(host, &RdmaConfig::default(), Some(HERE.into()), plan)
}

fn answering(host: &SimHost, request: &Request) -> Result<Answering, Failed> {
    let stream = StreamEnds { local: Some(THERE.into()), peer: Some(HERE.into()) };
    Answering::open_at(host, &RdmaConfig::default(), stream, request)
}

/// Connects two ends that are to do this.
fn connected(here: &SimHost, there: &SimHost, plan: Plan) -> Result<(Asking, Answering), Failed> {
    let mut asking = asking(here, plan)?;
    let answering = answering(there, &asking.request())?;
    asking.connect(&answering.contact())?;
    Ok((asking, answering))
}

/// Lets so many requests end. Returns how many did, and what came of both ends.
fn ran((mut asking, mut answering): (Asking, Answering), requests: u32) -> (u32, [Result<(), Failed>; 2]) {
    let (wanted, mut count) = (AtomicBool::new(true), 0);
    thread::scope(|scope| {
        let answered = scope.spawn(|| answering.answer(|| wanted.load(Ordering::Relaxed)));
        let asked = asking.run(|begun, ended| {
            assert!(begun <= ended);
            count += 1;
            count < requests
        });
        wanted.store(false, Ordering::Relaxed);
        (count, [asked, answered.join().expect("it does not panic")])
    })
}

#[test]
fn requests_are_made_until_no_more_are_wanted() {
    for operation in [Operation::Send, Operation::Read, Operation::Write] {
        // Within the request itself; longer; longer than a page.
        for size in [1, 64, 3000, 100_000] {
            for in_flight in [1, 2, 7, 100] {
                let (_fabric, here, there) = hosts(u64::from(size));
                let ends = connected(&here, &there, plan(operation, size, in_flight)).unwrap();
                let (count, results) = ran(ends, 200);
                assert_eq!(results, [Ok(()), Ok(())]);
                // Those that were under way have ended, too.
                let expected = 200 + 2 * u32::from(in_flight) - 1;
                assert!((200..=expected).contains(&count), "{operation:?} {size} x{in_flight}: {count}");
            }
        }
    }
}

#[test]
fn as_many_requests_are_under_way_as_planned() {
    let (_fabric, here, there) = hosts(9);
    let ends = connected(&here, &there, plan(Operation::Read, 64, 5)).unwrap();
    // The device ends five at once. Five others begin before the first end is told, and none after that.
    assert_eq!(ran(ends, 1), (10, [Ok(()), Ok(())]));
}

/// Makes an end that sends each message back twice.
fn doubling(host: &SimHost, request: &Request) -> Result<(Half, Arc<Slab>), Stop> {
    let (config, devices) = (RdmaConfig::default(), host.devices()?);
    let chosen = choose(&devices, &host.interfaces(), &config, Some(THERE.into()))?;
    let half = Half::open(host, &config, &devices, &chosen, request.plan)?;
    let slab = half.slab(request.plan.slots())?;
    half.connect(&request.contact)?;
    Ok((half, slab))
}

/// Sends each message back twice, for as long as it is wanted.
fn send_back_twice(half: &mut Half, slab: &Arc<Slab>, wanted: &AtomicBool) -> Result<(), Stop> {
    let (mut arrived, mut slots) = (Vec::new(), Vec::new());
    while wanted.load(Ordering::Relaxed) {
        slots.extend(slab.take());
        half.queues.post_receives(&mut slots)?;
        half.poll(Cq::Receive, &mut arrived)?;
        for (slot, len) in arrived.drain(..) {
            let message = slot.freeze(0..len);
            half.send(message.clone());
            half.send(message);
        }
        half.post()?;
        half.reap()?;
        thread::yield_now();
    }
    Ok(())
}

#[test]
fn requests_do_not_pile_up_when_more_messages_come_than_were_asked_for() {
    for in_flight in [1, 7, 100] {
        let (_fabric, here, there) = hosts(8);
        let mut asking = asking(&here, plan(Operation::Send, 64, in_flight)).unwrap();
        let (mut half, slab) = doubling(&there, &asking.request()).unwrap();
        asking.connect(&half.contact(None)).unwrap();
        let (wanted, mut count) = (AtomicBool::new(true), 0);
        thread::scope(|scope| {
            let answered = scope.spawn(|| send_back_twice(&mut half, &slab, &wanted));
            let asked = asking.run(|_, _| {
                count += 1;
                count < 2000
            });
            wanted.store(false, Ordering::Relaxed);
            assert_eq!((asked, answered.join().unwrap().is_ok()), (Ok(()), true));
        });
        // Each request that has ended was posted.
        assert_eq!(asking.half.works.len(), 0, "x{in_flight}");
    }
}

#[test]
fn plans_have_limits() {
    let most = Plan::MOST_IN_FLIGHT;
    for (operation, size, in_flight) in [
        (Operation::Read, 64 << 20, 1),
        (Operation::Write, 64 << 20, most),
        (Operation::Send, 32 << 20, 1),
        (Operation::Send, 1 << 20, 32),
    ] {
        let plan = plan(operation, size, in_flight);
        assert_eq!(plan.check(), Ok(()));
        assert_eq!(plan.memory(), 64 << 20);
    }
    for (operation, size, in_flight) in [
        (Operation::Read, 0, 1),
        (Operation::Read, 1, 0),
        (Operation::Read, 1, most + 1),
        (Operation::Read, (64 << 20) + 1, 1),
        (Operation::Write, u32::MAX, 1),
        (Operation::Send, (32 << 20) + 1, 1),
        (Operation::Send, u32::MAX, u16::MAX),
    ] {
        let beyond = plan(operation, size, in_flight);
        assert!(beyond.check().is_err(), "{beyond:?}");
        let (_fabric, here, there) = hosts(1);
        assert!(asking(&here, beyond).is_err(), "{beyond:?}");
        let contact = asking(&here, plan(operation, 64, 1)).unwrap().request().contact;
        assert!(answering(&there, &Request { plan: beyond, contact }).is_err(), "{beyond:?}");
    }
}

#[test]
fn nonsense_of_a_peer_is_refused() {
    let (_fabric, here, there) = hosts(2);
    let good = asking(&here, plan(Operation::Read, 64, 1)).unwrap().request();
    let with = |change: fn(&mut Contact)| {
        let mut request = good;
        change(&mut request.contact);
        answering(&there, &request).map(drop)
    };
    assert_eq!(with(|_| ()), Ok(()));
    for (change, says) in [
        ((|contact| contact.qp_num = 1 << 24) as fn(&mut Contact), "its queue pair is 0x1000000"),
        (|contact| contact.psn = u32::MAX, "its first packet 0xffffffff"),
        (|contact| contact.mtu = 6, "its path MTU has the code 6"),
        (|contact| contact.kind = 77, "the unknown kind 77"),
        (|contact| contact.kind = 4, "which is of another kind"),
    ] {
        let refused = with(change).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    // An address of no machine is no nonsense: nothing tells it from a machine that is far.
    let mut asking = asking(&here, good.plan).unwrap();
    assert!(asking.connect(&Contact { mtu: 0, ..good.contact }).is_err());
}

#[test]
fn memory_that_is_not_exposed_stays_out_of_reach() {
    for operation in [Operation::Read, Operation::Write] {
        for change in [(|contact| contact.rkey ^= 1) as fn(&mut Contact), |contact| contact.addr += 1] {
            let (_fabric, here, there) = hosts(3);
            let mut asking = asking(&here, plan(operation, 64, 1)).unwrap();
            let answering = answering(&there, &asking.request()).unwrap();
            let mut contact = answering.contact();
            change(&mut contact);
            asking.connect(&contact).unwrap();
            let (count, [asked, answered]) = ran((asking, answering), 5);
            assert_eq!((count, answered), (0, Ok(())));
            assert!(asked.unwrap_err().to_string().contains("REM_ACCESS_ERR"));
        }
    }
}

#[test]
fn messages_that_are_longer_than_planned_end_both_ends() {
    let (_fabric, here, there) = hosts(7);
    let mut asking = asking(&here, plan(Operation::Send, 3000, 2)).unwrap();
    let request = Request { plan: plan(Operation::Send, 64, 2), ..asking.request() };
    let mut answering = answering(&there, &request).unwrap();
    asking.connect(&answering.contact()).unwrap();
    let (asked, answered) = thread::scope(|scope| {
        // Wanted until it ends by itself.
        let answered = scope.spawn(|| answering.answer(|| true));
        let asked = asking.run(|_, _| panic!("a request is done"));
        (asked, answered.join().expect("it does not panic"))
    });
    // A real device says that the length is wrong.
    assert!(answered.unwrap_err().to_string().contains("LOC_QP_OP_ERR"));
    assert!(asked.unwrap_err().to_string().contains("REM_OP_ERR"));
}

#[test]
fn a_machine_that_can_not_says_why() {
    let (fabric, here, there) = hosts(4);
    let request = asking(&here, plan(Operation::Read, 64, 1)).unwrap().request();
    there.fail_open(Some(Unavailable::NoPermission { path: "/dev/infiniband/uverbs0".into() }));
    let refused = answering(&there, &request).unwrap_err().to_string();
    assert!(refused.contains("/dev/infiniband/uverbs0"), "{refused}");
    let poor = fabric.host([10, 0, 0, 3].into());
    poor.limit_windows(0);
    let refused = answering(&poor, &request).unwrap_err().to_string();
    assert!(refused.contains("sim0 exposes no memory"), "{refused}");
    fabric.fail_read(WcStatus::REM_OP_ERR);
    there.fail_open(None);
    let (_, [asked, _]) = ran(connected(&here, &there, request.plan).unwrap(), 5);
    assert!(asked.unwrap_err().to_string().contains("REM_OP_ERR"));
}

#[test]
fn each_call_of_the_device_may_fail() {
    for operation in [Operation::Send, Operation::Read, Operation::Write] {
        for calls in 0.. {
            let (_fabric, here, there) = hosts(5);
            there.fail_call_after(calls);
            let opened = connected(&here, &there, plan(operation, 64, 2)).map(drop);
            if !there.has_failed() {
                assert!(calls > 5 && opened == Ok(()), "{operation:?} after {calls} calls");
                break;
            }
            assert!(opened.is_err(), "{operation:?} after {calls} calls");
        }
    }
    let refused = DeviceError { device: "sim0".into(), operation: "ibv_create_qp", errno: libc::ENOMEM };
    assert!(Failed::from(Unavailable::from(refused)).to_string().contains("ibv_create_qp"));
}

#[test]
fn an_end_leaves_nothing_with_the_device() {
    let (fabric, here, there) = hosts(6);
    let ends = connected(&here, &there, plan(Operation::Write, 4096, 4)).unwrap();
    assert_eq!((fabric.queue_pairs().len(), fabric.windows()), (2, (1, 1)));
    ran(ends, 20).1.into_iter().for_each(|result| result.unwrap());
    assert_eq!((fabric.queue_pairs().len(), fabric.windows()), (0, (0, 0)));
}
