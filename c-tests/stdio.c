/* stdio on a connection. */
#include "t.h"

static void stdio_server(int fd)
{
    FILE *f = fdopen(fd, "r+");
    char line[256];
    setvbuf(f, NULL, _IOFBF, 512);
    for (int i = 0; i < 300 && fgets(line, sizeof line, f); i++) {
        fseek(f, 0, SEEK_CUR);
        fprintf(f, "%d: %s", i, line);
        fflush(f);
    }
    say("error %d eof %d", ferror(f), feof(f));
    T(fclose(f));
}

static void stdio_client(int fd)
{
    char line[300];
    uint32_t h = 0;
    for (int i = 0; i < 300; i++) {
        dprintf(fd, "line %d of %s\n", i,
            i % 3 ? "many" : "quite a lot of them, each of another length");
        size_t n = 0;
        while (n < sizeof line && read(fd, line + n, 1) == 1 && line[n++] != '\n')
            ;
        h = h * 31 + sum(line, n);
    }
    say("replies %08x", h);
    T(shutdown(fd, SHUT_WR));
    T(read(fd, line, 1));
}

/* stdio for the bulk, the bare fd before and after it */
static void stdio_mixed_server(int fd)
{
    T(put(fd, 1, 50000));
    FILE *f = fdopen(dup(fd), "w");
    for (int i = 0; i < 20000; i++)
        fprintf(f, "%d\n", i);
    T(fclose(f));
    T(put(fd, 2, 50000));
}

static void stdio_mixed_client(int fd)
{
    T(get(fd, 1, 50000));
    FILE *f = fdopen(dup(fd), "r");
    int good = 0, v;
    setvbuf(f, NULL, _IONBF, 0);
    for (int i = 0; i < 20000 && fscanf(f, "%d", &v) == 1; i++)
        good += v == i;
    say("%d numbers, then %d", good, fgetc(f));
    T(fclose(f));
    T(get(fd, 2, 50000));
}

/* stdio's own streams come to stand for the connection, by dup2 in the same process. */
static void stdio_in_place_server(int fd)
{
    char line[64] = "";
    int in = dup(0), err = dup(2);
    T(put(fd, 1, 50000));
    T(get(fd, 2, 50000));
    dup2(fd, 2);
    T(write(2, "first\n", 6));
    fputs("second\n", stderr);
    T(write(2, "third\n", 6));
    dup3(fd, 0, 0);
    meet();
    say("%s", fgets(line, sizeof line, stdin) ? line : "nothing");
    T(read(0, buf, 1));
    dup2(in, 0);
    dup2(err, 2);
    close(in);
    close(err);
}

static void stdio_in_place_client(int fd)
{
    T(get(fd, 1, 50000));
    T(put(fd, 2, 50000));
    T(recv(fd, buf, 19, MSG_WAITALL));
    say("%.19s", buf);
    T(write(fd, "a line\n", 7));
    meet();
    T(shutdown(fd, SHUT_WR));
}

extern int __dprintf_chk(int, int, const char *, ...),
    __vdprintf_chk(int, int, const char *, va_list);

static int print(int fd, int how, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = how ? __vdprintf_chk(fd, 1, format, ap) : vdprintf(fd, format, ap);
    va_end(ap);
    return n;
}

/* Printed bytes come after what was written before, and before what is written next. Each way of
 * printing has a connection of its own. */
static void printed_server(int fd)
{
    for (int how = 0; how < 4; how++) {
        if (how)
            fd = join();
        T(put(fd, 1, 3000));
        meet();
        await_in(fd, 3000);
        T(write(fd, "one ", 4));
        switch (how) {
        case 0: T(print(fd, 0, "two %d%s", 2, " ")); break;
        case 1: T(print(fd, 1, "two %d%s", 2, " ")); break;
        case 2: T(__dprintf_chk(fd, 1, "two %d%s %.1f ", 2, "", 2.5)); break;
        case 3: T(dprintf(fd, "two %d%s %.1f ", 2, "", 2.5)); break;
        }
        T(write(fd, "three ", 6));
        T(print(fd, how % 2, "%05000d", 4));
        T(write(fd, "five", 4));
        T(get(fd, 2, 3000));
        T(shutdown(fd, SHUT_WR));
        T(recv(fd, buf, 1, 0));
        drop(fd);
    }
}

static void printed_client(int fd)
{
    for (int how = 0; how < 4; how++) {
        if (how)
            fd = join();
        T(put(fd, 2, 3000));
        meet();
        await_in(fd, 3000);
        T(get(fd, 1, 3000));
        size_t n = 0;
        for (ssize_t r; (r = read(fd, buf + n, 10000)) > 0; n += r)
            ;
        say("%zu: %.20s ... %.6s, sum %08x", n, buf, buf + n - 6, sum(buf, n));
        drop(fd);
    }
}

const struct body stdio_bodies[] = {
    TWO("stdio_lines", stdio_server, stdio_client),
    TWO("stdio_in_place", stdio_in_place_server, stdio_in_place_client),
    TWO("stdio_mixed", stdio_mixed_server, stdio_mixed_client),
    TWO("stdio_prints", printed_server, printed_client),
    {0},
};
