"""Arrays of other libraries than numpy: every call takes their memory, without a copy, or says what is wrong with them. Host memory,
and with a driver's file the memory of a GPU: foreign.py [DRIVER [late]]. Run on any number of ranks by annulus-run."""

import ctypes
import gc
import sys

import numpy as np

import pyannulus
from foreign_arrays import (BFLOAT, BOOL, COMPLEX, CPU, CUDA, FLOAT, FLOAT8_E4M3, FLOAT8_E5M2, INT, ROCM, Exported, Gpu, OnGpu, exported)

LATE = sys.argv[2:] == ["late"]
gpu = Gpu(sys.argv[1]) if len(sys.argv) > 1 and not LATE else None
comm = pyannulus.Communicator(timeout_ms=60000)
RANK, SIZE = comm.rank, comm.size
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
TOTAL = SIZE * (SIZE + 1) // 2


def refuses(kind, words, function, *args, **settings):
    try:
        function(*args, **settings)
    except kind as error:
        assert words in str(error), (words, str(error))
        return
    raise AssertionError(f"expected {kind.__name__}: {words}")


class Numpys:
    """What numpy itself exports."""

    def __init__(self, array):
        self.__array = array

    def __dlpack_device__(self):
        return self.__array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.__array.__dlpack__(**options)


def every_call(new, read, calls=comm):
    """new(numpy array) makes an array, read(array) gives its content, flat."""
    def mine(count=6):
        return new(np.full((count, 2), RANK + 1, np.float32))

    def room(count):
        return new(np.zeros((count, 2), np.float32))

    def same(found, expected):
        assert (read(found) == np.asarray(expected, np.float32).repeat(2)).all(), (read(found), expected)

    ranks = np.arange(1, SIZE + 1)
    out = room(6)
    assert calls.allreduce(mine(), out=out) is out
    same(out, [TOTAL] * 6)
    own = mine()
    assert calls.allreduce(own, "max", out=own) is own
    same(own, [SIZE] * 6)
    group = [mine(3), mine(50)]
    calls.allreduce_group(group, in_place=True)
    same(group[0], [TOTAL] * 3)
    same(group[1], [TOTAL] * 50)
    same(calls.reduce_scatter(mine(2 * SIZE), out=room(2)), [TOTAL] * 2)
    same(calls.allgather(mine(1), out=room(SIZE)), ranks)
    same(calls.alltoall(mine(SIZE), out=room(SIZE)), ranks)
    for root in range(SIZE):
        own = mine()
        assert calls.broadcast(own, root) is own
        same(own, [root + 1] * 6)
        at_root = {"reduce": calls.reduce(mine(), root, out=room(6)), "gather": calls.gather(mine(1), root, out=room(SIZE)),
                   "gatherv": calls.gatherv(mine(1), [1] * SIZE, root, out=room(SIZE))}
        assert [each is not None for each in at_root.values()] == [RANK == root] * 3
        if RANK == root:
            same(at_root["reduce"], [TOTAL] * 6)
            same(at_root["gather"], ranks)
            same(at_root["gatherv"], ranks)
        same(calls.scatter(mine(SIZE) if RANK == root else None, root, out=room(1)), [root + 1])
        same(calls.scatterv(mine(SIZE) if RANK == root else None, [1] * SIZE, root, out=room(1)), [root + 1])
    same(calls.allgatherv(mine(2), [2] * SIZE, out=room(2 * SIZE)), ranks.repeat(2))
    same(calls.reduce_scatterv(mine(SIZE), [1] * SIZE, out=room(1)), [TOTAL])
    same(calls.alltoallv(mine(SIZE), [1] * SIZE, [1] * SIZE, out=room(SIZE)), ranks)
    sent = calls.send_async(mine(), NEXT) if SIZE > 1 else None
    if sent:
        same(calls.recv(room(6), PREVIOUS), [PREVIOUS + 1] * 6)
        sent.wait()
    request = calls.allreduce_async(mine(), out=out)
    assert request.wait() is out
    calls.allreduce_async(mine(100), out=room(100))  # Nobody keeps any of it.
    calls.barrier()
    mean = comm.reduction(lambda left, right, to: np.add(left, right, out=to))
    same(calls.allreduce(mine(), mean, out=room(6)), [TOTAL] * 6)
    mean.destroy()
    none = new(np.zeros((0, 2), np.float32))
    assert calls.allreduce(none, out=none) is none


def flat(array):
    return array.memory.reshape(-1)


def types(new):
    """new(numpy array, kind) makes an array; read() of it gives its bits."""
    rows = [("int8", INT), ("int32", INT), ("int64", INT), ("uint8", 1), ("uint32", 1), ("uint64", 1), ("float16", FLOAT),
            ("float32", FLOAT), ("float64", FLOAT), ("int16", INT), ("uint16", 1), ("complex64", COMPLEX), ("complex128", COMPLEX)]
    for name, code in rows:
        own = np.full(7, RANK + 1, name)
        array, read = new(own, (code, 8 * own.itemsize))
        comm.allreduce(array, out=array)
        assert (read() == TOTAL).all(), name
    array, read = new(np.array([RANK == 0, False, True]), (BOOL, 8))
    comm.allreduce(array, out=array)
    assert (read() == [True, False, True]).all()
    # One and two in types that numpy does not have.
    for name, one, two, kind in (("uint16", 0x3f80, 0x4000, (BFLOAT, 16)), ("uint8", 0x38, 0x40, (FLOAT8_E4M3, 8)),
                                 ("uint8", 0x3c, 0x40, (FLOAT8_E5M2, 8))):
        array, read = new(np.full(7, two if RANK == SIZE - 1 else one, name), kind)
        comm.allreduce(array, "max", out=array)
        assert (read() == two).all(), kind


def mistakes():
    good = np.ones((4, 6), np.float32)

    class Refusing(Exported):
        def __dlpack__(self, **_):
            raise BufferError("has a gradient")

    class Again(Exported):
        def __dlpack__(self, **options):
            self.capsule = getattr(self, "capsule", None) or super().__dlpack__(**options)
            return self.capsule

    refuses(TypeError, "array is a list, not a numpy array, nor one that has __dlpack__", comm.allreduce, [1])
    refuses(TypeError, "array has the type float128; Annulus knows int8,", comm.allreduce, Exported(np.ones(2, np.longdouble)))
    refuses(TypeError, "array has the type bool16", comm.allreduce, Exported(np.ones(2, np.uint16), kind=(BOOL, 16)))
    refuses(TypeError, "array has the type float32x4", comm.allreduce, Exported(good, lanes=4))
    refuses(ValueError, "array is not C-contiguous (shape (4, 6))", comm.allreduce, Exported(good, strides=(1, 4)))
    refuses(ValueError, "array is not aligned", comm.allreduce, Exported(good.reshape(-1)[:4], offset=2))
    refuses(TypeError, "array is on a device of DLPack's type 10", comm.allreduce, Exported(good, device=(ROCM, 0)))
    refuses(ValueError, "array, a Exported, cannot be taken by DLPack: its DLPack has version 2.0", comm.allreduce,
            Exported(good, version=(2, 0)))
    for address in [address for address, parts in exported.items() if parts[3].options.get("version") == (2, 0)]:
        del exported[address]  # Its capsule was not used up.
    refuses(ValueError, "array, a Refusing, cannot be taken by DLPack: has a gradient", comm.allreduce, Refusing(good))
    again = Again(good)
    comm.allreduce(again, out=good.copy())
    refuses(ValueError, "a capsule named 'used_dltensor_versioned'", comm.allreduce, again)
    refuses(ValueError, "out is read-only", comm.allreduce, good, out=Exported(good.copy(), readonly=True))
    refuses(ValueError, "out is read-only", comm.allreduce, good, out=Exported(good.copy(), version=None))
    constant = Exported(good.copy(), readonly=True)
    refuses(ValueError, "out is read-only", comm.allreduce, constant, out=constant)
    refuses(ValueError, "array is read-only", comm.recv, Exported(good, readonly=True), NEXT)
    refuses(TypeError, "out is None, and array is not numpy's: only numpy arrays are made here. Give out, an array of float32 and shape"
            " (4, 6)", comm.allreduce, Exported(good))
    refuses(TypeError, "out has dtype float64, array has float32", comm.allreduce, Exported(good), out=Exported(np.ones((4, 6))))
    refuses(ValueError, "out has 3 elements, the result 24", comm.allreduce, good, out=Exported(np.ones(3, np.float32)))
    refuses(ValueError, "array 1 is not C-contiguous", comm.allreduce_group, [good, Exported(good, strides=(1, 4))])
    strided = Exported(good, strides=(6, 1))
    comm.allreduce(strided, out=good.copy())
    comm.allreduce(Exported(np.ones((1, 5), np.float32), strides=(77, 1)), out=np.ones(5, np.float32))


every_call(Exported, flat)
every_call(lambda array: array, lambda array: array.reshape(-1))
types(lambda own, kind: (Exported(own, kind=kind), lambda: own))
mistakes()
constant = np.full(5, RANK + 1.0)
constant.flags.writeable = False
for given in (Exported(constant, readonly=True), Exported(constant, version=None), Numpys(np.full(5, RANK + 1.0))):
    assert (comm.allreduce(given, out=np.empty(5)) == TOTAL).all()
    assert not isinstance(given, Exported) or given.streams == [None]

# -- On a GPU --------------------------------------------------------------------------------------------------------


def on_gpu(content, **options):
    """An array with DLPack's methods, whose kind is that of the numpy array."""
    array = Exported(gpu.new(content), content.shape, options.pop("kind", (FLOAT, 8 * content.itemsize)), device=(CUDA, 0), **options)
    array.like = content
    return array


def with_interface(content):
    array = OnGpu(gpu.new(content), content.shape, content.dtype.str)
    array.address, array.like = array.__cuda_array_interface__["data"][0], content
    return array


def content_of(array):
    return gpu.read(array.address, array.like).reshape(-1)


def streams_are_waited_for():
    content = np.full(1000, RANK + 1, np.float32)
    array, stream = with_interface(np.zeros(1000, np.float32)), gpu.new_stream()
    array.__cuda_array_interface__["stream"] = stream.value
    gpu.fill_pinned(content)
    with gpu.held():
        gpu.copy_later(array.address, gpu.pinned.value, content.nbytes, stream)
        assert (comm.allreduce(array, out=np.empty(1000, np.float32)) == TOTAL).all()
    assert gpu.violations() == 0
    array = on_gpu(content)
    comm.allreduce(array, out=array)
    comm.allreduce(array, out=on_gpu(content))
    assert array.streams == [1, 1], array.streams  # Once for each call.
    refuses(ValueError, "array has the stream 0", comm.allreduce, OnGpu(array.address, (3,), "<f4", stream=0))


def mistakes_on_gpu():
    address = gpu.new(np.ones(24, np.float32))
    refuses(ValueError, "array has a mask", comm.allreduce, OnGpu(address, (3,), "<f4", mask=1))
    refuses(TypeError, "array has the type >f4 in its __cuda_array_interface__; Annulus knows", comm.allreduce,
            OnGpu(address, (3,), ">f4"))
    refuses(TypeError, "array has the type |V2", comm.allreduce, OnGpu(address, (3,), "|V2"))
    refuses(ValueError, "array is not C-contiguous (shape (4, 6), strides (4, 16))", comm.allreduce,
            OnGpu(address, (4, 6), "<f4", strides=(4, 16)))
    refuses(ValueError, "out is read-only", comm.allreduce, np.ones(3, np.float32), out=OnGpu(address, (3,), "<f4", data=(address, True)))
    refuses(TypeError, "out is None", comm.allreduce, OnGpu(address, (3,), "<f4"))
    refuses(RuntimeError, "array: waiting for what fills it: cuDeviceGet", comm.allreduce,
            Exported(address, (3,), (FLOAT, 32), device=(CUDA, 7)))
    comm.allreduce(OnGpu(address, (4, 6), "<f4", strides=(24, 4)), out=np.ones(24, np.float32))


# -- In a stream of the GPU ------------------------------------------------------------------------------------------


class Torchs:
    def __init__(self, handle):
        self.cuda_stream = handle


class Cupys:
    def __init__(self, handle):
        self.ptr = handle


class Numbas:
    def __init__(self, handle):
        self.handle = ctypes.c_void_p(handle)


class Cores:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


def calls_in_a_stream_take_their_turn():
    """Nothing is waited for on the host: the GPU does no work until all calls have returned."""
    stream, content = gpu.new_stream(), np.full(1000, RANK + 1, np.float32)
    calls = comm.with_options(stream=Torchs(stream.value), label="in a stream")
    array, other = with_interface(np.zeros(1000, np.float32)), on_gpu(np.zeros(1000, np.float32))
    array.__cuda_array_interface__["stream"] = stream.value
    on_host = np.zeros(1000, np.float32)
    # The first call pins memory.
    calls.allreduce(array, out=other)
    gpu.call("cuStreamSynchronize", stream)
    gpu.fill_pinned(content)
    gpu.library.fake_cuda_hold(1)
    gpu.copy_later(array.address, gpu.pinned.value, content.nbytes, stream)
    assert calls.allreduce(array, out=array) is array
    assert calls.broadcast(array, root=SIZE - 1) is array
    request = calls.allreduce_async(array, "max", out=other)
    with calls.group() as group:
        maximum = group.allreduce_async(other, "max", out=on_host)
        group.barrier_async()
    assert not request.test() and not maximum.test()
    assert gpu.library.fake_cuda_waiting() == 0
    gpu.library.fake_cuda_hold(0)
    assert maximum.wait() is on_host
    gpu.call("cuStreamSynchronize", stream)
    assert request.test() and (on_host == TOTAL).all() and (content_of(array) == TOTAL).all() and (content_of(other) == TOTAL).all()
    assert other.streams == [stream.value] * 3, other.streams
    assert comm.verdict() is None


def arrays_like_cupys():
    """With both interfaces, of which DLPack is used, and a stream."""
    stream, content = gpu.new_stream(), np.full(1000, RANK + 1, np.float32)
    array = on_gpu(content)
    array.__cuda_array_interface__ = {"shape": (1000,), "typestr": "<f4", "data": (8, False), "version": 3, "stream": 1}
    comm.allreduce(array, out=array)
    assert (content_of(array) == TOTAL).all() and array.streams == [1]
    comm.with_options(stream=Cupys(stream.value)).allreduce(array, "max", out=array)
    gpu.call("cuStreamSynchronize", stream)
    assert (content_of(array) == TOTAL).all() and array.streams == [1, stream.value]


def streams_of_every_kind():
    stream = gpu.new_stream()
    array = on_gpu(np.full(10, RANK + 1, np.float32))
    # The default streams have one number more in DLPack.
    for handle, by_dlpack in ((stream.value, stream.value), (0, 1), (1, 1), (2, 2)):
        for kind in (int, Torchs, Cupys, Numbas, Cores):
            comm.with_options(stream=kind(handle)).allreduce(array, "max", out=array)
            assert array.streams.pop() == by_dlpack
        gpu.call("cuStreamSynchronize", ctypes.c_void_p(handle))
    assert (content_of(array) == SIZE).all()
    # What another stream fills is waited for, and what the same one fills is not.
    array = with_interface(np.zeros(10, np.float32))
    array.__cuda_array_interface__["stream"] = gpu.new_stream().value
    gpu.fill_pinned(np.full(10, RANK + 1, np.float32))
    with gpu.held():
        gpu.copy_later(array.address, gpu.pinned.value, 40, ctypes.c_void_p(array.__cuda_array_interface__["stream"]))
        comm.with_options(stream=stream.value).allreduce(array, out=array)
    gpu.call("cuStreamSynchronize", stream)
    assert (content_of(array) == TOTAL).all()


def mistakes_in_streams():
    stream = gpu.new_stream()
    array = on_gpu(np.ones(3, np.float32))
    for wrong in ("s", True, object(), 1.5):
        refuses(TypeError, f"stream is a {type(wrong).__name__}, not a number", comm.with_options, stream=wrong)
    refuses(pyannulus.InvalidArgument, "priority", comm.with_options(stream=stream.value, priority=1).allreduce, array, out=array)
    refuses(TypeError, "options of what made it", comm.group().with_options, stream=stream.value)
    refuses(TypeError, "out is None", comm.with_options(stream=stream.value).allreduce, array)


def memory_of_the_library_on_a_gpu():
    array = pyannulus.empty_on_gpu((3, 20000), np.float32)
    array.address, array.like = array.__cuda_array_interface__["data"][0], np.ones(60000, np.float32)
    assert array.shape == (3, 20000) and not content_of(array).any()
    other = with_interface(np.full((3, 20000), RANK + 1, np.float32))
    comm.allreduce(other, out=array)
    assert (content_of(array) == TOTAL).all()
    assert pyannulus.empty_on_gpu(0).shape == (0,)
    refuses(TypeError, "no name", pyannulus.empty_on_gpu, 3, object)
    refuses(ValueError, "negative", pyannulus.empty_on_gpu, -3)
    refuses(pyannulus.Error, "GPU 7", pyannulus.empty_on_gpu, 3, device=7)


def content_behind(stream):
    def read(array):
        gpu.call("cuStreamSynchronize", stream)
        return content_of(array)
    return read


if gpu:
    every_call(on_gpu, content_of)
    every_call(with_interface, content_of)
    types(lambda own, kind: (lambda array: (array, lambda: gpu.read(array.address, own)))(on_gpu(own, kind=kind)))
    streams_are_waited_for()
    mistakes_on_gpu()
    memory_of_the_library_on_a_gpu()
    stream = gpu.new_stream()
    for new in (on_gpu, with_interface):
        every_call(new, content_behind(stream), comm.with_options(stream=stream.value))
    calls_in_a_stream_take_their_turn()
    arrays_like_cupys()
    streams_of_every_kind()
    mistakes_in_streams()
    device = comm.device()
    assert device["driver"] == 13000 and device["number"] == 0 and device["name"] == "Fake GPU (sm_90)", device
    assert device["path"] in (1, 2) and device["capability"] == 90, device
    assert gpu.violations() == 0
else:
    device = comm.device()
    assert device["driver"] == 0 and device["path"] == 0 and "libcuda.so.1" in device["why"], device
    refuses(RuntimeError, "array: waiting for what fills it: the program has not loaded libcuda.so.1", comm.allreduce,
            Exported(np.ones(3, np.float32), device=(CUDA, 0)))
    refuses(pyannulus.Error, "stream_kind is ANNULUS_STREAM_CUDA, but no CUDA driver", comm.with_options(stream=1).allreduce, np.ones(3, np.float32))
if LATE:
    late = Gpu(sys.argv[1])
    refuses(RuntimeError, "array is on a GPU, which the library cannot use: no CUDA driver", comm.allreduce,
            OnGpu(late.new(np.ones(3, np.float32)), (3,), "<f4"))

comm.close()
gc.collect()
assert not exported, f"{len(exported)} arrays were not given back"
print("passed")
