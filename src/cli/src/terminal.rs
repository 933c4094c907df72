//! The terminal that stdout or stderr may be: its width, and whether it is given colours.

use ratatui::crossterm::style::{ContentStyle, Stylize};
use std::env;
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What the output is written for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    /// In columns; `None`: a file or a pipe, whose lines may be of any length.
    pub width: Option<usize>,
    pub has_colours: bool,
}

/// Of a terminal that does not tell its width.
const USUAL_WIDTH: usize = 80;

impl Screen {
    /// What stdout is.
    pub fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    pub fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    fn of(output: &(impl IsTerminal + AsRawFd)) -> Self {
        if !output.is_terminal() {
            return Self::default();
        }
        Self {
            width: Some(width(output).unwrap_or(USUAL_WIDTH)),
            has_colours: has_colours(),
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.styled(text, Stylize::bold)
    }

    pub fn dim(self, text: &str) -> String {
        self.styled(text, Stylize::dim)
    }

    fn styled(self, text: &str, style: fn(ContentStyle) -> ContentStyle) -> String {
        if self.has_colours {
            style(ContentStyle::new()).apply(text).to_string()
        } else {
            text.to_owned()
        }
    }

    /// The text in lines that fit, each indented by so many columns. A word that is longer than a
    /// line goes on in the next one, a path after a slash.
    pub fn wrapped(self, text: &str, indent: usize) -> Vec<String> {
        let width = self.width.unwrap_or(usize::MAX);
        let room = width.saturating_sub(indent).max(1);
        let mut lines = Vec::new();
        let mut line = String::new();
        for mut word in text.split(' ') {
            while word.width() > room {
                let left = width.saturating_sub(line.width() + 1);
                let goes_on = slash_of(word, left).filter(|_| !line.is_empty());
                if goes_on.is_some() {
                    line.push(' ');
                } else {
                    if !line.is_empty() {
                        lines.push(std::mem::take(&mut line));
                    }
                    line = " ".repeat(indent);
                }
                let end = goes_on.or_else(|| slash_of(word, room));
                let end = end.unwrap_or_else(|| end_of(word, room));
                let (part, rest) = word.split_at(end);
                lines.push(std::mem::take(&mut line) + part);
                word = rest;
            }
            if !line.is_empty() && line.width() + 1 + word.width() > width {
                lines.push(std::mem::take(&mut line));
            }
            if line.is_empty() {
                line = " ".repeat(indent);
            } else {
                line.push(' ');
            }
            line += word;
        }
        lines.push(line);
        lines
    }

    /// As much of the text as fits after so many columns; what is cut off ends in dots.
    pub fn cut(self, text: &str, after: usize) -> String {
        const DOTS: &str = "...";
        let room = self.width.map_or(usize::MAX, |w| w.saturating_sub(after));
        if text.width() <= room {
            return text.to_owned();
        }
        let room = room.saturating_sub(DOTS.len());
        let mut used = 0;
        let fits = |letter: &char| {
            used += letter.width().unwrap_or(0);
            used <= room
        };
        text.chars().take_while(fits).collect::<String>() + DOTS
    }
}

/// How many bytes of a word fit; at least its first letter, which may be wider than a line.
fn end_of(word: &str, room: usize) -> usize {
    let mut used = 0;
    let is_over = |letter: char| {
        used += letter.width().unwrap_or(0);
        used > room
    };
    let first = word.chars().next().map_or(0, char::len_utf8);
    word.find(is_over).unwrap_or(word.len()).max(first)
}

/// How many bytes of a path fit, up to a slash: not up to the one that it begins with.
fn slash_of(word: &str, room: usize) -> Option<usize> {
    let fitting = word.get(..end_of(word, room))?;
    fitting.rfind('/').filter(|&at| at > 0).map(|at| at + 1)
}

fn width(output: &impl AsRawFd) -> Option<usize> {
    // SAFETY: zeroes are a valid size.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a place of that type.
    let told = unsafe { libc::ioctl(output.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (told == 0 && size.ws_col != 0).then_some(usize::from(size.ws_col))
}

/// May a terminal be given colours? See https://no-color.org; a dumb terminal would show the escape
/// sequences themselves.
pub fn has_colours() -> bool {
    let is_refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    !is_refused && !is_dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_wrapped_between_words() {
        let screen = Screen {
            width: Some(12),
            has_colours: false,
        };
        let lines = screen.wrapped("a few words, averyverylongone b", 2);
        let expected = ["  a few", "  words,", "  averyveryl", "  ongone b"];
        assert_eq!(lines, expected);
        let lines = screen.wrapped("at /usr/lib/x86_64-linux-gnu/sluice", 2);
        let expected = [
            "  at /usr/",
            "  lib/",
            "  x86_64-lin",
            "  ux-gnu/",
            "  sluice",
        ];
        assert_eq!(lines, expected);
        // Letters that are two columns wide, and a line of one.
        let narrow = |text, width| {
            let screen = Screen {
                width: Some(width),
                ..screen
            };
            screen.wrapped(text, 0)
        };
        assert_eq!(narrow("日本語", 4), ["日本", "語"]);
        assert_eq!(narrow("日a", 1), ["日", "a"]);
        assert_eq!(
            Screen::default().wrapped("a few words", 2),
            ["  a few words"]
        );
    }

    #[test]
    fn what_is_cut_off_is_marked() {
        let screen = Screen {
            width: Some(10),
            has_colours: false,
        };
        assert_eq!(screen.cut("abcdefg", 3), "abcdefg");
        assert_eq!(screen.cut("abcdefgh", 3), "abcd...");
        // Letters that are two columns wide.
        assert_eq!(screen.cut("日本語日本", 3), "日本...");
        assert_eq!(screen.cut("abc", 30), "...");
    }

    #[test]
    fn styles_are_for_colours_alone() {
        let mut screen = Screen::default();
        assert_eq!(screen.bold("a"), "a");
        screen.has_colours = true;
        assert!(screen.dim("a").starts_with('\x1b'));
    }
}
