#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes sources that together prove that each header stands alone, and prints their names:
headers.py INCLUDE_FOLDER OUTPUT_PREFIX HEADER...

A source for each header would parse LibTorch forty times. A header may as well come after others if it includes all of
them itself, for then they give it nothing that it would not have alone: so headers are put into chains, in which each
includes all that is before it, and as few chains as can be."""
import re
import sys
from pathlib import Path


def main():
    folder, prefix, *headers = sys.argv[1:]
    included = {}

    def reached_from(header):
        if header not in included:
            included[header] = {header}
            if header.startswith("railyard/"):
                text = (Path(folder) / header).read_text()
                for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', text, re.M):
                    included[header] |= reached_from(name)
        return included[header]

    reach = {header: reached_from(header) for header in headers}
    before = {}  # the one of which a header is the successor: a matching, which is made as large as can be

    def find_place(header, tried):
        for other in headers:
            if other in tried or other == header or not reach[header] < reach[other]:
                continue
            tried.add(other)
            if other not in before or find_place(before[other], tried):
                before[other] = header
                return True
        return False

    for header in headers:
        find_place(header, set())
    for number, last in enumerate(header for header in headers if header not in before.values()):
        chain = [last]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        # Twice, so that a missing guard is found too.
        text = "".join(f"#include <{header}>\n#include <{header}>  // NOLINT: is it guarded?\n" for header in reversed(chain))
        source = Path(f"{prefix}_{number}.cpp")
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        print(source)


main()
