"""One rank of a training that loses a rank: torch_killed.py FOLDER RANK SIZE FORM [registered]. The last rank kills itself in the third step, while the
workers that load its data live on; each of the others prints the time from then until its exception, in milliseconds, and its text. registered: in the
20th step, when the gradients are registered."""

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
    registers = sys.argv[5:] == ["registered"]
    last_step, width = (20, 1000) if registers else (3, 100)
    if registers:
        import torch_registered
        torch_registered.register_up_to(torch_registered.LIMIT)
    torch_rank.init("annulus", folder, rank, size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width))
    batches = torch.utils.data.DataLoader(torch.ones(4000, width), batch_size=4, num_workers=2)
    mark = os.path.join(folder, "killed")
    try:
        for step, batch in enumerate(batches):
            if step == last_step and rank == size - 1:
                assert not registers or torch_registered.counts("tensors")[0] > 0
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
