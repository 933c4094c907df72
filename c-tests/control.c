/* What the header of a message says besides the bytes: names, control data, flags. */
#include "t.h"

/* Every receiving call fills the header as the kernel does; one that fails leaves it alone. */
static void header_server(int fd)
{
    T(put(fd, 1, 1000));
    meet();
    meet();
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void receive(int fd, struct msghdr m, int flags)
{
    char control[100];
    m.msg_iov = &(struct iovec){buf, 100};
    m.msg_iovlen = 1;
    m.msg_control = m.msg_controllen ? control : NULL;
    m.msg_flags = -1;
    D(recvmsg(fd, &m, flags));
    say("flags %x: namelen %d controllen %zu flags %x", flags, m.msg_namelen, m.msg_controllen,
        m.msg_flags);
}

static void header_client(int fd)
{
    char name[128];
    struct mmsghdr many[2] = {
        {.msg_hdr = {.msg_namelen = 77}},
        {.msg_hdr = {.msg_name = name, .msg_namelen = 77}}};
    struct iovec v[2] = {{buf, 100}, {buf + 100, 100}};
    await_in(fd, 1000);
    receive(fd, (struct msghdr){.msg_namelen = 77}, 0);
    receive(fd, (struct msghdr){.msg_name = name, .msg_namelen = sizeof name}, 0);
    receive(fd, (struct msghdr){.msg_namelen = 77, .msg_controllen = 100}, MSG_CMSG_CLOEXEC);
    receive(fd, (struct msghdr){.msg_name = name, .msg_namelen = 5}, MSG_PEEK | MSG_CMSG_CLOEXEC);
    receive(fd, (struct msghdr){.msg_namelen = 77, .msg_controllen = 100},
        MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL);
    for (int i = 0; i < 2; i++)
        many[i].msg_hdr.msg_iov = &v[i], many[i].msg_hdr.msg_iovlen = 1,
            many[i].msg_hdr.msg_flags = -1;
    T(recvmmsg(fd, many, 2, MSG_CMSG_CLOEXEC, NULL));
    for (int i = 0; i < 2; i++)
        say("namelen %d controllen %zu flags %x", many[i].msg_hdr.msg_namelen,
            many[i].msg_hdr.msg_controllen, many[i].msg_hdr.msg_flags);
    D(recv(fd, buf, 1000, 0));
    receive(fd, (struct msghdr){.msg_namelen = 77, .msg_controllen = 100}, MSG_DONTWAIT);
    meet();
    meet();
    await(fd, POLLRDHUP);
    receive(fd, (struct msghdr){.msg_namelen = 77, .msg_controllen = 100}, MSG_CMSG_CLOEXEC);
    receive(fd, (struct msghdr){.msg_name = name, .msg_namelen = 77}, 0);
}

/* TCP looks at the control data of a message that is sent. It refuses, or skips, what it does not
 * know. */
static ssize_t send_control(int fd, const char *text, int level, int type, int value)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c =
        {.h = {CMSG_LEN(sizeof(int)), level, type}};
    memcpy(CMSG_DATA(&c.h), &value, sizeof value);
    return sendmsg(fd, (&(struct msghdr){.msg_iov = &(struct iovec){(char *)text, strlen(text)},
        .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c}), 0);
}

static void control_server(int fd)
{
    for (int i = 0; i < 6; i++) {
        if (i)
            fd = join();
        T(send(fd, "before ", 7, 0));
        switch (i) {
        case 0: T(send_control(fd, "rights ", SOL_SOCKET, SCM_RIGHTS, 0)); break;
        case 1: T(send_control(fd, "unknown ", SOL_SOCKET, 9999, 0)); break;
        case 2: T(send_control(fd, "another level's ", IPPROTO_IP, IP_TTL, 5)); break;
        case 3: T(send_control(fd, "mark ", SOL_SOCKET, SO_MARK, 0)); break;
        case 4:
            T(sendmsg(fd, (&(struct msghdr){.msg_iov = &(struct iovec){"bad ", 4}, .msg_iovlen = 1,
                .msg_controllen = 32}), 0));
            break;
        case 5: {
            union { struct cmsghdr h; char space[64]; } c = {.h = {1000, SOL_SOCKET, SCM_RIGHTS}};
            struct iovec v[2] = {{"first ", 6}, {"second ", 7}};
            struct mmsghdr m[2] = {
                {.msg_hdr = {.msg_iov = &v[0], .msg_iovlen = 1}},
                {.msg_hdr = {.msg_iov = &v[1], .msg_iovlen = 1, .msg_control = &c,
                    .msg_controllen = sizeof c}}};
            /* the second message's control data claim to be longer than they are */
            T(sendmmsg(fd, m, 2, 0));
            break;
        }
        }
        T(send(fd, "behind", 6, 0));
        tell(0);
        T(get(fd, i, 5000));
        T(put(fd, i, 5000));
        meet();
    }
}

static void control_client(int fd)
{
    for (int i = 0; i < 6; i++) {
        if (i)
            fd = join();
        T(put(fd, i, 5000));
        hear();
        size_t n = 0;
        memset(buf, 0, 100);
        while (!strstr(buf, "behind") && n < 100)
            n += recv(fd, buf + n, 1, 0) > 0 ? 1 : 100;
        say("%s", buf);
        T(get(fd, i, 5000));
        meet();
    }
}

const struct body control_bodies[] = {
    TWO("received_header", header_server, header_client),
    TWO("sendmsg_control", control_server, control_client),
    {0},
};
