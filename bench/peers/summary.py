"""From rounds to rows: medians over rounds of one label, ratios between libraries, shares of the limits."""

import statistics


def bus_factor(collective, ranks):
    """Bytes over the busiest link of a ring, per byte of the larger buffer."""
    if collective in ("allreduce", "iallreduce"):
        return 2 * (ranks - 1) / ranks
    if collective in ("pingpong", "ipingpong"):
        return 2.0  # There and back.
    return 1.0 if collective in ("broadcast", "sendrecv", "isendrecv") else (ranks - 1) / ranks


def _best(results, groups, own_us):
    """The quickest of the groups, and how many times longer it takes than Annulus; None without either."""
    times = {name: result["median_us"] for name, result in results.items() if result["group"] in groups}
    if not times or own_us is None:
        return None
    name = min(times, key=times.get)
    return {"name": name, "ratio": times[name] / own_us}


def _row(case, label, rounds, groups, ranks):
    results = {}
    for name in dict.fromkeys(name for each in rounds for name in each["us"]):
        by_round = [statistics.median(each["us"][name]) for each in rounds if name in each["us"]]
        median = statistics.median(by_round)
        results[name] = {
            "group": groups.get(name, "annulus"),
            "median_us": median,
            "min_us": min(by_round),
            "max_us": max(by_round),
            "rounds": len(by_round),
            "busbw_gb_per_s": case.bytes * bus_factor(case.collective, ranks) / median / 1e3,
        }
    own_us = results["annulus"]["median_us"] if "annulus" in results else None
    peers = {name: result for name, result in results.items() if result["group"] in ("default", "tuned")}
    limits = {name: {"median_us": result["median_us"], "share": result["median_us"] / own_us if own_us else None}
              for name, result in results.items() if result["group"] == "limit"}
    row = {
        "comparison": case.comparison,
        "collective": case.collective,
        "form": case.form,
        "bytes": case.bytes,
        "label": label,
        "rounds": len(rounds),
        "results": results,
        "best_default": _best(peers, ("default",), own_us),
        "best_tuned": _best(peers, ("tuned",), own_us),
        "best_peer": _best(peers, ("default", "tuned"), own_us),
        "limits": limits,
    }
    if case.comparison == "types" and own_us:
        row["relative_to_float32"] = {name: own_us / result["median_us"] for name, result in results.items()
                                      if name != "annulus" and result["group"] == "annulus"}
    return row


def rows(setup, cases, ranks):
    """One row for each case and label that has rounds; disturbed rounds are in none."""
    groups = {job.name: job.library.group for job in setup.jobs}
    made = []
    for case in cases:
        for label in ("near", "far", "mixed"):
            rounds = [each for each in setup.rounds if each["case"] == case and each["label"] == label]
            if rounds:
                made.append(_row(case, label, rounds, groups, ranks))
    return made


def document(setup, cases, transport, ranks, left_out):
    """What the JSON file holds of one setup."""
    counts = {}
    for each in setup.rounds:
        counts[each["label"]] = counts.get(each["label"], 0) + 1
    return {
        "transport": transport,
        "ranks": ranks,
        "libraries": {job.name: {"group": job.library.group, "version": job.library.version,
                                 "huge_pages": job.library.huge} for job in setup.jobs},
        "left_out": left_out,
        "failed": setup.failed,
        "wrong": setup.wrong,
        "unmeasured_cases": setup.unmeasured(cases),
        "rounds_by_label": counts,
        "thrown_away": counts.get("disturbed", 0),
        "rows": rows(setup, cases, ranks),
        "rounds": [{**each, "case": vars(each["case"])} for each in setup.rounds],
    }
