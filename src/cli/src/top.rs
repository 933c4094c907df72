//! `sluice top`: what moves, and how, in a terminal.

mod rows;
mod screen;

use crate::choice::Choice;
use crate::complain;
use crate::look::Looker;
use crate::stat::{self, Wanted};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rows::{Order, Sampler};
use screen::View;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Process ids or names of programs; without any, all processes that use Sluice
    #[arg(value_name = "PID|NAME", value_parser = stat::who)]
    who: Vec<String>,

    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = stat::seconds)]
    interval: Duration,

    /// Begin with processes, not with connections
    #[arg(short, long)]
    processes: bool,

    /// What to sort by
    #[arg(short, long, value_enum, default_value_t = Order::Rate)]
    sort: Order,
}

/// Seconds in which the tool ends by itself after a signal.
const GRACE_S: u32 = 2;

/// Somebody wants the tool to end.
static ENDS: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    ENDS.store(true, Ordering::Relaxed);
    // Where the terminal has gone, the look for keys never returns. SIGALRM ends the process then.
    // SAFETY: alarm(2) is safe in signal handlers.
    unsafe { libc::alarm(GRACE_S) };
}

pub fn top(arguments: &Arguments) -> ExitCode {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        complain("top needs a terminal; `sluice stat --watch` does not");
        return ExitCode::FAILURE;
    }
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let handler = end as extern "C" fn(libc::c_int);
        // SAFETY: the handler stores to an atomic and sets an alarm.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    // Leaves the terminal as it was also after a panic.
    let outcome = ratatui::run(|terminal| {
        let mut view = View::new(arguments.processes, arguments.sort);
        let mut sampler = Sampler::new();
        let mut looker = Looker::default();
        let wanted = Wanted {
            who: &arguments.who,
            listed: Some(stat::MOST_LISTED as usize),
            choice: Choice::default(),
        };
        let mut next = Instant::now();
        while !ENDS.load(Ordering::Relaxed) {
            if Instant::now() >= next && !view.is_paused {
                let (report, missing) = stat::collect(&mut looker, &wanted);
                if report.is_empty() {
                    view.nothing(missing.join("\n"));
                } else {
                    view.update(sampler.sample(&report), &report);
                }
                next = Instant::now() + arguments.interval;
            }
            terminal.draw(|frame| view.draw(frame))?;
            // A signal is seen by then at the latest.
            const LOOK: Duration = Duration::from_millis(200);
            let left = next.saturating_duration_since(Instant::now());
            let wait = if view.is_paused { LOOK } else { left.min(LOOK) };
            if event::poll(wait)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && pressed(&mut view, key)
            {
                break;
            }
        }
        io::Result::Ok(())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("terminal: {}", crate::run::reason(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The rows of a first look, to be tried with reports of any kind.
#[cfg(test)]
pub fn rows_of(report: &crate::report::Report) -> rows::Sample {
    Sampler::new().sample(report)
}

/// True: the user wants to quit.
fn pressed(view: &mut View, key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    if is_control && matches!(key.code, KeyCode::Char('c' | 'd')) {
        return true;
    }
    if view.is_typing() {
        match key.code {
            // Some terminals have Ctrl-H for Backspace.
            KeyCode::Char('h') if is_control => view.erased(),
            KeyCode::Char('u') if is_control => view.erased_all(),
            KeyCode::Char(letter) if !is_control => view.typed(letter),
            KeyCode::Backspace => view.erased(),
            KeyCode::Enter => view.end_typing(),
            KeyCode::Esc => {
                view.erased_all();
                view.end_typing();
            }
            _ => {}
        }
        return false;
    }
    if view.shows_help {
        view.shows_help = false;
        return false;
    }
    match key.code {
        KeyCode::Esc if view.has_filter() => view.erased_all(),
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => view.shows_help = true,
        KeyCode::Char(' ') => view.is_paused = !view.is_paused,
        KeyCode::Char('s') => view.sort_by_next(),
        KeyCode::Char('r') => view.turn_round(),
        KeyCode::Char('p') => view.switch(),
        KeyCode::Char('/') => view.begin_typing(),
        KeyCode::Up | KeyCode::Char('k') => view.moves(-1),
        KeyCode::Down | KeyCode::Char('j') => view.moves(1),
        KeyCode::PageUp => view.moves(-10),
        KeyCode::PageDown => view.moves(10),
        KeyCode::Home => view.moves(isize::MIN),
        KeyCode::End => view.moves(isize::MAX),
        _ => {}
    }
    false
}
