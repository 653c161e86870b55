#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lets the compiler check sources of a build folder without making anything of them:
syntax_only.py BUILD JOBS PART_OF_PATH... [--without PART_OF_PATH...]

The folder must have been configured with CMAKE_EXPORT_COMPILE_COMMANDS. A source that CMake has put together of others
is told by the path of its target."""
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def check(entry):
    command = shlex.split(entry["command"])
    output = command.index("-o")
    del command[output:output + 2]
    command.insert(command.index("-c"), "-fsyntax-only")
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], done.returncode, done.stdout + done.stderr


def main():
    build, jobs, *parts = sys.argv[1:]
    without = parts[parts.index("--without") + 1:] if "--without" in parts else []
    parts = parts[:parts.index("--without")] if "--without" in parts else parts
    entries = json.loads((Path(build) / "compile_commands.json").read_text())
    wanted = [
        entry for entry in entries
        if any(part in text for part in parts for text in (entry["file"], sources_of(entry["file"])))
        and not any(part in text for part in without for text in (entry["file"], entry["command"]))
    ]
    if not wanted:
        sys.exit(f"No source of {build} has one of {parts} in its path")
    status = 0
    with ThreadPoolExecutor(int(jobs)) as pool:
        for file, failed, output in pool.map(check, wanted):
            print(file, "is refused" if failed else "is accepted")
            if failed or output:
                print(output)
            status = status or failed
    sys.exit(status)


def sources_of(file):
    """Returns what a source that CMake has made of others includes."""
    return Path(file).read_text() if "/Unity/" in file else ""


main()
