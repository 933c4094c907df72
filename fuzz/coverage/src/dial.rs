//! What two hosts say when a link is made: private data of RDMA CM, and a question or an answer
//! over a link that there is.

use crate::input::Input;
use sluice_engine::hello::{self, Answer, Request};
use sluice_stream::wire::{CONTROL_LEN, Control};

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 5 {
        0 => any(input.rest()),
        // As an honest end would say it, but for some bytes.
        1 => {
            let mut said = [0; hello::REQUEST_LEN + 40];
            said[..2].copy_from_slice(&hello::VERSION.to_le_bytes());
            change(&mut input, &mut said);
            any(&said[..hello::REQUEST_LEN]);
            any(&said);
        }
        2 => {
            let mut said = [0; hello::ANSWER_LEN + 156];
            said[..2].copy_from_slice(&hello::VERSION.to_le_bytes());
            change(&mut input, &mut said);
            any(&said[..hello::ANSWER_LEN]);
            any(&said);
        }
        3 => {
            let mut said = hello::refusal(sluice_stats::Reason::NoAnswer);
            change(&mut input, &mut said);
            any(&said);
        }
        // ASK, GRANT, DENY.
        _ => {
            let mut said = [0; CONTROL_LEN];
            said[0] = 7 + input.byte() % 3;
            change(&mut input, &mut said);
            if let Ok(control) = Control::parse(&said) {
                assert_eq!(control.emit(), said);
            }
        }
    }
    // Any port and any two addresses have numbers.
    for port in hello::ports(input.half()) {
        assert_ne!(port, 0);
    }
}

fn change(input: &mut Input<'_>, said: &mut [u8]) {
    while !input.is_over() {
        let at = input.below(said.len());
        let len = 1 + usize::from(input.byte() % 16);
        for (to, from) in said[at..].iter_mut().zip(input.bytes(len)) {
            *to = *from;
        }
    }
}

/// The parsed message is exactly what was said, with no trailing bytes.
fn any(bytes: &[u8]) {
    let whole = |emitted: &[u8]| {
        let (head, tail) = bytes.split_at(emitted.len());
        head == emitted && tail.iter().all(|b| *b == 0)
    };
    if let Ok(request) = Request::parse(bytes) {
        assert!(whole(&request.emit()));
        assert_eq!(Request::parse(&request.emit()), Ok(request));
        // The proof is under no proof.
        assert_eq!(request.said()[36..52], [0; 16]);
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert!(whole(&answer.emit()));
        assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        assert_eq!(answer.said()[24..], [0; 16]);
    }
    let reason = hello::refused(bytes);
    if hello::is_for_another(bytes) {
        assert_eq!(reason, sluice_stats::Reason::NoAnswer);
    }
}
