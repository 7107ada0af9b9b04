"""The libraries under comparison: how each is built, started and set up, and the limits beside them.

Groups: `annulus`; `default`, a peer as installed; `tuned`, a peer with settings that helped it; `limit`.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import zipfile

HERE = pathlib.Path(os.path.abspath(__file__)).parent
ROOT = HERE.parent.parent
COMMON = [str(HERE / name) for name in ("peer_bench.c", "peer_data.c")]

# Temporaries of a message's size are kept, not given back to the system and faulted in again with every call.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
PACKAGES = {"openmpi": "libopenmpi-dev", "mpich": "libmpich-dev", "gloo": "libgloo-dev"}
PYTHON = "/usr/bin/python3"  # For which Debian's packages are.
VERSION_OF = {"openmpi": "libopenmpi3", "mpich": "libmpich12", "gloo": "libgloo0"}


@dataclasses.dataclass
class Library:
    name: str
    group: str
    build: str  # Which driver.
    commands: object  # A function of the control socket's path: gives a list of (command, environment), one or one per rank.
    huge: bool = False  # Whether the user's buffers ask for huge pages.
    version: str = ""


def build_drivers(folder):
    """Compiles the drivers of installed libraries; returns what each is, or why there is none: (paths, missing)."""
    paths, missing = {}, {}
    for name in ("openmpi", "mpich"):
        paths[name] = f"{folder}/{name}"
        command = [f"mpicc.{name}", "-O2", f"-I{ROOT}", "-o", paths[name], str(HERE / "mpi_driver.c"), *COMMON]
        missing[name] = "" if shutil.which(command[0]) else f"needs {PACKAGES[name]}"
        if not missing[name]:
            subprocess.run(command, check=True)
    missing["gloo"] = "" if os.path.exists("/usr/include/gloo/allreduce.h") else f"needs {PACKAGES['gloo']}"
    if not missing["gloo"]:
        paths["gloo"] = f"{folder}/gloo"
        objects = [f"{folder}/{pathlib.Path(source).stem}.o" for source in COMMON]
        for source, made in zip(COMMON, objects):
            subprocess.run(["gcc", "-std=c99", "-O2", f"-I{ROOT}", "-c", "-o", made, source], check=True)
        subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", f"-I{ROOT}", "-o", paths["gloo"],
                        str(HERE / "gloo_driver.cc"), *objects, "-lgloo", "-lpthread"], check=True)
    return paths, {name: why for name, why in missing.items() if why}


def build_python(folder):
    """Builds the Python package; returns where it lies, and why Python libraries are missing, as build_drivers."""
    missing = {}
    for name, module, package in (("annulus_python", "numpy", "python3-numpy"), ("mpi4py", "mpi4py", "python3-mpi4py")):
        asked = subprocess.run([PYTHON, "-c", f"import numpy, {module}"], capture_output=True, check=False)
        if asked.returncode != 0:
            missing[name] = f"needs {package}"
    if "annulus_python" not in missing:
        subprocess.run(["bazel", "run", "--noshow_progress", "//frameworks/python:wheel", "--", folder], cwd=ROOT, check=True,
                       capture_output=True)
        for wheel in pathlib.Path(folder).glob("pyannulus-*.whl"):
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(f"{folder}/python")
    return {"annulus_python": f"{folder}/python"}, missing


def package_version(package):
    if not shutil.which("dpkg-query"):
        return ""
    asked = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


class Cubic:
    """A network namespace whose loopback uses cubic: libraries that set no congestion control get this machine's default
    one, and the default of some, BBR, halves what a loopback carries both ways. `why` says why there is none."""

    def __init__(self):
        self.name = f"annulus-peers-{os.getpid()}"
        self.why = ""

    def __enter__(self):
        self._remove_left_over()
        inside = ["ip", "netns", "exec", self.name, "ip"]
        route = [*inside, "route", "replace", "local", "127.0.0.0/8", "dev", "lo", "table", "local", "scope", "host", "src",
                 "127.0.0.1", "congctl", "cubic"]
        one = [*inside, "route", "replace", "local", "127.0.0.1", *route[route.index("dev"):]]
        try:
            for command in (["ip", "netns", "add", self.name], [*inside, "link", "set", "lo", "up"], route, one):
                subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.why = f"no network namespace of our own: {getattr(error, 'stderr', '') or error}".strip()
        return self

    @staticmethod
    def _remove_left_over():
        """What a run that was killed could not remove."""
        for path in pathlib.Path("/run/netns").glob("annulus-peers-*"):
            if not os.path.exists(f"/proc/{path.name.rpartition('-')[2]}"):
                subprocess.run(["ip", "netns", "delete", path.name], check=False, capture_output=True)

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    def prefix(self):
        return ["ip", "netns", "exec", self.name]


class Registry:
    """All libraries for one transport and number of ranks."""

    def __init__(self, transport, ranks, programs, drivers, missing, folder, cubic):
        self.transport = transport
        self.ranks = ranks
        self.programs = programs
        self.drivers = drivers
        self.missing = dict(missing)
        self.folder = folder
        self.cubic = cubic
        self.known = {}
        self._annulus()
        self._openmpi()
        self._mpich()
        if transport == "tcp":
            self._gloo()
        self._limits()

    def _add(self, name, group, build, commands, huge=False):
        package = VERSION_OF.get(build)
        self.known[name] = Library(name, group, build, commands, huge, package_version(package) if package else "")

    def _annulus_run(self, program, *arguments):
        command = [self.programs["annulus-run"], "-np", str(self.ranks), "--bind-to", "none", "--no-prefix", "--", self.programs[program]]
        return lambda path: [([*command, path, *arguments], {"ANNULUS_TRANSPORT": self.transport})]

    def _annulus(self):
        self._add("annulus", "annulus", "annulus", self._annulus_run("annulus_driver"))
        self._add("annulus_huge", "annulus", "annulus", self._annulus_run("annulus_driver"), huge=True)
        command = [self.programs["annulus-run"], "-np", str(self.ranks), "--bind-to", "none", "--no-prefix", "--", PYTHON,
                   str(HERE / "python_driver.py"), "annulus"]
        environment = {"ANNULUS_TRANSPORT": self.transport, "PYTHONPATH": self.drivers.get("annulus_python", "")}
        self._add("annulus_python", "annulus", "annulus_python", lambda path: [([*command, path], environment)])

    def _tuned(self):
        return {**MALLOC, **(HUGE if self.transport == "shm" else {})}

    def _openmpi(self):
        command = ["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-n", str(self.ranks)]
        if self.ranks <= os.cpu_count():  # It would yield at every turn; with more ranks than cores it has to.
            command += ["--mca", "mpi_yield_when_idle", "0"]
        if self.transport == "tcp":
            command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
        python = [*command, PYTHON, str(HERE / "python_driver.py"), "mpi4py"]
        self._add("mpi4py", "default", "mpi4py", lambda path: [([*python, path], {})])
        command.append(self.drivers.get("openmpi", ""))
        self._add("openmpi", "default", "openmpi", lambda path: [([*command, path], {})])
        self._add("openmpi_threads", "default", "openmpi", lambda path: [([*command, path, "threads"], {})])
        self._add("openmpi_tuned", "tuned", "openmpi", lambda path: [([*command, path], self._tuned())],
                  huge=self.transport == "shm")
        if self.transport == "tcp":
            self._add("openmpi_cubic", "tuned", "openmpi",
                      lambda path: [([*self.cubic.prefix(), *command, path], self._tuned())])

    def _mpich(self):
        command = ["mpirun.mpich", "-bind-to", "none", "-n", str(self.ranks), self.drivers.get("mpich", "")]
        links = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"} if self.transport == "tcp" else {}
        self._add("mpich", "default", "mpich", lambda path: [([*command, path], links)])
        self._add("mpich_threads", "default", "mpich", lambda path: [([*command, path, "threads"], links)])
        self._add("mpich_tuned", "tuned", "mpich", lambda path: [([*command, path], {**links, **self._tuned()})],
                  huge=self.transport == "shm")

    def _gloo(self):
        def ranks_of(cubic, name):
            def commands(path):
                prefix = self.cubic.prefix() if cubic else []
                store = os.path.join(self.folder, f"{name}.store")
                os.makedirs(store)
                return [([*prefix, self.drivers["gloo"], path, str(rank), str(self.ranks), "127.0.0.1", store], {})
                        for rank in range(self.ranks)]
            return commands

        self._add("gloo", "default", "gloo", ranks_of(False, "gloo"))
        self._add("gloo_cubic", "tuned", "gloo", ranks_of(True, "gloo_cubic"))

    def _limits(self):
        if self.transport == "tcp":
            self._add("limit_sockets", "limit", "limit", self._annulus_run("limit_driver", "sockets"))
            return
        shared = os.path.join("/dev/shm", f"annulus-peers-{os.getpid()}-{self.ranks}")

        def exchange(path):
            with open(shared, "wb"):
                pass
            return self._annulus_run("limit_driver", "exchange", shared)(path)

        self._add("limit_exchange", "limit", "limit", exchange)
        self._add("limit_copy", "limit", "limit", self._annulus_run("limit_driver", "copy"))
        self.shared = shared

    # For those who name them: what the user's huge pages would gain, what threads cost MPI, and Python.
    ONLY_BY_NAME = ("annulus_huge", "annulus_python", "mpi4py", "openmpi_threads", "mpich_threads")

    def choose(self, names):
        """Returns (libraries to run, why others are left out by name)."""
        wanted = [name for name in self.known if (name in names if names else name not in self.ONLY_BY_NAME)]
        left_out = {name: self.missing[self.known[name].build] for name in wanted
                    if self.known[name].build in self.missing}
        if self.cubic.why:
            left_out.update({name: self.cubic.why for name in wanted if name.endswith("_cubic")})
        return [self.known[name] for name in wanted if name not in left_out], left_out

    def clean_up(self):
        path = getattr(self, "shared", None)
        if path and os.path.exists(path):
            os.unlink(path)
