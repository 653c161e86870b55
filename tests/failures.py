#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints once more how the tests have ended that failed, which stands far above: failures.py RESULTS.XML

RESULTS.XML is what `ctest --output-junit` writes."""
import sys
import xml.etree.ElementTree

NUM_LINES = 25

for case in xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    if case.get("status") in ("fail", "notrun") and case.find("skipped") is None:
        lines = (case.findtext("system-out") or "").splitlines()
        print(f"\n== {case.get('name')} failed after {float(case.get('time') or 0):.0f} s; its last lines:")
        print("\n".join(lines[-NUM_LINES:]))
