#!/usr/bin/env python3
"""Bindings that a program writes from annulus.h, here by ctypes, have the library's layouts and work."""

import ctypes
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import describe  # noqa: E402
import ctypes_module  # noqa: E402  Found beside what describe imports.

HEADER, LIBRARY = sys.argv[1:3]


class Bindings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(HEADER, encoding="utf-8") as file:
            cls.text = file.read()
        cls.annulus = {}
        exec(ctypes_module.module(cls.text), cls.annulus)  # pylint: disable=exec-used
        cls.library = cls.annulus["load"](os.path.abspath(LIBRARY))

    def make(self, name):
        struct = self.annulus[name]()
        struct.struct_bytes = ctypes.sizeof(struct)
        return struct

    def comm(self):
        config = self.annulus["annulus_config_t"]()
        self.assertEqual(self.library.annulus_config_init(config, ctypes.sizeof(config), 0), 0)
        config.rank, config.size = 0, 1
        settings = (ctypes.c_char_p * 2)(b"spin_us=0", None)
        config.settings = settings
        comm = ctypes.POINTER(self.annulus["annulus_comm_t"])()
        self.assertEqual(self.library.annulus_comm_create(config, comm), 0)
        return comm

    def test_layouts_are_the_compilers(self):
        lines = describe.compiled_lines(describe.Header(self.text), os.path.dirname(os.path.abspath(HEADER)))
        fields = [re.match(r"field (\w+)\.(\w+): .*, (\d+) \+ (\d+)$", line) for line in lines if line.startswith("field ")]
        self.assertGreater(len(fields), 60)
        for struct, name, offset, size in (field.groups() for field in fields):
            place = getattr(self.annulus[struct], name)
            self.assertEqual((place.offset, place.size), (int(offset), int(size)), f"{struct}.{name}")

    def test_all_functions_are_bound(self):
        names = re.findall(r"ANNULUS_API [^;]*?(annulus_\w+)\(", self.text)
        self.assertEqual([name for name in names if not hasattr(getattr(self.library, name), "argtypes")], [])

    def test_calls_callbacks_and_errors_work(self):
        comm = self.comm()
        values = (ctypes.c_double * 3)(1, 2, 3)
        outcomes = []
        done = self.annulus["annulus_done_fn"](lambda context, status: outcomes.append(status))
        call = self.make("annulus_call_t")
        call.kind, call.type, call.op = (self.annulus[name] for name in ("ANNULUS_CALL_ALLREDUCE", "ANNULUS_FLOAT64", "ANNULUS_AVG"))
        call.sendbuf = call.recvbuf = ctypes.cast(values, ctypes.c_void_p)
        call.count, call.done, call.label = 3, done, b"mine"
        request = ctypes.POINTER(self.annulus["annulus_request_t"])()
        self.assertEqual(self.library.annulus_submit(comm, call, 1, request), 0)
        self.assertEqual(self.library.annulus_request_wait(request, -1), 0)
        self.assertEqual(self.library.annulus_request_free(request), 0)
        self.assertEqual(list(values), [1, 2, 3])
        call.wire = 7
        self.assertEqual(self.library.annulus_run(comm, call), self.annulus["ANNULUS_UNSUPPORTED"])
        error = self.make("annulus_error_t")
        self.assertEqual(self.library.annulus_last_error(error), 0)
        self.assertIn(b"wire", error.message)
        self.assertEqual(self.library.annulus_comm_destroy(comm), 0)
        self.assertEqual(outcomes, [0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
