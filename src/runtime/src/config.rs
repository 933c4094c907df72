//! Settings from the environment and from configuration files, and the one line on stderr about
//! those that are not understood.
//!
//! The environment wins over a [`mod@file`]. It is read once, through libc's `environ`: `std::env`
//! would take a lock that a forked child can find locked. [`config()`] works before any constructor
//! ran. A setting that is not understood is never an error: the program runs with the default, and
//! one line tells the user. [`SETTINGS`] is the only list of names, values and defaults;
//! documentation is made of it.

mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod line;
mod path;
mod policy;
mod settings;

pub use self::file::program;
use self::file::{Places, Read};
use self::line::{Line, Quoted, Shown};
pub use self::line::{Meaning, Path};
pub use self::policy::{Rule, Side};
use self::settings::{CONFIG, FAULT, REPORT, TRACE};
pub use self::settings::{SETTINGS, Setting};
use crate::subnet::Subnet;
use core::ffi::{CStr, c_char};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use once_cell::race::OnceBox;
use sluice_fabric::sys::Errno;
use std::ffi::CString;

/// When a connection leaves TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// When it has cost TCP about as much as leaving TCP costs.
    Auto,
    /// From the first byte on.
    Eager,
    /// After this many bytes, both directions together, rounded up to a power of two; tried again
    /// at 2, 4, ... times as many.
    At(u64),
    /// Never.
    Off,
}

/// How bytes travel on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Direct where there is a fresh ADVERT, else through the ring.
    Dynamic,
    /// Direct only. A stream to which no ADVERT comes is demoted.
    Direct,
    /// Through the ring only.
    Indirect,
}

/// How `sendfile` to another host takes a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendfile {
    /// Reads them into a ring.
    Copy,
    /// Registers the file's pages for the call.
    Register,
    /// Lets the device read the file's pages, which stay registered for later calls.
    Pages,
    /// By pages where that was measured to cost less than a copy.
    Auto,
}

/// How much is logged on stderr. A later level logs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only complaints about settings, and about a second copy of the library.
    Off,
    /// Failures of Sluice. Nothing is logged at this level so far.
    Error,
    /// Each upgrade, and each demotion with its reason.
    Info,
    /// Each failed try to upgrade, and why it failed.
    Debug,
}

/// The settings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// When a connection leaves TCP.
    pub upgrade: Upgrade,
    /// How bytes travel on a link.
    pub mode: Mode,
    /// Longest spin before a sleep; 0 forbids spinning.
    pub spin_ns: u32,
    /// Greatest length of a ring; a power of two.
    pub ring_len: u32,
    /// How `sendfile` to another host takes a file's bytes.
    pub sendfile: Sendfile,
    /// Smallest direct transfer in [`Mode::Dynamic`]; `None` for no direct transfer.
    pub direct_min: Option<u32>,
    /// Between hosts it is learnt instead which direct transfers pay.
    pub direct_learnt: bool,
    /// How much is logged on stderr.
    pub log: Level,
    /// A fault for tests. Always `None` unless built with feature `fault`.
    pub fault: Option<Fault>,
    /// File that gets one line per finished connection.
    pub report: Option<CString>,
    /// Prefix of the names of files that get every message of a process.
    pub trace: Option<CString>,
    /// Hosts that may be dialled, and may dial, over iWARP.
    pub peers: Vec<Subnet>,
    /// The one RDMA device that may be used; `None`: any.
    pub device: Option<CString>,
    /// Other addresses of hosts, for RDMA.
    pub map: Vec<(Subnet, Subnet)>,
    /// Most connections that are accelerated at once; `None`: no limit.
    pub connections: Option<u64>,
    /// Most bytes of rings that they have together; `None`: no limit.
    pub memory: Option<u64>,
    /// Which connections stay on TCP. The first rule that matches decides.
    pub rules: Vec<Rule>,
}

/// A fault that a build for tests makes, at random moments from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Takes a stream back to TCP.
    Demote(u64),
    /// Fails a link to another host.
    Link(u64),
    /// Fails the queue pair for direct transfers of a link to another host.
    Direct(u64),
    /// A defect that tests must find: omits to wake a peer that sleeps.
    Wakeup(u64),
    /// A defect that tests must find: reports one byte less of a peek.
    Peek(u64),
    /// Behaves as on Linux before 6.16, where sockets cannot refuse descriptors.
    OldKernel,
}

impl Config {
    /// The settings of an empty environment on a host without a configuration file.
    pub const DEFAULT: Config = Config {
        upgrade: Upgrade::Auto,
        mode: Mode::Dynamic,
        spin_ns: 50_000,
        ring_len: 256 << 10,
        sendfile: Sendfile::Auto,
        direct_min: Some(32 << 10),
        direct_learnt: false,
        log: Level::Error,
        fault: None,
        report: None,
        trace: None,
        peers: Vec::new(),
        device: None,
        map: Vec::new(),
        connections: None,
        memory: None,
        rules: Vec::new(),
    };
}

/// The settings of this process. The first call that finds an environment reads it, and tells the
/// user which settings were not understood.
///
/// Before libc has set up `environ` (in a call from `.preinit_array`) these are the defaults.
pub fn config() -> &'static Config {
    static CONFIG: OnceBox<Config> = OnceBox::new();
    if let Some(config) = CONFIG.get() {
        return config;
    }
    // SAFETY: `environ` is libc's variable; only the pointer is read here.
    let variables = unsafe { environ };
    if variables.is_null() {
        return const { &Config::DEFAULT };
    }
    CONFIG.get_or_init(|| {
        // SAFETY: not null, so an environment as environ(7) describes it. The library's constructor
        // is the first to come here, before the program could change its environment. A program
        // that does so in another thread during an earlier hook breaks the rules of setenv(3) for
        // getenv(3).
        let all = || unsafe { Variables::new(variables) };
        let is_secure = is_secure();
        let all = || all().filter(|(name, _)| is_heeded(name, is_secure));
        let mut complaint = Line::new();
        let mut read = Read::new(&mut complaint);
        if crate::copies::works() {
            read.files(&places(all()));
        }
        read.variables(all(), (cfg!(feature = "fault"), is_secure));
        let mut config = read.config;
        if crate::copies::works() {
            let report = (REPORT, "cannot be written to", "no report");
            prepare_file(&mut config.report, report, path::prepare, &mut complaint);
            // Made absolute now, since the program may change its directory.
            let trace = (TRACE, "is in no directory", "no trace");
            prepare_file(&mut config.trace, trace, path::absolute, &mut complaint);
        }
        static TOLD: AtomicBool = AtomicBool::new(false);
        // Of several copies of the library only one complains.
        if !complaint.is_empty() && crate::copies::works() && !TOLD.swap(true, Relaxed) {
            complaint.emit();
        }
        Box::new(config)
    })
}

/// See environ(7), and the XDG base directory specification.
const HOME: &str = "HOME";
const USER_CONFIG: &str = "XDG_CONFIG_HOME";

/// The paths of files that the environment names. The first of equal names counts.
fn places<'a>(variables: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Places<'a> {
    let mut places = Places::default();
    for (name, value) in variables {
        let place = match name {
            _ if name == HOME.as_bytes() => &mut places.home,
            _ if name == USER_CONFIG.as_bytes() => &mut places.user,
            _ if name == CONFIG.as_bytes() => &mut places.chosen,
            _ => continue,
        };
        place.get_or_insert(value);
    }
    places
}

/// True if this program has other rights than the user that starts it (set-user-ID, file
/// capabilities). See getauxval(3).
fn is_secure() -> bool {
    // SAFETY: has no side effect, and takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// True if the variable is read. A program with more rights than its caller ignores variables that
/// name files; [`Setting::lessens`] decides on the others.
fn is_heeded(name: &[u8], is_secure: bool) -> bool {
    let lead_to_files = [CONFIG, HOME, USER_CONFIG];
    !is_secure || lead_to_files.iter().all(|file| file.as_bytes() != name)
}

/// Has `prepare` try a variable's file. A file that fails is reported, and not used.
fn prepare_file(
    file: &mut Option<CString>,
    (name, failure, default): (&str, &str, &str),
    prepare: fn(CString) -> Result<CString, Errno>,
    complaint: &mut Line,
) {
    let Some(path) = file.take() else {
        return;
    };
    match prepare(path.clone()) {
        Ok(path) => *file = Some(path),
        Err(errno) => complaint.add(format_args!(
            "{name}={} {failure} ({}), using {default}",
            Quoted(path.as_bytes()),
            Meaning(errno)
        )),
    }
}

/// Logs that this copy of the library is not the one that works.
pub fn tell_idle() {
    crate::copies::with_files(|first, own| {
        let mut line = Line::new();
        line.add(format_args!(
            "two copies of the library are in this process: {} works, {} does nothing",
            Path(first),
            Path(own)
        ));
        line.emit();
    });
}

/// Writes one line to stderr if `level` is logged. Leaves `errno` alone, allocates nothing.
pub fn log(level: Level, message: fmt::Arguments<'_>) {
    if level != Level::Off && level <= config().log {
        let mut line = Line::new();
        line.add(message);
        line.emit();
    }
}

impl Read<'_> {
    /// Takes the settings of `variables`, over those of files; of equal names the first counts, as
    /// in getenv(3). A program with more rights than its caller ignores settings that do not make
    /// the library do less.
    fn variables<'a>(
        &mut self,
        variables: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        (with_fault, is_secure): (bool, bool),
    ) {
        let mut seen = 0_u32;
        for (name, value) in variables.filter(|(name, _)| name.starts_with(b"SLUICE_")) {
            let named = |(_, setting): &(u32, &Setting)| setting.name.as_bytes() == name;
            let Some((bit, setting)) = (0..).zip(SETTINGS).find(named) else {
                self.complaint.add(format_args!(
                    "{}={}: unknown setting, ignored",
                    Shown(name),
                    Quoted(value)
                ));
                continue;
            };
            let is_first = seen & 1 << bit == 0;
            seen |= 1 << bit;
            // An empty value counts as none.
            if !is_first || value.is_empty() {
                continue;
            }
            let mut tried = self.config.clone();
            let is_understood = (setting.set)(value, &mut tried).is_some();
            let instead = if self.set & 1 << bit == 0 {
                setting.default
            } else {
                "that of the configuration file"
            };
            let (name, value) = (setting.name, Quoted(value));
            if is_secure {
                if is_understood && (setting.lessens)(&self.config, &tried) {
                    self.config = tried;
                }
            } else if name == FAULT && !with_fault {
                self.complaint.add(format_args!(
                    "{name}={value} is unavailable in this build, using {instead}"
                ));
            } else if is_understood {
                self.config = tried;
            } else {
                let values = setting.values;
                self.complaint.add(format_args!(
                    "{name}={value} is not {values}, using {instead}"
                ));
            }
        }
    }
}

unsafe extern "C" {
    /// environ(7). Null before libc is initialised and after clearenv(3).
    static mut environ: *const *const c_char;
}

/// Names and values of an environment, without entries that have no `=`.
struct Variables {
    next: *const *const c_char,
}

impl Variables {
    /// # Safety
    /// `first` points to an array of pointers to C strings that ends with null. Neither array nor
    /// strings change while this or an item of it is in use.
    unsafe fn new(first: *const *const c_char) -> Variables {
        Variables { next: first }
    }
}

impl Iterator for Variables {
    type Item = (&'static [u8], &'static [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // SAFETY: `next` points to an element: by the contract of `new` the array ends with
            // null, and `?` below returns before moving on from that.
            let entry = unsafe { *self.next };
            let entry = core::ptr::NonNull::new(entry.cast_mut())?;
            // SAFETY: the element is not null, so another one follows.
            self.next = unsafe { self.next.add(1) };
            // SAFETY: by the contract of `new` a C string that does not change while it is in use.
            let entry = unsafe { CStr::from_ptr(entry.as_ptr()) }.to_bytes();
            let mut parts = entry.splitn(2, |&byte| byte == b'=');
            if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                return Some((name, value));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "no hook is loaded into a test")]
mod tests {
    use super::line::{LINE_LEN, is_fit_for_a_line};
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    fn parsed(variables: &[(&str, &str)], with_fault: bool) -> (Config, String) {
        started(Config::DEFAULT, variables, (with_fault, false))
    }

    fn started(
        of_files: Config,
        variables: &[(&str, &str)],
        build_and_rights: (bool, bool),
    ) -> (Config, String) {
        let mut complaint = Line::new();
        let mut read = Read::new(&mut complaint);
        read.config = of_files;
        let variables = variables.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        read.variables(variables, build_and_rights);
        let config = read.config;
        (config, String::from_utf8_lossy(complaint.finished()).into())
    }

    fn accepted(name: &str, value: &str) -> Config {
        let (config, said) = parsed(&[(name, value)], true);
        assert_eq!(said, "", "{name}={value}");
        config
    }

    fn refused(name: &str, value: &str) {
        let (config, said) = parsed(&[(name, value)], true);
        assert_eq!(config, Config::DEFAULT, "{name}={value}");
        assert!(said.starts_with(&format!("sluice: {name}=\"")), "{said}");
        assert_eq!(said.matches('\n').count(), 1, "{said}");
        assert!(said.ends_with('\n'), "{said}");
    }

    #[test]
    fn every_documented_value_is_taken() {
        assert_eq!(accepted("SLUICE_UPGRADE", "auto").upgrade, Upgrade::Auto);
        assert_eq!(accepted("SLUICE_UPGRADE", "eager").upgrade, Upgrade::Eager);
        assert_eq!(accepted("SLUICE_UPGRADE", "0").upgrade, Upgrade::Eager);
        assert_eq!(accepted("SLUICE_UPGRADE", "off").upgrade, Upgrade::Off);
        assert_eq!(accepted("SLUICE_UPGRADE", "1").upgrade, Upgrade::At(1));
        assert_eq!(
            accepted("SLUICE_UPGRADE", "64K").upgrade,
            Upgrade::At(65536)
        );
        assert_eq!(
            accepted("SLUICE_UPGRADE", "3M").upgrade,
            Upgrade::At(3 << 20)
        );
        assert_eq!(accepted("SLUICE_MODE", "dynamic").mode, Mode::Dynamic);
        assert_eq!(accepted("SLUICE_MODE", "direct").mode, Mode::Direct);
        assert_eq!(accepted("SLUICE_MODE", "indirect").mode, Mode::Indirect);
        assert_eq!(accepted("SLUICE_SPIN_US", "0").spin_ns, 0);
        assert_eq!(accepted("SLUICE_SPIN_US", "1000").spin_ns, 1_000_000);
        assert_eq!(accepted("SLUICE_RING", "4K").ring_len, 4096);
        assert_eq!(accepted("SLUICE_RING", "65536").ring_len, 65536);
        assert_eq!(accepted("SLUICE_RING", "4M").ring_len, 4 << 20);
        assert_eq!(accepted("SLUICE_DIRECT", "off").direct_min, None);
        assert_eq!(accepted("SLUICE_DIRECT", "1").direct_min, Some(1));
        assert!(accepted("SLUICE_DIRECT", "auto").direct_learnt);
        assert_eq!(accepted("SLUICE_DIRECT", "1024M").direct_min, Some(1 << 30));
        assert_eq!(accepted("SLUICE_DIRECT", "1G").direct_min, Some(1 << 30));
        assert_eq!(accepted("SLUICE_CONNECTIONS", "7").connections, Some(7));
        assert_eq!(accepted("SLUICE_MEMORY", "64M").memory, Some(64 << 20));
        assert_eq!(accepted("SLUICE_MEMORY", "2G").memory, Some(2 << 30));
        assert_eq!(accepted("SLUICE_LOG", "off").log, Level::Off);
        assert_eq!(accepted("SLUICE_LOG", "error").log, Level::Error);
        assert_eq!(accepted("SLUICE_LOG", "info").log, Level::Info);
        assert_eq!(accepted("SLUICE_LOG", "debug").log, Level::Debug);
        let fault = |value| accepted("SLUICE_FAULT", value).fault;
        assert_eq!(fault("demote:42"), Some(Fault::Demote(42)));
        assert_eq!(fault("link:7"), Some(Fault::Link(7)));
        assert_eq!(fault("direct:3"), Some(Fault::Direct(3)));
        assert_eq!(fault("wakeup:1"), Some(Fault::Wakeup(1)));
        assert_eq!(fault("peek:0"), Some(Fault::Peek(0)));
        assert_eq!(fault("old-kernel"), Some(Fault::OldKernel));
        assert_eq!(
            accepted("SLUICE_LIBRARY", "/opt/any thing.so"),
            Config::DEFAULT
        );
    }

    #[test]
    fn everything_else_is_refused_with_one_line() {
        let huge = "9".repeat(30);
        let values = [
            " ", "eager ", "EAGER", "-1", "+1", "1k", "K", "1KK", "0x10", "1.5M", "\x1b[2J",
        ];
        let of_one: [(&str, &[&str]); _] = [
            ("UPGRADE", &["1048577M", "1025G", "18446744073709551615M"]),
            ("MODE", &[]),
            ("SPIN_US", &["1001", "1K", "4294967297"]),
            ("RING", &["0", "2K", "4097", "8M", "4294971392"]),
            ("DIRECT", &["0", "1025M", "4294967297"]),
            ("LOG", &[]),
            ("FAULT", &["42", "demote", "demote:", "demote:x", "kill:1"]),
        ];
        for (name, of_it) in of_one {
            for value in values.iter().chain([&&*huge]).chain(of_it) {
                refused(&format!("SLUICE_{name}"), value);
            }
        }
        for value in ["-1", "none", "1K", " 5"] {
            refused("SLUICE_CONNECTIONS", value);
        }
        for value in ["-1", "none", "1T", "1GB", "17179869184G"] {
            refused("SLUICE_MEMORY", value);
        }
        refused("SLUICE_", "1");
        refused("SLUICE_UPGRAED", "off");
        refused("SLUICE_UPGRADE_", "off");
    }

    #[test]
    fn an_empty_value_is_as_if_it_were_not_there() {
        for setting in SETTINGS {
            assert_eq!(accepted(setting.name, ""), Config::DEFAULT);
            let (config, said) = started_by_another(setting.name, "");
            assert_eq!((config, said), (of_file(), String::new()));
        }
        let (config, _) = parsed(&[("SLUICE_LOG", ""), ("SLUICE_LOG", "info")], false);
        assert_eq!(config.log, Level::Error, "the first of equal names counts");
    }

    #[test]
    fn errors_are_told_in_words() {
        let mut complaint = Line::new();
        let mut file = CString::new("/x").ok();
        let report = (REPORT, "cannot be written to", "no report");
        prepare_file(&mut file, report, |_| Err(libc::ENOENT), &mut complaint);
        assert_eq!(
            complaint.finished(),
            b"sluice: SLUICE_REPORT=\"/x\" cannot be written to (No such file or directory), using \
              no report\n"
        );
        assert_eq!(Meaning(123_456).to_string(), "error 123456");
    }

    #[test]
    fn the_line_names_variable_value_and_default() {
        let (_, said) = parsed(&[("SLUICE_UPGRADE", "soon")], false);
        assert_eq!(
            said,
            "sluice: SLUICE_UPGRADE=\"soon\" is not auto, eager, BYTES or off, using auto\n"
        );
        let (_, said) = parsed(&[("SLUICE_FAULT", "demote:1")], false);
        assert_eq!(
            said,
            "sluice: SLUICE_FAULT=\"demote:1\" is unavailable in this build, using no fault\n"
        );
    }

    #[test]
    fn who_starts_a_program_with_more_rights_names_no_file() {
        for name in ["SLUICE_CONFIG", "HOME", "XDG_CONFIG_HOME"] {
            assert!(is_heeded(name.as_bytes(), false), "{name}");
            assert!(!is_heeded(name.as_bytes(), true), "{name}");
        }
        assert!(is_heeded(b"SLUICE_UPGRADE", true));
        // Every setting that takes a path. SLUICE_LIBRARY is the command's.
        for setting in SETTINGS.iter().filter(|s| s.values.contains("a path")) {
            let (config, said) = started_by_another(setting.name, "/tmp/x");
            assert_eq!(
                (config, said),
                (of_file(), String::new()),
                "{}",
                setting.name
            );
        }
    }

    /// The settings of the host's file.
    fn of_file() -> Config {
        Config {
            spin_ns: 20_000,
            memory: Some(10 << 20),
            ..Config::DEFAULT
        }
    }

    /// The settings of a program with more rights than its caller, which sets `name` to `value`.
    fn started_by_another(name: &str, value: &str) -> (Config, String) {
        started(of_file(), &[(name, value)], (true, true))
    }

    #[test]
    fn who_starts_a_program_with_more_rights_can_have_it_do_less_and_nothing_else() {
        let less = [
            ("SLUICE_UPGRADE", "off"),
            ("SLUICE_UPGRADE", "1M"),
            ("SLUICE_MODE", "indirect"),
            ("SLUICE_SPIN_US", "0"),
            ("SLUICE_RING", "4K"),
            ("SLUICE_DIRECT", "off"),
            ("SLUICE_DIRECT", "1M"),
            ("SLUICE_SENDFILE", "copy"),
            ("SLUICE_LOG", "off"),
            ("SLUICE_CONNECTIONS", "0"),
            ("SLUICE_MEMORY", "1M"),
        ];
        let more = [
            ("SLUICE_UPGRADE", "eager"),
            ("SLUICE_UPGRADE", "1023"),
            ("SLUICE_MODE", "direct"),
            ("SLUICE_SPIN_US", "21"),
            ("SLUICE_RING", "4M"),
            ("SLUICE_DIRECT", "1"),
            ("SLUICE_SENDFILE", "pages"),
            ("SLUICE_LOG", "info"),
            ("SLUICE_MEMORY", "11M"),
            ("SLUICE_MEMORY", "unlimited"),
            ("SLUICE_PEERS", "10.0.0.0/8"),
            ("SLUICE_DEVICE", "mlx5_0"),
            ("SLUICE_MAP", "10.0.0.0/8=11.0.0.0/8"),
            ("SLUICE_FAULT", "demote:1"),
        ];
        for (name, value) in less {
            let (config, said) = started_by_another(name, value);
            assert_ne!(config, of_file(), "{name}={value}");
            assert_eq!(said, "", "{name}={value}");
        }
        for (name, value) in more {
            let (config, said) = started_by_another(name, value);
            assert_eq!((config, said), (of_file(), String::new()), "{name}={value}");
        }
        // Every setting is in one of the lists.
        for setting in SETTINGS.iter().filter(|s| !s.values.contains("a path")) {
            let named = less
                .iter()
                .chain(&more)
                .any(|(name, _)| *name == setting.name);
            assert!(named, "{}", setting.name);
        }
    }

    #[test]
    fn the_environment_wins_over_a_file() {
        let text = "ring = 1M\nspin_us = 7\nmode = direct";
        let mut complaint = Line::new();
        let mut read = Read::new(&mut complaint);
        read.take(b"/x", text.as_bytes(), b"any");
        let variables = [("SLUICE_RING", "64K"), ("SLUICE_MODE", "fast")];
        let variables = variables.map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        read.variables(variables.into_iter(), (false, false));
        let config = read.config;
        assert_eq!((config.ring_len, config.spin_ns), (64 << 10, 7000));
        assert_eq!(config.mode, Mode::Direct);
        let said = String::from_utf8(complaint.finished().to_vec()).unwrap();
        assert!(
            said.ends_with("indirect, using that of the configuration file\n"),
            "{said}"
        );
    }

    #[test]
    fn several_mistakes_share_one_line_and_leave_the_rest_standing() {
        let (config, said) = parsed(
            &[
                ("SLUICE_RING", "1G"),
                ("PATH", "/bin"),
                ("SLUICE_MODE", "direct"),
                ("SLUICE_SPEED", "9"),
            ],
            false,
        );
        assert_eq!(
            said,
            "sluice: SLUICE_RING=\"1G\" is not a power of two from 4K to 4M, using 256K; \
             SLUICE_SPEED=\"9\": unknown setting, ignored\n"
        );
        assert_eq!(
            config,
            Config {
                mode: Mode::Direct,
                ..Config::DEFAULT
            }
        );
    }

    #[test]
    fn the_first_of_two_equal_names_counts() {
        let (config, said) = parsed(&[("SLUICE_LOG", "info"), ("SLUICE_LOG", "nonsense")], false);
        assert_eq!((config.log, said.as_str()), (Level::Info, ""));
    }

    #[test]
    fn no_value_reaches_the_terminal_raw_or_whole() {
        let (_, said) = parsed(&[("SLUICE_MODE", "a\n\u{7}\"\\é")], false);
        assert!(said.contains(r#"="a\x0a\x07\x22\x5c\xc3\xa9" "#), "{said}");
        let long = "x".repeat(100_000);
        let many: Vec<_> = (0..100).map(|n| format!("SLUICE_{n}\n{long}")).collect();
        let many: Vec<_> = many
            .iter()
            .map(|name| (name.as_str(), long.as_str()))
            .collect();
        let (_, said) = parsed(&many, false);
        assert!(said.len() <= LINE_LEN && said.ends_with("...\n"), "{said}");
        assert!(
            said.trim_end_matches('\n')
                .bytes()
                .all(|b| (b' '..=b'~').contains(&b)),
            "{said}"
        );
    }

    #[test]
    fn the_documented_default_is_the_default() {
        // Some defaults are descriptions, not values.
        for setting in SETTINGS
            .iter()
            .filter(|setting| !setting.default.contains(' '))
        {
            let (config, said) = parsed(&[(setting.name, setting.default)], true);
            assert_eq!(
                (config, said.as_str()),
                (Config::DEFAULT, ""),
                "{}",
                setting.name
            );
        }
    }

    #[test]
    fn an_environment_is_walked_to_its_end() {
        let entries = [
            c"A=1".as_ptr(),
            c"broken".as_ptr(),
            c"B==x=".as_ptr(),
            c"=".as_ptr(),
            core::ptr::null(),
        ];
        // SAFETY: an array of C strings that ends with null and outlives the iterator.
        let variables: Vec<_> = unsafe { Variables::new(entries.as_ptr()) }.collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"A", b"1"), (b"B", b"=x="), (b"", b"")];
        assert_eq!(variables, expected);
    }

    fn pipe() -> (OwnedFd, OwnedFd) {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        let rc = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
        assert_eq!(rc, 0);
        // SAFETY: pipe2 has just made both, and nothing else owns them.
        ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into()
    }

    #[test]
    fn a_line_goes_to_files_and_pipes_but_to_no_socket() {
        let (reader, writer) = pipe();
        assert!(is_fit_for_a_line(writer.as_raw_fd()));
        drop(reader);
        assert!(!is_fit_for_a_line(writer.as_raw_fd()), "SIGPIPE");
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_fit_for_a_line(one.as_raw_fd()));
        let null = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap();
        assert!(is_fit_for_a_line(null.as_raw_fd()));
        assert!(!is_fit_for_a_line(-1));
    }
}
