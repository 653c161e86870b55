#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles a file that must be refused, and looks for the sentence: check.py refused|fixed FILE COMPILER [FLAG...]

In the file, `// expect: REGEX` is matched against one line of the compiler's output, `// expect-first: REGEX` against
its first error, and `// flags: ...` adds flags to the refused compilation. With FIXED defined, the file must compile:
what was refused is then the one thing that is wrong with it."""
import re
import subprocess
import sys
from pathlib import Path


def main():
    mode, file, *command = sys.argv[1:]
    text = Path(file).read_text()
    expected = re.findall(r"^// (expect(?:-first)?): (.+)$", text, re.M)
    if not expected:
        sys.exit(f"{file} expects nothing")
    command += ["-std=c++20", "-fsyntax-only", file]
    if mode == "fixed":
        command.append("-DFIXED")
    else:
        command += [flag for flags in re.findall(r"^// flags: (.+)$", text, re.M) for flag in flags.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    if mode == "fixed":
        if done.returncode:
            print(output)
            sys.exit("FIXED is refused as well")
        return
    if done.returncode == 0:
        sys.exit("It compiles, and should not")
    errors = [line for line in output.splitlines() if re.search(r"\berror: ", line)]
    for kind, regex in expected:
        lines = errors[:1] if kind == "expect-first" else output.splitlines()
        if not any(re.search(regex, line) for line in lines):
            print(output[:20000])
            sys.exit(f"No line matches {kind}: {regex}")


main()
