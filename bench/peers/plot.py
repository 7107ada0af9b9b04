#!/usr/bin/env python3
"""Draws what compare wrote: plot.py RESULTS.json PICTURE. One line per library over the size, limits included; a panel
for each setup, collective and form. Needs python3-matplotlib."""

import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from report import size_text  # noqa: E402

COLOURS = {"annulus": "tab:red", "openmpi": "tab:blue", "mpich": "tab:green", "gloo": "tab:orange", "limit": "black"}
# By group; what runs with cubic, and the second limit, are dotted.
STYLES = {"annulus": "-", "default": "-", "tuned": "--", "limit": "--"}
DOTTED = ("openmpi_cubic", "gloo_cubic", "limit_copy")


def _panels(setups):
    """(title, rows) of each panel: one collective and form of a setup, in the placement that has most rows."""
    for setup in setups:
        rows = [row for row in setup["rows"] if row["comparison"] == "libraries"]
        for collective, form in dict.fromkeys((row["collective"], row["form"]) for row in rows):
            own = [row for row in rows if (row["collective"], row["form"]) == (collective, form)]
            labels = [row["label"] for row in own]
            label = max(dict.fromkeys(labels), key=labels.count)
            title = f"{collective}, {form} of place" if form == "out" else f"{collective}, in place"
            yield (f"{setup['ranks']} ranks, {setup['transport']}: {title}, CPUs {label}",
                   [row for row in own if row["label"] == label])


def _draw(axes, title, rows):
    for name in sorted({name for row in rows for name in row["results"]}):
        results = [(row["bytes"], row["results"][name]) for row in rows if name in row["results"]]
        sizes, speeds = zip(*[(size, result["busbw_gb_per_s"]) for size, result in results])
        axes.plot(sizes, speeds, color=COLOURS.get(name.partition("_")[0], "tab:gray"), label=name, marker=".",
                  linestyle=":" if name in DOTTED else STYLES[results[0][1]["group"]],
                  linewidth=2.2 if name == "annulus" else 1.3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right", fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("bus bandwidth, GB/s", fontsize=8)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=6)


def main():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with open(sys.argv[1], encoding="utf-8") as opened:
        panels = list(_panels(json.load(opened)["setups"]))
    if not panels:
        sys.exit(f"{sys.argv[1]}: no rows to draw")
    columns = 2 if len(panels) > 1 else 1
    lines = (len(panels) + columns - 1) // columns
    figure, grid = pyplot.subplots(lines, columns, figsize=(6.5 * columns, 4.2 * lines), squeeze=False)
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    for axes, (title, rows) in zip(grid.flat, panels):
        _draw(axes, title, rows)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
