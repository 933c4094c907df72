/* The agent: a process that makes the calls that scripts/fuzz.py tells it, one line each way for a call.
 *
 * A command goes to one thread of one process, over a pipe of its own; answers of all come on one pipe. Pipes, the mail by
 * which descriptors are passed, and what an agent holds for its own use stand at high numbers, so that what the commands
 * open gets the numbers that it would get in any program. Descriptors are named by handles, which a fork or an exec keeps.
 *
 * An answer tells what a program would see, and nothing that depends on timing: a call whose result does is made in a loop
 * here, and the loop's result told. */
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    PROCS = 6,
    THREADS = 3,
    HANDLES = 64,
    COMMANDS = 500,        /* from here on: the reading end of each thread's commands, THREADS to a process */
    ANSWERS = 540,
    MAIL_TO = 550,         /* by process: descriptors are passed by these */
    MAIL_FROM = 560,
    OWN = 600,             /* and above: an agent's own, closed on exec */
    ROOM = 4 << 20,        /* of a thread's buffer */
    PATIENCE_MS = 5000,    /* of a wait that must come to an end; longer than anything that the library waits for */
};

/* One command, cut into words. Words are numbers but where a call says otherwise. */
struct command {
    int count;
    char *word[64];
};

static inline long number(const struct command *c, int i)
{
    extern long number_of(const char *);
    return i < c->count ? number_of(c->word[i]) : 0;
}

/* What a thread has for its use. */
struct worker {
    int index;
    char *room;      /* ROOM bytes */
    int pipe[2];     /* for splice */
    int set;         /* an epoll set with nothing in it */
    int file;        /* an empty file, for sendfile */
};
extern __thread struct worker me;

extern int process;            /* which one this is */
int fd_of(long handle);        /* its number, also when it is closed already */
void keep(long handle, int fd);

void answer(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* `= N`, or `= -1 ERRNO`. */
const char *result(long n);
const char *mask_name(unsigned mask);
/* The other way round: IN|OUT and so on. */
unsigned mask_of(const char *text);

/* Bytes are a pattern by seed and offset. */
void fill(void *p, unsigned seed, uint64_t off, size_t n);
ssize_t wrong_at(const void *p, unsigned seed, uint64_t off, size_t n); /* -1: none is */

/* Waits of our own, by one of the ways there are: 1 ready, 0 not within PATIENCE_MS. */
enum way { BLOCK, POLL, SELECT, LEVEL, EDGE, ONESHOT };
int wait_for(int fd, enum way way, short events, int *armed);
void leave(int fd, enum way way, int *armed);

/* Calls, by the first word of their commands. */
typedef void call(const struct command *c);
call do_send, do_recv, do_put, do_get, do_exchange, do_urgent;
call do_poll, do_epoll_create, do_epoll_ctl, do_epoll_wait, do_settle, do_over;
call do_socket, do_listen, do_connect, do_accept, do_close, do_dup, do_shutdown, do_setopt, do_getopt, do_ioctl, do_fcntl,
    do_names, do_pass, do_take;
