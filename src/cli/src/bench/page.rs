//! The page of `sluice bench --html`: plots and a table in one file that needs nothing else.

use super::load::Kind;
use super::{Figures, Results, table};
use plotters::prelude::*;

/// Pixels of a plot.
const SIZE: (u32, u32) = (640, 400);
const TCP: RGBColor = RGBColor(130, 130, 130);
pub(super) const SLUICE: RGBColor = RGBColor(0, 110, 190);

/// A value of an outcome, over the size of messages.
struct Plot {
    title: &'static str,
    unit: &'static str,
    kind: Kind,
    value: fn(&super::Outcome) -> f64,
}

const PLOTS: [Plot; 4] = [
    Plot {
        title: "Throughput of a stream",
        unit: "MB/s",
        kind: Kind::Stream,
        value: |outcome| outcome.bytes / 1e6,
    },
    Plot {
        title: "Time there and back, median",
        unit: "us",
        kind: Kind::Latency,
        value: |outcome| outcome.p50_ns as f64 / 1e3,
    },
    Plot {
        title: "Time there and back, 99 of 100",
        unit: "us",
        kind: Kind::Latency,
        value: |outcome| outcome.p99_ns as f64 / 1e3,
    },
    Plot {
        title: "Processor time of both ends",
        unit: "s/GB",
        kind: Kind::Stream,
        value: |outcome| outcome.cpu_per_gb,
    },
];

/// The whole page.
pub fn page(results: &Results) -> Result<String, String> {
    let mut plots = String::new();
    for plot in &PLOTS {
        let figures: Vec<&Figures> = results
            .figures
            .iter()
            .filter(|f| f.kind == plot.kind)
            .collect();
        if figures.len() > 1 {
            plots += &drawn(plot, &figures).map_err(|error| error.to_string())?;
        }
    }
    let peer = match &results.peer {
        Some(peer) => format!("to {}", escaped(peer)),
        None => "within this host".to_owned(),
    };
    let programs = super::programs::section(&results.programs)?;
    let rows = escaped(&table(&results.figures).to_string());
    let Results {
        version,
        runs,
        seconds,
        ..
    } = results;
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sluice and TCP</title>\n\
         <style>body{{font-family:sans-serif;max-width:1320px;margin:2em auto;padding:0 1em}}svg{{margin:.5em}}\
         pre{{overflow-x:auto}}td,th{{padding:0 1em;text-align:right}}td:first-child{{text-align:left}}</style></head>\n<body><h1>Sluice and TCP {peer}</h1>\n\
         <p>sluice {version}; medians of {runs} runs of {seconds} s each, TCP and Sluice in turn.</p>\n\
         {plots}\n<pre>{rows}</pre>\n{programs}</body></html>\n"
    ))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn drawn(plot: &Plot, figures: &[&Figures]) -> Result<String, Box<dyn std::error::Error>> {
    let points = |of: fn(&Figures) -> &super::Outcome| -> Vec<(f64, f64)> {
        figures
            .iter()
            .map(|f| (f.size as f64, (plot.value)(of(f))))
            .collect()
    };
    let lines = [
        ("TCP", TCP, points(|f| &f.tcp)),
        ("Sluice", SLUICE, points(|f| &f.sluice)),
    ];
    let all = || lines.iter().flat_map(|(_, _, points)| points);
    let least = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::MAX, f64::min);
    let most = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let (x, y) = (|p: &(f64, f64)| p.0, |p: &(f64, f64)| p.1.max(1e-3));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let title = format!("{} ({})", plot.title, plot.unit);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(
                (least(x)..most(x)).log_scale(),
                (least(y) / 1.5..most(y) * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("bytes of a message")
            .x_label_formatter(&|bytes| super::size(*bytes as usize))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (name, colour, points) in &lines {
            let colour = *colour;
            let points = points.iter().map(|p| (x(p), y(p)));
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2))
                });
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn a_page_stands_by_itself() {
        let figures = |kind, size: usize| Figures {
            kind,
            size,
            tcp: Outcome {
                bytes: 1e9,
                p50_ns: 9000,
                p99_ns: 20_000,
                cpu_per_gb: 0.5,
                ..Outcome::default()
            },
            sluice: Outcome {
                bytes: 3e9,
                p50_ns: 3000,
                p99_ns: 0,
                ..Outcome::default()
            },
            ratio: 3.0,
        };
        let results = Results {
            format: 1,
            version: "0",
            peer: Some("a<b>:1".to_owned()),
            runs: 3,
            seconds: 1.0,
            programs: Vec::new(),
            figures: vec![
                figures(Kind::Stream, 64),
                figures(Kind::Stream, 1 << 20),
                figures(Kind::Latency, 64),
                figures(Kind::Latency, 1 << 20),
                figures(Kind::Churn, 64),
            ],
        };
        let page = page(&results).unwrap();
        assert_eq!(page.matches("<svg").count(), PLOTS.len());
        assert!(page.contains("to a&lt;b&gt;:1") && page.contains("1 MiB"));
        // Nothing is fetched from anywhere, but for the name of SVG's own kind.
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !links.contains("http") && !links.contains("src="),
            "{links}"
        );
    }
}
