//! Lines over an axis of named places, up a logarithmic one, as SVG.

use std::fmt::Write as _;

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The places on the axis that are named, in order.
    pub(super) x: Vec<Tick>,
    pub(super) x_title: String,
    pub(super) y_title: String,
    pub(super) series: Vec<Series>,
}

#[derive(Debug)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
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
                    text(&mut svg, (LEFT - 6.0, y(value) + 4.0), "end", &value.to_string());
                }
            }
        }
        let (first, last) = self.x.first().zip(self.x.last()).map_or((0.0, 1.0), |(a, b)| (a.at, b.at));
        let x = |at: f64| LEFT + (at - first) / (last - first) * (RIGHT - LEFT);
        for tick in &self.x {
            line(&mut svg, (x(tick.at), TOP), (x(tick.at), BOTTOM));
            text(&mut svg, (x(tick.at), BOTTOM + 18.0), "middle", &tick.label);
        }
        for (i, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let points: Vec<_> =
                series.points.iter().map(|(at, v)| format!("{:.1},{:.1}", x(*at), y(*v))).collect();
            let points = points.join(" ");
            // Writing to a String does not fail.
            let _ = writeln!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
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
        let values = || self.series.iter().flat_map(|series| &series.points).map(|(_, value)| value.log10());
        let low = values().fold(f64::INFINITY, f64::min).floor();
        let high = values().fold(f64::NEG_INFINITY, f64::max).ceil();
        if low < high { (low, high) } else { (low, low + 1.0) }
    }
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
        let series = Series { name: "a < b".to_owned(), points: vec![(0.0, 1.0), (8.0, 100.0)] };
        let chart = Chart {
            title: "t".to_owned(),
            x: vec![tick(0.0), tick(8.0)],
            x_title: "x".to_owned(),
            y_title: "y".to_owned(),
            series: vec![series],
        };
        let svg = chart.svg();
        assert!(svg.contains(&format!("points=\"{LEFT:.1},{BOTTOM:.1} {RIGHT:.1},{TOP:.1}\"")), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
