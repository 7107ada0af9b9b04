"""CUDA tensors for scripts that torch_test.py starts: of the stand-in for CUDA's driver (torch_cuda_stand_in.py), or, where ANNULUS_TEST_CUDA is
"real", of a GPU (torch_cuda_real.py). To be imported before anything else of PyTorch is used."""

import os

if os.environ["ANNULUS_TEST_CUDA"] == "real":
    from torch_cuda_real import captured, cuda, gpu, held, stream
else:
    from torch_cuda_stand_in import captured, cuda, gpu, held, stream

__all__ = ["captured", "cuda", "gpu", "held", "stream"]
