"""Data-parallel training with PyTorch: DistributedDataParallel over Annulus, on the pictures of Fashion-MNIST.

    torchrun --nproc-per-node 2 fashion_mnist_ddp.py
    python fashion_mnist_ddp.py                               # one process, the same curve

The batch is that of all processes together, so any number of them that divides it learns the same, up to rounding. The files
are those of Debian's package dataset-fashion-mnist.
"""

import argparse
import gzip
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="the folder of the four files")
parser.add_argument("--backend", default="annulus")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch", type=int, default=128, help="pictures in a step, of all processes together")
parser.add_argument("--rate", type=float, default=0.05, help="the learning rate")
options = parser.parse_args()


def read(name, header):
    """The bytes of one of the files, without its header."""
    with gzip.open(os.path.join(options.data, f"{name}.gz")) as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[header:]


def pictures(name):
    points = read(f"{name}-images-idx3-ubyte", 16).view(-1, 784).float() / 255
    return TensorDataset((points - 0.286) / 0.353, read(f"{name}-labels-idx1-ubyte", 8).long())


if "RANK" in os.environ:  # Set by torchrun.
    dist.init_process_group(options.backend)
else:
    dist.init_process_group(options.backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
rank, size = dist.get_rank(), dist.get_world_size()
if options.batch % size != 0:
    raise SystemExit(f"--batch {options.batch}: {size} processes cannot share it equally")

# Each process has every size-th picture of an order that all draw alike. The test pictures are shared out, too.
train, test = pictures("train"), pictures("t10k")
sampler = DistributedSampler(train, size, rank, seed=1)
batches = DataLoader(train, options.batch // size, sampler=sampler, drop_last=True)
test_batches = DataLoader(test, 1000 // size, sampler=DistributedSampler(test, size, rank, shuffle=False))

torch.manual_seed(1)  # DDP gives all processes the weights of rank 0 in any case.
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches))
criterion = nn.CrossEntropyLoss()

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)  # Another order in each epoch.
    model.train()
    losses = torch.zeros(len(batches))
    for step, (points, labels) in enumerate(batches):
        optimizer.zero_grad()
        loss = criterion(model(points), labels)
        loss.backward()  # DDP averages the gradients of all processes meanwhile.
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
    dist.all_reduce(losses, dist.ReduceOp.AVG)

    model.eval()
    right = torch.zeros(2, dtype=torch.int64)  # Those told right, and all.
    with torch.no_grad():
        for points, labels in test_batches:
            right += torch.stack([(model(points).argmax(1) == labels).sum(), torch.tensor(len(labels))])
    dist.all_reduce(right)
    if rank == 0:
        print(f"epoch {epoch + 1} loss {losses.mean():.5f} accuracy {right[0] / right[1]:.4f}", flush=True)

dist.destroy_process_group()
