//! What scripts/compare.sh has measured of whole programs, for the page.

use super::page::{SLUICE, escaped};
use plotters::style::RGBColor;
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

/// Bars and a table; nothing where there are none.
pub fn section(programs: &[Program]) -> String {
    if programs.is_empty() {
        return String::new();
    }
    let bars = bars(programs);
    let rows: String = programs.iter().map(row).collect();
    format!(
        "<h2>Whole programs</h2>\n\
         <p>How many times as fast as on TCP, which the line stands for.</p>\n\
         {bars}<div class=\"wide\"><table><tr><th></th><th>TCP</th><th>Sluice</th><th>times</th>\
         <th>from .. to</th><th>CPU per operation</th><th>by link</th></tr>\n{rows}</table></div>\n"
    )
}

fn row(program: &Program) -> String {
    let range = match (program.ratio_min, program.ratio_max) {
        (Some(least), Some(most)) => format!("{least:.2} .. {most:.2}"),
        _ => "-".to_owned(),
    };
    let share = program.link_share;
    let cells = [
        program.case.clone(),
        rate(&program.plain),
        rate(&program.preloaded),
        times(program.ratio),
        range,
        times(program.cpu_per_op_ratio),
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

/// How many times as fast, a bar each, with its number after it. These are no picture: a narrow
/// window breaks the names into lines, and leaves the letters as large.
fn bars(programs: &[Program]) -> String {
    /// Percent of the width, for the longest one; the rest is for its number.
    const LONGEST: f64 = 85.0;
    let ratios = programs.iter().filter_map(|program| program.ratio);
    let most = ratios.fold(1.0, f64::max);
    let RGBColor(r, g, b) = SLUICE;
    let bar = |program: &Program| {
        let name = escaped(&program.case);
        let width = LONGEST * program.ratio.unwrap_or(0.0) / most;
        let times = times(program.ratio);
        format!(
            "<span>{name}</span><div>\
             <i style=\"width:{width:.1}%;background:rgb({r},{g},{b})\"></i>\
             {times}</div>\n"
        )
    };
    let tcp = LONGEST / most;
    let bars: String = programs.iter().map(bar).collect();
    format!("<div class=\"bars\" style=\"--tcp:{tcp:.1}%\">\n{bars}</div>\n")
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_bar_and_a_row() {
        let text = r#"[{"case": "nginx & wrk", "place": "free",
            "ratio": 2.5, "ratio_min": 2.4, "ratio_max": 2.6,
            "cpu_per_op_ratio": 0.5, "link_share": 0.999, "errors": [],
            "plain": [{"rate": 1000.0, "unit": "/s"}, {"rate": 3000.0, "unit": "/s"},
                {"rate": 2000.0, "unit": "/s"}],
            "preloaded": [{"rate": 5e6, "unit": "/s"}]},
            {"case": "broken", "place": "free", "ratio": null, "ratio_min": null, "ratio_max": null,
            "cpu_per_op_ratio": null, "link_share": null, "errors": ["x"],
            "plain": [], "preloaded": []}]"#;
        let programs: Vec<Program> = serde_json::from_str(text).unwrap();
        let section = section(&programs);
        for part in [
            "style=\"--tcp:34.0%\"",
            "<span>nginx &amp; wrk</span><div><i style=\"width:85.0%;",
            "<span>broken</span><div><i style=\"width:0.0%;background:rgb(0,110,190)\"></i>-</div>",
            "<td>nginx &amp; wrk</td><td>2.000 k/s</td><td>5.000 M/s</td><td>2.50</td>\
             <td>2.40 .. 2.60</td><td>0.50</td><td>99.9 %</td>",
            "<td>broken</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td>",
        ] {
            assert!(section.contains(part), "{part}: {section}");
        }
        assert_eq!(super::section(&[]), "");
    }
}
