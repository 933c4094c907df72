//! What this package's README says of a command, as parts of a man page and as the end of its help.

const README: &str = include_str!("../../README.md");

/// What stands between two blank lines.
enum Block<'a> {
    Heading(&'a str),
    ExitStatus(&'a str),
    /// Lines for a shell.
    Examples(&'a str),
    /// The list that follows is of files.
    Files,
    List(&'a str),
    Table(&'a str),
    Text(&'a str),
}

/// The title of a part, in a line of its own, and the lines below it.
pub struct Part {
    title: &'static str,
    body: &'static str,
}

impl Part {
    /// Of a command; of the tool itself if there is none of this name.
    pub fn of(command: &str) -> Self {
        let mut parts = README.split("\n## ");
        let whole = parts.next().unwrap_or_default();
        let wanted = format!("`sluice {command}`");
        let part = parts.find(|part| part.starts_with(&wanted));
        let (title, body) = part.unwrap_or(whole).split_once('\n').unwrap_or_default();
        Self { title, body }
    }

    /// What the command is, as a noun.
    pub fn noun(&self) -> &'static str {
        self.title.split_once("`: ").map_or("", |(_, noun)| noun)
    }

    fn blocks(&self) -> impl Iterator<Item = Block<'static>> {
        let blocks = self.body.split("\n\n").map(str::trim);
        let blocks = blocks.filter(|block| !block.is_empty() && !block.starts_with("<!--"));
        blocks.map(|block| {
            if let Some(heading) = block.strip_prefix("### ") {
                Block::Heading(heading)
            } else if let Some(status) = block.strip_prefix("Exit status: ") {
                Block::ExitStatus(status)
            } else if let Some(lines) = block.strip_prefix("```sh\n") {
                Block::Examples(lines.trim_end_matches("```").trim_end())
            } else if block == "Files:" {
                Block::Files
            } else if block.starts_with("- ") {
                Block::List(block)
            } else if block.starts_with('|') {
                Block::Table(block)
            } else {
                Block::Text(block)
            }
        })
    }

    /// The rows of the table below a heading.
    pub fn table(&self, heading: &str) -> Vec<(String, String)> {
        let is_it = |block: &Block| matches!(block, Block::Heading(one) if *one == heading);
        let mut below = self.blocks().skip_while(|block| !is_it(block)).skip(1);
        match below.next() {
            Some(Block::Table(lines)) => rows(lines)
                .map(|(term, meaning)| (plain(term), plain(meaning)))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The sections of a man page, in the order of the README: their names, and their text in roff.
    pub fn sections(&self) -> Vec<(String, String)> {
        let mut sections = vec![("DESCRIPTION".to_owned(), String::new())];
        for block in self.blocks() {
            let begun = match block {
                Block::Heading(heading) => Some(heading.to_uppercase()),
                Block::ExitStatus(_) => Some("EXIT STATUS".to_owned()),
                Block::Examples(_) => Some("EXAMPLES".to_owned()),
                Block::Files => Some("FILES".to_owned()),
                Block::List(_) | Block::Table(_) | Block::Text(_) => None,
            };
            sections.extend(begun.map(|name| (name, String::new())));
            if let Some((_, text)) = sections.last_mut() {
                *text += &roff(&block);
            }
        }
        sections
    }

    /// The end of a help text: exit status and examples.
    pub fn help(&self) -> String {
        let mut help = Vec::new();
        for block in self.blocks() {
            match block {
                Block::ExitStatus(status) => {
                    help.push(format!("Exit status: {}", plain(status)));
                }
                Block::Examples(lines) => {
                    let lines = lines.lines().map(|line| format!("\n  {line}"));
                    help.push(format!("Examples:{}", lines.collect::<String>()));
                }
                _ => {}
            }
        }
        help.join("\n\n")
    }
}

/// A text in one line, without the marks of Markdown.
fn plain(text: &str) -> String {
    text.replace('\n', " ").replace('`', "")
}

fn roff(block: &Block) -> String {
    match block {
        Block::Heading(_) | Block::Files => String::new(),
        Block::Text(text) => format!(".PP\n{}\n", inline(text)),
        Block::ExitStatus(text) => {
            let mut letters = text.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            let text: String = first.into_iter().chain(letters).collect();
            format!(".PP\n{}\n", inline(&text))
        }
        Block::Examples(lines) => lines
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(comment) => format!(".PP\n{}:\n", inline(comment)),
                None => format!(".RS 4\n.nf\n{}\n.fi\n.RE\n", inline(line)),
            })
            .collect(),
        Block::List(lines) => {
            let items = lines.lines().map(|line| line.trim_start_matches("- "));
            let entries = items.map(|item| item.split_once(": ").unwrap_or((item, "")));
            entries.map(entry).collect()
        }
        Block::Table(lines) => rows(lines).map(entry).collect(),
    }
}

/// The rows of a table of two columns.
fn rows(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    // The first two lines are the header.
    let rows = lines.lines().skip(2);
    let rows = rows.map(|row| row.trim_matches(['|', ' ']));
    rows.filter_map(|row| row.split_once(" | "))
}

/// A term, and what it means.
fn entry((term, meaning): (&str, &str)) -> String {
    format!(".TP\n{}\n{}\n", inline(term), inline(meaning))
}

/// Text with code in bold; what roff would take for its own is escaped.
fn inline(text: &str) -> String {
    let mut all = String::new();
    for (number, part) in text.split('`').enumerate() {
        let part = part.replace('\\', "\\e").replace('-', "\\-");
        if number % 2 == 1 {
            all += &format!("\\fB{part}\\fR");
        } else {
            all += &part;
        }
    }
    // At the beginning of a line these begin a request.
    let lines = all.lines().map(|line| match line.chars().next() {
        Some('.' | '\'') => format!("\\&{line}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_sections() {
        let part = Part::of("stat");
        assert!(part.noun().starts_with("connections of running processes"));
        let sections = part.sections();
        let names: Vec<&str> = sections.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "DESCRIPTION",
            "EXAMPLES",
            "EXIT STATUS",
            "FILES",
            "PROMETHEUS",
            "JSON",
        ];
        assert_eq!(names, expected);
        let all: String = sections.into_iter().map(|(_, text)| text).collect();
        assert!(all.contains(".TP\n\\fBtracked\\fR\n"), "{all}");
        assert!(!all.contains('`') && !all.contains("\n|"), "{all}");
        let help = part.help();
        assert!(help.starts_with("Examples:\n  # "), "{help}");
        assert!(help.contains("\n\nExit status: 0 if "), "{help}");
    }

    #[test]
    fn roff_sees_text_as_text() {
        assert_eq!(inline("a-b `c\\d`\n.e"), "a\\-b \\fBc\\ed\\fR\n\\&.e");
    }
}
