//! An answer as bytes, for the pipe from the process that reads a target to the tool: words in this
//! machine's order, and bytes with their length in front.

use super::{Counters, Cut, Failure, Found, Tally};
use crate::memory::Copied;
use crate::report::Flow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What came of looking at a target.
pub type Answer = Result<Counters, Failure>;

/// A message: its length, which of the targets it is about, the answer.
pub fn message(number: usize, answer: &Answer) -> Vec<u8> {
    let mut out = Out(vec![0; 8]);
    out.word(number as u64);
    match answer {
        Ok(counters) => {
            out.word(0);
            put_counters(&mut out, counters);
        }
        Err(failure) => put_failure(&mut out, failure),
    }
    let len = (out.0.len() - 8) as u64;
    if let Some(front) = out.0.first_chunk_mut() {
        *front = len.to_ne_bytes();
    }
    out.0
}

/// Takes the first message out of `bytes`, as soon as it is there whole.
pub fn take(bytes: &mut Vec<u8>) -> Option<(usize, Answer)> {
    let len = usize::try_from(u64::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let mut message = In(bytes.get(8..)?.get(..len)?);
    let number = usize::try_from(message.word()?).ok()?;
    let answer = get(&mut message)?;
    bytes.drain(..8 + len);
    Some((number, answer))
}

struct Out(Vec<u8>);

impl Out {
    fn word(&mut self, word: u64) {
        self.0.extend(word.to_ne_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.word()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn words<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }
}

fn put_counters(out: &mut Out, counters: &Counters) {
    out.word(counters.pid as u64);
    out.bytes(counters.name.as_bytes());
    out.bytes(counters.command.as_bytes());
    out.word(counters.found.place as u64);
    out.bytes(counters.found.path.as_bytes());
    out.bytes(counters.root.bytes_to_last());
    out.bytes(counters.listed.bytes());
    for fill in counters.fills.iter().flatten() {
        out.word(u64::from(fill.is_some()));
        out.word(fill.unwrap_or(0));
    }
    let Tally {
        tx,
        rx,
        all,
        own,
        untried,
    } = &counters.tally;
    for flow in [tx, rx] {
        flow.words().into_iter().for_each(|word| out.word(word));
    }
    all.iter().chain(own).for_each(|&count| out.word(count));
    out.word(untried.len() as u64);
    for (&reason, &count) in untried {
        out.word(reason.into());
        out.word(count);
    }
    out.word(counters.cuts.len() as u64);
    for cut in &counters.cuts {
        let words = match *cut {
            Cut::Mappings(more) => [0, more, 0],
            Cut::Table { read, claimed } => [1, read, claimed],
            Cut::Time { read, claimed } => [2, read, claimed],
        };
        words.into_iter().for_each(|word| out.word(word));
    }
    out.word(u64::from(counters.is_copy));
}

fn get_counters(from: &mut In) -> Option<Counters> {
    let pid = from.word()? as i32;
    let name = from.text()?;
    let command = from.text()?;
    let place = usize::try_from(from.word()?).ok()?;
    let path = OsString::from_vec(from.bytes()?.to_vec());
    let mut root = Copied::new(1);
    root.fill_from(from.bytes()?);
    let listed = Copied::of(from.bytes()?)?;
    let mut fills = Vec::new();
    for _ in listed.items() {
        let [is_tx, tx, is_rx, rx] = from.words()?;
        fills.push([(is_tx != 0).then_some(tx), (is_rx != 0).then_some(rx)]);
    }
    let [tx, rx] = [Flow::of(from.words()?), Flow::of(from.words()?)];
    let [all, own] = [from.words()?, from.words()?];
    let mut tally = Tally {
        tx,
        rx,
        all,
        own,
        ..Tally::default()
    };
    for _ in 0..from.word()? {
        let [reason, count] = from.words()?;
        tally.untried.insert(reason as u16, count);
    }
    let mut cuts = Vec::new();
    for _ in 0..from.word()? {
        cuts.push(match from.words()? {
            [0, more, _] => Cut::Mappings(more),
            [1, read, claimed] => Cut::Table { read, claimed },
            [_, read, claimed] => Cut::Time { read, claimed },
        });
    }
    let is_copy = from.word()? != 0;
    Some(Counters {
        pid,
        name,
        command,
        found: Found { place, path },
        root,
        listed,
        fills,
        tally,
        cuts,
        is_copy,
    })
}

fn put_failure(out: &mut Out, failure: &Failure) {
    let number = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EINVAL) as u64;
    match failure {
        Failure::NoProcess => out.word(1),
        Failure::NoSluice => out.word(2),
        Failure::NotAllowed => out.word(3),
        Failure::NoCounters => out.word(4),
        Failure::Silent => out.word(5),
        Failure::Broken => out.word(6),
        Failure::OtherLayout { version, layout } => {
            out.word(7);
            out.word((*layout).into());
            out.bytes(version.as_bytes());
        }
        Failure::System(error) => {
            out.word(8);
            out.word(number(error));
        }
        Failure::Unread(error) => {
            out.word(9);
            out.word(number(error));
        }
    }
}

fn get(from: &mut In) -> Option<Answer> {
    Some(Err(match from.word()? {
        0 => return Some(Ok(get_counters(from)?)),
        1 => Failure::NoProcess,
        2 => Failure::NoSluice,
        3 => Failure::NotAllowed,
        4 => Failure::NoCounters,
        5 => Failure::Silent,
        7 => Failure::OtherLayout {
            layout: from.word()? as u32,
            version: from.text()?,
        },
        8 => Failure::System(io::Error::from_raw_os_error(from.word()? as i32)),
        9 => Failure::Unread(io::Error::from_raw_os_error(from.word()? as i32)),
        _ => Failure::Broken,
    }))
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        let mut root = Copied::new(1);
        root.bytes_mut()[70] = 5;
        let mut listed = Copied::new(2);
        listed.bytes_mut()[0] = 1;
        Counters {
            pid: 7,
            name: "name".to_owned(),
            command: "name of a file".to_owned(),
            found: Found {
                place: 4096,
                path: "/a b".into(),
            },
            root,
            listed,
            fills: vec![[Some(3), None], [None, Some(0)]],
            tally: Tally {
                tx: Flow::of(std::array::from_fn(|n| n as u64)),
                rx: Flow::default(),
                all: [1, 2, 3, 4],
                own: [0, 1, 0, u64::MAX],
                untried: [(2, 9), (u16::MAX, 1)].into(),
            },
            cuts: vec![
                Cut::Mappings(4),
                Cut::Table {
                    read: 1,
                    claimed: 2,
                },
                Cut::Time {
                    read: 3,
                    claimed: 4,
                },
            ],
            is_copy: true,
        }
    }

    #[test]
    fn an_answer_arrives_as_it_was_and_not_before_it_is_whole() {
        let sent = message(3, &Ok(counters()));
        let mut came = Vec::new();
        for &byte in &sent {
            assert!(take(&mut came).is_none());
            came.push(byte);
        }
        came.extend(message(4, &Err(Failure::NotAllowed)));
        let (number, answer) = take(&mut came).unwrap();
        let (there, here) = (answer.unwrap(), counters());
        assert_eq!((number, there.pid, &there.name), (3, 7, &here.name));
        assert_eq!(there.command, here.command);
        assert_eq!((&there.found, there.is_copy), (&here.found, true));
        assert_eq!(there.root.bytes(), here.root.bytes());
        assert_eq!(there.listed.bytes(), here.listed.bytes());
        assert_eq!(there.fills, here.fills);
        let all = |of: &Counters| format!("{:?} {:?}", of.tally, of.cuts);
        assert_eq!(all(&there), all(&here));
        let (number, answer) = take(&mut came).unwrap();
        assert!(number == 4 && matches!(answer, Err(Failure::NotAllowed)));
        assert!(came.is_empty());
    }

    #[test]
    fn each_failure_says_the_same_at_the_other_end() {
        let system = || io::Error::from_raw_os_error(libc::EMFILE);
        for failure in [
            Failure::NoProcess,
            Failure::NoSluice,
            Failure::NotAllowed,
            Failure::NoCounters,
            Failure::Silent,
            Failure::Broken,
            Failure::Unread(system()),
            Failure::System(system()),
            Failure::OtherLayout {
                version: "1".to_owned(),
                layout: 9,
            },
        ] {
            let words = failure.to_string();
            let (_, answer) = take(&mut message(0, &Err(failure))).unwrap();
            assert_eq!(answer.err().unwrap().to_string(), words);
        }
    }
}
