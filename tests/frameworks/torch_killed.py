"""One rank of a training that loses a rank: torch_killed.py FOLDER RANK SIZE FORM. The last rank kills itself in the third step, while the workers
that load its data live on; each of the others prints the time from then until its exception, in milliseconds, and its text."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import torch_rank


def main():
    folder, rank, size, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ["TORCH_ANNULUS_FORM"] = form
    torch_rank.init("annulus", folder, rank, size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    batches = torch.utils.data.DataLoader(torch.ones(4000, 100), batch_size=4, num_workers=2)
    mark = os.path.join(folder, "killed")
    try:
        for step, batch in enumerate(batches):
            if step == 3 and rank == size - 1:
                with open(mark, "w", encoding="utf-8") as opened:
                    opened.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch).sum().backward()
    except (dist.DistBackendError if form == "compiled" else RuntimeError) as error:
        with open(mark, encoding="utf-8") as opened:
            print(round(1000 * (time.time() - float(opened.read()))), error, flush=True)
        os._exit(0)
    print("no error", flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
