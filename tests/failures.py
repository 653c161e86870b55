#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints once more what stands far above: what tests could not test on this machine although they have passed, and how
those have ended that failed: failures.py RESULTS.XML

RESULTS.XML is what `ctest --output-junit` writes. A test tells the first by a line that begins with "not tested: "."""
import sys
import xml.etree.ElementTree

NUM_LINES = 25
NOT_TESTED = "not tested: "

cases = list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
for case in cases:
    for line in map(str.strip, (case.findtext("system-out") or "").splitlines()):
        if line.startswith(NOT_TESTED):
            print(f"Not tested here: {case.get('name')} ({line[len(NOT_TESTED):]})")
for case in cases:
    if case.get("status") in ("fail", "notrun") and case.find("skipped") is None:
        lines = (case.findtext("system-out") or "").splitlines()
        print(f"\n== {case.get('name')} failed after {float(case.get('time') or 0):.0f} s; its last lines:")
        print("\n".join(lines[-NUM_LINES:]))
