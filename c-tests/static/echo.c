/* Echoes a connection, whose number it is told, until its end. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char chunk[1 << 16];
    int fd = argc > 1 ? atoi(argv[1]) : -1;
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        for (ssize_t at = 0, done; at < n; at += done)
            if ((done = write(fd, chunk + at, n - at)) <= 0)
                return 1;
    return n < 0;
}
