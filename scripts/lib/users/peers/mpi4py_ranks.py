import array
import hashlib

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
out, got = array.array("q", range(rank, 300000 + rank)), array.array("q", bytes(2400000))
h = hashlib.sha256()
for n in range(20):
    world.Allreduce(out, got)
    h.update(got)
    world.Sendrecv(got, (rank + 1) % ranks, recvbuf=out, source=(rank - 1) % ranks)
    told = world.allgather({"rank": rank, "round": n, "data": bytes([n, rank]) * 100000})
    h.update(repr([(one["rank"], one["round"]) for one in told]).encode())
    h.update(b"".join(one["data"] for one in told))
    out[rank] = n
sums = world.gather(h.hexdigest())
if rank == 0:
    print(*sums)
