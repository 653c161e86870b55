#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fills in the README's code from the examples, so that it is code that runs; --check only says what differs, and
which links lead nowhere.

A line `<!-- examples/FILE.cpp: NAME -->` before a fenced block names the definition that the block shows."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.resolve()
BLOCK = re.compile(r"(<!-- (examples/[\w./]+): (\w+) -->\n```cpp\n)(.*?)(```\n)", re.S)


def definition(file, name):
    """Returns the function or class of that name as it stands in the file, from its first line to the closing brace."""
    found = re.search(rf"^(?!\s|#|//)[^\n;]*\b{name}\b[^\n;]*\{{\n.*?^\}};?\n", (ROOT / file).read_text(), re.M | re.S)
    if not found:
        sys.exit(f"{file} defines no {name}")
    return found[0]


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    filled = BLOCK.sub(lambda block: block[1] + definition(block[2], block[3]) + block[5], text)
    if "--check" not in sys.argv[1:]:
        readme.write_text(filled)
        return 0
    problems = []
    if not BLOCK.search(text):
        problems.append("README.md shows no code of an example")
    if filled != text:
        problems.append("README.md shows other code than the examples: run python3 tools/readme.py")
    for target in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if not (ROOT / target).exists():
            problems.append(f"README.md has a link to {target}, which does not exist")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
