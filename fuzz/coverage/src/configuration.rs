//! A configuration file and an environment, as lines.

use sluice_runtime::config::{Config, Mode, Side, Upgrade, fuzzing::understood};
use std::net::{IpAddr, SocketAddr};

/// The first line of the input is the program's name and may say that the build knows faults (`!`),
/// or that the program has more rights than its caller (`?`). Then come lines `$NAME=value`, which
/// are the environment, and all others, which are the file.
pub fn run(bytes: &[u8]) {
    let mut lines = bytes.split(|b| *b == b'\n');
    let program = lines.next().unwrap_or_default();
    let is = |mark| program.first() == Some(&mark);
    let how = (is(b'!'), is(b'?'));
    let mut file = Vec::new();
    let mut variables = Vec::new();
    for line in lines {
        match line.strip_prefix(b"$") {
            Some(variable) => {
                let mut parts = variable.splitn(2, |b| *b == b'=');
                let name = parts.next().unwrap_or_default();
                variables.push((name, parts.next().unwrap_or_default()));
            }
            None => {
                file.extend_from_slice(line);
                file.push(b'\n');
            }
        }
    }
    let (config, said) = understood(&file, program, &variables, how);
    assert_is_possible(&config);
    if !said.is_empty() {
        // One line that does a terminal no harm.
        let line = said.strip_suffix(b"\n").expect("no end of the line");
        assert!(line.starts_with(b"sluice: ") && said.len() <= 1024);
        assert!(line.iter().all(|b| (b' '..=b'~').contains(b)));
    }
    assert_eq!(understood(&file, program, &variables, how), (config, said));
}

fn assert_is_possible(config: &Config) {
    assert!(config.ring_len.is_power_of_two() && (4096..=4 << 20).contains(&config.ring_len));
    assert!(config.spin_ns <= 1_000_000);
    assert!(config.direct_min != Some(0));
    assert!(matches!(
        config.mode,
        Mode::Dynamic | Mode::Direct | Mode::Indirect
    ));
    if let Upgrade::At(bytes) = config.upgrade {
        assert_ne!(bytes, 0);
    }
    // Whatever the rules are, they can be asked.
    for (ip, port) in [
        ("127.0.0.1", 80),
        ("10.1.2.3", 65535),
        ("::1", 0),
        ("fe80::1", 443),
    ] {
        let address = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
        for side in [Side::Client, Side::Server] {
            let _ = config.leaves(side, address, address);
        }
    }
    for taken in [0, 1, 1 << 20, 1 << 40] {
        let _ = config.allows(taken, taken);
        if config.memory.is_some() {
            let len = config.ring_beside(taken);
            assert!(len.is_power_of_two() && len <= config.ring_len, "{len}");
        }
    }
}
