#!/usr/bin/python3
"""Draws a measurement of scaling: plot.py MEASUREMENT.json PICTURE(.png or .svg). Needs Debian's python3-matplotlib."""

import json
import sys

import matplotlib

matplotlib.use("Agg")  # No screen is needed.
from matplotlib import pyplot  # noqa: E402

sys.dont_write_bytecode = True
from ranks import TITLES  # noqa: E402
from report import part_text  # noqa: E402

COLOURS = {"annulus": "tab:blue", "ring": "tab:green", "gloo": "tab:orange", "server": "tab:red"}


def _points(part, library, value):
    rows = [row for row in part["rows"] if "seconds" in row["cells"].get(library, {})]
    return [row["bytes"] for row in rows], [value(row["cells"][library]) for row in rows]


def plot(result, path):
    """Efficiency (or, unshaped, bus bandwidth) and time over size, a column of pictures for each number of hosts."""
    parts = [part for part in result["parts"] if part["rows"]]
    if not parts:
        sys.exit("plot: nothing was measured")
    settings = result["settings"]
    shaped = settings["link_bytes_per_second"] is not None
    figure, axes = pyplot.subplots(2, len(parts), figsize=(4.5 * len(parts), 7), sharey="row", sharex=True, squeeze=False)
    for column, part in enumerate(parts):
        upper, lower = axes[0][column], axes[1][column]
        for library in settings["libraries"]:
            style = {"marker": "o", "markersize": 4, "color": COLOURS[library], "label": TITLES[library]}
            upper.plot(*_points(part, library, lambda cell: 100 * cell["efficiency"] if shaped else cell["busbw"] / 1e6), **style)
            lower.plot(*_points(part, library, lambda cell: cell["seconds"] * 1e3), **style)
        if shaped:
            upper.axhline(100, color="black", linewidth=0.8, linestyle="--")
        lower.set_yscale("log")
        lower.set_xscale("log", base=2)
        upper.set_title(part_text(part, settings))
        lower.set_xlabel("bytes per rank")
        for axis in (upper, lower):
            axis.grid(True, alpha=0.3)
    axes[0][0].set_ylabel("bus bandwidth, % of the link's rate" if shaped else "bus bandwidth, MB/s")
    axes[1][0].set_ylabel("time of an allreduce, ms")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as measurement:
        plot(json.load(measurement), sys.argv[2])
