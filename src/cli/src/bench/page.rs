//! The page of `sluice bench --html`: plots and a table in one file that needs nothing else.

use super::load::Kind;
use super::machine::Machine;
use super::{Figures, Results, table};
use crate::units::{counted, exact};
use plotters::prelude::*;

/// Pixels of a plot, which is drawn as wide as there is room for.
const SIZE: (u32, u32) = (480, 320);
const TCP: RGBColor = RGBColor(130, 130, 130);
pub(super) const SLUICE: RGBColor = RGBColor(0, 110, 190);

/// A value of an outcome, over the size of messages.
struct Plot {
    title: &'static str,
    unit: &'static str,
    meaning: &'static str,
    kind: Kind,
    value: fn(&super::Outcome) -> f64,
}

const PLOTS: [Plot; 4] = [
    Plot {
        title: "Throughput of a stream",
        unit: "MiB/s",
        meaning: "How many bytes one program sends to another in a second; higher is better.",
        kind: Kind::Stream,
        value: |outcome| outcome.bytes / 1_048_576.0,
    },
    Plot {
        title: "Round trip, median",
        unit: "us",
        meaning: "How long a message takes to the other program and back; lower is better.",
        kind: Kind::Latency,
        value: |outcome| outcome.p50_ns as f64 / 1e3,
    },
    Plot {
        title: "Round trip, p99",
        unit: "us",
        meaning: "99 of 100 messages are back within this time; lower is better.",
        kind: Kind::Latency,
        value: |outcome| outcome.p99_ns as f64 / 1e3,
    },
    Plot {
        title: "Processor time of a stream",
        unit: "s/GB",
        meaning: "How long both programs together keep processors busy to move 1 GB; lower is \
                  better.",
        kind: Kind::Stream,
        value: |outcome| outcome.cpu_per_gb,
    },
];

const STYLE: &str = "body{font-family:sans-serif;max-width:1320px;margin:1em auto;padding:0 1em}\
    svg{width:100%;height:auto}figure{margin:0}figcaption{margin:.5em 0}\
    .plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));\
    gap:1em 2em}\
    .key{display:inline-block;width:1.5em;height:.25em;vertical-align:middle;margin:0 .3em 0 1em}\
    .wide,pre{overflow-x:auto}pre{font-size:clamp(8px,1.95vw,14px)}\
    .bars{display:grid;grid-template-columns:fit-content(40%) 1fr;gap:0 .7em}\
    .bars span{text-align:right;padding:.15em 0;overflow-wrap:anywhere}\
    .bars div{display:flex;align-items:center;gap:.4em;position:relative}\
    .bars i{flex:none;height:1.1em}\
    .bars div::after{content:\"\";position:absolute;left:var(--tcp);top:0;bottom:0;\
    border-left:1px solid}\
    table{margin:1em 0;border-spacing:0;font-size:clamp(9px,2.3vw,16px)}\
    td,th{padding:.2em 0 .2em clamp(4px,1.2vw,1.5em);text-align:right;vertical-align:top}\
    td{white-space:nowrap;border-top:1px solid #ddd}\
    td:first-child{padding-left:0;text-align:left;white-space:normal}";

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
            let drawn = drawn(plot, &figures).map_err(|error| error.to_string())?;
            let meaning = plot.meaning;
            plots += &format!("<figure>{drawn}<figcaption>{meaning}</figcaption></figure>\n");
        }
    }
    let peer = match &results.peer {
        Some(peer) => format!("to {}", escaped(peer)),
        None => "within this host".to_owned(),
    };
    let programs = super::programs::section(&results.programs);
    let rows = escaped(&table(&results.figures).trim_fmt());
    let machine = machine(&results.machine);
    let runs = counted(results.runs.into(), "run");
    let few = if results.runs < super::ENOUGH {
        format!("<p><b>{}.</b></p>\n", super::few(results.runs))
    } else {
        String::new()
    };
    let Results {
        version, seconds, ..
    } = results;
    let key = |name: &str, colour: RGBColor| {
        let RGBColor(r, g, b) = colour;
        format!("<span class=\"key\" style=\"background:rgb({r},{g},{b})\"></span>{name}")
    };
    let legend = format!("{}{}", key("TCP", TCP), key("Sluice", SLUICE));
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Sluice and TCP</title>\n<style>{STYLE}</style></head>\n\
         <body><h1>Sluice and TCP {peer}</h1>\n\
         <p>{machine}</p>\n\
         <p>sluice {version}; medians of {runs} of {seconds} s each, TCP and Sluice in turn.</p>\n\
         {few}<p>{legend}</p>\n<div class=\"plots\">\n{plots}</div>\n\
         <p>All figures. TIMES is how many times as good Sluice is, of the two columns before it; \
         K, M and G stand for 1024, 1024 times 1024, and so on.</p>\n\
         <pre>{rows}</pre>\n{programs}</body></html>\n"
    ))
}

/// Where and when it was measured.
fn machine(machine: &Machine) -> String {
    let Machine {
        name,
        cpu,
        cpus,
        kernel,
        date,
        load,
    } = machine;
    let processors = counted(*cpus as u64, "processor");
    escaped(&format!(
        "{name}: {cpu}, {processors}, {kernel}; {date}, load {load} before."
    ))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn drawn(plot: &Plot, figures: &[&Figures]) -> Result<String, Box<dyn std::error::Error>> {
    // Sizes are powers of two, and so are the marks below them.
    let points = |of: fn(&Figures) -> &super::Outcome| -> Vec<(f64, f64)> {
        figures
            .iter()
            .map(|f| ((f.size as f64).log2(), (plot.value)(of(f)).max(1e-3)))
            .collect()
    };
    let lines = [(TCP, points(|f| &f.tcp)), (SLUICE, points(|f| &f.sluice))];
    let all = || lines.iter().flat_map(|(_, points)| points);
    let least = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::MAX, f64::min);
    let most = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let (x, y) = (|p: &(f64, f64)| p.0, |p: &(f64, f64)| p.1);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let title = format!("{} ({})", plot.title, plot.unit);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 20))
            .margin(10)
            // Half of the last mark.
            .margin_right(36)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(
                least(x)..most(x),
                (least(y) / 1.5..most(y) * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("size of a message")
            .x_labels(8)
            .x_label_formatter(&|power| mark(*power))
            .y_label_formatter(&|value| number(*value))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (colour, points) in &lines {
            let points = points.iter().copied();
            let line = LineSeries::new(points.clone(), colour.stroke_width(2));
            chart.draw_series(line)?;
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// A power of two in bytes; nothing between two of them.
fn mark(power: f64) -> String {
    if power.fract() != 0.0 {
        return String::new();
    }
    let bytes = power.exp2() as usize;
    match exact(bytes) {
        size if size.ends_with(['K', 'M']) => {
            let (number, unit) = size.split_at(size.len() - 1);
            format!("{number} {unit}iB")
        }
        size => format!("{size} B"),
    }
}

/// A number without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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
            times: 3.0,
        };
        let results = Results {
            format: 1,
            version: "0",
            peer: Some("a<b>:1".to_owned()),
            machine: Machine {
                name: "a<b>".to_owned(),
                cpu: "a processor".to_owned(),
                cpus: 2,
                kernel: "Linux 6".to_owned(),
                date: "2026-01-31 12:34 UTC".to_owned(),
                load: "0.1 0.2 0.3".to_owned(),
            },
            runs: 1,
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
        for part in [
            "<p>a&lt;b&gt;: a processor, 2 processors, Linux 6; 2026-01-31 12:34 UTC, load 0.1 0.2 \
             0.3 before.</p>",
            "medians of 1 run of 1 s each",
            "too few to tell",
            "Round trip, p99 (us)",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for plot in &PLOTS {
            assert!(page.contains(plot.meaning), "{}", plot.title);
        }
        assert_eq!(page.matches("<svg").count(), PLOTS.len());
        assert!(page.contains("to a&lt;b&gt;:1") && page.contains("1 MiB"));
        // Nothing is fetched from anywhere, but for the name of SVG's own kind.
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !links.contains("http") && !links.contains("src="),
            "{links}"
        );
    }

    #[test]
    fn marks_are_powers_of_two_in_binary_units() {
        let all = [6.0, 12.0, 20.0, 6.5].map(mark);
        assert_eq!(all, ["64 B", "4 KiB", "1 MiB", ""]);
        assert_eq!([1000.0, 0.1, 0.25].map(number), ["1000", "0.1", "0.25"]);
    }
}
