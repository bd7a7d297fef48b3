//! Configuration from TOML, and from the settings in an address.

#[cfg(feature = "tcp")]
use std::fmt;

use super::{Config, ConfigError, ConfigErrorKind};

impl Config {
    /// Reads TOML.
    ///
    /// # Errors
    ///
    /// The fault, with its line: syntax, an unknown key, a value that can't be, settings that contradict each other. Of the latter, those in
    /// `[[methods]]` have no line, but the names of the methods.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let wrong = |kind, why: &str| ConfigError::new(kind, format!("configuration: {why}"));
        let config: Self = ::toml::from_str(text)
            .map_err(|error| wrong(ConfigErrorKind::Syntax, error.to_string().trim_end()))?;
        config.contradiction().map_err(|why| match line_of_setting(text, &why) {
            Some(line) => wrong(ConfigErrorKind::Setting, &format!("line {line}: {why}")),
            None => wrong(ConfigErrorKind::Setting, &why),
        })?;
        Ok(config)
    }

    /// Returns this configuration with settings that are named by their paths, as in `rdma.device`.
    #[cfg(feature = "tcp")]
    pub(super) fn with_settings(self, settings: &[(String, String)]) -> Result<Self, ConfigError> {
        let wrong = |why: &dyn fmt::Display| {
            let why = why.to_string().trim_end().replace('\n', " ");
            ConfigError::new(ConfigErrorKind::Setting, format!("setting in the address: {why}"))
        };
        let mut whole = ::toml::Table::try_from(self).map_err(|e| wrong(&e))?;
        for (path, text) in settings {
            // A number or a truth value if it reads as one, else a string.
            let value = match toml::from_str::<::toml::Table>(&format!("v = {text}")) {
                Ok(mut table) => table.remove("v").unwrap_or_else(|| text.clone().into()),
                Err(_) => text.clone().into(),
            };
            let mut table = &mut whole;
            let mut keys = path.split('.').peekable();
            while let Some(key) = keys.next() {
                if keys.peek().is_none() {
                    table.insert(key.to_owned(), value);
                    break;
                }
                let entry = table.entry(key).or_insert_with(|| ::toml::Value::Table(::toml::Table::new()));
                table = entry.as_table_mut().ok_or_else(|| wrong(&format!("`{path}` does not exist")))?;
            }
        }
        whole.try_into().map_err(|e| wrong(&e))
    }
}

/// The line of the first setting that a text names, as in `limits.max_message`, and that stands in the TOML.
fn line_of_setting(toml: &str, text: &str) -> Option<usize> {
    let document = ::toml::de::DeTable::parse(toml).ok()?;
    let span = text.split([' ', ',']).filter(|word| word.contains('.')).find_map(|path| {
        let (mut table, mut span) = (Some(document.get_ref()), None);
        for name in path.split('.') {
            let (key, value) = table?.iter().find(|(key, _)| key.get_ref() == name)?;
            (table, span) = (value.get_ref().as_table(), Some(key.span()));
        }
        span
    })?;
    Some(toml[..span.start].matches('\n').count() + 1)
}
