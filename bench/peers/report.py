"""The results as tables for people (Markdown)."""

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(count):
    for unit, name in UNITS:
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def _time(result):
    if result is None:
        return "-"
    busbw = result["busbw_gb_per_s"]
    return f"{result['median_us']:.4g}" + (f" ({busbw:.3g})" if busbw >= 0.05 else "")


def _ratio(best):
    return f"{best['ratio']:.2f} {best['name']}" if best else "-"


def _table(head, lines):
    return "\n".join(["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]])


def _libraries_table(rows):
    names = list(dict.fromkeys(name for row in rows for name in row["results"]))
    # Rounds begin with another library each time; the table begins with Annulus and ends with the limits.
    order = {"annulus": 0, "default": 1, "tuned": 2, "limit": 3}
    group_of = {name: result["group"] for row in rows for name, result in row["results"].items()}
    names.sort(key=lambda name: (order[group_of[name]], name))
    limits = [name for name in names if group_of[name] == "limit"]
    head = ["size", "form", *names, "best default / annulus", "best tuned / annulus", *[f"% of {name.removeprefix('limit_')}" for name in limits], "rounds"]
    lines = []
    for row in rows:
        shares = [f"{100 * row['limits'][name]['share']:.0f}" if row["limits"].get(name, {}).get("share") else "-"
                  for name in limits]
        lines.append([size_text(row["bytes"]), row["form"], *[_time(row["results"].get(name)) for name in names],
                      _ratio(row["best_default"]), _ratio(row["best_tuned"]), *shares, str(row["rounds"])])
    return _table(head, lines)


def _types_table(rows):
    names = list(dict.fromkeys(name for row in rows for name in row["results"]))
    others = [name for name in names if name != "annulus"]
    head = ["size", "form", *names, *[f"{name} / float32" for name in others], "rounds"]
    lines = [[size_text(row["bytes"]), row["form"], *[_time(row["results"].get(name)) for name in names],
              *[f"{row['relative_to_float32'].get(name, 0):.2f}" for name in others], str(row["rounds"])]
             for row in rows if "relative_to_float32" in row]
    return _table(head, lines)


def text(setup):
    """The tables of one setup's document."""
    title = f"{setup['ranks']} ranks, {'shared memory' if setup['transport'] == 'shm' else 'TCP'}"
    parts = []
    keys = dict.fromkeys((row["comparison"], row["collective"], row["label"]) for row in setup["rows"])
    for comparison, collective, label in keys:
        rows = [row for row in setup["rows"] if (row["comparison"], row["collective"], row["label"]) ==
                (comparison, collective, label)]
        types = ", by type" if comparison == "types" else ""
        parts.append(f"\n{title}, {collective}{types}, CPUs {label}; median us (bus bandwidth in GB/s)\n")
        parts.append(_types_table(rows) if comparison == "types" else _libraries_table(rows))
    counts = ", ".join(f"{count} {name}" for name, count in sorted(setup["rounds_by_label"].items())) or "none"
    parts.append(f"\n{title}: rounds: {counts}; thrown away: {setup['thrown_away']} (disturbed)")
    if setup["unmeasured_cases"]:
        parts.append(f"{setup['unmeasured_cases']} cases have fewer rounds than asked for: the time was over")
    for name, why in setup["left_out"].items():
        parts.append(f"left out: {name}: {why}")
    for name, why in setup["failed"].items():
        parts.append(f"FAILED: {name}: {why}")
    parts.append("wrong elements: " + (", ".join(f"{name} {count}" for name, count in setup["wrong"].items()) or "0"))
    return "\n".join(parts)
