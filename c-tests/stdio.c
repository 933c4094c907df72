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
        dprintf(fd, "line %d of %s\n", i, i % 3 ? "many" : "quite a lot of them, each of another length");
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

/* stdio's own streams come to stand for the connection, in the same process. */
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
    dup2(fd, 0);
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

const struct body stdio_bodies[] = {
    TWO("stdio_lines", stdio_server, stdio_client),
    TWO("stdio_in_place", stdio_in_place_server, stdio_in_place_client),
    TWO("stdio_mixed", stdio_mixed_server, stdio_mixed_client),
    {0},
};
