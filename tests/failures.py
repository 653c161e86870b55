#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints once more what stands far above: what tests could not test on this machine although they have passed, and how
those have ended that failed: failures.py [--count] RESULTS.XML [OF_THOSE_THAT_FAILED.XML]

The files are what `ctest --output-junit` writes; the second one is of another run of those that failed in the first.
A test tells what it could not test by a line that begins with "not tested: ". With --count: how many have failed."""
import sys
import xml.etree.ElementTree

NUM_LINES = 25
NOT_TESTED = "not tested: "
FAILED = "== "


def main():
    count = sys.argv[1] == "--count"
    runs = [cases_of(path) for path in sys.argv[1 + count:]]
    if count:
        print(sum(map(has_failed, runs[-1])))
        return
    for case in (case for cases in runs for case in cases):
        for line in map(str.strip, (case.findtext("system-out") or "").splitlines()):
            if line.startswith(NOT_TESTED):
                print(f"Not tested here: {case.get('name')} ({line[len(NOT_TESTED):]})")
            elif line.startswith(FAILED) and not has_failed(case):  # it runs tests of its own
                print(f"In {case.get('name')}: {line[len(FAILED):]}")
    failed = {case.get("name") for case in filter(has_failed, runs[-1])}
    for case in filter(has_failed, runs[0]):
        passed_again = "" if case.get("name") in failed else " beside others, and passed by itself"
        print(f"\n{FAILED}{case.get('name')} failed{passed_again} after {float(case.get('time') or 0):.0f} s; its last lines:")
        print("\n".join((case.findtext("system-out") or "").splitlines()[-NUM_LINES:]))


def cases_of(path):
    return list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))


def has_failed(case):
    return case.get("status") in ("fail", "notrun") and case.find("skipped") is None


main()
