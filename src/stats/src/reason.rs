//! Why a connection is on TCP: one variant for each cause, with a code for programs and words for
//! people. The table below is the only place where any of the three is written.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $code:literal, $words:literal;)+) => {
        /// Why a connection stayed on TCP, or went back to it.
        ///
        /// The number is part of the layout that `sluice stat` reads from another process, and peers of
        /// other versions tell each other reasons by it. So a number is never given to a second cause:
        /// 24, 25 and 72 belonged to causes that were never given. The code is part of the JSON.
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

            /// The cause as a kebab-case name that never changes.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Reason::$name => $code,)+
                }
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
    None = 0, "none", "nothing stands in the way";

    // The program or its user decided.
    /// `SLUICE_UPGRADE=off`. Of a whole process: its connections are not tracked.
    Off = 1, "off", "upgrades are turned off (SLUICE_UPGRADE=off)";
    /// The stream has not reached its first upgrade offset.
    BelowThreshold = 2, "below-threshold", "too few bytes so far to be worth an upgrade";
    /// The descriptor came from somewhere that no hook saw.
    NotHooked = 3, "not-hooked", "the socket was made where Sluice could not see it";
    /// The descriptor was inherited through exec.
    Inherited = 4, "inherited", "the socket was inherited through exec";
    /// Two processes use the socket.
    Shared = 5, "shared", "two processes use the socket";
    /// The socket is not an established TCP connection.
    NotEstablished = 6, "not-established", "the connection is not in the ESTABLISHED state";
    /// The epoll set was made elsewhere, or another process or a raw system call waits for it.
    SetElsewhere = 7, "set-elsewhere", "it is in an epoll set that is used where Sluice does not see it";
    /// A rule of the configuration file leaves it on TCP.
    Policy = 8, "policy", "the configuration leaves it on TCP (sluice.conf)";
    /// As many connections, or as much memory, as the user allows are in use.
    Bounded = 9, "bounded", "as many connections, or as much memory, as the configuration allows are in use";

    // Meeting the peer.
    /// Nobody met us at the name: the peer does not run Sluice, or not on this connection.
    PeerPlain = 16, "peer-plain", "nobody answered at the other end: it does not run Sluice, or not on this connection";
    /// The peer is on another host, as far as this network namespace shows, and no RDMA device leads there.
    PeerRemote = 17, "peer-remote", "the peer is on another host or in another network namespace, and no RDMA device leads to it";
    /// Another process holds the rendezvous name.
    NameTaken = 18, "name-taken", "another process holds the rendezvous name";
    /// As many names as allowed are held already.
    TooManyNames = 19, "too-many-names", "too many connections look for their peer at once";
    /// The peer could not prove that it holds the other end.
    ProofFailed = 20, "proof-failed", "the peer could not prove that it holds the other end";
    /// The peer's Sluice has another version of the protocol.
    VersionMismatch = 21, "version-mismatch", "the peer runs another version of Sluice";
    /// The peer's shared structures have another layout.
    LayoutMismatch = 22, "layout-mismatch", "the peer's Sluice lays shared memory out differently";
    /// The peer has another word size.
    WordSizeMismatch = 23, "word-size-mismatch", "the peer is a process of another word size";
    /// A thread still waits to write in a kernel call.
    WriterBlocked = 26, "writer-blocked", "a thread still waits to write in the kernel";

    // What the host refuses.
    /// Neither netlink nor /proc/net/tcp names the peer's socket.
    NetlinkRefused = 32, "netlink-refused", "the kernel refuses to name the peer's socket (netlink)";
    /// /proc is not mounted, or hidden.
    ProcMissing = 33, "proc-missing", "/proc is not mounted";
    /// `memfd_create` failed.
    MemfdRefused = 34, "memfd-refused", "no shared memory file could be made (memfd_create)";
    /// `mmap` failed.
    MmapRefused = 35, "mmap-refused", "shared memory could not be mapped (mmap)";
    /// The control thread could not be made.
    ThreadRefused = 36, "thread-refused", "the control thread could not be started";
    /// A seccomp filter would kill the process for a system call that Sluice needs.
    SeccompFatal = 37, "seccomp-fatal", "a seccomp filter forbids a needed system call";
    /// No descriptor is left, or Sluice's share of them is used up.
    DescriptorLimit = 38, "descriptor-limit", "too few file descriptors are left";
    /// A table of Sluice is full.
    Limit = 39, "limit", "Sluice tracks as many connections as it can";
    /// The program sandboxed itself.
    Sandboxed = 40, "sandboxed", "the program put itself into a sandbox";
    /// The kernel's send buffer is too small to take back an unread ring.
    SendBufferSmall = 41, "send-buffer-small", "the socket's send buffer is too small";

    // The link and the peer behind it.
    /// The link has no ring or no stream number left.
    LinkFull = 48, "link-full", "the link to the peer's process has no room for another stream";
    /// The peer broke the protocol.
    PeerHostile = 49, "peer-hostile", "the peer's process broke the protocol";
    /// The peer's process died.
    PeerDied = 50, "peer-died", "the peer's process died";
    /// The ring stayed full because the peer does not read.
    RingFull = 51, "ring-full", "the ring stayed full: the peer was not reading";
    /// Direct-only mode, and no ADVERT came.
    DirectNoAdvert = 52, "direct-no-advert", "direct-only mode, and the peer offered no buffer";
    /// The link failed.
    LinkLost = 53, "link-lost", "the link to the peer's process was lost";
    /// The peer demoted the stream; its own counters have the cause.
    PeerDemoted = 54, "peer-demoted", "the peer's process took the stream back to TCP";

    // Options that a link cannot honour.
    /// MSG_OOB or SO_OOBINLINE.
    MsgOob = 64, "msg-oob", "urgent data is used (MSG_OOB)";
    /// TCP_ULP, for example kernel TLS.
    TcpUlp = 65, "tcp-ulp", "an upper-layer protocol is attached (TCP_ULP)";
    /// TCP_REPAIR.
    TcpRepair = 66, "tcp-repair", "the connection is under repair (TCP_REPAIR)";
    /// TCP_MD5SIG or TCP-AO.
    TcpMd5 = 67, "tcp-md5", "segments are signed (TCP_MD5SIG, TCP_AO)";
    /// SO_ATTACH_FILTER, SO_ATTACH_BPF and their kin.
    AttachFilter = 68, "attach-filter", "a filter is attached (SO_ATTACH_FILTER, SO_ATTACH_BPF)";
    /// SO_ZEROCOPY.
    Zerocopy = 69, "zerocopy", "zero-copy notifications are wanted (SO_ZEROCOPY)";
    /// SO_TIMESTAMPING and its kin.
    Timestamping = 70, "timestamping", "packet time stamps are wanted (SO_TIMESTAMPING)";
    /// SO_MAX_PACING_RATE.
    PacingRate = 71, "pacing-rate", "a pacing rate is set (SO_MAX_PACING_RATE)";
    /// O_ASYNC: the kernel's socket alone raises SIGIO.
    SignalDriven = 73, "signal-driven", "the program asked for SIGIO";
    /// connect() with AF_UNSPEC.
    Disconnected = 74, "disconnected", "the program dissolved the connection";
    /// TCP_INQ.
    TcpInq = 75, "tcp-inq", "each message is to tell what lies unread (TCP_INQ)";
    /// SO_PEEK_OFF.
    PeekOff = 76, "peek-off", "peeks are to go on where the last one ended (SO_PEEK_OFF)";
    /// `getsockopt(TCP_ZEROCOPY_RECEIVE)`.
    ZerocopyReceive = 77, "zerocopy-receive", "the program reads without copying (TCP_ZEROCOPY_RECEIVE)";

    // Uses that hooks cannot follow.
    /// splice, tee or vmsplice.
    Splice = 80, "splice", "the descriptor was used with splice";
    /// fdopen: stdio reads and writes past the hooks.
    Fdopen = 81, "fdopen", "the descriptor was given to stdio (fdopen)";
    /// dprintf.
    Dprintf = 82, "dprintf", "the descriptor was written with dprintf";
    /// syscall().
    RawSyscall = 83, "raw-syscall", "the descriptor was used by a raw system call";
    /// io_uring.
    IoUring = 84, "io-uring", "the descriptor was used with io_uring";
    /// Passed to another process by SCM_RIGHTS.
    Passed = 85, "passed", "the descriptor was passed to another process";
    /// preadv2 or pwritev2 with flags that a link cannot honour.
    Preadv2 = 86, "preadv2", "the descriptor was used with preadv2 or pwritev2";
    /// MSG_PEEK | MSG_WAITALL for more than there is, on the way to the link.
    PeekWaits = 87, "peek-waits", "a peek waits for bytes behind those that TCP has";
    /// A number under which the socket is registered in an epoll set was closed while a dup lives.
    RegisteredClosed = 88, "registered-closed", "a descriptor of it that is registered in an epoll set was closed, and a dup of it lives";

    // The end of a connection or of its process.
    /// shutdown().
    Shutdown = 96, "shutdown", "a direction was shut down";
    /// close().
    Close = 97, "close", "the socket was closed";
    /// The process exits.
    Exit = 98, "exit", "the process exited";
    /// The process executes another program.
    Exec = 99, "exec", "the process executed another program";
    /// A child of fork uses the stream.
    Fork = 100, "fork", "a forked child uses the socket";
    /// Closed with unread input or with SO_LINGER at 0: the connection is reset.
    LingerReset = 101, "linger-reset", "the connection was closed by a reset";

    // Ourselves.
    /// A test forced it (`SLUICE_FAULT`).
    Fault = 112, "fault", "a test forced it (SLUICE_FAULT)";
    /// A defect of Sluice was caught; it cost this stream only.
    Panic = 113, "panic", "a defect of Sluice was caught";

    // Newer ones.
    /// The kernel knows no open socket of this host that is the other end, though the address is this host's.
    PeerClosed = 114, "peer-closed", "the other end is not open on this host any more (closed meanwhile, or in another network namespace)";
    /// The connection waits to be met, or for an answer; not counted.
    Meeting = 115, "meeting", "waits for the other end to answer";
    /// Memory for the device could not be registered (RLIMIT_MEMLOCK).
    MemoryLimit = 117, "memlock", "too little memory may be locked for the RDMA device (RLIMIT_MEMLOCK)";
    /// An RDMA device refused a resource.
    DeviceRefused = 118, "device-refused", "the RDMA device refused a resource";
    /// The RDMA libraries of this process are bound to its parent's devices.
    ForkedRdma = 119, "forked-rdma", "the process was forked from one that was using RDMA, whose libraries know no second one";
    /// A connection between hosts moved nothing for a while, and its rings went to others.
    Idle = 120, "idle", "the connection was idle, and gave the memory of its rings back";
    /// The kernel names another user as the owner of the other end than as the process that could
    /// be met.
    PeerOwner = 121, "peer-owner", "the socket at the other end belongs to another user than the process that uses it";
    /// The peer's process has no number here, or /proc does not show what it holds.
    PeerHidden = 122, "peer-hidden", "the peer's process cannot be looked at: it is in another namespace of process ids, or /proc hides its descriptors";
    /// A page of shared memory may be refused when it is touched (`vm.overcommit_memory=2`).
    Overcommit = 123, "overcommit", "the kernel may refuse pages of shared memory when they are used (vm.overcommit_memory=2)";
    /// Both ends stand ready, and neither has written since; not counted.
    Met = 116, "met", "both ends have met: the next writes leave TCP";
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
        for never_again in [24, 25, 72] {
            assert_eq!(Reason::from_u16(never_again), None);
        }
        assert_eq!(Reason::from_u16(u16::MAX), None);
    }
}
