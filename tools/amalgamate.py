#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes single_include/railyard/railyard.hpp, the library in one file, and single_include/compiled, the same to be compiled
once; --check only says whether they are up to date."""
import re
import sys
from pathlib import Path

from separate import separate

ROOT = Path(__file__).parent.parent.resolve()
INCLUDE = ROOT / "include"
SINGLE = ROOT / "single_include" / "railyard" / "railyard.hpp"
COMPILED = ROOT / "single_include" / "compiled"
OURS = re.compile(r'\s*#\s*include\s*["<](railyard/[^">]+)[">]')
THEIRS = re.compile(r"\s*#\s*include\s*<([^>]+)>")
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")

HEAD = """// SPDX-License-Identifier: MIT
// Railyard {version} in one file, made by tools/amalgamate.py from include/railyard: edit those.
// Define RAILYARD_WITH_GLOO=1 and RAILYARD_WITH_TORCH=1 for the parts that need Gloo and LibTorch.
#pragma once
"""


def dependencies(name, found):
    """Adds to found, in the order in which they must stand, name and what it includes."""
    if name in found:
        return
    for line in (INCLUDE / name).read_text().splitlines():
        if match := OURS.match(line):
            dependencies(match[1], found)
    found[name] = None


def macros_of(condition):
    """Returns the macros that a condition asks for; it holds wherever one holds that asks for more of them."""
    return set(re.findall(r"RAILYARD_WITH_\w+", condition))


class Writer:
    def __init__(self):
        self.out = []
        self.done = {}  # header: the condition it stands under
        self.system = set()  # headers of others that are included under no condition

    def header(self, name, condition):
        found = {}
        dependencies(name, found)
        for each in found:
            if each not in self.done:
                self.done[each] = condition
                self.body(each, condition)
            elif not macros_of(self.done[each]) <= macros_of(condition):
                sys.exit(f"{each} is needed under {condition!r} and already stands under {self.done[each]!r}")

    def shared(self, blocks):
        """Writes, under either condition, what is needed under two of which neither implies the other."""
        needed = {}  # header: the conditions
        for condition, names in blocks.items():
            found = {}
            for name in names:
                dependencies(name, found)
            for each in found:
                needed.setdefault(each, []).append(condition)
        for each, conditions in needed.items():
            weakest = min(conditions, key=lambda condition: len(macros_of(condition)))
            if each in self.done or all(macros_of(weakest) <= macros_of(other) for other in conditions):
                continue
            either = "#if " + " || ".join(f"({condition.removeprefix('#if ')})" for condition in conditions)
            self.done[each] = ""  # it is there wherever it is needed
            self.out.append(f"\n{either}")
            self.body(each, either)
            self.out.append("#endif")

    def body(self, name, condition):
        self.out.append(f"\n// ---- {name}")
        depth = 0
        for line in (INCLUDE / name).read_text().splitlines()[1:]:
            if match := CONDITION.match(line):
                depth += match[1].startswith("if") - (match[1] == "endif")
            if line == "#pragma once" or OURS.match(line):
                continue
            if match := THEIRS.match(line):
                if match[1] in self.system:
                    continue
                if depth == 0 and condition == "":
                    self.system.add(match[1])
            self.out.append(line)

    def umbrella(self):
        blocks = {}  # condition: headers; what stands under none comes first, so that conditional parts find it there
        condition = ""
        for line in (INCLUDE / "railyard/railyard.hpp").read_text().splitlines():
            if match := CONDITION.match(line):
                if match[1] not in ("if", "endif", "ifdef"):
                    sys.exit(f"the umbrella has no #else: {line}")
                condition = "" if match[1] == "endif" else line.strip()
            elif match := OURS.match(line):
                blocks.setdefault(condition, []).append(match[1])
        for name in blocks.pop(""):
            self.header(name, "")
        self.shared(blocks)
        for condition, names in blocks.items():
            if condition:
                self.out.append(f"\n{condition}")
            for name in names:
                self.header(name, condition)
            if condition:
                self.out.append("#endif")


def amalgamate():
    version = re.search(r'version = "([^"]+)"', (INCLUDE / "railyard/core/version.hpp").read_text())[1]
    writer = Writer()
    writer.umbrella()
    text = HEAD.format(version=version) + "\n".join(writer.out) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def main():
    single = amalgamate()
    header, detail, source = separate(single)
    made = {SINGLE: single, COMPILED / "railyard.cpp": source}
    made |= {COMPILED / "railyard" / "railyard.hpp": header, COMPILED / "railyard" / "detail.hpp": detail}
    for path, text in made.items():
        if "--check" in sys.argv[1:]:
            if not path.is_file() or path.read_text() != text:
                print(f"{path.relative_to(ROOT)} is not what include/ makes: run python3 tools/amalgamate.py")
                return 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 0


sys.exit(main())
