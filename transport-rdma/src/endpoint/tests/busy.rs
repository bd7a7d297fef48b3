//! `completion = "busy"`: what drives never sleeps. It is a thread where there are CPUs enough, or where it is told which.

use std::fs;

use super::*;

/// The first of them with a thread.
fn busy_nodes() -> (Arc<Fabric>, [Node; 2]) {
    nodes_with(Some(last_cpu()))
}

fn nodes_with(busy_cpu: Option<u16>) -> (Arc<Fabric>, [Node; 2]) {
    let fabric = Fabric::new(1);
    let busy = RdmaConfig { completion: Completion::Busy, busy_cpu, ..RdmaConfig::default() };
    let nodes = [node(&fabric, 1, busy), node(&fabric, 2, RdmaConfig::default())];
    (fabric, nodes)
}

/// The last CPU that this process may use.
fn last_cpu() -> u16 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    field(&status, "Cpus_allowed_list:").split([',', '-']).next_back().unwrap().parse().unwrap()
}

/// The threads of this process that drive an endpoint.
fn busy_threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    status.filter(|status| status.starts_with("Name:\tbusy-sim0")).collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim()
}

#[tokio::test]
async fn frames_arrive_both_ways_and_nothing_is_armed() {
    for busy_cpu in [None, Some(last_cpu())] {
        let (fabric, [near, far]) = nodes_with(busy_cpu);
        let [mut a, mut b] = near.link(&far).await;
        for _ in 0..20 {
            a.send(100, 3000);
            b.send(100, 100);
            b.receive(100).await;
            a.receive(100).await;
        }
        // Those of the other side.
        until("the driver does not sleep", || fabric.queues_armed() == 2).await;
        b.link().close();
        assert!(!a.end().await.failed);
        until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    }
}

#[tokio::test]
async fn thread_ends_with_the_last_user() {
    let (fabric, [near, far]) = busy_nodes();
    let [a, b] = near.link(&far).await;
    let shard = Arc::downgrade(&near.shard());
    let device = Arc::downgrade(&near.shard().device);
    drop(near);
    a.send(1, 10);
    drop((a, b));
    until("the driver stays", || shard.strong_count() == 0).await;
    until("the device stays open", || device.strong_count() == 0).await;
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
}

#[tokio::test]
async fn thread_ends_with_the_runtime() {
    let (fabric, [near, far]) = busy_nodes();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let there = near.clone();
    let offer =
        runtime.spawn(async move { there.upgrade.offer(Bytes::new(), &there.attempt).await.unwrap() });
    let (client, offer) = offer.await.unwrap();
    let (server, answer) = far.upgrade.answer(1, offer, &far.attempt).await.unwrap();
    let near_link = runtime.spawn(client.complete(1, Some(answer)));
    let mut far_end = End::start(server.complete(1, None).await.unwrap());
    let near_end = End::start(near_link.await.unwrap().unwrap());
    let shard = near.shard();
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(LIMIT)).await.unwrap();
    until("the thread stays", || shard.dead.load(Ordering::Acquire)).await;
    until("the queue pair stays", || fabric.queue_pairs().len() == 1).await;
    far_end.send(1, 10);
    assert!(far_end.end().await.failed);
    drop(near_end);
}

#[tokio::test]
async fn lost_device_ends_all_links() {
    let (_fabric, [near, far]) = busy_nodes();
    let [mut a, _b] = near.link(&far).await;
    near.shard().device.broadcast(DeviceEvent::DeviceFailed);
    let end = a.end().await;
    assert!(end.failed && end.detail.contains("the device"), "{end}");
    assert!(near.try_link(&far).await.is_ok());
}

#[tokio::test]
async fn thread_runs_where_it_is_put() {
    let cpu = last_cpu();
    let (_fabric, [near, far]) = busy_nodes();
    let [a, mut b] = near.link(&far).await;
    a.send(10, 10);
    b.receive(10).await;
    // Other tests have such threads too.
    let pinned = busy_threads().iter().any(|status| field(status, "Cpus_allowed_list:") == cpu.to_string());
    assert!(pinned, "CPU {cpu}: {:?}", busy_threads());
}

#[tokio::test]
async fn cpu_that_cannot_be_used_is_a_reason_that_names_the_setting() {
    let fabric = Fabric::new(1);
    for cpu in [1023, u16::MAX] {
        let config =
            RdmaConfig { completion: Completion::Busy, busy_cpu: Some(cpu), ..RdmaConfig::default() };
        let near = node(&fabric, 1, config);
        let why = near.upgrade.announce().await.unwrap_err();
        assert!(
            why.reason == Reason::Setting && why.detail.contains(&format!("rdma.busy_cpu = {cpu}")),
            "{why}"
        );
        assert!(near.upgrade.endpoints().is_empty());
    }
}
