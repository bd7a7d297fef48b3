//! `farcall list` and `describe`: the services of a server that has reflection.

use std::time::Duration;

use clap::Args;
use farcall::Channel;
use farcall::reflection::{Method, ReflectionClient, Service};

use crate::call::Forms;
use crate::call::protobuf::Messages;
use crate::output::{self, BOLD, FAINT, Failure, foreign};
use crate::target::{By, Target};

/// List the services of a server.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  farcall list db1

The server needs `Server::builder().with_reflection()`.")]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
}

/// Describe the methods of a server's services, and what they take.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall describe db1                    all services
  farcall describe db1 shop.v1.Kv         one service
  farcall describe db1 shop.v1.Kv/put     one method, with arguments to begin from")]
pub(crate) struct Describe {
    #[command(flatten)]
    target: Target,
    /// SERVICE or SERVICE/METHOD. The package may be left out where the rest is clear
    name: Option<String>,
    /// Print all services as JSON, for `farcall compat` and programs
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

/// How long a question about services may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn list(arguments: &List) -> Result<u8, Failure> {
    let services =
        crate::runtime(1)?.block_on(async { services(&arguments.target.connect(By::Auto).await?).await })?;
    let names: String = services.iter().map(|service| format!("{}\n", service.name)).collect();
    output::print(&names)?;
    Ok(0)
}

pub(crate) fn describe(arguments: &Describe) -> Result<u8, Failure> {
    let told =
        crate::runtime(1)?.block_on(async { Told::by(&arguments.target.connect(By::Auto).await?).await })?;
    let text = match &arguments.name {
        None if arguments.json => {
            format!("{}\n", serde_json::to_string_pretty(&told.services).map_err(Failure::no)?)
        }
        None => told.services.iter().map(described).collect::<Vec<_>>().join("\n"),
        Some(name) if name.contains('/') => {
            let (service, method) = told.find(name)?;
            let forms = Forms::of(&told, service, method)?;
            let mut text = heading(service);
            text += &format!("  {}\n", signature(method));
            if !forms.definitions.is_empty() {
                text += &format!("\n{}", forms.definitions);
            }
            text += &format!("\n{BOLD}arguments{BOLD:#}\n{:#}\n", forms.arguments.example());
            if let Some(items) = &forms.requests {
                text += &format!("\n{BOLD}each line of standard input{BOLD:#}\n{}\n", items.example());
            }
            text
        }
        Some(name) => described(service_of(&told.services, name)?),
    };
    output::print(&text)?;
    Ok(0)
}

fn heading(service: &Service) -> String {
    format!("{BOLD}{}{BOLD:#}  {FAINT}{}{FAINT:#}\n", service.name, service.codec)
}

fn described(service: &Service) -> String {
    let mut text = heading(service);
    for method in &service.methods {
        text += &format!("  {}\n", signature(method));
    }
    text
}

/// Returns the signature with the names of the messages, as far as they are clear.
fn signature(method: &Method) -> String {
    let mut messages = method.messages.iter();
    let (name, types) = method.signature.split_at(method.signature.find('(').unwrap_or(0));
    let mut parts = types.split("protobuf");
    let mut text = name.to_owned() + parts.next().unwrap_or_default();
    for part in parts {
        text += match messages.next().map(|message| &message.names[..]) {
            Some([name]) => name,
            _ => "protobuf",
        };
        text += part;
    }
    text
}

/// The services and protobuf messages that a server describes.
pub(crate) struct Told {
    pub(crate) services: Vec<Service>,
    pub(crate) messages: Messages,
}

impl Told {
    /// Asks a server.
    pub(crate) async fn by(channel: &Channel) -> Result<Self, Failure> {
        let services = services(channel).await?;
        let sets = match services.iter().any(|service| service.codec == "prost") {
            true => ReflectionClient::new(channel).descriptors().timeout(PATIENCE).await,
            false => Ok(Vec::new()),
        };
        Ok(Self { services, messages: Messages::of(sets.map_err(|status| status.to_string())) })
    }

    /// Finds a method by its path, of which the package may be left out.
    pub(crate) fn find(&self, path: &str) -> Result<(&Service, &Method), Failure> {
        let Some((service, method)) = path.rsplit_once('/') else {
            return Err(Failure::usage(format!("`{path}` is no method: write SERVICE/METHOD")));
        };
        let service = service_of(&self.services, service)?;
        let found = service.methods.iter().find(|known| known.name == method);
        let names = || service.methods.iter().map(|known| known.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = found.ok_or_else(|| {
            Failure::usage(format!("{} has no method `{method}`; it has {}", service.name, names()))
        })?;
        Ok((service, found))
    }
}

/// Asks a server for its services.
pub(crate) async fn services(channel: &Channel) -> Result<Vec<Service>, Failure> {
    let services = ReflectionClient::new(channel).services().timeout(PATIENCE).await;
    let services = services.map_err(|status| Failure::of_call(&status, "with_reflection()"))?;
    Ok(services.into_iter().map(printable).collect())
}

/// Returns the service with names that can be printed.
fn printable(mut service: Service) -> Service {
    service.name = foreign(&service.name);
    service.codec = foreign(&service.codec);
    for method in &mut service.methods {
        method.name = foreign(&method.name);
        method.signature = foreign(&method.signature);
        for message in &mut method.messages {
            message.rust_type = foreign(&message.rust_type);
            message.names.iter_mut().for_each(|name| *name = foreign(name));
        }
    }
    service
}

/// Finds a service by its name, or by the end of it.
fn service_of<'a>(services: &'a [Service], name: &str) -> Result<&'a Service, Failure> {
    let is_end = |service: &&Service| service.name == name || service.name.ends_with(&format!(".{name}"));
    let found: Vec<_> = services.iter().filter(is_end).collect();
    match (&found[..], services.iter().find(|service| service.name == name)) {
        (_, Some(service)) | (&[service], None) => Ok(service),
        (several, None) => {
            let (what, names) = match several {
                [] => {
                    ("there is no", services.iter().map(|service| service.name.as_str()).collect::<Vec<_>>())
                }
                _ => {
                    ("there is more than one", several.iter().map(|service| service.name.as_str()).collect())
                }
            };
            Err(Failure::usage(format!("{what} service `{name}`; there are {}", names.join(", "))))
        }
    }
}
