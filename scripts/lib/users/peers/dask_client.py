import hashlib

from distributed import Client

from prelude import HOST, PORT, blocks, digest


def grow(data):
    return data[::-1] + data


def check(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()


with Client(f"tcp://{HOST}:{PORT}") as client:
    client.wait_for_workers(2)
    # One here, one there: to join two of them one has to move.
    workers = sorted(client.scheduler_info()["workers"])
    sent = [client.scatter(data, workers=[worker], hash=False)
            for worker, data in zip(workers * 4, blocks(8, 4 << 20))]
    grown = client.map(grow, sent, pure=False)
    joined = [client.submit(check, *grown[n:n + 2], pure=False) for n in range(0, 8, 2)]
    print(client.gather(joined))
    print(digest(client.gather(grown)))
    print(digest(client.gather(client.map(grow, list(blocks(300, 2000)), pure=False))))
