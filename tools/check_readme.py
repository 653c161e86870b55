#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the README's code stands in the example it names, word for word.

A block of code that follows a line `<!-- PATH -->` must be a contiguous part of the file PATH; every relative link must
lead to something.
"""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
readme = (root / "README.md").read_text()
problems = []

blocks = re.findall(r"<!-- (\S+) -->\n```\w*\n(.*?)```", readme, re.S)
if not blocks:
    problems.append("README.md: there is no block of code that names its example")
for path, code in blocks:
    if not code.strip():
        problems.append(f"README.md: the block of {path} is empty")
    elif code not in (root / path).read_text():
        problems.append(f"README.md: the block of {path} differs from the file; copy it anew")

prose = re.sub(r"```.*?```", "", readme, flags=re.S)
for target in re.findall(r"\]\(([^)#:]+)\)", prose):
    if not (root / target).exists():
        problems.append(f"README.md: the link to {target} leads nowhere")

print("\n".join(problems) if problems else f"README.md: {len(blocks)} blocks of code agree with their files")
sys.exit(1 if problems else 0)
