//! What scripts/compare.sh has measured of whole programs, for the page.

use super::page::{SLUICE, escaped};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A program, or a pair of them, on TCP and under Sluice in turn.
#[derive(Deserialize, Serialize)]
pub struct Program {
    case: String,
    /// Median of the ratios of runs that were neighbours; none where a run failed.
    ratio: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    /// Processor time of an operation, as many times as on TCP.
    cpu_per_op_ratio: Option<f64>,
    /// Share of the bytes that did not go by TCP.
    link_share: Option<f64>,
    plain: Vec<Run>,
    preloaded: Vec<Run>,
}

#[derive(Deserialize, Serialize)]
struct Run {
    rate: f64,
    unit: String,
}

/// The file of `scripts/compare.sh --json`.
pub fn read(path: &Path) -> Result<Vec<Program>, String> {
    let shown = path.display();
    let text =
        std::fs::read(path).map_err(|error| format!("{shown}: {}", crate::run::reason(&error)))?;
    serde_json::from_slice(&text).map_err(|error| format!("{shown}: {error}"))
}

/// A plot and a table; nothing where there are none.
pub fn section(programs: &[Program]) -> Result<String, String> {
    if programs.is_empty() {
        return Ok(String::new());
    }
    let plot = drawn(programs).map_err(|error| error.to_string())?;
    let rows: String = programs.iter().map(row).collect();
    Ok(format!(
        "<h2>Whole programs</h2>\n<div class=\"wide\">{plot}\n<table><tr><th></th><th>TCP</th><th>Sluice</th><th>times</th><th>from .. to</th>\
         <th>CPU per operation</th><th>by link</th></tr>\n{rows}</table></div>\n"
    ))
}

fn row(program: &Program) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let range = match (program.ratio_min, program.ratio_max) {
        (Some(least), Some(most)) => format!("{least:.2} .. {most:.2}"),
        _ => "-".to_owned(),
    };
    let share = program.link_share;
    let cells = [
        program.case.clone(),
        rate(&program.plain),
        rate(&program.preloaded),
        number(program.ratio),
        range,
        number(program.cpu_per_op_ratio),
        share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
    ];
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{}</td>", escaped(cell)))
        .collect();
    format!("<tr>{cells}</tr>\n")
}

/// The median of these.
fn rate(runs: &[Run]) -> String {
    let mut rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
    rates.sort_by(f64::total_cmp);
    let Some(&median) = rates.get(rates.len() / 2) else {
        return "-".to_owned();
    };
    let (value, prefix) = match median {
        1e9.. => (median / 1e9, "G"),
        1e6.. => (median / 1e6, "M"),
        1e3.. => (median / 1e3, "k"),
        _ => (median, ""),
    };
    let unit = runs.first().map_or("", |run| &run.unit);
    format!("{value:.3} {prefix}{unit}")
}

/// How many times as fast, a bar each.
fn drawn(programs: &[Program]) -> Result<String, Box<dyn std::error::Error>> {
    let ratio = |program: &Program| program.ratio.unwrap_or(0.0);
    let most = programs.iter().map(ratio).fold(1.0, f64::max);
    let count = programs.len() as f64;
    // The first is on top.
    let name = |place: f64| {
        let from_top = programs.len().checked_sub(place.floor() as usize + 1)?;
        programs.get(from_top).map(|program| program.case.clone())
    };
    let mut svg = String::new();
    {
        let size = (1280, 80 + 26 * programs.len() as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Times as fast as on TCP", ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(240)
            .build_cartesian_2d(0.0..most * 1.05, 0.0..count)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .y_labels(programs.len() * 2 + 1)
            .y_label_formatter(&|at| {
                // Half of the labels are between two bars.
                let is_bar = (at.fract() - 0.5).abs() < 0.01;
                name(*at).filter(|_| is_bar).unwrap_or_default()
            })
            .draw()?;
        for (place, program) in programs.iter().rev().enumerate() {
            let (low, high) = (place as f64 + 0.2, place as f64 + 0.8);
            let bar = Rectangle::new([(0.0, low), (ratio(program), high)], SLUICE.filled());
            chart.draw_series([bar])?;
        }
        chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, count)], BLACK)])?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_bar_and_a_row() {
        let text = r#"[{"case": "nginx & wrk", "place": "free", "ratio": 2.5, "ratio_min": 2.4, "ratio_max": 2.6,
            "cpu_per_op_ratio": 0.5, "link_share": 0.999, "errors": [],
            "plain": [{"rate": 1000.0, "unit": "/s"}, {"rate": 3000.0, "unit": "/s"}, {"rate": 2000.0, "unit": "/s"}],
            "preloaded": [{"rate": 5e6, "unit": "/s"}]},
            {"case": "broken", "place": "free", "ratio": null, "ratio_min": null, "ratio_max": null,
            "cpu_per_op_ratio": null, "link_share": null, "errors": ["x"], "plain": [], "preloaded": []}]"#;
        let programs: Vec<Program> = serde_json::from_str(text).unwrap();
        let section = section(&programs).unwrap();
        for part in [
            "<svg",
            "<td>nginx &amp; wrk</td><td>2.000 k/s</td><td>5.000 M/s</td><td>2.50</td><td>2.40 .. 2.60</td><td>0.50</td><td>99.9 %</td>",
            "<td>broken</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td>",
        ] {
            assert!(section.contains(part), "{part}: {section}");
        }
        assert_eq!(super::section(&[]).unwrap(), "");
    }
}
