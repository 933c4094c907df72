//! The terminal that stdout may be: its width, and whether it is given colours.

use ratatui::crossterm::style::{ContentStyle, Stylize};
use std::env;
use std::io::IsTerminal;
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
        if !std::io::stdout().is_terminal() {
            return Self::default();
        }
        Self {
            width: Some(width().unwrap_or(USUAL_WIDTH)),
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
                let (part, rest) = word.split_at(break_of(word, room));
                if !line.is_empty() {
                    lines.push(std::mem::take(&mut line));
                }
                lines.push(" ".repeat(indent) + part);
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

/// Where a word that is longer than a line is broken, in bytes: after the last slash that fits, or
/// where the line ends.
fn break_of(word: &str, room: usize) -> usize {
    let mut used = 0;
    let fits = |&(_, letter): &(usize, char)| {
        used += letter.width().unwrap_or(0);
        used <= room
    };
    let fitting = word.char_indices().take_while(fits);
    let mut fitting: Vec<_> = fitting.map(|(at, c)| (at + c.len_utf8(), c)).collect();
    if fitting.is_empty() {
        // A letter that is wider than the line.
        fitting.extend(word.chars().next().map(|c| (c.len_utf8(), c)));
    }
    // Not after the slash that a path begins with.
    let mut slashes = fitting.iter().filter(|&&(end, c)| c == '/' && end > 1);
    let place = slashes.next_back().or(fitting.last());
    place.map_or(word.len(), |&(end, _)| end)
}

fn width() -> Option<usize> {
    // SAFETY: zeroes are a valid size.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a place of that type.
    let told = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
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
            "  at",
            "  /usr/lib/",
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
