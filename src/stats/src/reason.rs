//! Why a connection is on TCP: one variant for each cause, with a code for programs and words for
//! people, and what these can do. The table below is the only place where any of them is written.

macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $name:ident = $number:literal, $code:literal, $words:literal, $advice:literal;
    )+) => {
        /// Why a connection stayed on TCP, or went back to it.
        ///
        /// The number is part of the layout that `sluice stat` reads from another process, and
        /// peers of other versions tell each other reasons by it. So a number is never given to a
        /// second cause: 4, 24, 25, 72 and 75 belonged to causes that nothing gives any more. The
        /// code is part of the JSON.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name = $number,)+
        }

        impl Reason {
            /// Every reason, by number.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The cause in words, fit to follow "on TCP: ".
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self {
                    $(Reason::$name => $words,)+
                }
            }

            /// What it means and what can be done, for people.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Reason::$name => $advice,)+
                }
            }

            /// The cause as a kebab-case name that never changes.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Reason::$name => $code,)+
                }
            }

            /// Does it say how a connection ends, or a half of it?
            #[must_use]
            pub const fn is_end(self) -> bool {
                matches!(
                    self,
                    Reason::Shutdown
                        | Reason::Close
                        | Reason::Exit
                        | Reason::LingerReset
                        | Reason::Disconnected
                )
            }

            /// Can it be the reason of an end that tells the other one? The rest are of an end that
            /// knows none.
            #[must_use]
            pub const fn is_told(self) -> bool {
                !matches!(
                    self,
                    Reason::None
                        | Reason::BelowThreshold
                        | Reason::Meeting
                        | Reason::Met
                        | Reason::NoAnswer
                        | Reason::PeerDemoted
                )
            }

            /// Is it no fault of the connection or its ends? Then it may come to a link again soon.
            #[must_use]
            pub const fn is_no_fault(self) -> bool {
                matches!(self, Reason::Idle | Reason::MakesRoom | Reason::Path)
            }

            /// Is it an option of the socket that a link cannot honour? Then it stays so.
            #[must_use]
            pub const fn is_option(self) -> bool {
                matches!(self as u16, 64..80)
            }

            /// The reason with this number; `None` for one that this build does not know.
            #[must_use]
            pub const fn from_u16(number: u16) -> Option<Reason> {
                match number {
                    $($number => Some(Reason::$name),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// No reason: not tried yet, or accelerated.
    None = 0, "none",
        "nothing stands in the way",
        "The connection is on a link, or nothing was tried yet.";

    // The program or its user decided.
    /// `SLUICE_UPGRADE=off`. Of a whole process: its connections are not tracked.
    Off = 1, "off",
        "upgrades are turned off (SLUICE_UPGRADE=off)",
        "Unset SLUICE_UPGRADE, or give it another value than off.";
    /// The stream has not reached its first upgrade offset.
    BelowThreshold = 2, "below-threshold",
        "too little has moved so far to be worth an upgrade",
        "Nothing to do: it leaves TCP when it has moved 2 MiB, or some 16 requests and answers, \
         or as many bytes as SLUICE_UPGRADE says. A connection that never does would gain \
         nothing.";
    /// The descriptor came from somewhere that no hook saw.
    NotHooked = 3, "not-hooked",
        "the program uses the socket where Sluice cannot see it",
        "The program connected the socket, or read or wrote it, by system calls of its own. It \
         cannot be helped.";
    /// Two processes use the socket.
    Shared = 5, "shared",
        "two processes use the socket",
        "It can leave TCP as soon as one of the two processes has closed its copy. A server does \
         best if the process that does the work accepts the connection.";
    /// The socket is not an established TCP connection.
    NotEstablished = 6, "not-established",
        "the connection is half closed, or not connected",
        "One end has closed its writing half, or the connection is not up yet. A program that \
         closes one half at its start (nc with no input) stays on TCP.";
    /// The epoll set was made elsewhere, or another process or a raw system call waits for it.
    SetElsewhere = 7, "set-elsewhere",
        "it is in an epoll set that is used where Sluice does not see it",
        "Another process, or a system call that passes the C library by, waits on the epoll set. \
         It cannot be helped.";
    /// A rule of the configuration file leaves it on TCP.
    Policy = 8, "policy",
        "the configuration leaves it on TCP (sluice.conf)",
        "Change the [leave] rules of sluice.conf if that is not what you want.";
    /// As many connections, or as much memory, as the user allows are in use.
    Bounded = 9, "bounded",
        "as many connections, or as much memory, as the configuration allows are in use",
        "Raise SLUICE_CONNECTIONS or SLUICE_MEMORY, or `connections` or `memory` in sluice.conf.";

    // Meeting the peer.
    /// Nobody met us at the name. Whether the peer runs Sluice is not known.
    NoAnswer = 16, "no-answer",
        "the other end has not answered: it runs without Sluice, or is in one long call",
        "Run the other program with Sluice, too: `sluice stat NAME` says whether it is. If it is, \
         nothing is wrong: it has not come back from one long call (a large blocking send, a bulk \
         load), is in a sandbox, or has passed the connection on to another process. The next try \
         follows when twice as many bytes have moved.";
    /// The peer is on another host, as far as this network namespace shows, and no RDMA device
    /// leads there.
    PeerRemote = 17, "peer-remote",
        "the peer is on another host or in another network namespace, and no RDMA device leads to \
         it",
        "Within one host, both programs must be in one network namespace. Between hosts both need \
         an RDMA device: run `sluice doctor` on each.";
    /// Another process holds the rendezvous name.
    NameTaken = 18, "name-taken",
        "another process holds the rendezvous name",
        "Another process on this host sits on the name by which the two ends would meet. Without \
         that the connection would leave TCP; look for a program that binds abstract Unix names \
         that begin with sluice/.";
    /// As many names as allowed are held already.
    TooManyNames = 19, "too-many-names",
        "too many connections look for their peer at once",
        "Nothing to do: the next try follows when twice as many bytes have moved.";
    /// The peer could not prove that it holds the other end.
    ProofFailed = 20, "proof-failed",
        "the peer could not prove that it holds the other end",
        "Another process than the other end of this connection has come to meet it, or the other \
         end closed it meanwhile. If it happens often, somebody on this host tries to get \
         between.";
    /// The peer's Sluice has another version of the protocol.
    VersionMismatch = 21, "version-mismatch",
        "the peer runs another version of Sluice",
        "Install the same release of Sluice for both programs, and start them anew.";
    /// The peer's shared structures have another layout.
    LayoutMismatch = 22, "layout-mismatch",
        "the peer's Sluice lays shared memory out differently",
        "Install the same release of Sluice for both programs, and start them anew.";
    /// The peer has another word size.
    WordSizeMismatch = 23, "word-size-mismatch",
        "one program is of 32 bits, the other of 64",
        "It cannot be helped.";
    /// A thread still waits to write in a kernel call.
    WriterBlocked = 26, "writer-blocked",
        "a thread still waits to write in the kernel, or a signal handler has interrupted it",
        "Nothing to do: a thread was in a long call or in a handler. The next try follows when \
         twice as many bytes have moved.";

    // What the host refuses.
    /// Neither netlink nor /proc/net/tcp names the peer's socket.
    NetlinkRefused = 32, "netlink-refused",
        "the kernel refuses to name the peer's socket (netlink)",
        "Allow AF_NETLINK sockets (NETLINK_SOCK_DIAG) to the program, or mount /proc; the kernel \
         needs CONFIG_INET_DIAG.";
    /// /proc is not mounted, or hidden.
    ProcMissing = 33, "proc-missing",
        "/proc is not mounted",
        "Mount /proc where the program runs (chroots, containers).";
    /// `memfd_create` failed.
    MemfdRefused = 34, "memfd-refused",
        "no shared memory file could be made (memfd_create)",
        "A sandbox or a limit on memory refuses memfd_create. Allow it in the SystemCallFilter= \
         or seccomp profile of the program.";
    /// `mmap` failed.
    MmapRefused = 35, "mmap-refused",
        "shared memory could not be mapped (mmap)",
        "Raise the limit on addresses (ulimit -v) or on memory of the program.";
    /// The control thread could not be made.
    ThreadRefused = 36, "thread-refused",
        "the control thread could not be started",
        "Raise the limit on processes (ulimit -u, TasksMax=) or allow clone to the program.";
    /// A seccomp filter would kill the process for a system call that Sluice needs.
    SeccompFatal = 37, "seccomp-fatal",
        "a seccomp filter forbids a needed system call",
        "The program runs under a filter that would kill it for a system call of the library. \
         Widen the SystemCallFilter= or seccomp profile: see libsluice(7).";
    /// No descriptor is left, or Sluice's share of them is used up.
    DescriptorLimit = 38, "descriptor-limit",
        "too few file descriptors are left",
        "Raise the limit on open files (ulimit -n, LimitNOFILE=).";
    /// A table of Sluice is full.
    Limit = 39, "limit",
        "Sluice tracks as many connections as it can",
        "Nothing to do: so many connections are open that the library's tables are full.";
    /// The program sandboxed itself.
    Sandboxed = 40, "sandboxed",
        "the program put itself into a sandbox",
        "It cannot be helped: a program that has sandboxed itself must not have new shared memory.";
    /// The kernel's send buffer is too small to take back an unread ring.
    SendBufferSmall = 41, "send-buffer-small",
        "the socket's send buffer is too small",
        "The program has set a small SO_SNDBUF, or net.ipv4.tcp_wmem is small. Larger ones let \
         the connection leave TCP.";

    // The link and its peer.
    /// The link has no ring or no stream number left.
    LinkFull = 48, "link-full",
        "the link to the peer's process has no room for another stream",
        "Nothing to do: two processes have 8192 to 16384 connections on their link at most, 2048 \
         to 4096 between hosts, and what memory SLUICE_MEMORY allows.";
    /// The peer broke the protocol.
    PeerHostile = 49, "peer-hostile",
        "the peer's process broke the protocol",
        "The other process broke the protocol, or has said more than any program needs. If both \
         run the same release of Sluice and nobody attacks, please report it.";
    /// The peer's process died.
    PeerDied = 50, "peer-died",
        "the peer's process died",
        "Nothing to do: the other process has ended or was killed.";
    /// The ring stayed full because the peer does not read.
    RingFull = 51, "ring-full",
        "the ring stayed full: the peer was not reading",
        "Nothing to do: the reader was slow, and the bytes wait in TCP instead. The connection \
         tries again later. A larger SLUICE_RING helps readers that are slow for a moment.";
    /// Direct-only mode, and no ADVERT came.
    DirectNoAdvert = 52, "direct-no-advert",
        "direct-only mode, and the peer offered no buffer",
        "Use SLUICE_MODE=dynamic, which is the default, instead of direct.";
    /// The link failed.
    LinkLost = 53, "link-lost",
        "the link to the peer's process was lost",
        "Between hosts: the RDMA connection broke; run `sluice doctor` on both. Within a host: \
         the other process has given the link up.";
    /// The peer demoted the stream; its own counters have the cause.
    PeerDemoted = 54, "peer-demoted",
        "the other end took the connection back to TCP",
        "The other end has not said why. `sluice stat` of the other program does.";

    // Options that a link cannot honour.
    /// MSG_OOB or SO_OOBINLINE.
    MsgOob = 64, "msg-oob",
        "urgent data is used (MSG_OOB)",
        "It cannot be helped: a link has no urgent data.";
    /// TCP_ULP, for example kernel TLS.
    TcpUlp = 65, "tcp-ulp",
        "an upper-layer protocol is attached (TCP_ULP)",
        "It cannot be helped: the kernel encrypts this connection (kernel TLS). TLS within the \
         program is no obstacle.";
    /// TCP_REPAIR.
    TcpRepair = 66, "tcp-repair",
        "the connection is under repair (TCP_REPAIR)",
        "It cannot be helped while the program (CRIU) repairs the connection.";
    /// TCP_MD5SIG or TCP-AO.
    TcpMd5 = 67, "tcp-md5",
        "segments are signed (TCP_MD5SIG, TCP_AO)",
        "It cannot be helped: the kernel signs each segment.";
    /// SO_ATTACH_FILTER, SO_ATTACH_BPF and their kin.
    AttachFilter = 68, "attach-filter",
        "a filter is attached (SO_ATTACH_FILTER, SO_ATTACH_BPF)",
        "It cannot be helped: the program has the kernel filter what it receives.";
    /// SO_ZEROCOPY.
    Zerocopy = 69, "zerocopy",
        "zero-copy notifications are wanted (SO_ZEROCOPY)",
        "Turn the program's zero-copy sends (MSG_ZEROCOPY) off: on a link they gain nothing.";
    /// SO_TIMESTAMPING and its kin.
    Timestamping = 70, "timestamping",
        "packet time stamps are wanted (SO_TIMESTAMPING)",
        "Turn the program's packet time stamps off, if it has a setting for that.";
    /// SO_MAX_PACING_RATE.
    PacingRate = 71, "pacing-rate",
        "a pacing rate is set (SO_MAX_PACING_RATE)",
        "It cannot be helped: the program asks the kernel to pace what it sends.";
    /// O_ASYNC: the kernel's socket alone raises SIGIO.
    SignalDriven = 73, "signal-driven",
        "the program asked for SIGIO",
        "It cannot be helped: the kernel alone raises SIGIO (O_ASYNC).";
    /// connect() with AF_UNSPEC.
    Disconnected = 74, "disconnected",
        "the program dissolved the connection",
        "Nothing to do: the program has dissolved the connection by connect() with AF_UNSPEC.";
    /// SO_PEEK_OFF.
    PeekOff = 76, "peek-off",
        "the program moves on while it peeks (SO_PEEK_OFF)",
        "It cannot be helped.";
    /// `getsockopt(TCP_ZEROCOPY_RECEIVE)`.
    ZerocopyReceive = 77, "zerocopy-receive",
        "the program reads without copying (TCP_ZEROCOPY_RECEIVE)",
        "Turn the program's zero-copy receive off.";

    // Uses that hooks cannot follow.
    /// splice, tee or vmsplice.
    Splice = 80, "splice",
        "the descriptor was used with splice",
        "Turn splice off, if the program has a setting for that (HAProxy: `nosplice`).";
    /// fdopen: stdio reads and writes past the hooks.
    Fdopen = 81, "fdopen",
        "the descriptor was given to stdio (fdopen)",
        "It cannot be helped: stdio reads and writes where the library does not see it.";
    /// dprintf.
    Dprintf = 82, "dprintf",
        "the descriptor was written with dprintf",
        "It cannot be helped: dprintf writes where the library does not see it.";
    /// syscall().
    RawSyscall = 83, "raw-syscall",
        "the descriptor was used by a raw system call",
        "It cannot be helped: the program passes the C library by.";
    /// io_uring.
    IoUring = 84, "io-uring",
        "the descriptor was used with io_uring",
        "Turn io_uring off, if the program has a setting for that (Node.js: UV_USE_IO_URING=0).";
    /// Passed to another process by SCM_RIGHTS.
    Passed = 85, "passed",
        "the descriptor was passed to another process",
        "It cannot be helped: servers that accept in one process and pass connections to others \
         (Node.js cluster) stay on TCP. Let the workers accept, if there is a setting for that.";
    /// preadv2 or pwritev2 with flags that a link cannot honour.
    Preadv2 = 86, "preadv2",
        "the descriptor was used with preadv2 or pwritev2",
        "It cannot be helped.";
    /// MSG_PEEK | MSG_WAITALL for more than there is, on the way to the link.
    PeekWaits = 87, "peek-waits",
        "a peek waits for bytes behind those that TCP has",
        "Nothing to do: the connection leaves TCP when the peek is over.";
    /// A number under which the socket is registered in an epoll set was closed while a dup lives.
    RegisteredClosed = 88, "registered-closed",
        "a descriptor that an epoll set knows was closed, and a copy of it lives",
        "It cannot be helped: the kernel alone still knows that registration.";

    // The end of a connection or of its process.
    /// shutdown().
    Shutdown = 96, "shutdown",
        "one half of the connection was shut down",
        "Nothing to do: the end of a stream is the kernel's to tell.";
    /// close().
    Close = 97, "close",
        "the socket was closed",
        "Nothing to do.";
    /// The process exits.
    Exit = 98, "exit",
        "the process exited",
        "Nothing to do.";
    /// The process executes another program.
    Exec = 99, "exec",
        "the process executed another program",
        "Nothing to do: the new program goes on with the connection on TCP.";
    /// A child of fork uses the stream.
    Fork = 100, "fork",
        "a forked child uses the socket",
        "A child uses a connection of its parent's. It can leave TCP again when one of the two \
         has closed it.";
    /// Closed with unread input: the connection is reset.
    LingerReset = 101, "linger-reset",
        "the connection was closed by a reset",
        "Nothing to do: the program closed the connection with bytes unread.";

    // Ourselves.
    /// A test forced it (`SLUICE_FAULT`).
    Fault = 112, "fault",
        "a test forced it (SLUICE_FAULT)",
        "Only libraries that are built for tests do so.";
    /// A defect of Sluice was caught; it cost this stream only.
    Panic = 113, "panic",
        "a defect of Sluice was caught",
        "Please report it, with what SLUICE_LOG=debug prints.";

    // Newer ones.
    /// The kernel knows no open socket of this host that is the other end, though the address is
    /// this host's.
    PeerClosed = 114, "peer-closed",
        "the other end is closed, or in another network namespace",
        "Nothing to do if it is closed. Programs of two network namespaces (containers) stay on \
         TCP with each other.";
    /// The connection waits to be met, or for an answer; not counted.
    Meeting = 115, "meeting",
        "the two ends have not met yet",
        "Nothing to do: it takes some hundred microseconds. A connection that ended so was too \
         short.";
    /// Memory for the device could not be registered (RLIMIT_MEMLOCK).
    MemoryLimit = 117, "memlock",
        "too little memory may be locked for the RDMA device (RLIMIT_MEMLOCK)",
        "Raise the limit on locked memory of the program: `ulimit -l unlimited`, \
         LimitMEMLOCK=infinity.";
    /// An RDMA device refused a resource.
    DeviceRefused = 118, "device-refused",
        "the RDMA device refused a resource",
        "The RDMA device has no queue pair or memory region left: see `rdma resource`. Fewer \
         processes, or SLUICE_CONNECTIONS, help.";
    /// The RDMA libraries of this process are bound to its parent's devices.
    ForkedRdma = 119, "forked-rdma",
        "the process was forked from one that was using RDMA, whose libraries know no second one",
        "Let the program fork before it connects to other hosts, if it can.";
    /// A connection between hosts moved nothing for a while, and its rings went to others.
    Idle = 120, "idle",
        "the connection was idle, and gave the memory of its rings back",
        "Nothing to do: it comes back when it moves bytes again.";
    /// The kernel names another user as the owner of one end than as the process that holds it.
    PeerOwner = 121, "peer-owner",
        "the socket at one end belongs to another user than the process that uses it",
        "One of the programs has changed its user since it connected or accepted (vsftpd, smbd, \
         inetd), so the other cannot tell that it is the other end. It cannot be helped.";
    /// The peer's process has no number here, or /proc does not show what it holds.
    PeerHidden = 122, "peer-hidden",
        "the peer's process cannot be looked at: it is in another namespace of process ids, or \
         /proc hides its descriptors",
        "Run both programs in one namespace of process ids. Two programs that have both dropped \
         to one user (nginx and php-fpm as www-data) cannot look at each other: give them \
         different users.";
    /// A page of shared memory may be refused when it is touched (`vm.overcommit_memory=2`).
    Overcommit = 123, "overcommit",
        "the kernel may refuse pages of shared memory when they are used (vm.overcommit_memory=2)",
        "Set vm.overcommit_memory to 0 or 1.";
    /// Over a path of a millisecond or more the link was measured, and slower than TCP before it.
    Far = 124, "far",
        "the other host is a millisecond away, or more, and TCP was faster",
        "Nothing to do: over such a distance the bytes under way decide, and TCP had more of them. \
         If little memory may be locked (sluice doctor), raising that limit makes rings longer.";
    /// The connection goes back to TCP to get a longer ring, or so that TCP's rate is known.
    Path = 125, "path",
        "it gets a longer ring, or TCP's rate over this path is measured",
        "Nothing to do: it leaves TCP again soon, unless TCP turns out to be faster.";
    /// Others needed the memory of its ring: it comes back with a shorter one.
    MakesRoom = 126, "makes-room",
        "other connections needed the memory of its ring",
        "Nothing to do: it comes back with a shorter ring. `sluice doctor` says how much memory \
         may be locked, and how to raise that.";
    /// Bytes of a file that was made shorter, and that its pages stood for, could not be sent by
    /// TCP.
    FileCut = 127, "file-cut",
        "a file was made shorter while sendfile had bytes of it under way, and the link ended",
        "SLUICE_SENDFILE=copy takes the bytes when sendfile is called.";
    /// Both ends stand ready, and neither has written since; not counted.
    Met = 116, "met",
        "both ends have met: the next writes leave TCP",
        "Nothing to do.";
}

/// Length of the array that counts reasons: room for more of them without a new layout.
pub const REASON_SLOTS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_codes_and_words_are_unique_and_round_trip() {
        let mut codes = HashSet::new();
        let mut words = HashSet::new();
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_u16(reason as u16), Some(reason));
            assert!((reason as usize) < REASON_SLOTS, "{reason:?} has no slot");
            assert!(codes.insert(reason.code()), "{reason:?} repeats a code");
            assert!(words.insert(reason.words()), "{reason:?} repeats words");
            assert!(
                reason
                    .code()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{} is not kebab-case",
                reason.code()
            );
        }
    }

    #[test]
    fn an_unknown_number_is_not_a_reason() {
        assert_eq!(Reason::from_u16(15), None);
        for never_again in [4, 24, 25, 72] {
            assert_eq!(Reason::from_u16(never_again), None);
        }
        assert_eq!(Reason::from_u16(u16::MAX), None);
    }
}
