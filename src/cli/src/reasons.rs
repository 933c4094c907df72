//! `sluice reasons`: what each reason for TCP means, and what can be done. Also the man page
//! sluice-reasons.7.

use crate::{complain, is_written};
use clap::Args;
use clap_mangen::roff::{Roff, bold, roman};
use sluice_stats::Reason;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_long_help = all().map(explained).collect::<String>())]
pub struct Arguments {
    /// Codes as `sluice stat --json` and SLUICE_REPORT have them; all of them if left out
    #[arg(value_name = "CODE")]
    codes: Vec<String>,
}

/// Columns of a terminal that is as narrow as terminals are.
const COLUMNS: usize = 80;
const INDENT: &str = "    ";

pub fn reasons(arguments: &Arguments) -> ExitCode {
    let is_wanted = |reason: &&Reason| {
        let codes = &arguments.codes;
        codes.is_empty() || codes.iter().any(|code| code == reason.code())
    };
    let text: String = all().filter(is_wanted).map(explained).collect();
    let mut is_any_unknown = false;
    for code in &arguments.codes {
        if !all().any(|reason| reason.code() == code) {
            complain(format_args!("no reason has the code {code}"));
            is_any_unknown = true;
        }
    }
    if is_written(io::stdout().write_all(text.as_bytes())) && !is_any_unknown {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// All that a connection can be on TCP for, by code.
fn all() -> impl Iterator<Item = &'static Reason> {
    let is_one = |reason: &&Reason| **reason != Reason::None;
    let mut all: Vec<_> = Reason::ALL.iter().filter(is_one).collect();
    all.sort_by_key(|reason| reason.code());
    all.into_iter()
}

fn explained(reason: &Reason) -> String {
    let parts = [sentence(reason.words()), reason.advice().to_owned()];
    let lines: String = parts.iter().map(|part| wrapped(part)).collect();
    format!("{}\n{lines}", reason.code())
}

/// Words that follow "on TCP: ", as a sentence of their own.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && INDENT.len() + line.len() + 1 + word.len() > COLUMNS {
            lines += &format!("{INDENT}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &format!("{INDENT}{line}\n")
}

/// The man page sluice-reasons(7).
pub fn page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["sluice-reasons", "7", "", "Sluice", ""]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "sluice-reasons - why a connection is on TCP, and what can be done",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "sluice stat, sluice top and the lines of SLUICE_REPORT give one reason for each \
         connection that is on TCP. Where the other end has told it, the words begin with \"the \
         other end says\", and the line of SLUICE_REPORT has reason_of=peer.",
    )]);
    page.control("SH", ["REASONS"]);
    for reason in all() {
        page.control("TP", []);
        page.text([bold(reason.code())]);
        page.text([roman(format!(
            "{} {}",
            sentence(reason.words()),
            reason.advice()
        ))]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("sluice-stat"),
        roman("(1), "),
        bold("libsluice"),
        roman("(7), "),
        bold("sluice.conf"),
        roman("(5)"),
    ]);
    page.to_roff()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        for reason in all() {
            for text in [sentence(reason.words()), reason.advice().to_owned()] {
                assert!(
                    wrapped(&text).lines().all(|line| line.len() <= COLUMNS),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn each_reason_says_what_can_be_done_in_a_sentence() {
        for reason in all() {
            assert!(reason.advice().ends_with('.'), "{}", reason.code());
            assert!(!reason.words().ends_with('.'), "{}", reason.code());
        }
    }

    #[test]
    fn the_page_has_every_code() {
        let page = page();
        for reason in all() {
            let code = reason.code().replace('-', "\\-");
            assert!(page.contains(&code), "{code}");
        }
    }
}
