//! The list of settings: names, values, defaults and meanings.

use super::{Config, Fault, Level, Mode, Sendfile, Upgrade};
use crate::subnet::{self, Subnet};
use std::ffi::CString;

pub(super) const FAULT: &str = "SLUICE_FAULT";
pub(super) const CONFIG: &str = "SLUICE_CONFIG";
pub(super) const REPORT: &str = "SLUICE_REPORT";
pub(super) const TRACE: &str = "SLUICE_TRACE";

/// One environment variable.
#[derive(Clone, Copy)]
pub struct Setting {
    /// The variable's name.
    pub name: &'static str,
    /// The values that it takes, as in a usage line. BYTES is a number, perhaps with a unit: `K`,
    /// `M` or `G` for 1024, 1024 * 1024 or 1024 * 1024 * 1024. An empty value counts as none.
    pub values: &'static str,
    /// The value if there is none, or none that is understood.
    pub default: &'static str,
    /// What it is for, in one sentence.
    pub meaning: &'static str,
    /// Sets a value. `None`: the value is not understood, and nothing has changed.
    pub(super) set: fn(&[u8], &mut Config) -> Option<()>,
    /// True if Sluice does no more by the second settings than by the first. A program with more
    /// rights than its caller accepts only such settings from its caller.
    pub(super) lessens: fn(&Config, &Config) -> bool,
}

/// For settings that name files, devices or hosts.
const NEVER: fn(&Config, &Config) -> bool = |_, _| false;

impl Upgrade {
    /// Bytes after which a connection leaves TCP.
    fn reach(self) -> u64 {
        match self {
            Self::Eager => 0,
            // It may happen as early as this.
            Self::Auto => 1 << 10,
            Self::At(n) => n,
            Self::Off => u64::MAX,
        }
    }
}

/// Sets a value, if it is understood.
fn put<T>(to: &mut T, value: Option<T>) -> Option<()> {
    *to = value?;
    Some(())
}

/// True if the second limit is at most the first one. `None` is no limit.
fn is_lower(old: Option<u64>, new: Option<u64>) -> bool {
    new.unwrap_or(u64::MAX) <= old.unwrap_or(u64::MAX)
}

/// Every variable of Sluice's. Any other name that begins with `SLUICE_` is reported as unknown.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "SLUICE_UPGRADE",
        values: "auto, eager, BYTES or off",
        default: "auto",
        meaning: "When a connection leaves TCP: auto when TCP has cost it about what leaving TCP \
                  costs, eager at once, BYTES after so many of both directions together, rounded \
                  up to a power of two, off never.",
        set: |value, config| {
            config.upgrade = match value {
                b"auto" => Upgrade::Auto,
                b"eager" => Upgrade::Eager,
                b"off" => Upgrade::Off,
                // Far more than a connection moves, and far from an overflow.
                _ => match bytes(value).filter(|&n| n <= 1 << 40)? {
                    0 => Upgrade::Eager,
                    n => Upgrade::At(n),
                },
            };
            Some(())
        },
        lessens: |old, new| new.upgrade.reach() >= old.upgrade.reach(),
    },
    Setting {
        name: "SLUICE_MODE",
        values: "dynamic, direct or indirect",
        default: "dynamic",
        meaning: "How bytes travel on a link: straight into the reader's buffer (direct), through \
                  a ring (indirect), or whichever suits each transfer (dynamic).",
        set: |value, config| {
            config.mode = match value {
                b"dynamic" => Mode::Dynamic,
                b"direct" => Mode::Direct,
                b"indirect" => Mode::Indirect,
                _ => return None,
            };
            Some(())
        },
        lessens: |_, new| new.mode == Mode::Indirect,
    },
    Setting {
        name: "SLUICE_SPIN_US",
        values: "0 to 1000",
        default: "50",
        meaning: "For how many microseconds at most a waiting thread looks for data before it \
                  sleeps; 0 forbids it.",
        set: |value, config| {
            let us = number(value).filter(|&us| us <= 1000);
            put(&mut config.spin_ns, us.map(|us| us as u32 * 1000))
        },
        lessens: |old, new| new.spin_ns <= old.spin_ns,
    },
    Setting {
        name: "SLUICE_RING",
        values: "a power of two from 4K to 4M",
        default: "256K",
        meaning: "How many bytes a ring holds at most; an accelerated connection in use has one \
                  for each direction. Unless this is set, rings between hosts have up to 4M where \
                  the path needs it.",
        set: |value, config| {
            let fits = |len: &u64| len.is_power_of_two() && (4 << 10..=4 << 20).contains(len);
            put(
                &mut config.ring_len,
                bytes(value).filter(fits).map(|len| len as u32),
            )
        },
        lessens: |old, new| new.ring_len <= old.ring_len,
    },
    Setting {
        name: "SLUICE_DIRECT",
        values: "BYTES from 1 to 1024M, auto or off",
        default: "32K",
        meaning: "The smallest transfer that goes straight from one program's buffer into the \
                  other's. Between hosts none does unless this is set; auto measures which pay. \
                  Without effect unless SLUICE_MODE is dynamic.",
        set: |value, config| {
            config.direct_learnt = value == b"auto";
            config.direct_min = match value {
                b"off" => None,
                b"auto" => Config::DEFAULT.direct_min,
                _ => {
                    let min = bytes(value).filter(|n| (1..=1 << 30).contains(n))?;
                    Some(u32::try_from(min).ok()?)
                }
            };
            Some(())
        },
        lessens: |old, new| {
            let least = |config: &Config| config.direct_min.unwrap_or(u32::MAX);
            least(new) >= least(old) && (old.direct_learnt || !new.direct_learnt)
        },
    },
    Setting {
        name: "SLUICE_SENDFILE",
        values: "copy, register, pages or auto",
        default: "auto",
        meaning: "How sendfile to another host takes a file's bytes: copied into a ring, from its \
                  own pages that are registered for each call (register) or stay registered \
                  (pages), or by pages where that was measured to cost less than a copy.",
        set: |value, config| {
            config.sendfile = match value {
                b"copy" => Sendfile::Copy,
                b"register" => Sendfile::Register,
                b"pages" => Sendfile::Pages,
                b"auto" => Sendfile::Auto,
                _ => return None,
            };
            Some(())
        },
        lessens: |_, new| new.sendfile == Sendfile::Copy,
    },
    Setting {
        name: "SLUICE_LOG",
        values: "off, error, info or debug",
        default: "error",
        meaning: "What Sluice writes to stderr, which it never does when stderr is a socket.",
        set: |value, config| {
            config.log = match value {
                b"off" => Level::Off,
                b"error" => Level::Error,
                b"info" => Level::Info,
                b"debug" => Level::Debug,
                _ => return None,
            };
            Some(())
        },
        lessens: |old, new| new.log <= old.log,
    },
    Setting {
        name: FAULT,
        values: "demote:SEED, link:SEED, direct:SEED, wakeup:SEED, peek:SEED or old-kernel (builds \
                 with cargo feature fault only)",
        default: "no fault",
        meaning: "Takes streams back to TCP, or ends links to other hosts or their queue pairs \
                  for direct transfers, at random moments drawn from the number SEED; or is wrong \
                  then, in a way that tests must find; or does without what newer kernels have.",
        set: |value, config| {
            let seed = |what: &[u8]| number(value.strip_prefix(what)?);
            let fault = seed(b"demote:")
                .map(Fault::Demote)
                .or_else(|| seed(b"link:").map(Fault::Link))
                .or_else(|| seed(b"direct:").map(Fault::Direct))
                .or_else(|| seed(b"wakeup:").map(Fault::Wakeup))
                .or_else(|| seed(b"peek:").map(Fault::Peek))
                .or_else(|| (value == b"old-kernel").then_some(Fault::OldKernel));
            config.fault = Some(fault?);
            Some(())
        },
        lessens: NEVER,
    },
    Setting {
        name: REPORT,
        values: "a path",
        default: "no report",
        meaning: "File that gets one line with the counters of each connection when it ends.",
        set: |value, config| put(&mut config.report, CString::new(value).ok().map(Some)),
        lessens: NEVER,
    },
    Setting {
        name: TRACE,
        values: "a path",
        default: "no trace",
        meaning: "The last 65536 messages of each process go into PATH.PID, for `sluice trace \
                  PATH`.",
        set: |value, config| put(&mut config.trace, CString::new(value).ok().map(Some)),
        lessens: NEVER,
    },
    Setting {
        name: "SLUICE_PEERS",
        values: "addresses or subnets, separated by commas",
        default: "no hosts",
        meaning: "Hosts that also run Sluice and may be reached over iWARP, where to ask is to \
                  connect; other RDMA networks need no such list.",
        set: |value, config| put(&mut config.peers, subnet::list(value, Subnet::parse)),
        lessens: NEVER,
    },
    Setting {
        name: "SLUICE_DEVICE",
        values: "a device's name",
        default: "any that leads to the peer",
        meaning: "Which RDMA device may be used, as `rdma link` names it.",
        set: |value, config| put(&mut config.device, CString::new(value).ok().map(Some)),
        lessens: NEVER,
    },
    Setting {
        name: "SLUICE_MAP",
        values: "SUBNET=SUBNET, several separated by commas",
        default: "no other addresses",
        meaning: "Where hosts have addresses of their own for RDMA: one in the first subnet has \
                  the same place in the second.",
        set: |value, config| put(&mut config.map, subnet::list(value, subnet::parse_pair)),
        lessens: NEVER,
    },
    Setting {
        name: "SLUICE_CONNECTIONS",
        values: "a number or unlimited",
        default: "unlimited",
        meaning: "How many connections of a process may be accelerated at once; the others stay on \
                  TCP.",
        set: |value, config| put(&mut config.connections, limit(value, number)),
        lessens: |old, new| is_lower(old.connections, new.connections),
    },
    Setting {
        name: "SLUICE_MEMORY",
        values: "BYTES or unlimited",
        default: "unlimited",
        meaning: "How many bytes of rings a process may lend to its connections, idle ones \
                  included; where too few are left for another ring, a connection stays on TCP.",
        set: |value, config| put(&mut config.memory, limit(value, bytes)),
        lessens: |old, new| is_lower(old.memory, new.memory),
    },
    Setting {
        name: CONFIG,
        values: "a path, or nothing for no file",
        default: "/etc/sluice.conf and then ~/.config/sluice/sluice.conf",
        meaning: "The configuration file, see sluice.conf(5); what the environment says wins over \
                  it.",
        set: |_, _| Some(()),
        lessens: NEVER,
    },
    Setting {
        name: "SLUICE_LIBRARY",
        values: "a path",
        default: "that beside the tool",
        meaning: "Which libsluice.so the command `sluice run` preloads; the library itself ignores \
                  it.",
        set: |_, _| Some(()),
        lessens: NEVER,
    },
];

/// Parses decimal digits, and nothing else.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |n, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses a number, perhaps with a unit.
fn bytes(text: &[u8]) -> Option<u64> {
    match text.split_last()? {
        (b'K', digits) => number(digits)?.checked_mul(1 << 10),
        (b'M', digits) => number(digits)?.checked_mul(1 << 20),
        (b'G', digits) => number(digits)?.checked_mul(1 << 30),
        _ => number(text),
    }
}

/// Parses a limit, or `unlimited`.
fn limit(text: &[u8], number: fn(&[u8]) -> Option<u64>) -> Option<Option<u64>> {
    if text == b"unlimited" {
        return Some(None);
    }
    number(text).map(Some)
}

/// A man page's list of settings, each with its name there.
#[cfg(test)]
pub(super) fn section<'a>(settings: impl Iterator<Item = (String, &'a Setting)>) -> String {
    let mut section = ".Bl -tag -width Ds\n".to_owned();
    for (name, setting) in settings {
        let Setting {
            values,
            default,
            meaning,
            ..
        } = setting;
        section += &format!(".It {name}\n{meaning}\nTakes {values}; the default is {default}.\n");
    }
    section + ".El\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings for users.
    fn of_users() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| setting.name != FAULT)
    }

    #[test]
    fn the_man_page_lists_every_setting() {
        let page = include_str!("../../../../docs/libsluice.7");
        let section = section(of_users().map(|setting| (format!("Ev {}", setting.name), setting)));
        assert!(
            page.contains(&section),
            "docs/libsluice.7 is to have this section:\n{section}"
        );
    }

    #[test]
    fn the_page_of_settings_has_a_table_of_them() {
        let mut table = "| variable | takes | default | |\n|---|---|---|---|\n".to_owned();
        for setting in of_users() {
            let Setting {
                name,
                values,
                default,
                meaning,
                ..
            } = setting;
            table += &format!("| `{name}` | {values} | {default} | {meaning} |\n");
        }
        let page = include_str!("../../../../docs/settings.md");
        assert!(
            page.contains(&table),
            "docs/settings.md is to have:\n{table}"
        );
    }
}
