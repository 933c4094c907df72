#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t sum(uint64_t sum, const void *data, size_t size) {
    for (const unsigned char *p = data, *end = p + size; p < end; p++)
        sum = (sum ^ *p) * 0x100000001b3;
    return sum;
}

/* Each passes on what comes from its left, so many times round. */
static uint64_t ring(int rank, int ranks, int count, int times) {
    int *out = malloc(count * sizeof(int)), *in = malloc(count * sizeof(int));
    for (int i = 0; i < count; i++)
        out[i] = rank * 1000003 + i;
    for (int n = 0; n < times; n++) {
        MPI_Sendrecv(out, count, MPI_INT, (rank + 1) % ranks, 0, in, count, MPI_INT,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < count; i++)
            out[i] = in[i] + 1;
    }
    return sum(rank, out, count * sizeof(int));
}

static uint64_t reduced(int rank, int count, int times) {
    long *out = malloc(count * sizeof(long)), *in = malloc(count * sizeof(long));
    for (int i = 0; i < count; i++)
        out[i] = rank + i;
    for (int n = 0; n < times; n++) {
        MPI_Allreduce(out, in, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            out[i] = in[i] % 1000003 + rank;
    }
    return sum(rank, out, count * sizeof(long));
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t mine[3] = {ring(rank, ranks, 1, 2000), ring(rank, ranks, 1 << 20, 20),
                        reduced(rank, 1 << 19, 10)}, all[3 * ranks];
    MPI_Gather(mine, 3, MPI_UINT64_T, all, 3, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < 3 * ranks; i++)
        printf("%016lx\n", all[i]);
    MPI_Finalize();
}
