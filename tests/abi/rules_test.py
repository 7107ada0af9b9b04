#!/usr/bin/env python3
"""The record of the interface notices what it is for, and asks for the version change that it takes."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import abi  # noqa: E402
import describe  # noqa: E402

LINES = [
    "enum annulus_op_t.ANNULUS_MAX = 3",
    "field annulus_config_t.rank: int32_t, 8 + 4",
    "field annulus_config_t.size: int32_t, 12 + 4",
    "field annulus_config_t.struct_bytes: size_t, 0 + 8",
    "function annulus_barrier: annulus_status_t (annulus_comm_t*)",
    "struct annulus_config_t: 16 bytes, grows",
    "struct annulus_id_t: 128 bytes",
    "symbol annulus_barrier@@ANNULUS_0",
]
MORE = sorted(LINES + ["symbol annulus_gather@@ANNULUS_0"])
LESS = LINES[:-1]
OTHER = sorted(LINES[1:] + ["enum annulus_op_t.ANNULUS_MAX = 4"])

HEADER = """
#ifndef ANNULUS_H_
#define ANNULUS_H_
#include <stddef.h>
#define ANNULUS_API __attribute__((visibility("default")))
#define ANNULUS_VERSION_MAJOR 0
#define ANNULUS_VERSION_MINOR 3
#define ANNULUS_VERSION_PATCH 1
#define ANNULUS_ID_BYTES 16 /* Of annulus_id_t; (really). */
extern "C" {
typedef enum annulus_op { ANNULUS_SUM = 0, ANNULUS_MAX /* The most; of all. */ } annulus_op_t;
typedef struct annulus_comm annulus_comm_t;
typedef void (*annulus_fold_fn)(const void* left, void * right, size_t count);
typedef struct annulus_id { unsigned char bytes[16]; } annulus_id_t;
typedef struct annulus_options {
  size_t struct_bytes; // Its size.
  const char* name;
  void (*done)(annulus_comm_t* comm, int);
} annulus_options_t;
ANNULUS_API const char* annulus_version(void);
ANNULUS_API int annulus_sum(annulus_comm_t* comm, const void *data,
                            const size_t counts[], annulus_op_t op, annulus_fold_fn fold);
}
#endif
"""


class Descriptions(unittest.TestCase):
    def test_a_header(self):
        header = describe.Header(HEADER)
        self.assertEqual(describe.read_version(HEADER), (0, 3, 1))
        self.assertEqual(
            header.lines,
            [
                "type annulus_comm_t: struct annulus_comm",
                "type annulus_fold_fn: void (*)(const void*, void*, size_t)",
                "function annulus_version: const char* (void)",
                "function annulus_sum: int (annulus_comm_t*, const void*, const size_t[], annulus_op_t, annulus_fold_fn)",
            ],
        )
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "annulus.h"), "w", encoding="utf-8") as file:
                file.write(HEADER.replace('extern "C" {', "").replace("}\n#endif", "#endif"))
            compiled = describe.compiled_lines(header, folder)
        self.assertEqual(
            compiled,
            [
                "constant ANNULUS_ID_BYTES = 16",
                "enum annulus_op_t: 4 bytes",
                "enum annulus_op_t.ANNULUS_SUM = 0",
                "enum annulus_op_t.ANNULUS_MAX = 1",
                "struct annulus_id_t: 16 bytes",
                "field annulus_id_t.bytes: unsigned char[16], 0 + 16",
                "struct annulus_options_t: 24 bytes, grows",
                "field annulus_options_t.struct_bytes: size_t, 0 + 8",
                "field annulus_options_t.name: const char*, 8 + 8",
                "field annulus_options_t.done: void (*)(annulus_comm_t*, int), 16 + 8",
            ],
        )

    def test_what_is_not_understood_is_refused(self):
        for text in ("int annulus_count;", "typedef struct a { int b, c; } a_t;", "typedef struct a { int b : 3; } a_t;"):
            with self.assertRaises(describe.NotUnderstood, msg=text):
                describe.Header(text)


class Rules(unittest.TestCase):
    def wrong(self, version, lines, **records):
        """records: v1_0=(state, lines)."""
        read = {tuple(map(int, name[1:].split("_"))): abi.Record(*record) for name, record in records.items()}
        return " ".join(abi.check(version, lines, read))

    def test_what_is_recorded_passes(self):
        for state in (abi.OPEN, abi.FROZEN):
            self.assertEqual(self.wrong((0, 1, 0), LINES, v0_1=(state, LINES)), "")
            self.assertEqual(self.wrong((0, 1, 7), LINES, v0_1=(state, LINES)), "")

    def test_before_the_release_any_change_asks_for_one_command(self):
        for lines in (MORE, LESS, OTHER):
            self.assertIn(abi.UPDATE, self.wrong((0, 1, 0), lines, v0_1=(abi.OPEN, LINES)))
            self.assertNotIn("VERSION", self.wrong((0, 1, 0), lines, v0_1=(abi.OPEN, LINES)))

    def test_after_the_release_a_change_asks_for_a_version(self):
        self.assertIn("Raise ANNULUS_VERSION_MINOR", self.wrong((0, 1, 0), MORE, v0_1=(abi.FROZEN, LINES)))
        self.assertIn("Raise ANNULUS_VERSION_MINOR", self.wrong((0, 1, 0), LESS, v0_1=(abi.FROZEN, LINES)))
        self.assertIn("Raise ANNULUS_VERSION_MINOR", self.wrong((1, 1, 0), MORE, v1_1=(abi.FROZEN, LINES)))
        for lines in (LESS, OTHER):
            self.assertIn("Raise ANNULUS_VERSION_MAJOR", self.wrong((1, 1, 0), lines, v1_1=(abi.FROZEN, LINES)))

    def test_a_new_version_needs_its_record(self):
        self.assertIn("no record tests/abi/annulus-0.2.abi", self.wrong((0, 2, 0), MORE, v0_1=(abi.FROZEN, LINES)))

    def test_a_minor_version_adds_and_breaks_nothing(self):
        released = (abi.FROZEN, LINES)
        self.assertEqual(self.wrong((1, 2, 0), MORE, v1_1=released, v1_2=(abi.OPEN, MORE)), "")
        self.assertIn("annulus_barrier@@", self.wrong((1, 2, 0), LESS, v1_1=released, v1_2=(abi.OPEN, LESS)))
        self.assertIn("ANNULUS_MAX = 3", self.wrong((1, 2, 0), OTHER, v1_1=released, v1_2=(abi.OPEN, OTHER)))
        self.assertEqual(self.wrong((2, 0, 0), LESS, v1_1=released, v2_0=(abi.OPEN, LESS)), "")
        self.assertEqual(self.wrong((0, 2, 0), LESS, v0_1=released, v0_2=(abi.OPEN, LESS)), "")

    def test_structs_have_no_holes(self):
        def recorded(old, new):
            lines = [line.replace(old, new) for line in LINES]
            return self.wrong((0, 1, 0), lines, v0_1=(abi.OPEN, lines))

        self.assertIn("annulus_config_t has a hole before size, at byte 12", recorded("size: int32_t, 12", "size: int32_t, 16"))
        self.assertIn("annulus_config_t has padding at its end, from byte 16", recorded("config_t: 16", "config_t: 24"))

    def test_a_struct_with_its_size_may_grow(self):
        def resized(old, new):
            return sorted(line.replace(old, new) for line in LINES)

        self.assertEqual(abi.breaks(LINES, resized("config_t: 16 bytes", "config_t: 24 bytes")), [])
        self.assertEqual(abi.breaks(LINES, resized("config_t: 16 bytes", "config_t: 8 bytes")), [LINES[5]])
        self.assertEqual(abi.breaks(LINES, resized("128 bytes", "136 bytes")), [LINES[6]])
        self.assertEqual(abi.breaks(LINES, resized("8 + 4", "12 + 4")), [LINES[1]])

    def test_an_older_record_is_released_or_gone(self):
        self.assertIn("Delete it", self.wrong((0, 2, 0), MORE, v0_1=(abi.OPEN, LINES), v0_2=(abi.OPEN, MORE)))

    def test_records_are_written_until_they_are_released(self):
        with tempfile.TemporaryDirectory() as folder:
            abi.update((0, 1, 0), LINES, folder, freeze=False)
            self.assertIn("+ symbol annulus_gather", abi.update((0, 1, 0), MORE, folder, freeze=False))
            self.assertEqual(abi.read_records(folder), {(0, 1): abi.Record(abi.OPEN, MORE)})
            abi.update((0, 1, 0), MORE, folder, freeze=True)
            self.assertIn("is right", abi.update((0, 1, 1), MORE, folder, freeze=False))
            with self.assertRaises(SystemExit):
                abi.update((0, 1, 0), LINES, folder, freeze=False)
            abi.update((0, 2, 0), LINES, folder, freeze=False)
            self.assertEqual(sorted(abi.read_records(folder)), [(0, 1), (0, 2)])

    def test_a_merge_that_left_both_states_is_noticed(self):
        self.assertEqual(abi.parse("state open\nstate released\nsymbol a\n").state, "unclear")


if __name__ == "__main__":
    unittest.main()
