//! The check: one writer, and readers that would find out a mixture of two values.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use farcall::{Bytes, Channel};

use super::owner::Owner;
use super::reader::Reader;
use super::service::{Bucket, CHECKSUM, IndexClient, Key, MAX_VALUE};

const KEYS: u64 = 500;
const READERS: u64 = 4;
/// Look-ups of each reader.
const LOOK_UPS: u64 = 1000;

type Failure = Box<dyn Error + Send + Sync>;

/// The keys of one run, and the versions that the writer has given them.
struct Model {
    run: u64,
    /// For each key the version that was confirmed last. Readers find that one, or a newer one.
    confirmed: Vec<AtomicU64>,
    is_over: AtomicBool,
}

impl Model {
    fn key(&self, number: u64) -> Key {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.run.to_le_bytes());
        key[8..].copy_from_slice(&number.to_le_bytes());
        key
    }

    /// Returns a value: its version, bytes that depend on it, and a checksum of all that and of the key.
    fn value(&self, number: u64, version: u64) -> Bytes {
        let mut value = version.to_le_bytes().to_vec();
        let mut random = fastrand::Rng::with_seed(number << 32 ^ version);
        value.resize_with(MAX_VALUE - 4, || random.u8(..));
        value.extend(self.checksum(number, &value).to_le_bytes());
        value.into()
    }

    /// Returns the version of a value that is whole.
    fn version(&self, number: u64, value: &[u8]) -> Result<u64, Failure> {
        let (content, checksum) = value.split_last_chunk().ok_or("a value is too short")?;
        if self.checksum(number, content) != u32::from_le_bytes(*checksum) {
            return Err(format!("the value of key {number} is torn, and nobody noticed").into());
        }
        content.first_chunk().map(|version| u64::from_le_bytes(*version)).ok_or_else(|| "no version".into())
    }

    fn checksum(&self, number: u64, content: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.key(number));
        hasher.update(content);
        hasher.finalize()
    }

    /// Whether the writer removes a key at times.
    fn is_volatile(number: u64) -> bool {
        number.is_multiple_of(10)
    }
}

/// Checks the server at an address. `own` is its index, if it is in this process.
pub async fn run(address: &str, own: Option<&Owner>) -> Result<(), Failure> {
    let channel = Channel::builder().with_env().connect(address).await?;
    let index = IndexClient::new(&channel);
    // Readers have a connection of their own, as if they were another process.
    let readers_channel = Channel::builder().with_env().connect(address).await?;
    let reader = Reader::new(index.table().await?.on(&readers_channel));
    let confirmed = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let model = Arc::new(Model { run: fastrand::u64(..), confirmed, is_over: AtomicBool::new(false) });
    for number in 0..KEYS {
        index.put(model.key(number), model.value(number, 0)).await?;
    }
    let mut out = std::io::stdout();

    let before = index.statistics().await?;
    let direct = direct_accesses();
    let start = Instant::now();
    let writer = tokio::spawn(write(index.clone(), model.clone()));
    let reading = (0..READERS).map(|seed| tokio::spawn(look_up(reader.clone(), model.clone(), seed)));
    let reading: Vec<_> = reading.collect();
    let mut found = Ok(());
    for reading in reading {
        found = found.and(reading.await?);
    }
    let took = start.elapsed();
    model.is_over.store(true, Ordering::Relaxed);
    let writes = writer.await??;
    found?;
    let after = index.statistics().await?;
    let (reads, torn) = reader.counts();
    let direct = direct_accesses() - direct;
    let look_ups = READERS * LOOK_UPS;
    writeln!(
        out,
        "{look_ups} look-ups by {}, {:.0}/s, beside {writes} changes; {reads} buckets read, {torn} torn",
        readers_channel.transport().await?.name,
        look_ups as f64 / took.as_secs_f64()
    )?;
    // One for each change, and that of `statistics`.
    let handlers = after.handlers - before.handlers;
    if handlers != writes + 1 {
        return Err(format!("{handlers} handlers have run for {writes} changes and one question").into());
    }
    writeln!(out, "{handlers} handlers ran, for the changes and one question: none for a look-up")?;
    writeln!(out, "{}", done_by(&readers_channel, reads, direct).await?)?;

    end(&index, &reader, &model).await?;
    writeln!(out, "every key has the value that was written last")?;
    if let Some(own) = own {
        writeln!(out, "{}", wait_for_change(own, &reader, &model).await?)?;
        writeln!(out, "{}", refuse_mixtures(own, &model)?)?;
    }
    Ok(())
}

/// Says what has done the reads: the device of the readers, or the owner's runtime.
async fn done_by(readers: &Channel, reads: u64, direct: u64) -> Result<String, Failure> {
    let connection = readers.connection().await?;
    let transport = connection.transport();
    if transport.name != "rdma" || connection.is_encrypted() {
        let how = if transport.name == "rdma" { "encrypted RDMA" } else { transport.name };
        return Ok(format!(
            "by {how} the owner's runtime did each read, which costs the server processor time"
        ));
    }
    // The first reads go by messages, until the owner has granted the others.
    let by_owner = reads.saturating_sub(direct);
    if by_owner > reads / 10 {
        let why = "the log of the server says why if its device can't let others read";
        return Err(format!(
            "the owner's runtime did {by_owner} of {reads} reads, which a device should do: {why}"
        )
        .into());
    }
    Ok(format!("the readers' device did {direct} reads by itself, and the owner's runtime {by_owner}"))
}

/// Returns how often devices have used memory of another process by themselves.
fn direct_accesses() -> u64 {
    #[cfg(feature = "rdma")]
    return farcall::rdma::stats().iter().map(|stats| stats.direct_accesses).sum();
    #[cfg(not(feature = "rdma"))]
    0
}

/// Changes keys until the readers are done. Returns how many changes it has made.
async fn write(index: IndexClient, model: Arc<Model>) -> Result<u64, Failure> {
    let mut random = fastrand::Rng::with_seed(0);
    let mut writes = 0;
    while !model.is_over.load(Ordering::Relaxed) {
        // Half of the changes are of three keys, of which one comes and goes.
        let number = if random.bool() { random.u64(9..12) } else { random.u64(0..KEYS) };
        if Model::is_volatile(number) && random.bool() {
            index.remove(model.key(number)).await?;
        } else {
            let version = model.confirmed[number as usize].load(Ordering::Relaxed) + 1;
            index.put(model.key(number), model.value(number, version)).await?;
            model.confirmed[number as usize].store(version, Ordering::Release);
        }
        writes += 1;
    }
    Ok(writes)
}

/// Looks keys up, and checks each value.
async fn look_up(reader: Reader, model: Arc<Model>, seed: u64) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut seen = vec![0; KEYS as usize];
    for _ in 0..LOOK_UPS {
        let number = if random.bool() { random.u64(9..12) } else { random.u64(0..KEYS) };
        let confirmed = model.confirmed[number as usize].load(Ordering::Acquire);
        let Some(value) = reader.get(&model.key(number)).await? else {
            if Model::is_volatile(number) {
                continue;
            }
            return Err(format!("key {number} was not found").into());
        };
        let version = model.version(number, &value)?;
        let newest = &mut seen[number as usize];
        if version < confirmed.max(*newest) {
            return Err(
                format!("key {number} has version {version}, after {}", confirmed.max(*newest)).into()
            );
        }
        *newest = version;
    }
    Ok(())
}

/// Compares all keys with the model, and removes them.
async fn end(index: &IndexClient, reader: &Reader, model: &Model) -> Result<(), Failure> {
    let keys = index.statistics().await?.keys;
    let mut removed = 0;
    for number in 0..KEYS {
        let key = model.key(number);
        let was_there = match reader.get(&key).await? {
            Some(value) => {
                let (version, last) = (model.version(number, &value)?, &model.confirmed[number as usize]);
                if version != last.load(Ordering::Relaxed) {
                    return Err(format!("key {number} has version {version}, not the last one").into());
                }
                true
            }
            None => false,
        };
        if was_there != index.remove(key).await? || reader.get(&key).await?.is_some() {
            return Err(format!("a look-up of key {number} does not say what the owner says").into());
        }
        removed += u64::from(was_there);
    }
    let left = index.statistics().await?.keys;
    match left + removed == keys {
        true => Ok(()),
        false => Err(format!("{keys} keys less {removed} should not be {left}").into()),
    }
}

/// Looks a key up while it is being changed: the reader must wait for the new value.
async fn wait_for_change(own: &Owner, reader: &Reader, model: &Arc<Model>) -> Result<String, Failure> {
    let (_, before) = reader.counts();
    let (own, changing) = (own.clone(), model.clone());
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let watched = reader.clone();
    // The change holds a lock, so it has a thread that may block.
    let change = tokio::task::spawn_blocking(move || {
        let key = changing.key(0);
        let change = own.begin_put(&key)?;
        // If the reader has failed, it says why.
        let _ = began.send(());
        let start = Instant::now();
        while watched.counts().1 < before + 3 && start.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        change.put(&key, &changing.value(0, 1))
    });
    has_begun.await?;
    let value = reader.get(&model.key(0)).await?;
    change.await??;
    let (_, after) = reader.counts();
    match value {
        Some(value) if model.version(0, &value)? == 1 && after >= before + 3 => Ok(format!(
            "a look-up during a change noticed {} torn reads, and found the new value",
            after - before
        )),
        _ => Err("a look-up during a change did not wait for its end".into()),
    }
}

/// Mixes the bytes of a bucket before and after a change, as one READ may that is under way meanwhile: its device samples them in any
/// order. Each mixture must be refused. Some have the old version, which is even. A reader that has seen this version before would take
/// them for whole if it looked at versions alone.
fn refuse_mixtures(own: &Owner, model: &Model) -> Result<String, Failure> {
    let key = model.key(0);
    let copies = || -> Result<_, Failure> {
        let [one, other] = own.places(&key);
        Ok([own.copy(one)?, own.copy(other)?])
    };
    own.begin_put(&key)?.put(&key, &model.value(0, 1))?;
    let before = copies()?;
    own.begin_put(&key)?.put(&key, &model.value(0, 2))?;
    let after = copies()?;
    let changed = before.iter().zip(&after).find(|(before, after)| before != after);
    let (before, after) = changed.ok_or("the change is in neither bucket")?;
    let version = |bucket: &[u8]| bucket.first_chunk().map(|version| u64::from_le_bytes(*version));
    let (mut mixtures, mut even) = (0, 0);
    // Words of eight bytes: each is the old one or the new one.
    for (from, to) in
        (8..=CHECKSUM).step_by(8).flat_map(|from| (from..=CHECKSUM + 8).step_by(8).map(move |to| (from, to)))
    {
        for (outer, inner) in [(before, after), (after, before)] {
            let mixture = Bytes::from([&outer[..from], &inner[from..to], &outer[to..]].concat());
            if mixture == before || mixture == after {
                continue;
            }
            mixtures += 1;
            even += u64::from(version(&mixture) == version(before));
            if Bucket::whole(mixture)?.is_some() {
                return Err(format!("bytes {from} to {to} of another version were not noticed").into());
            }
        }
    }
    match even {
        0 => Err("no mixture has the version from before".into()),
        _ => Ok(format!(
            "{mixtures} mixtures of two versions of a bucket were refused, {even} of which have the old version"
        )),
    }
}
