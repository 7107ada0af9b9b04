"""House rules over rooms: the packages of the library, their order, their doors and their size."""

import re

from source import includes

MOST_FOLDER_FILES = 32
GROWING_FOLDERS = ("docs/decisions",)  # A record, of which nothing is taken away.

# Within a layer, arrows point down too: a room includes itself and the rooms before it. "" is the layer's own folder.
ROOMS = {
    "transport": [["", "memory"], ["wire"], ["security"], ["tcp", "shm", "sim", "verbs"], ["resume"], ["select"]],
    "collectives": [
        [""], ["core"], ["reduce"], ["cuda"], ["control"], ["observe"], ["membership"], ["cost"], ["algorithms"], ["choice"], ["engine"],
        ["calls"], ["comm"], ["api"],
    ],
    "launcher": [["job"], ["watch"], ["local"], ["remote"], [""]],
}  # fmt: skip
HEADED = ("base", "cuda_kernels", "transport", "collectives", "launcher")  # Layers whose rooms say where to begin.


def room_of(path):
    """(layer, room, floor) of a path of a layer that has rooms, or None."""
    parts = path.split("/")
    if parts[0] not in ROOMS or len(parts) < 2:
        return None
    room = parts[1] if len(parts) > 2 else ""
    for floor, rooms in enumerate(ROOMS[parts[0]]):
        if room in rooms:
            return parts[0], room, floor
    return parts[0], room, None


def room_direction(source):
    own = room_of(source.path)
    if not own or not source.is_cpp:
        return
    if own[2] is None:
        yield 1, f"{own[0]}/{own[1]} is no room of tests/tidy/rules_rooms.py: give it a place in the order"
        return
    for number, path in includes(source):
        target = room_of(path)
        if target and target[0] == own[0] and target[2] is not None and target[2] > own[2]:
            yield number, f'"{path}": room {own[1] or own[0]} lies below {target[1]}; move what is shared down, or pass it in'


def rules_of(text):
    """The rules of a BUILD file, which is Python enough to be run: [(kind, attributes)]."""
    rules = []

    def recorder(kind):
        return lambda *_args, **attributes: rules.append((kind, attributes))

    names = set(re.findall(r"\b([A-Za-z_]+)\(", text)) | set(re.findall(r'"(\w+)"', text))
    known = {name: recorder(name) for name in names if name not in ("select", "glob")}
    known.update(select=lambda choices: list(choices.values())[0], glob=lambda *_a, **_k: [], __builtins__={"len": len})
    try:
        exec(compile(text, "BUILD", "exec"), known)  # pylint: disable=exec-used
    except Exception as error:  # pylint: disable=broad-except
        return [("unreadable", {"name": str(error)})]
    return rules


class Doors:
    """Who may include which header: from the visibility of the target that has it in its hdrs."""

    def __init__(self, build_texts):
        self.groups = {}
        self.headers = {}  # Path: (visibility of its target, whether it is in hdrs).
        packages = {folder: rules_of(text) for folder, text in build_texts.items()}
        for folder, rules in packages.items():
            default = next((a.get("default_visibility", []) for kind, a in rules if kind == "package"), [])
            for kind, attributes in rules:
                if kind == "package_group":
                    self.groups[f"//{folder}:{attributes['name']}"] = attributes
                visibility = attributes.get("visibility", default)
                for is_public, key in ((False, "srcs"), (True, "hdrs")):
                    files = attributes.get(key, [])
                    for file in files if isinstance(files, list) else []:
                        self.headers[f"{folder}/{file}"] = (folder, visibility, is_public)

    def _group_admits(self, label, package):
        group = self.groups.get(label, {})
        for pattern in group.get("packages", []):
            folder = pattern.removeprefix("//").removesuffix("/...")
            if package == folder or (pattern.endswith("/...") and package.startswith(folder + "/")):
                return True
        own = label.rsplit(":", 1)[0]
        included = (own + each if each.startswith(":") else each for each in group.get("includes", []))
        return any(self._group_admits(each, package) for each in included)

    def admits(self, header, package):
        """Whether files of `package` may include `header`."""
        if header not in self.headers:
            return True
        home, visibility, is_public = self.headers[header]
        if package == home:
            return True
        if not is_public:
            return False
        for label in visibility:
            folder, _, name = label.removeprefix("//").partition(":")
            if label == "//visibility:public":
                return True
            if name == "__pkg__" and package == folder:
                return True
            if name == "__subpackages__" and (package == folder or package.startswith(folder + "/")):
                return True
            if self._group_admits(label, package):
                return True
        return False


def package_of(folder, build_texts):
    while folder and folder not in build_texts:
        folder = folder.rpartition("/")[0]
    return folder


def doors(source, all_doors, build_texts):
    """A room's own headers are not included from elsewhere."""
    if not source.is_cpp:
        return
    package = package_of(source.folder, build_texts)
    for number, path in includes(source):
        if not all_doors.admits(path, package):
            yield number, f'"{path}": its target is not visible to //{package}; use what that room offers'


def room_heads(source):
    """The BUILD file of a room says what lives there, what it uses and where to begin."""
    if source.name != "BUILD" or source.top not in HEADED:
        return
    head = []
    for line in source.lines:
        if not line.startswith("#"):
            break
        head.append(line.lstrip("# "))
    head = " ".join(head)
    if "Begin with " not in head or not re.search(r"\b[Uu]ses\b", head):
        yield 1, 'the head of a room says what lives there, what it "Uses", and "Begin with " some file'


def folder_sizes(sources):
    """(path, line, what to do) of folders with too many files for one glance."""
    counts = {}
    for each in sources:
        if each.is_cpp or each.is_python or each.is_shell or each.is_markdown:
            counts[each.folder] = counts.get(each.folder, 0) + 1
    for folder, count in sorted(counts.items()):
        if count > MOST_FOLDER_FILES and folder not in GROWING_FOLDERS:
            yield folder, 1, f"{count} files, at most {MOST_FOLDER_FILES}: is there a room missing?"
