//! A channel that balances its calls over servers of addresses, names and the application's own.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod log;
mod who;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use farcall::health::{Reporter, Serving};
use farcall::{
    Balance, BalancePolicy, Channel, Code, Config, Endpoint, EndpointChange, Executed, Handle, Readiness,
    Status, stream,
};
use tokio::sync::mpsc;

use who::{WhoClient, ready, share, start_task};

/// Starts a server, and returns its address.
async fn start(number: usize, address: &str) -> (String, Handle) {
    who::start_with(number, address, Config::default()).await
}

#[tokio::test]
async fn all_servers_of_an_address_get_calls() {
    let ((a, _keep), (b, kept)) = tokio::join!(start(0, "127.0.0.1:0"), start(1, "127.0.0.1:0"));
    let address = format!("tcp://{a},{b}?balance.policy=round-robin");
    let channel = Channel::connect(&address).await.unwrap();
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(0, 10), (1, 10)]));
    // By configuration and code, too. Without either all go to the first.
    let mut config = Config::default();
    config.balance.policy = BalancePolicy::LeastLoaded;
    let plain = format!("tcp://{a},{b}");
    for builder in [Channel::builder().config(config), Channel::builder().balance(BalancePolicy::ByKey)] {
        let channel = builder.connect(&plain).await.unwrap();
        ready(&channel, 2).await;
        assert_eq!(share(&channel, 40).await.len(), 2);
    }
    let first = Channel::connect(&plain).await.unwrap();
    assert_eq!(share(&first, 20).await, BTreeMap::from([(0, 20)]));
    let states = first.endpoints().unwrap().borrow().clone();
    assert_eq!((states.len(), &*states[0].name), (1, &*plain), "{states:?}");
    assert!(matches!(states[0].readiness, farcall::Readiness::Ready), "{states:?}");

    kept.close();
    ready(&channel, 1).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(0, 20)]));
    start(2, &b).await;
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(0, 10), (2, 10)]));
}

/// Calls until it is told to stop. Returns how many calls were answered: all of them.
async fn call_until(stopped: Arc<AtomicBool>, channel: Channel) -> usize {
    let (client, mut calls) = (WhoClient::new(&channel), 0);
    while !stopped.load(Relaxed) {
        client.are_you().await.unwrap();
        calls += 1;
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_rolling_restarts_fail_no_call() {
    // An address of this test alone: its ports stay free from one server to the next.
    let any = "127.77.0.1:0";
    let servers = tokio::join!(start_task(0, any), start_task(1, any));
    let addresses = format!("{},{}", servers.0.0, servers.1.0);
    let options = "balance.policy=round-robin&liveness.reconnect_ms=1&liveness.reconnect_max_ms=20";
    let channel = Channel::connect(&format!("tcp://{addresses}?{options}")).await.unwrap();
    let ejected = Arc::<AtomicBool>::default();
    let seen = Arc::clone(&ejected);
    channel
        .on_endpoint_change(move |change| {
            seen.fetch_or(change.now == Some(Readiness::Ejected), Relaxed);
        })
        .unwrap();
    let stopped = Arc::default();
    let call = || tokio::spawn(call_until(Arc::clone(&stopped), channel.clone()));
    let callers: [_; 8] = std::array::from_fn(|_| call());
    let mut servers = [servers.0, servers.1];
    for restart in 0..100 {
        ready(&channel, 2).await;
        let (address, handle, task) = &mut servers[restart % 2];
        handle.drain(Duration::from_secs(60)).await;
        task.await.unwrap();
        servers[restart % 2] = start_task(restart + 2, &address.clone()).await;
    }
    ready(&channel, 2).await;
    stopped.store(true, Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 100);
    }
    assert!(share(&channel, 20).await.into_keys().eq([100, 101]));
    assert!(!ejected.load(Relaxed), "a server that was started again was left out");
}

#[tokio::test]
async fn the_application_says_which_servers_there_are() {
    let ((a, _a), (b, _b)) = tokio::join!(start(0, "127.0.0.1:0"), start(1, "127.0.0.1:0"));
    let (registry, mut changes) = mpsc::channel(1);
    let updates = stream::generate(async move |servers| {
        while let Some(all) = changes.recv().await {
            match all {
                Ok(all) => servers.send(all).await,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    });
    let channel = Channel::builder().discover("numbers", updates).unwrap();
    let waiting = tokio::spawn({
        let client = WhoClient::new(&channel);
        async move { client.are_you().await }
    });
    registry.send(Ok(vec![Endpoint::new(&a)])).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 0, "a call waits until it is known where to go");
    registry.send(Ok(vec![Endpoint::new(&b), Endpoint::new(&a).weight(3)])).await.unwrap();
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 40).await, BTreeMap::from([(0, 30), (1, 10)]));
    // The last servers stay when the stream is over.
    registry.send(Err(Status::unavailable("the registry is gone"))).await.unwrap();
    registry.closed().await;
    assert_eq!(share(&channel, 40).await, BTreeMap::from([(0, 30), (1, 10)]));
}

/// Waits for a server's state to be told, and checks that it is told with the state that was told last.
async fn told(
    changes: &mut mpsc::UnboundedReceiver<EndpointChange>,
    known: &mut BTreeMap<String, Readiness>,
    of: &str,
    is: impl Fn(Option<&Readiness>) -> bool,
) {
    loop {
        let change = changes.recv().await.unwrap();
        assert_eq!(known.get(&*change.name), change.before.as_ref());
        assert_ne!(change.before, change.now);
        let (name, now) = (change.name.to_string(), change.now);
        let is_it = name == of && is(now.as_ref());
        match now {
            Some(now) => known.insert(name, now),
            None => known.remove(&name),
        };
        if is_it {
            return;
        }
    }
}

#[tokio::test]
async fn a_hook_is_told_of_each_change_of_a_server() {
    let ((a, _keep), (b, kept)) = tokio::join!(start(0, "127.0.0.1:0"), start(1, "127.0.0.1:0"));
    let (registry, mut updates) = mpsc::channel(1);
    let updates = stream::generate(async move |servers| {
        while let Some(all) = updates.recv().await {
            servers.send(all).await;
        }
        Ok(())
    });
    let channel = Channel::builder().discover("numbers", updates).unwrap();
    let (tell, mut changes) = mpsc::unbounded_channel();
    channel.on_endpoint_change(move |change| tell.send(change).unwrap()).unwrap();
    let mut known = BTreeMap::new();
    let is_ready = |now: Option<&Readiness>| now == Some(&Readiness::Ready);
    registry.send(vec![Endpoint::new(&a), Endpoint::new(&b)]).await.unwrap();
    told(&mut changes, &mut known, &b, is_ready).await;
    kept.close();
    told(&mut changes, &mut known, &b, |now| matches!(now, Some(Readiness::Failing(_)))).await;
    let (_, _again) = start(2, &b).await;
    told(&mut changes, &mut known, &b, is_ready).await;
    registry.send(vec![Endpoint::new(&b)]).await.unwrap();
    told(&mut changes, &mut known, &a, |now| now.is_none()).await;
    assert_eq!(known, BTreeMap::from([(b, Readiness::Ready)]));
    drop(channel);
    drop(registry);
    assert!(changes.recv().await.is_none(), "the hook stays when the channel is gone");
}

#[tokio::test]
async fn names_that_can_not_be_looked_up_are_named() {
    let address = "tcp://no-such-host.invalid:7400?balance.policy=round-robin";
    let error = Channel::connect(address).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("`no-such-host.invalid:7400` can't be looked up"), "{error}");

    // Another that can be is enough.
    let (a, _keep) = start(0, "127.0.0.1:0").await;
    let address = format!("tcp://no-such-host.invalid:7400,{a}?balance.policy=round-robin");
    let channel = Channel::connect(&address).await.unwrap();
    assert_eq!(share(&channel, 2).await, BTreeMap::from([(0, 2)]));
}

#[tokio::test]
async fn wrong_settings_are_refused() {
    for (setting, why) in [("policy=random", "random"), ("connections=0", "from 1 to 64")] {
        let address = format!("tcp://127.0.0.1:1?balance.{setting}");
        let error = Channel::connect(&address).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(why), "{error}");
    }
}

#[tokio::test]
async fn settings_that_have_no_effect_are_named() {
    let mut config = Config::default();
    (config.balance.subset, config.balance.eject_ms, config.balance.resolve_s) = (3, 1, 1);
    config.balance.health_service = Some(String::new());
    let log = log::Log::default();
    let _listening = log.listen();
    let channel =
        |config: &Config| Channel::builder().config(config.clone()).connect_lazy("farcall://db1:7400");
    channel(&config).unwrap();
    let warned: Vec<_> = log.lines().into_iter().filter(|line| line.contains("no effect")).collect();
    assert!(
        warned.len() == 1
            && warned[0].contains("subset, eject_ms, health_service")
            && warned[0].contains("db1"),
        "{warned:?}"
    );
    config.balance.policy = BalancePolicy::RoundRobin;
    channel(&config).unwrap();
    config.balance = Balance::default();
    channel(&config).unwrap();
    assert_eq!(log.lines().iter().filter(|line| line.contains("no effect")).count(), 1);
}

/// Waits until the server at this address is in this state.
async fn until_it_is(channel: &Channel, address: &str, readiness: Readiness) {
    let mut states = channel.endpoints().unwrap();
    let is = |state: &farcall::EndpointState| &*state.name == address && state.readiness == readiness;
    let patience = std::time::Duration::from_secs(120);
    tokio::time::timeout(patience, states.wait_for(|states| states.iter().any(is))).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_says_that_it_does_not_serve_gets_no_calls() {
    let log = log::Log::default();
    let _listening = log.listen();
    let reporters = [Reporter::new(), Reporter::new()];
    let (a, _a) = who::start_reporting(0, &reporters[0]).await;
    let (b, _b) = who::start_reporting(1, &reporters[1]).await;
    // One that has no health service.
    let (c, _c) = start(2, "127.0.0.1:0").await;
    reporters[1].set("test.Who", Serving::NotServing);
    let settings = "balance.policy=round-robin&balance.health_service=test.Who";
    let channel = Channel::connect(&format!("tcp://{a},{b},{c}?{settings}")).await.unwrap();
    until_it_is(&channel, &b, Readiness::NotServing).await;
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(0, 10), (2, 10)]), "one does not know of it");

    reporters[0].set("test.Who", Serving::NotServing);
    ready(&channel, 1).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(2, 20)]));
    reporters[1].set("test.Who", Serving::Serving);
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(1, 10), (2, 10)]));

    let untold: Vec<_> = log.lines().into_iter().filter(|line| line.contains("counts as serving")).collect();
    assert!(untold.len() == 1 && untold[0].starts_with("WARN") && untold[0].contains(&c), "{untold:?}");
}

#[tokio::test]
async fn a_server_that_stops_says_that_it_does_not_serve() {
    let reporters = [Reporter::new(), Reporter::new()];
    let (a, _a) = who::start_reporting(0, &reporters[0]).await;
    let (b, _b) = who::start_reporting(1, &reporters[1]).await;
    let builder = || Channel::builder().balance(BalancePolicy::RoundRobin).health_service("");
    let channel = builder().connect(&format!("tcp://{a},{b}")).await.unwrap();
    let servers = stream::iter([Ok(vec![Endpoint::new(&a), Endpoint::new(&b)])]);
    let discovered = builder().discover("numbers", servers).unwrap();
    for channel in [&channel, &discovered] {
        ready(channel, 2).await;
        assert_eq!(share(channel, 20).await, BTreeMap::from([(0, 10), (1, 10)]));
    }
    reporters[0].stop();
    for channel in [&channel, &discovered] {
        until_it_is(channel, &a, Readiness::NotServing).await;
        assert_eq!(share(channel, 20).await, BTreeMap::from([(1, 20)]));
    }
    // A wrong check takes no service down.
    reporters[1].stop();
    for channel in [&channel, &discovered] {
        until_it_is(channel, &b, Readiness::NotServing).await;
        assert_eq!(share(channel, 20).await, BTreeMap::from([(0, 10), (1, 10)]));
    }
    // The builder counts more than a later configuration.
    channel.reconfigure(Config::default()).unwrap();
}

#[tokio::test]
async fn the_service_that_servers_are_asked_about_stays() {
    let text = "[balance]\npolicy = \"round-robin\"\nhealth_service = \"test.Who\"";
    let mut config = Config::from_toml(text).unwrap();
    let builder = Channel::builder().config(config.clone());
    let channel = builder.connect_lazy("tcp://127.0.0.1:1").unwrap();
    config.balance.health_service = None;
    let error = channel.reconfigure(config).unwrap_err();
    assert!(error.to_string().contains("balance differs"), "{error}");
}
