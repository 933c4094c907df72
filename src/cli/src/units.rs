//! How the tool writes numbers: bytes, shares and times, the same in every command.

/// Bytes in at most five characters: `17`, `1.5K`, `230M`. K, M, G, ... stand for 1024, 1024 times
/// 1024, and so on, as in the settings of the library.
pub fn size(bytes: u64) -> String {
    rate(bytes as f64)
}

/// Bytes a second, written as [`size`] writes bytes.
pub fn rate(bytes: f64) -> String {
    let mut value = bytes;
    let mut units = ["", "K", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while value >= 1023.5 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    let decimals = usize::from(!unit.is_empty() && value < 99.95);
    format!("{value:.decimals$}{unit}")
}

/// A number of bytes that is a multiple of its unit: `64`, `4K`, `1M`.
pub fn exact(bytes: usize) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        1024..1_048_576 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

/// A share from 0 to 1 as `97%`, or `-` where there is none. Only all of it is 100%.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| {
        format!("{:.0}%", (100.0 * share).floor())
    })
}

/// A time in its two largest units at most: `0.3s`, `59s`, `2m10s`, `3h5m`, `4d2h`.
pub fn age(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{s}.{}s", ms % 1000 / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{}s", s / 60, s % 60),
        3600..86400 => format!("{}h{}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{}h", s / 86400, s % 86400 / 3600),
    }
}

/// `1 process`, `2 processes`.
pub fn counted(count: u64, what: &str) -> String {
    let ending = match what {
        _ if count == 1 => "",
        what if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (102_400, "100K"),
            (1_048_575, "1.0M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(rate(0.4), "0");
        assert_eq!([64, 4096, 1 << 20].map(exact), ["64", "4K", "1M"]);
    }

    #[test]
    fn only_all_of_it_is_the_whole() {
        for (share, text) in [
            (None, "-"),
            (Some(0.0), "0%"),
            (Some(0.9999), "99%"),
            (Some(1.0), "100%"),
        ] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn ages_are_short() {
        for (ms, text) in [
            (0, "0.0s"),
            (9_999, "9.9s"),
            (59_999, "59s"),
            (130_000, "2m10s"),
            (3_600_000, "1h0m"),
            (u64::MAX, "213503982334d14h"),
        ] {
            assert_eq!(age(ms), text);
        }
    }

    #[test]
    fn one_is_singular() {
        let all = [(1, "process"), (2, "process"), (0, "link")];
        let all = all.map(|(count, what)| counted(count, what));
        assert_eq!(all, ["1 process", "2 processes", "0 links"]);
    }
}
