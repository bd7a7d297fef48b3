//! Tables that fit a screen: columns are left out by its width, and rows by its height.

use std::fmt::Write;

use anstyle::Style;
use unicode_width::UnicodeWidthChar;

use crate::output::BOLD;

/// The columns and lines of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Size {
    /// A file or a pipe, which has room for all.
    pub(super) const UNLIMITED: Self = Self { width: usize::MAX, height: usize::MAX };
}

/// The content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It ends at the right.
    Number,
    /// It begins at the left, where its beginning stays if it is cut.
    Text,
    /// Text whose end stays if it is cut.
    Path,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    title: &'static str,
    least: usize,
    most: usize,
    kind: Kind,
    /// Its place in the order in which columns are left out: those with high numbers first. Never for 0.
    dispensable: u8,
}

impl Column {
    /// A number that takes so much room.
    pub(super) const fn number(title: &'static str, width: usize, dispensable: u8) -> Self {
        Self { title, least: width, most: width, kind: Kind::Number, dispensable }
    }

    /// Text that takes what room there is.
    pub(super) const fn text(title: &'static str, least: usize, most: usize, dispensable: u8) -> Self {
        Self { title, least, most, kind: Kind::Text, dispensable }
    }

    /// Returns the column with the end of its text where there is no room for all of it.
    pub(super) const fn keeping_end(self) -> Self {
        Self { kind: Kind::Path, ..self }
    }
}

/// The content of a row in a column.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::new() }
    }
}

/// A table: the first column names its rows.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    /// The most important first.
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Writes the title and so many rows, within this width.
    pub(super) fn write(&self, text: &mut String, width: usize, rows: usize) -> std::fmt::Result {
        let first = match self.rows.len() {
            all if all > rows => format!("{} ({rows} of {all})", self.columns[0].title),
            _ => self.columns[0].title.to_owned(),
        };
        let titles = self.columns.iter().skip(1).map(|column| column.title);
        let titles: Vec<_> = std::iter::once(first.as_str()).chain(titles).map(Cell::from).collect();
        let widths = widths(self.columns, &self.longest(&titles), width);
        write!(text, "{BOLD}")?;
        write_row(text, self.columns, &widths, &titles)?;
        writeln!(text, "{BOLD:#}")?;
        for row in self.rows.iter().take(rows) {
            write_row(text, self.columns, &widths, row)?;
            writeln!(text)?;
        }
        Ok(())
    }

    /// Returns how much room the longest text of each column takes.
    fn longest(&self, titles: &[Cell]) -> Vec<usize> {
        let of_column = |at: usize| {
            let cells = self.rows.iter().map(|row| &row[at]).chain([&titles[at]]);
            cells.map(|cell| fitted(&cell.text, usize::MAX, false).1).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(of_column).collect()
    }
}

fn write_row(text: &mut String, columns: &[Column], widths: &[usize], row: &[Cell]) -> std::fmt::Result {
    // Spaces are written in front of what follows them: none stand at the end of a line.
    let mut spaces = 0;
    for ((column, width), Cell { text: content, style }) in columns.iter().zip(widths).zip(row) {
        if *width == 0 {
            continue;
        }
        let (content, taken) = fitted(content, *width, column.kind == Kind::Path);
        let padding = width - taken;
        let (before, after) = if column.kind == Kind::Number { (padding, 0) } else { (0, padding) };
        write!(text, "{:1$}{style}{content}{style:#}", "", spaces + before)?;
        spaces = after + 1;
    }
    Ok(())
}

/// Returns the widths of columns within that of the screen, and not beyond their longest texts where these need less than the most. 0:
/// there is no room for the column.
fn widths(columns: &[Column], longest: &[usize], screen: usize) -> Vec<usize> {
    let mut widths: Vec<_> = columns.iter().map(|column| column.least).collect();
    let taken = |widths: &[usize]| {
        widths.iter().filter(|width| **width > 0).map(|width| width + 1).sum::<usize>().saturating_sub(1)
    };
    let mut order: Vec<_> = (0..columns.len()).filter(|at| columns[*at].dispensable > 0).collect();
    order.sort_by_key(|at| columns[*at].dispensable);
    while taken(&widths) > screen
        && let Some(at) = order.pop()
    {
        widths[at] = 0;
    }
    widths[0] = widths[0].min(screen);
    let spare = screen.saturating_sub(taken(&widths));
    let most = |at: usize| if widths[at] > 0 { columns[at].most.min(longest[at]) } else { 0 };
    let most: Vec<_> = (0..columns.len()).map(most).collect();
    share(&mut widths, &most, spare);
    widths
}

/// Distributes the rest, one by one, to the parts that are below their most.
fn share(parts: &mut [usize], most: &[usize], mut left: usize) {
    let mut has_given = true;
    while has_given {
        has_given = false;
        for (part, most) in parts.iter_mut().zip(most) {
            if *part < *most && left > 0 {
                (*part, left, has_given) = (*part + 1, left - 1, true);
            }
        }
    }
}

/// Returns the text on one line, cut to so many columns of the screen at its end or at its beginning, and how many it takes.
pub(super) fn fitted(text: &str, columns: usize, keeps_end: bool) -> (String, usize) {
    // A control character would move the cursor. One without width could be followed by any number of others.
    let visible = |c: char| match c.width() {
        None => Some((char::REPLACEMENT_CHARACTER, 1)),
        Some(0) => None,
        Some(width) => Some((c, width)),
    };
    let visible = text.chars().filter_map(visible);
    let visible: Vec<_> = if keeps_end { visible.rev().collect() } else { visible.collect() };
    let whole: usize = visible.iter().map(|(_, width)| width).sum();
    let (mut fitting, mut taken) = (Vec::new(), 0);
    // The last column is the ellipsis's.
    let room = if whole > columns { columns.saturating_sub(1) } else { columns };
    for (c, width) in visible {
        if taken + width > room {
            break;
        }
        fitting.push(c);
        taken += width;
    }
    if whole > columns && columns > 0 {
        fitting.push('…');
        taken += 1;
    }
    if keeps_end {
        fitting.reverse();
    }
    (fitting.into_iter().collect(), taken)
}

/// Returns how many rows of each table fit into so many lines. 0: not even its title and a row do.
pub(super) fn rows(tables: &[Table], lines: usize) -> Vec<usize> {
    // An empty line, the title, and a row.
    const LEAST: usize = 3;
    let mut left = lines;
    let mut rows = Vec::new();
    for table in tables {
        let fits = !table.rows.is_empty() && left >= LEAST;
        left -= if fits { LEAST } else { 0 };
        rows.push(usize::from(fits));
    }
    let all: Vec<_> = tables
        .iter()
        .zip(&rows)
        .map(|(table, shown)| if *shown > 0 { table.rows.len() } else { 0 })
        .collect();
    share(&mut rows, &all, left);
    rows
}
