"""What a measurement of scaling says: the table and the JSON."""

import json
import math
import re

from ranks import TITLES

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_size(text):
    """Bytes of 1K, 8M and so on, in units of 1024; a multiple of 4, as elements are floats."""
    match = re.fullmatch(r"(\d+)([KMGkmg]?)", text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"'{text}' is not a size; write 1024, 1K or 8M")
    return -(-int(match[1]) * 1024 ** " KMG".index(match[2].upper() or " ") // 4) * 4


def parse_rate(text):
    """Bytes per second of a rate as tc writes it, such as 100mbit; None for "none"."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+)([kmg]?)bit", text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"'{text}' is not a rate; write 100mbit, 1gbit or none")
    return int(match[1]) * _UNITS[match[2]] / 8


def size_text(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def bus_bandwidth(count, size, seconds):
    """Bytes per second over each link in a ring that takes so long."""
    return 2 * (count - 1) / count * size / seconds


def time_text(seconds):
    digits = 2 - math.floor(math.log10(seconds * 1e3))
    return f"{seconds * 1e3:.{max(0, digits)}f} ms"


def cell_text(cell):
    if "seconds" not in cell:
        return cell["skipped"]
    efficiency = f" ({100 * cell['efficiency']:.1f} %)" if cell.get("efficiency") is not None else ""
    once = "" if cell.get("batches", 1) else ", first call only"
    return time_text(cell["seconds"]) + efficiency + once


def part_text(part, settings):
    """Which hosts and ranks were measured."""
    text = f"{part['ranks']} hosts, {settings['rate']}"
    per_host = settings.get("ranks_per_host", 1)
    if per_host == 1:
        return text
    return f"{text}, {per_host} ranks per host, {'in turn' if settings['in_turn'] else 'in blocks'}"


def table(result):
    """Markdown: time per call on the slowest rank, and in brackets busbw as a share of the link's rate."""
    libraries = result["settings"]["libraries"]
    lines = []
    for part in result["parts"]:
        lines += ["", part_text(part, result["settings"]) + ":", "",
                  "| size | " + " | ".join(TITLES[library] for library in libraries) + " |", "|---" * (len(libraries) + 1) + "|"]
        for row in part["rows"]:
            cells = " | ".join(cell_text(row["cells"][library]) for library in libraries)
            lines.append(f"| {size_text(row['bytes'])} | {cells} |")
        for library, start in part["start"].items():
            lines += ["", f"{TITLES[library]}: start-up {start['seconds']:.2f} s, memory of a rank then {start['rss_kib'] / 1024:.1f} MiB,"
                      f" {start['private_kib'] / 1024:.1f} MiB of it its own"]
    return "\n".join(lines) + "\n"


def write_json(result, path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
