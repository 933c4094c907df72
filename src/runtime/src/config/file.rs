//! Configuration files: `key = value` lines in sections.
//!
//! They are read once, when the library is loaded: before the program makes its first socket, gives
//! up rights, or changes its root directory. A line that is not understood is ignored and reported,
//! with its file and number. If it says which connections a rule is for, the whole rule is ignored,
//! since it would apply to more of them than its author wanted.
//!
//! A file that the user has not named is read only if nobody but root and the program's effective
//! user can have written it. Under AT_SECURE the environment is passed without variables that name
//! files.

use super::Config;
use super::line::{Line, Meaning, Path, Quoted};
use super::policy::{Rule, Side};
use super::settings::{CONFIG, FAULT, SETTINGS, Setting, number};
use crate::own_fds::Low;
use crate::subnet::{self, Subnet};
use core::ffi::{CStr, c_char};
use core::fmt;
use sluice_fabric::sys;
use std::ffi::CString;

/// The file for all users of the host.
const SYSTEM: &CStr = c"/etc/sluice.conf";

/// Bytes of a file that are read.
const LEN_MAX: usize = 64 << 10;

/// False for settings of the environment alone: of tests, of the command, and for the file's path.
pub(super) fn is_for_files(setting: &Setting) -> bool {
    !matches!(setting.name, FAULT | "SLUICE_LIBRARY" | CONFIG)
}

/// The name of a setting in a file.
pub(super) fn key(setting: &Setting) -> String {
    let name = setting.name;
    name.trim_start_matches("SLUICE_").to_ascii_lowercase()
}

/// The paths of files that the environment names.
#[derive(Default)]
pub(super) struct Places<'a> {
    /// `SLUICE_CONFIG`: this file and no other; empty: no file.
    pub chosen: Option<&'a [u8]>,
    /// `HOME`.
    pub home: Option<&'a [u8]>,
    /// `XDG_CONFIG_HOME`.
    pub user: Option<&'a [u8]>,
}

/// The settings read so far.
pub(super) struct Read<'a> {
    pub config: Config,
    /// The settings of [`SETTINGS`] that files set, a bit each.
    pub set: u32,
    pub complaint: &'a mut Line,
}

impl Places<'_> {
    /// `~/.config/sluice/sluice.conf`.
    fn user_file(&self) -> Option<CString> {
        let absolute = |path: &&[u8]| path.starts_with(b"/");
        let path = match (self.user.filter(absolute), self.home.filter(absolute)) {
            (Some(user), _) => [user, b"/sluice/sluice.conf"].concat(),
            (None, Some(home)) => [home, b"/.config/sluice/sluice.conf"].concat(),
            (None, None) => return None,
        };
        CString::new(path).ok()
    }
}

/// An open regular file.
struct File {
    fd: sys::Fd,
    stat: libc::stat,
    /// Dropped after the descriptor, which stays where the kernel put it.
    _low: Low,
}

impl File {
    fn open(path: &CStr) -> Result<File, sys::Errno> {
        let _low = Low::begin();
        // No open may block, or make a terminal the controlling one.
        let fd = sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
        let stat = sys::fstat(fd.raw())?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(libc::EINVAL);
        }
        Ok(File { fd, stat, _low })
    }

    /// Its contents, up to [`LEN_MAX`] bytes.
    fn text(&self) -> Result<Vec<u8>, sys::Errno> {
        let mut text = vec![0; LEN_MAX];
        let mut len = 0;
        while let Some(room) = text.get_mut(len..).filter(|room| !room.is_empty()) {
            match sys::read(self.fd.raw(), room)? {
                0 => break,
                n => len += n,
            }
        }
        text.truncate(len);
        Ok(text)
    }
}

const ROOT: libc::uid_t = 0;

/// The effective user that this program was started as. Needs no system call.
fn effective_user() -> libc::uid_t {
    // SAFETY: has no side effect, and takes any number.
    unsafe { libc::getauxval(libc::AT_EUID) as libc::uid_t }
}

/// Why the contents may be neither `user`'s nor root's. (A program under sudo has its caller's
/// HOME.)
#[derive(Debug, PartialEq, Eq)]
enum Doubt {
    Owner {
        is: libc::uid_t,
        user: libc::uid_t,
    },
    /// Others may write to a file of this mode.
    Writers(libc::mode_t),
}

impl Doubt {
    fn of(stat: &libc::stat, user: libc::uid_t) -> Option<Doubt> {
        let is = stat.st_uid;
        if is != user && is != ROOT {
            return Some(Doubt::Owner { is, user });
        }
        let others = libc::S_IWGRP | libc::S_IWOTH;
        (stat.st_mode & others != 0).then_some(Doubt::Writers(stat.st_mode & 0o7777))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Owner { is, user: ROOT } => write!(f, "belongs to user {is} and not to root"),
            Doubt::Owner { is, user } => {
                write!(f, "belongs to user {is}, neither to {user} nor to root")
            }
            Doubt::Writers(mode) => {
                write!(
                    f,
                    "may be written to by others than its owner (mode {mode:04o})"
                )
            }
        }
    }
}

/// The name by which this program was started, without its directory.
pub fn program() -> &'static [u8] {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: null, or the string that libc has set up before any library's constructor.
    unsafe {
        match program_invocation_short_name.as_ref() {
            Some(name) => CStr::from_ptr(name).to_bytes(),
            None => b"",
        }
    }
}

/// Where a line is.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a [u8],
    line: usize,
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Path(self.path), self.line)
    }
}

/// What the lines after a header are.
enum Section {
    /// Settings. Those of another program are checked and ignored.
    Settings { ours: bool },
    /// A rule; `None`: it is for other programs, or has a line that was not understood.
    Rule(Option<Rule>),
    /// Lines of a header that was not understood, and was reported.
    Unknown,
}

impl<'a> Read<'a> {
    pub(super) fn new(complaint: &'a mut Line) -> Self {
        Read {
            config: Config::DEFAULT,
            set: 0,
            complaint,
        }
    }

    /// Reads the settings of this program from files. Those of the user override those of the host,
    /// and the user's rules come first.
    pub(super) fn files(&mut self, places: &Places<'_>) {
        match places.chosen {
            Some([]) => {}
            Some(path) => match CString::new(path)
                .map_err(|_| libc::EINVAL)
                .and_then(|path| File::open(&path)?.text())
            {
                Ok(text) => self.take(path, &text, program()),
                Err(errno) => self.complaint.add(format_args!(
                    "{}={} cannot be read ({}), using no file",
                    CONFIG,
                    Quoted(path),
                    Meaning(errno)
                )),
            },
            None => {
                self.take_trusted(SYSTEM, ROOT);
                let of_host = core::mem::take(&mut self.config.rules);
                if let Some(path) = places.user_file() {
                    self.take_trusted(&path, effective_user());
                }
                self.config.rules.extend(of_host);
            }
        }
    }

    /// Takes the settings of a file, if there is one, and nobody but `user` and root can have
    /// written it.
    fn take_trusted(&mut self, path: &CStr, user: libc::uid_t) {
        let Ok(file) = File::open(path) else {
            return;
        };
        let path = path.to_bytes();
        // Checked on the open file: the name may be another file's by now.
        if let Some(doubt) = Doubt::of(&file.stat, user) {
            let path = Path(path);
            self.complaint.add(format_args!("{path} {doubt}, ignored"));
        } else if let Ok(text) = file.text() {
            self.take(path, &text, program());
        }
    }

    /// Takes the settings that a file has for `program`.
    pub(super) fn take(&mut self, path: &[u8], text: &[u8], program: &[u8]) {
        let mut section = Section::Settings { ours: true };
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let at = At { path, line: number };
            let line = without_comment(line).trim_ascii();
            if line.is_empty() {
                continue;
            }
            if line.starts_with(b"[") {
                self.close(core::mem::replace(&mut section, Section::Unknown));
                section = self.open(at, line, program);
                continue;
            }
            let mut parts = line.splitn(2, |&byte| byte == b'=');
            let (Some(key), Some(value)) = (parts.next(), parts.next()) else {
                self.unknown(at, line);
                continue;
            };
            let (key, value) = (key.trim_ascii(), value.trim_ascii());
            match &mut section {
                Section::Settings { ours } => self.setting(at, key, value, *ours),
                Section::Rule(rule) => self.condition(at, key, value, program, rule),
                Section::Unknown => {}
            }
        }
        self.close(section);
        if text.len() == LEN_MAX {
            self.complaint.add(format_args!(
                "{}: only the first {LEN_MAX} bytes were read",
                Path(path)
            ));
        }
    }

    /// Begins the section of a header.
    fn open(&mut self, at: At<'_>, line: &[u8], program: &[u8]) -> Section {
        let inner = line.strip_prefix(b"[").and_then(|l| l.strip_suffix(b"]"));
        let inner = inner.unwrap_or_default().trim_ascii();
        match inner {
            b"leave" => return Section::Rule(Some(Rule::new(true))),
            b"accelerate" => return Section::Rule(Some(Rule::new(false))),
            _ => {}
        }
        let names = inner
            .strip_prefix(b"program")
            .filter(|n| n.starts_with(b" ") || n.starts_with(b"\t"));
        if let Some(names) = names {
            let ours = is_among(program, names);
            return Section::Settings { ours };
        }
        self.complaint.add(format_args!(
            "{at}: {} is not [program NAME, ...], [leave] or [accelerate], ignored with what is \
             below it",
            Quoted(line)
        ));
        Section::Unknown
    }

    /// Ends a section.
    fn close(&mut self, section: Section) {
        if let Section::Rule(Some(rule)) = section {
            self.config.rules.push(rule);
        }
    }

    fn unknown(&mut self, at: At<'_>, name: &[u8]) {
        let name = Quoted(name);
        let what = format_args!("{at}: {name}: unknown setting, ignored");
        self.complaint.add(what);
    }

    fn setting(&mut self, at: At<'_>, name: &[u8], value: &[u8], ours: bool) {
        let named = |(_, setting): &(u32, &Setting)| {
            is_for_files(setting) && key(setting).as_bytes() == name
        };
        let Some((bit, setting)) = (0..).zip(SETTINGS).find(named) else {
            return self.unknown(at, name);
        };
        // An empty value counts as none.
        if value.is_empty() {
            return;
        }
        // Another program's settings are checked, too.
        let mut spare = Config::DEFAULT;
        let config = if ours { &mut self.config } else { &mut spare };
        if (setting.set)(value, config).is_none() {
            self.complaint.add(format_args!(
                "{at}: {} = {} is not {}, ignored",
                key(setting),
                Quoted(value),
                setting.values
            ));
        } else if ours {
            self.set |= 1 << bit;
        }
    }

    /// Takes a line of a rule.
    fn condition(
        &mut self,
        at: At<'_>,
        name: &[u8],
        value: &[u8],
        program: &[u8],
        slot: &mut Option<Rule>,
    ) {
        // Another program's rules are checked, too.
        let mut spare = Rule::new(false);
        let rule = slot.as_mut().unwrap_or(&mut spare);
        let mut ours = true;
        let understood = match name {
            b"program" => {
                ours = is_among(program, value);
                Ok(())
            }
            b"role" => {
                rule.side = match value {
                    b"server" => Some(Side::Server),
                    b"client" => Some(Side::Client),
                    _ => None,
                };
                rule.side.map(drop).ok_or("server or client")
            }
            b"address" => subnets(value)
                .map(|list| rule.addresses.extend(list))
                .ok_or("addresses or subnets, separated by commas"),
            b"port" => subnet::list(value, |text| ports(text.trim()))
                .map(|list| rule.ports.extend(list))
                .ok_or("ports or ranges like 8000-8099, separated by commas"),
            _ => Err(""),
        };
        match understood {
            Ok(()) if ours => return,
            Ok(()) => {}
            Err("") => self.complaint.add(format_args!(
                "{at}: {} is not program, role, address or port, its section is ignored",
                Quoted(name)
            )),
            Err(values) => self.complaint.add(format_args!(
                "{at}: {} is not {values}, its section is ignored",
                Quoted(value)
            )),
        }
        *slot = None;
    }
}

fn subnets(value: &[u8]) -> Option<Vec<Subnet>> {
    subnet::list(value, |text| Subnet::parse(text.trim()))
}

/// Parses one port, or the first and the last of a range.
fn ports(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| u16::try_from(number(text.trim().as_bytes())?).ok();
    match text.split_once('-') {
        Some((first, last)) => Some((port(first)?, port(last)?)).filter(|(a, b)| a <= b),
        None => port(text).map(|port| (port, port)),
    }
}

/// True if the program's name is in the list. `NAME*` matches all that begin so.
fn is_among(program: &[u8], names: &[u8]) -> bool {
    let mut names = names.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    names.any(|name| match name.strip_suffix(b"*") {
        Some(beginning) => program.starts_with(beginning),
        None => !name.is_empty() && program == name,
    })
}

/// The line up to a `#` at its beginning or after a blank.
fn without_comment(line: &[u8]) -> &[u8] {
    let mut blank = true;
    for (i, &byte) in line.iter().enumerate() {
        if byte == b'#' && blank {
            return line.get(..i).unwrap_or_default();
        }
        blank = byte.is_ascii_whitespace();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::settings::section;
    use super::super::{Mode, Upgrade};
    use super::*;

    fn taken(texts: &[&str], program: &str) -> (Config, u32, String) {
        let mut complaint = Line::new();
        let mut read = Read::new(&mut complaint);
        for text in texts {
            read.take(b"/etc/x.conf", text.as_bytes(), program.as_bytes());
        }
        let (config, set) = (read.config, read.set);
        let said = String::from_utf8_lossy(complaint.finished()).into();
        (config, set, said)
    }

    fn understood(text: &str, program: &str) -> Config {
        let (config, _, said) = taken(&[text], program);
        assert_eq!(said, "", "{text}");
        config
    }

    #[test]
    fn the_man_page_lists_every_setting() {
        let page = include_str!("../../../../docs/sluice.conf.5");
        let settings = SETTINGS.iter().filter(|setting| is_for_files(setting));
        let section = section(settings.map(|setting| (format!("Cm {}", key(setting)), setting)));
        assert!(
            page.contains(&section),
            "docs/sluice.conf.5 is to have this section:\n{section}"
        );
    }

    #[test]
    fn settings_are_those_of_the_environment() {
        let text = "# of all\r\nupgrade = eager\n\n mode=direct # at night\nspin_us\t=\t0\n\
                    report = /a#b\n";
        let config = understood(text, "any");
        assert_eq!(config.upgrade, Upgrade::Eager);
        assert_eq!(config.mode, Mode::Direct);
        assert_eq!(config.spin_ns, 0);
        assert_eq!(config.report.as_deref(), Some(c"/a#b"));
        for setting in SETTINGS.iter().filter(|s| is_for_files(s)) {
            if !setting.default.contains(' ') {
                let text = format!("{} = {}", key(setting), setting.default);
                assert_eq!(understood(&text, "any"), Config::DEFAULT, "{text}");
            }
        }
    }

    #[test]
    fn a_section_is_for_the_programs_it_names() {
        let text = "ring = 64K\n[program nginx, python3*]\nring = 1M\n[ program redis-server ]\n\
                    ring = 4K\n";
        for (program, len) in [
            ("nginx", 1 << 20),
            ("python3.11", 1 << 20),
            ("redis-server", 4096),
            ("redis-serve", 65536),
            ("", 65536),
        ] {
            assert_eq!(understood(text, program).ring_len, len, "{program}");
        }
    }

    #[test]
    fn an_empty_value_is_as_if_the_line_were_not_there() {
        for setting in SETTINGS.iter().filter(|s| is_for_files(s)) {
            let text = format!("{} = # none", key(setting));
            let (config, set, said) = taken(&[&text], "any");
            assert_eq!((config, set, said.as_str()), (Config::DEFAULT, 0, ""));
        }
        assert_eq!(understood("ring = 4K\nring =", "any").ring_len, 4096);
    }

    #[test]
    fn a_later_line_and_a_later_file_win() {
        let (config, set, said) = taken(&["ring = 4K\nring = 8K", "spin_us = 7"], "any");
        assert_eq!((config.ring_len, config.spin_ns), (8192, 7000));
        assert_eq!((set.count_ones(), said.as_str()), (2, ""));
    }

    #[test]
    fn rules_are_taken_in_order() {
        let text = "[accelerate]\naddress = 10.1.0.0/16, fd00::1\nport = 80, 8000 - 8099\n[leave]\n\
                    role = client\n[leave]\nprogram = sshd\n";
        let rules = understood(text, "nginx").rules;
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].ports, [(80, 80), (8000, 8099)]);
        assert_eq!((rules[0].leaves, rules[0].addresses.len()), (false, 2));
        assert_eq!((rules[1].leaves, rules[1].side), (true, Some(Side::Client)));
        assert_eq!(understood(text, "sshd").rules.len(), 3);
    }

    #[test]
    fn what_cannot_be_understood_is_named_by_file_and_line_and_ignored() {
        let refused = |text: &str, expected: &str| {
            let (config, _, said) = taken(&[text], "any");
            assert_eq!(config, Config::DEFAULT, "{text}");
            assert_eq!(said, format!("sluice: /etc/x.conf:{expected}\n"));
        };
        refused(
            "\nring = 1G",
            "2: ring = \"1G\" is not a power of two from 4K to 4M, ignored",
        );
        refused("speed = 9", "1: \"speed\": unknown setting, ignored");
        refused("fault = demote:1", "1: \"fault\": unknown setting, ignored");
        refused("library = /x", "1: \"library\": unknown setting, ignored");
        refused("config = /x", "1: \"config\": unknown setting, ignored");
        refused("eager", "1: \"eager\": unknown setting, ignored");
        // Also in a section for other programs.
        refused(
            "[program x]\nmode = fast",
            "2: mode = \"fast\" is not dynamic, direct or indirect, ignored",
        );
        refused(
            "[programs x]\nmode = direct",
            "1: \"[programs x]\" is not [program NAME, ...], [leave] or [accelerate], ignored with \
             what is below it",
        );
        refused(
            "[leave\nport = 1",
            "1: \"[leave\" is not [program NAME, ...], [leave] or [accelerate], ignored with what \
             is below it",
        );
    }

    #[test]
    fn a_rule_that_is_not_wholly_understood_is_none() {
        let ports = "ports or ranges like 8000-8099, separated by commas";
        for (line, what, values) in [
            ("port = 70000", "70000", ports),
            ("port = 9-8", "9-8", ports),
            ("port =", "", ports),
            ("role = any", "any", "server or client"),
            (
                "address = host",
                "host",
                "addresses or subnets, separated by commas",
            ),
            ("ring = 4K", "ring", "program, role, address or port"),
        ] {
            let text = format!("[leave]\nrole = server\n{line}\nport = 80");
            let (config, _, said) = taken(&[&text], "any");
            assert_eq!(config, Config::DEFAULT, "{line}");
            let expected = format!("\"{what}\" is not {values}, its section is ignored");
            assert_eq!(said, format!("sluice: /etc/x.conf:3: {expected}\n"));
        }
    }

    #[test]
    fn no_file_reaches_the_terminal_raw() {
        let (_, _, said) = taken(&["mode = \u{1b}[2J\n\u{7}\n[\u{1}]"], "any");
        assert!(
            said.trim_end().bytes().all(|b| (b' '..=b'~').contains(&b)),
            "{said}"
        );
        assert_eq!(said.matches('\n').count(), 1);
    }

    #[test]
    fn the_users_file_is_where_xdg_says_or_at_home() {
        let at = |user: Option<&str>, home: Option<&str>| {
            let (user, home) = (user.map(str::as_bytes), home.map(str::as_bytes));
            let chosen = None;
            let places = Places { chosen, home, user };
            places.user_file().map(|path| path.into_string().unwrap())
        };
        let of_home = Some("/h/.config/sluice/sluice.conf");
        assert_eq!(at(None, Some("/h")).as_deref(), of_home);
        assert_eq!(at(Some("x"), Some("/h")).as_deref(), of_home);
        let of_xdg = Some("/x/sluice/sluice.conf");
        assert_eq!(at(Some("/x"), Some("/h")).as_deref(), of_xdg);
        assert_eq!(at(None, Some("")), None);
    }

    #[test]
    fn only_regular_files_are_read() {
        let refused = |path| File::open(path).err();
        assert_eq!(refused(c"/dev/zero"), Some(libc::EINVAL));
        assert_eq!(refused(c"/"), Some(libc::EINVAL));
        assert_eq!(refused(c"/nonexistent/sluice.conf"), Some(libc::ENOENT));
    }

    #[test]
    fn a_file_that_others_can_write_is_named_and_ignored() {
        // SAFETY: a plain C structure, for which all zeroes are a valid value.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        let not_roots = "belongs to user 1000 and not to root";
        let neithers = "belongs to user 1000, neither to 1001 nor to root";
        let by_others = "may be written to by others than its owner (mode 06";
        for (owner, mode, user, expected) in [
            (0, 0o644, ROOT, ""),
            (0, 0o600, 1000, ""),
            (1000, 0o444, 1000, ""),
            (1000, 0o600, ROOT, not_roots),
            (1000, 0o666, 1001, neithers),
            (1000, 0o664, 1000, &format!("{by_others}64)")),
            (0, 0o602, ROOT, &format!("{by_others}02)")),
        ] {
            (stat.st_uid, stat.st_mode) = (owner, libc::S_IFREG | mode);
            let doubt = Doubt::of(&stat, user).map(|doubt| doubt.to_string());
            let said = doubt.unwrap_or_default();
            assert_eq!(said, expected, "{owner} {mode:o} {user}");
        }
    }

    #[test]
    fn the_effective_user_is_who_started_this_program() {
        // SAFETY: has no arguments and no effect.
        assert_eq!(effective_user(), unsafe { libc::geteuid() });
    }
}
