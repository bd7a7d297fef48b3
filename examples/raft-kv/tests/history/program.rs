//! The program `raft-kv` as a client: each call is a process, with a session of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farcall::Bytes;
use tokio::process::Command;

use super::clients::Failed;
use crate::support::{Cluster, PATIENCE};

/// A build of the program, and the cluster that it calls.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    nodes: Arc<str>,
}

impl Program {
    pub(crate) fn new(path: &Path, cluster: &Cluster) -> Self {
        let addresses: Vec<_> = cluster.ids().into_iter().map(|id| cluster.address(id)).collect();
        Self { path: path.to_owned(), nodes: addresses.join(",").into() }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Bytes>, Failed> {
        let value = self.run(&["get", key], &format!("no key `{key}`")).await?;
        Ok(value.map(|value| value.trim_end().to_owned().into()))
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), Failed> {
        self.run(&["put", key, value], "").await.map(drop)
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<bool, Failed> {
        let deleted = self.run(&["delete", key], &format!("no key `{key}`")).await?;
        Ok(deleted.is_some())
    }

    pub(crate) async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&str>,
        value: Option<&str>,
    ) -> Result<bool, Failed> {
        let mut arguments = vec!["cas", key];
        arguments.extend(expected.into_iter().flat_map(|expected| ["--expected", expected]));
        arguments.extend(value.into_iter().flat_map(|value| ["--value", value]));
        let set = self.run(&arguments, &format!("`{key}` has another value")).await?;
        Ok(set.is_some())
    }

    /// Runs a command. Returns what it prints, or `None` if its last words are `no`, by which it tells the store's answer.
    async fn run(&self, arguments: &[&str], no: &str) -> Result<Option<String>, Failed> {
        let mut command = Command::new(&self.path);
        command.args(["--transport", "tcp"]).args(arguments).args(["--nodes", &self.nodes]);
        command.args(["--patience", &PATIENCE.as_secs().to_string()]).env_remove("RUST_LOG");
        let output = command.output().await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            Ok(Some(String::from_utf8(output.stdout).unwrap()))
        } else if error.lines().last() == Some(&format!("raft-kv: {no}")) {
            Ok(None)
        } else {
            Err(Failed(error))
        }
    }
}
