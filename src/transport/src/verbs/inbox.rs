//! Inboxes of a completion queue, one for each queue pair, and the list of those to be driven.
//!
//! Completions leave an inbox in the order in which they came. Those of a number without an inbox
//! are dropped, so that none of a destroyed queue pair reaches a later one of that number.

use sluice_fabric::verbs::queue::{News, Told};
use std::collections::VecDeque;

#[derive(Debug)]
struct Inbox<W> {
    number: u32,
    owner: W,
    news: VecDeque<News>,
    /// In the list of those to be driven.
    due: bool,
    /// Drops what comes.
    shut: bool,
}

/// The inboxes of a queue, each of an owner `W`.
#[derive(Debug)]
pub(crate) struct Inboxes<W> {
    /// By place.
    all: Vec<Option<Inbox<W>>>,
    /// Numbers of queue pairs, sorted, and the places of their inboxes.
    places: Vec<(u32, usize)>,
    due: VecDeque<usize>,
}

impl<W: Copy> Inboxes<W> {
    pub const fn new() -> Self {
        Self {
            all: Vec::new(),
            places: Vec::new(),
            due: VecDeque::new(),
        }
    }

    /// Makes an inbox for the queue pair of this number. Returns its place; `None`: it has one.
    pub fn enter(&mut self, number: u32, owner: W) -> Option<usize> {
        let slot = self.places.binary_search_by_key(&number, |p| p.0).err()?;
        let at = self.all.iter().position(Option::is_none);
        let at = at.unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        if let Some(place) = self.all.get_mut(at) {
            *place = Some(Inbox {
                number,
                owner,
                news: VecDeque::new(),
                due: false,
                shut: false,
            });
        }
        self.places.insert(slot, (number, at));
        Some(at)
    }

    /// Drops the inbox of a queue pair that is destroyed.
    pub fn leave(&mut self, at: usize) {
        let Some(inbox) = self.all.get_mut(at).and_then(Option::take) else {
            return;
        };
        self.places.retain(|(number, _)| *number != inbox.number);
        self.due.retain(|due| *due != at);
    }

    /// Empties the inbox, and drops what comes from now on.
    pub fn shut(&mut self, at: usize) {
        if let Some(Some(inbox)) = self.all.get_mut(at) {
            inbox.shut = true;
            inbox.news.clear();
        }
    }

    /// Puts a completion into the inbox of its queue pair.
    pub fn put(&mut self, told: Told) {
        let Ok(slot) = self.places.binary_search_by_key(&told.pair, |p| p.0) else {
            return;
        };
        let Some(&(_, at)) = self.places.get(slot) else {
            return;
        };
        if let Some(Some(inbox)) = self.all.get_mut(at)
            && !inbox.shut
        {
            inbox.news.push_back(told.news);
            if !core::mem::replace(&mut inbox.due, true) {
                self.due.push_back(at);
            }
        }
    }

    /// Takes the oldest completions, as many as `into` has room for. Returns how many.
    pub fn take(&mut self, at: usize, into: &mut [News]) -> usize {
        let Some(Some(inbox)) = self.all.get_mut(at) else {
            return 0;
        };
        let n = inbox.news.len().min(into.len());
        for (to, news) in into.iter_mut().zip(inbox.news.drain(..n)) {
            *to = news;
        }
        n
    }

    /// True if an endpoint must be driven.
    pub(crate) fn is_any_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes the endpoint to be driven next out of the list.
    pub(crate) fn next_due(&mut self) -> Option<W> {
        let at = self.due.pop_front()?;
        let inbox = self.all.get_mut(at)?.as_mut()?;
        inbox.due = false;
        Some(inbox.owner)
    }

    /// Lists all endpoints.
    pub(crate) fn all_due(&mut self) {
        for (at, inbox) in self.all.iter_mut().enumerate() {
            if let Some(inbox) = inbox
                && !core::mem::replace(&mut inbox.due, true)
            {
                self.due.push_back(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pair: u32, mark: u64) -> Told {
        let news = News::Done { mark };
        Told { pair, news }
    }

    fn taken(boxes: &mut Inboxes<char>, at: usize, most: usize) -> Vec<u64> {
        let mut into = vec![News::Failed { status: 0 }; most];
        let n = boxes.take(at, &mut into);
        let mark = |news: &News| match news {
            News::Done { mark } => *mark,
            other => panic!("{other:?}"),
        };
        into[..n].iter().map(mark).collect()
    }

    #[test]
    fn each_gets_its_own_in_order() {
        let mut boxes = Inboxes::new();
        let [a, b] = [(17, 'a'), (3, 'b')].map(|(n, w)| boxes.enter(n, w).unwrap());
        for mark in 0..20 {
            boxes.put(told(if mark % 3 == 0 { 3 } else { 17 }, mark));
        }
        assert_eq!(taken(&mut boxes, b, 4), [0, 3, 6, 9]);
        assert_eq!(taken(&mut boxes, b, 9), [12, 15, 18]);
        assert_eq!(taken(&mut boxes, b, 9), [0u64; 0]);
        let odd: Vec<u64> = (0..20).filter(|mark| mark % 3 != 0).collect();
        assert_eq!(taken(&mut boxes, a, 99), odd);
    }

    #[test]
    fn each_is_driven_once_for_what_came() {
        let mut boxes = Inboxes::new();
        boxes.enter(1, 'a').unwrap();
        let b = boxes.enter(2, 'b').unwrap();
        for mark in 0..3 {
            boxes.put(told(2, mark));
            boxes.put(told(1, mark));
        }
        assert!(boxes.is_any_due());
        assert_eq!(boxes.next_due(), Some('b'));
        // Listed again: the thread that drives it may have looked before this came.
        boxes.put(told(2, 9));
        assert_eq!(boxes.next_due(), Some('a'));
        assert_eq!(boxes.next_due(), Some('b'));
        assert_eq!(boxes.next_due(), None);
        assert_eq!(taken(&mut boxes, b, 9), [0, 1, 2, 9]);
        boxes.all_due();
        boxes.leave(b);
        assert_eq!(boxes.next_due(), Some('a'));
        assert_eq!(boxes.next_due(), None);
    }

    #[test]
    fn what_one_has_left_behind_is_not_the_next_ones() {
        let mut boxes = Inboxes::new();
        let a = boxes.enter(5, 'a').unwrap();
        assert_eq!(boxes.enter(5, 'b'), None);
        boxes.put(told(5, 1));
        boxes.shut(a);
        boxes.put(told(5, 2));
        assert_eq!(taken(&mut boxes, a, 9), [0u64; 0]);
        boxes.leave(a);
        boxes.put(told(5, 3));
        assert_eq!(boxes.next_due(), None);
        let b = boxes.enter(5, 'b').unwrap();
        assert_eq!(taken(&mut boxes, b, 9), [0u64; 0]);
        boxes.put(told(5, 4));
        assert_eq!(boxes.next_due(), Some('b'));
        assert_eq!(taken(&mut boxes, b, 9), [4]);
    }
}
