"""Arrays of a made-up library, for foreign.py: exported by DLPack, as a real one does it, or by __cuda_array_interface__; and a
GPU for them, the stand-in for CUDA's driver."""

import contextlib
import ctypes
import os
import threading

import numpy as np

CPU, CUDA, ROCM = 1, 2, 10
INT, FLOAT, BFLOAT, COMPLEX, BOOL, FLOAT8_E4M3, FLOAT8_E5M2 = 0, 2, 4, 5, 6, 10, 12
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
exported = {}  # What capsules have that their takers did not give back yet, by address.
_delete = DELETER(lambda address: exported.pop(address) and None)


class Exported:
    """Memory at an address, or a numpy array's, that only has DLPack's methods."""

    def __init__(self, memory, shape=None, kind=None, **options):
        if isinstance(memory, np.ndarray):
            self.address, self.shape = memory.ctypes.data, memory.shape
            self.kind = kind or ({"f": FLOAT, "i": INT, "u": 1, "c": COMPLEX}[memory.dtype.kind], 8 * memory.itemsize)
        else:
            self.address, self.shape, self.kind = memory, shape, kind
        self.memory = memory
        self.device = options.pop("device", (CPU, 0))
        self.options = options  # strides, offset, lanes, readonly, version (None: before 1.0).
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **later):
        version = self.options.get("version", (1, 0))
        if version is None and later:
            raise TypeError("an unexpected keyword")
        self.streams.append(stream)
        holder = Plain() if version is None else Versioned()
        tensor = holder.tensor
        tensor.data, (tensor.device_type, tensor.device), tensor.ndim = self.address, self.device, len(self.shape)
        (tensor.code, tensor.bits), tensor.lanes = self.kind, self.options.get("lanes", 1)
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        strides = self.options.get("strides")
        tensor.shape = shape
        if strides is not None:
            strides = (ctypes.c_int64 * len(strides))(*strides)
            tensor.strides = strides
        tensor.byte_offset = self.options.get("offset", 0)
        holder.deleter = _delete
        if version is not None:
            (holder.major, holder.minor), holder.flags = version, int(self.options.get("readonly", False))
        exported[ctypes.addressof(holder)] = (holder, shape, strides, self)
        return _new_capsule(ctypes.addressof(holder), b"dltensor" if version is None else b"dltensor_versioned", None)


class OnGpu:
    """Memory of a GPU that only has __cuda_array_interface__."""

    def __init__(self, address, shape, typestr, **entries):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (address, False), "version": 3, **entries}


class Gpu:
    """The stand-in for CUDA's driver, as a program uses it."""

    def __init__(self, file):
        self.library = ctypes.CDLL(file)
        self.find = self.library.cuGetProcAddress_v2
        self.find.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)]
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent", context)
        self.pinned = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(self.pinned), ctypes.c_size_t(1 << 20), 0)
        self.stream = self.new_stream()

    def call(self, name, *arguments):
        function, outcome = ctypes.c_void_p(), ctypes.c_int()
        if name == "cuInit":
            result = self.library.cuInit(*arguments)
        else:
            assert self.find(name.encode(), ctypes.byref(function), 12000, 0, ctypes.byref(outcome)) == 0, name
            result = ctypes.CFUNCTYPE(ctypes.c_int)(function.value)(*arguments)
        assert result == 0, (name, result)

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream

    def copy_later(self, to, source, size, stream):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), stream)

    def copy(self, to, source, size):
        self.copy_later(to, source, size, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def new(self, content):
        """The address of a copy of a numpy array."""
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(max(content.nbytes, 1)))
        self.fill_pinned(content)
        if content.nbytes:
            self.copy(memory.value, self.pinned.value, content.nbytes)
        return memory.value

    def fill_pinned(self, content):
        ctypes.memmove(self.pinned, content.ctypes.data, content.nbytes)

    def read(self, address, like):
        found = np.empty_like(like)
        self.copy(self.pinned.value, address, found.nbytes)
        ctypes.memmove(found.ctypes.data, self.pinned, found.nbytes)
        return found

    @contextlib.contextmanager
    def held(self):
        """No work begins until somebody waits for it, or has done something wrong."""
        self.library.fake_cuda_hold(1)

        def release():
            while not self.library.fake_cuda_waiting() and not self.violations():
                os.sched_yield()
            self.library.fake_cuda_hold(0)

        thread = threading.Thread(target=release)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    @contextlib.contextmanager
    def captured(self, stream):
        """What the stream gets within becomes the graph that this gives."""
        graph, made = Graph(self), ctypes.c_void_p()
        self.call("cuStreamBeginCapture", stream, 1)  # Thread-local.
        try:
            yield graph
        finally:
            self.call("cuStreamEndCapture", stream, ctypes.byref(made))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(graph.executable), made, ctypes.c_ulonglong(0))
        self.call("cuGraphDestroy", made)

    def violations(self):
        return self.library.fake_cuda_violations()


class Graph:
    """An executable graph."""

    def __init__(self, gpu):
        self.gpu, self.executable = gpu, ctypes.c_void_p()

    def launch(self, stream):
        self.gpu.call("cuGraphLaunch", self.executable, stream)

    def destroy(self):
        self.gpu.call("cuGraphExecDestroy", self.executable)
