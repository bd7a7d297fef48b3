//! Commands about keys.

use std::io::Write;

use anyhow::{Result, bail};
use farcall::{Bytes, Config};

use super::To;

#[derive(Debug, clap::Args)]
pub(super) struct Get {
    #[command(flatten)]
    to: To,
    key: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Put {
    #[command(flatten)]
    to: To,
    key: String,
    value: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Delete {
    #[command(flatten)]
    to: To,
    key: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Cas {
    #[command(flatten)]
    to: To,
    key: String,
    /// The value that the key must have. Without it the key must be absent.
    #[arg(long)]
    expected: Option<String>,
    /// The new value. Without it the key is removed.
    #[arg(long)]
    value: Option<String>,
}

impl Get {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let Some(value) = self.to.client(config)?.get(&self.key).await? else {
            bail!("no key `{}`", self.key)
        };
        let mut out = std::io::stdout();
        out.write_all(&value)?;
        Ok(writeln!(out)?)
    }
}

impl Put {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        Ok(self.to.client(config)?.put(&self.key, self.value.clone().into()).await?)
    }
}

impl Delete {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        if !self.to.client(config)?.delete(&self.key).await? {
            bail!("no key `{}`", self.key);
        }
        Ok(())
    }
}

impl Cas {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let bytes = |text: &Option<String>| text.clone().map(Bytes::from);
        let client = self.to.client(config)?;
        if !client.compare_and_set(&self.key, bytes(&self.expected), bytes(&self.value)).await? {
            bail!("`{}` has another value", self.key);
        }
        Ok(())
    }
}
