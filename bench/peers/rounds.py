"""Rounds: every library in turn on the same case, between two looks at the machine."""

import dataclasses
import statistics
import time

from jobs import JobFailed
from machine import Load, label, place

KINDS = {"allreduce": 0, "broadcast": 1, "reduce_scatter": 2, "allgather": 3, "iallreduce": 4, "pingpong": 5,
         "ipingpong": 6, "sendrecv": 7, "isendrecv": 8}
# Which have no form in place.
MESSAGES = ("pingpong", "ipingpong", "sendrecv", "isendrecv")
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
LARGEST_ITERATIONS = 1_000_000
# How long a single reading of the clock should at least be in an estimate.
ESTIMATE_S = 0.002
# Passes over all cases, as a multiple of the rounds wanted: disturbed rounds are tried again, not for ever.
MOST_PASSES = 3
WAIT_FOR_PLACE_S = 20


@dataclasses.dataclass(frozen=True)
class Case:
    comparison: str  # "libraries", or "types": Annulus alone.
    collective: str
    form: str  # "out" or "in" place.
    bytes: int

    def text(self):
        return f"{self.collective} {self.form} {self.bytes} B" + (" by type" if self.comparison == "types" else "")


@dataclasses.dataclass(frozen=True)
class Settings:
    rounds: int
    batches: int
    batch_s: float
    want: str  # "any", "near" or "far".
    tolerated_cores: float
    corrupt: str  # The library some of whose results are spoilt on purpose.


def contestants(case, jobs):
    """(name, job, type) of those who take part."""
    if case.comparison == "libraries":
        return [(job.name, job, "float32") for job in jobs]
    annulus = [job for job in jobs if job.name == "annulus"]
    return [("annulus" if name == "float32" else f"annulus_{name}", job, name) for job in annulus for name in TYPES]


class Setup:
    """The jobs of one transport and number of ranks, and what was measured with them."""

    def __init__(self, jobs, distance, settings, say):
        self.jobs = jobs
        self.distance = distance
        self.settings = settings
        self.say = say
        self.rounds = []
        self.wrong = {}  # By name: elements.
        self.failed = {}  # By name: why.
        self._estimates = {}
        self._durations = {}
        self._last_ns = None

    # -- One library, one case --

    def _run(self, job, variant, iterations, batches):
        """Seconds per call of the slowest rank, by batch."""
        answers = [answer.split() for answer in job.ask(f"run {variant} {iterations} {batches}")]
        return [max(float(answer[1 + batch]) for answer in answers) / iterations for batch in range(batches)]

    def _estimate(self, job, variant):
        once = min(self._run(job, variant, 1, 2))
        if once < ESTIMATE_S:
            once = min(self._run(job, variant, max(1, min(1000, int(ESTIMATE_S / once))), 2))
        return once

    def _measure(self, name, job, kind, case):
        """Seconds per call, by batch, of the quickest way; None when the library has no such call."""
        corrupt = 3 if self.settings.corrupt == name else 0
        answers = job.ask(f"case {KINDS[case.collective]} {TYPES[kind]} {int(case.form == 'in')} {case.bytes} "
                          f"{int(job.library.huge)} {corrupt}")
        if answers[0] == "unsupported":
            return None
        wrong = sum(int(answer.split()[2]) for answer in answers)
        if wrong:
            self.wrong[name] = self.wrong.get(name, 0) + wrong
            self.say(f"WRONG: {name}, {case.text()}: {wrong} elements")
        best = None
        for variant in range(int(answers[0].split()[1])):
            key = (name, case, variant)
            estimate = self._estimates.get(key) or self._estimate(job, variant)
            iterations = max(1, min(LARGEST_ITERATIONS, round(self.settings.batch_s / max(estimate, 1e-9))))
            times = self._run(job, variant, iterations, self.settings.batches)
            self._estimates[key] = statistics.median(times)
            if best is None or statistics.median(times) < statistics.median(best):
                best = times
        job.ask("free")
        return best

    # -- A round --

    def round(self, case, turn):
        """Measures everybody once; whose turn comes first moves on from round to round."""
        before_ns = self._last_ns if self._last_ns is not None else self.distance.nanoseconds()
        taking_part = contestants(case, [job for job in self.jobs if job.name not in self.failed])
        first = turn % max(1, len(taking_part))
        load = Load([pid for job in self.jobs for pid in job.all_pids()])
        begin = time.monotonic()
        times = {}
        for name, job, kind in taking_part[first:] + taking_part[:first]:
            try:
                seconds = self._measure(name, job, kind, case)
            except JobFailed as error:
                self.failed[job.name] = str(error)
                job.stop(kindly=False)  # It may be spinning.
                self.say(f"FAILED: {case.text()}: {error}")
                continue
            if seconds is not None:
                times[name] = [value * 1e6 for value in seconds]
        others_cores, others_s = load.others()
        self._last_ns = self.distance.nanoseconds()
        called = label(before_ns, self._last_ns, others_cores, others_s, self.settings.tolerated_cores)
        self._durations[case] = time.monotonic() - begin
        self.rounds.append({"case": case, "label": called, "distance_ns": [before_ns, self._last_ns],
                            "others_cores": round(others_cores, 3), "seconds": round(self._durations[case], 3),
                            "us": times})
        medians = ", ".join(f"{name} {statistics.median(values):.4g}" for name, values in times.items())
        self.say(f"{case.text()}: {called} ({before_ns:.0f}, {self._last_ns:.0f} ns, others {others_cores:.2f} cores): "
                 f"{medians} us")

    def _good(self, case):
        wanted = ("near", "far", "mixed") if self.settings.want == "any" else (self.settings.want,)
        return sum(1 for each in self.rounds if each["case"] == case and each["label"] in wanted)

    def _in_place_wanted(self, deadline):
        """Waits a while for the wanted placement; whether it came."""
        if self.settings.want == "any":
            return True
        until = min(deadline, time.monotonic() + WAIT_FOR_PLACE_S)
        while True:
            self._last_ns = self.distance.nanoseconds()
            if place(self._last_ns) == self.settings.want:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.3)

    def _expected_s(self, case):
        if case in self._durations:
            return self._durations[case]
        smaller = [each for each in self._durations if each.comparison == case.comparison and each.bytes <= case.bytes]
        if not smaller:
            return 0.0
        nearest = max(smaller, key=lambda each: each.bytes)
        return self._durations[nearest] * max(1.0, min(8.0, case.bytes / nearest.bytes / 4))

    def run(self, cases, deadline):
        """Passes over all cases until each has its rounds or the time is over."""
        for turn in range(MOST_PASSES * self.settings.rounds if self.settings.want == "any" else 10_000):
            begun = 0
            for case in cases:
                late = time.monotonic() + self._expected_s(case) > deadline
                if self._good(case) >= self.settings.rounds or late:
                    continue
                begun += 1
                if self._in_place_wanted(deadline):
                    self.round(case, turn)
            if begun == 0 or time.monotonic() > deadline:
                break

    def unmeasured(self, cases):
        """How many cases have fewer rounds than wanted."""
        return sum(1 for case in cases if self._good(case) < self.settings.rounds)
