#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles a file that must be refused, and looks for the sentence:
check.py refused FILE FOLDER COMPILER [FLAG...]
check.py fixed FILES FOLDER COMPILER [FLAG...]       FILES with ; between them
check.py header HEADER FOLDER COMPILER [FLAG...]     before, if it is worth it: precompiles railyard.hpp in FOLDER

In the file, `// expect: REGEX` is matched against one line of the compiler's output, `// expect-first: REGEX` against
its first error, `// expect-only: REGEX` as well, and nothing may follow but the end of the compilation, also with the
library in one file. `// flags: ...` adds flags to the refused compilation. With FIXED defined, the files must compile:
what was refused is then the one thing that is wrong with them. They are compiled as one, each in a namespace of its
own, because what takes time are the headers."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.resolve()
IN_ONE_FILE = [ROOT / "single_include", ROOT / "single_include" / "compiled"]


def precompile(header, folder, command):
    """Where #include <railyard/railyard.hpp> finds it with -I FOLDER."""
    place = Path(folder) / "railyard" / "railyard.hpp"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'#include "{header}"\n')
    if subprocess.run(command + ["-std=c++20", "-x", "c++-header", place, "-o", f"{place}.gch"]).returncode:
        sys.exit("The header is refused")


def check_fixed(files, command):
    includes = {line: None for file in files for line in re.findall(r"^#include <.+>$", Path(file).read_text(), re.M)}
    lines = [*includes, "#define FIXED"]
    for number, file in enumerate(files):
        lines += [f"namespace case_{number} {{", f'#include "{file}"', "}"]
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as together:
        together.write("\n".join(lines) + "\n")
        together.flush()
        if subprocess.run(command + ["-std=c++20", "-fsyntax-only", together.name]).returncode:
            sys.exit("FIXED is refused as well")


def errors_of(command):
    """What the compiler says, and the lines of it that are errors."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        sys.exit("It compiles, and should not")
    output = done.stdout + done.stderr
    return output, [line for line in output.splitlines() if re.search(r"\berror: ", line)]


def check_only(regex, command):
    for folder in [None, *IN_ONE_FILE]:
        output, errors = errors_of(command[:1] + (["-I", folder] if folder else []) + command[1:])
        if len(errors) != 2 or not re.search(regex, errors[0]) or "fatal error: " not in errors[1]:
            print(output[:20000])
            sys.exit(f"{len(errors)} errors with {folder or 'include'}, not one that matches {regex} and the end")


def check_refused(file, folder, command):
    text = Path(file).read_text()
    expected = re.findall(r"^// (expect(?:-first|-only)?): (.+)$", text, re.M)
    if not expected:
        sys.exit(f"{file} expects nothing")
    flags = [flag for flags in re.findall(r"^// flags: (.+)$", text, re.M) for flag in flags.split()]
    with_header = [] if flags else ["-I", folder]  # which was precompiled without these flags
    command = command[:1] + with_header + command[1:] + ["-std=c++20", "-fsyntax-only", file] + flags
    if expected[0][0] == "expect-only":
        return check_only(expected[0][1], command)
    if all(kind == "expect-first" for kind, _ in expected):
        command.append("-Wfatal-errors")  # the rest would be compiled for nothing
    output, errors = errors_of(command)
    for kind, regex in expected:
        lines = errors[:1] if kind == "expect-first" else output.splitlines()
        if not any(re.search(regex, line) for line in lines):
            print(output[:20000])
            sys.exit(f"No line matches {kind}: {regex}")


def main():
    mode, files, folder, *command = sys.argv[1:]
    if mode == "header":
        precompile(files, folder, command)
    elif mode == "fixed":
        check_fixed(files.split(";"), [command[0], "-I", folder, *command[1:]])
    else:
        check_refused(files, folder, command)


main()
