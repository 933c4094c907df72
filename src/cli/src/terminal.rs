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

    /// The text in lines that fit, each indented by so many columns.
    pub fn wrapped(self, text: &str, indent: usize) -> Vec<String> {
        let width = self.width.unwrap_or(usize::MAX);
        let mut lines = Vec::new();
        let mut line = String::new();
        for word in text.split(' ') {
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
        let lines = screen.wrapped("a few words, averyverylongone", 2);
        assert_eq!(lines, ["  a few", "  words,", "  averyverylongone"]);
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
