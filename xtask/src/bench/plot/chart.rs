//! Lines over an axis of named places, up a logarithmic one, as SVG. Each point has a marker, and a bar from the least to
//! the most of the rounds.

use std::fmt::Write as _;

use crate::bench::results::Spread;

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The places on the axis that are named, in order.
    pub(super) x: Vec<Tick>,
    pub(super) x_title: String,
    pub(super) y_title: String,
    pub(super) y_unit: Unit,
    pub(super) series: Vec<Series>,
}

/// The unit of values: its name, and what one is in it.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) name: &'static str,
    pub(super) factor: f64,
}

#[derive(Debug)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, Spread)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;

// Where the lines are; names of series stand to the right of it.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 360.0;

/// Colours that differ for those who see few colours, too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

impl Chart {
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let middle = f64::midpoint(LEFT, RIGHT);
        text(&mut svg, (middle, TOP - 16.0), "middle", &self.title);
        text(&mut svg, (middle, HEIGHT - 16.0), "middle", &self.x_title);
        text(&mut svg, (8.0, TOP - 16.0), "start", &self.y_title);
        let (low, high) = self.decades();
        let y = |value: f64| BOTTOM - (value.log10() - low) / (high - low) * (BOTTOM - TOP);
        for decade in low as i32..=high as i32 {
            for step in [1.0, 2.0, 5.0] {
                let value = step * 10f64.powi(decade);
                if value.log10() <= high {
                    line(&mut svg, (LEFT, y(value)), (RIGHT, y(value)));
                    text(&mut svg, (LEFT - 6.0, y(value) + 4.0), "end", &self.y_unit.label(value));
                }
            }
        }
        let (first, last) = self.x.first().zip(self.x.last()).map_or((0.0, 1.0), |(a, b)| (a.at, b.at));
        let x = |at: f64| LEFT + (at - first) / (last - first) * (RIGHT - LEFT);
        for tick in &self.x {
            line(&mut svg, (x(tick.at), TOP), (x(tick.at), BOTTOM));
            text(&mut svg, (x(tick.at), BOTTOM + 18.0), "middle", &tick.label);
        }
        axis(&mut svg, (LEFT, TOP), (LEFT, BOTTOM));
        axis(&mut svg, (LEFT, BOTTOM), (RIGHT, BOTTOM));
        for (i, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let place = |(at, value): &(f64, Spread)| format!("{:.1},{:.1}", x(*at), y(value.median));
            let points: Vec<_> = series.points.iter().map(place).collect();
            let points = points.join(" ");
            // Writing to a String does not fail.
            let _ = writeln!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
            for (at, value) in &series.points {
                mark(&mut svg, x(*at), [value.least, value.median, value.most].map(y), colour);
            }
            let beside = TOP + 12.0 + 18.0 * i as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
                RIGHT + 12.0,
                beside - 6.0
            );
            text(&mut svg, (RIGHT + 30.0, beside), "start", &series.name);
        }
        svg + "</svg>\n"
    }

    /// The powers of ten that all values are between.
    fn decades(&self) -> (f64, f64) {
        let values = || self.series.iter().flat_map(|series| &series.points).map(|(_, value)| value);
        let low = values().map(|value| value.least.log10()).fold(f64::INFINITY, f64::min).floor();
        let high = values().map(|value| value.most.log10()).fold(f64::NEG_INFINITY, f64::max).ceil();
        if low < high { (low, high) } else { (low, low + 1.0) }
    }
}

impl Unit {
    /// A value with an SI prefix, as in `20 µs`.
    fn label(&self, value: f64) -> String {
        const PREFIXES: [&str; 8] = ["n", "µ", "m", "", "k", "M", "G", "T"];
        let value = value * self.factor;
        let thousands = (value.log10() / 3.0 + 1e-9).floor().clamp(-3.0, 4.0);
        let prefix = PREFIXES[(thousands + 3.0) as usize];
        // Values of an axis are 1, 2 or 5 times a power of ten.
        let scaled = (value / 1000f64.powf(thousands) * 1000.0).round() / 1000.0;
        format!("{scaled} {prefix}{}", self.name).trim_end().to_owned()
    }
}

/// A marker at the middle of three values, and a bar between the others.
fn mark(svg: &mut String, x: f64, [least, median, most]: [f64; 3], colour: &str) {
    let bar = |y1: f64, y2: f64, half: f64| {
        let (x1, x2) = (x - half, x + half);
        format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>")
    };
    let _ = writeln!(svg, "{}{}{}", bar(least, most, 0.0), bar(least, least, 3.0), bar(most, most, 3.0));
    let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{median:.1}\" r=\"3\" fill=\"{colour}\"/>");
}

fn axis(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#333\"/>");
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>");
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>", at.0, at.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_corner_to_corner() {
        let tick = |at: f64| Tick { at, label: at.to_string() };
        let exactly = |value: f64| Spread { median: value, least: value, most: value };
        let points = vec![(0.0, exactly(1.0)), (8.0, exactly(100.0))];
        let series = Series { name: "a < b".to_owned(), points };
        let chart = Chart {
            title: "t".to_owned(),
            x: vec![tick(0.0), tick(8.0)],
            x_title: "x".to_owned(),
            y_title: "y".to_owned(),
            y_unit: Unit { name: "s", factor: 1e-6 },
            series: vec![series],
        };
        let svg = chart.svg();
        assert!(svg.contains(&format!("points=\"{LEFT:.1},{BOTTOM:.1} {RIGHT:.1},{TOP:.1}\"")), "{svg}");
        assert!(svg.contains(">1 µs<") && svg.contains(">50 µs<") && svg.contains(">100 µs<"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn labels_have_si_prefixes() {
        let label = |name, factor, value| Unit { name, factor }.label(value);
        assert_eq!(label("s", 1e-6, 0.5), "500 ns");
        assert_eq!(label("s", 1e-6, 2000.0), "2 ms");
        assert_eq!(label("B/s", 1e6, 1000.0), "1 GB/s");
        assert_eq!(label("", 1.0, 200_000.0), "200 k");
    }
}
