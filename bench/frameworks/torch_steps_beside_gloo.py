#!/usr/bin/env python3
"""Times steps of DistributedDataParallel over Annulus and over PyTorch's own gloo, in turns on the same machine.

  torch_steps_beside_gloo.py --python PYTHON [--ranks 2,4] [--rounds 3] [--also TORCH_ANNULUS_REGISTER_BYTES=1000000000]

PYTHON is that of an environment with PyTorch (third_party/setup/install_torch) in which the wheel of annulus-torch is installed. A model has as many parameters,
in the same shapes, as ResNet-50 or BERT base, and next to no arithmetic: a step is what its gradients take to be made and averaged. Prints a row for each
model, in CPU memory of float32, and one for the same step without DistributedDataParallel, which nothing is sent for: median (of the rounds' medians) and least
time of both in microseconds, and the two ratios.
"""

import math
import statistics
import time

import beside_gloo

STEPS = 12


def resnet50():
    """Shapes of its parameters, by He et al., Deep Residual Learning for Image Recognition, table 1."""
    def convolution(outputs, inputs, width):
        return [(outputs, inputs, width, width), (outputs,), (outputs,)]  # With its batch normalization.

    shapes, inputs = convolution(64, 3, 7), 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(planes, inputs, 1) + convolution(planes, planes, 3) + convolution(4 * planes, planes, 1)
            shapes += convolution(4 * planes, inputs, 1) if block == 0 else []
            inputs = 4 * planes
    return shapes + [(1000, 2048), (1000,)]


def bert_base():
    """The same, by Devlin et al., BERT, section 3."""
    hidden, inner = 768, 3072
    norm = [(hidden,), (hidden,)]
    square = [(hidden, hidden), (hidden,)]
    layer = 4 * square + norm + [(inner, hidden), (inner,), (hidden, inner), (hidden,)] + norm
    return [(30522, hidden), (512, hidden), (2, hidden)] + norm + 12 * layer + square


def one_rank(rank, size, port, back_end, _):
    """A process of the job; rank 0 prints "measured MODEL BYTES MEDIAN LEAST" lines."""
    import torch
    import torch.distributed as dist

    class Model(torch.nn.Module):
        def __init__(self, shapes):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

        def forward(self, scale):
            return torch.stack([weight.flatten()[0] for weight in self.weights]).sum() * scale

    torch.set_num_threads(1)
    dist.init_process_group(back_end, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for name, shapes in (("ResNet-50", resnet50()), ("BERT-base", bert_base())):
        alone = Model(shapes)
        for what, model in ((f"{name},alone", alone), (name, torch.nn.parallel.DistributedDataParallel(alone))):
            times = []
            for _ in range(3 + STEPS):
                dist.barrier()
                begin = time.perf_counter()
                model(1.0).backward()
                times.append(time.perf_counter() - begin)
                model.zero_grad(set_to_none=False)
            if rank == 0:
                print("measured", what, 4 * sum(map(math.prod, shapes)), statistics.median(times[3:]) * 1e6, min(times[3:]) * 1e6, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    beside_gloo.main(one_rank)
