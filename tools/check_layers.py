#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the table of floors: which room may include what, and what every header must look like."""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
INCLUDE = ROOT / "include"
LIMIT_LINES = 600

# Room: the rooms of ours that it may include besides itself.
MAY_INCLUDE = {
    "core": set(),
    "collectives": {"core"},
    "workers": {"core"},
    "data": {"core"},
    "checkpoint": {"core"},
    "callbacks": {"core"},
    "train": {"core", "workers", "data", "checkpoint", "callbacks"},
    "torch": {"core", "collectives", "workers", "data", "checkpoint", "callbacks", "train"},
}
# What is neither ours nor the standard library's: the files or rooms (by prefix) that may include it.
THIRD_PARTY = {
    "fmt/": [""],
    "gloo/": ["collectives/gloo.hpp", "collectives/detail/gloo"],
    "torch/": ["torch/"],
    "ATen/": ["torch/"],
    "c10/": ["torch/"],
    "openssl/": ["workers/detail/hmac.hpp", "workers/detail/key_agreement.hpp", "workers/detail/tls.hpp"],
    "nccl.h": ["collectives/nccl.hpp"],
    "cuda": ["collectives/nccl.hpp"],
}
VERSION = INCLUDE / "railyard" / "core" / "version.hpp"
NO_FILE = "stopped by the error above"  # at which compilers stop
# Headers of the system: rooms that may include them. In core only what hides them from the other rooms.
CORE_POSIX = {f"core/detail/{name}.hpp" for name in ("system", "heap", "dynamic_library", "asked_child", "cuda_driver")}
POSIX_ROOMS = {"workers", "collectives", "data", "checkpoint", "callbacks", "train", "torch"}
POSIX = re.compile(r"(sys|linux|netinet|arpa|net)/\w+\.h|\w+\.h$")
COMPILER = {"cxxabi.h"}  # part of every C++ compiler on Linux
# Headers whose behaviour the named test file of another name covers.
TESTED_ELSEWHERE = {
    "railyard.hpp": "every example and consumer includes it",
    "core/device_line.hpp": "an interface alone: tests/unit/torch/cuda_overlap_test.cpp",
    "core/host_memory.hpp": "an interface alone: tests/unit/collectives/shared_memory_test.cpp",
    "core/rank_connector.hpp": "an interface alone: tests/unit/workers/rank_lines_test.cpp",
    "core/side_line.hpp": "an interface alone: tests/unit/torch/overlap_test.cpp",
    "core/stateful.hpp": "a concept alone: tests/unit/core/mean_test.cpp",
    "core/store.hpp": "an interface alone: tests/unit/workers",
    "checkpoint/manifest.hpp": "plain data: tests/unit/checkpoint/checkpoint_test.cpp",
    "data/csv_source_options.hpp": "plain data: tests/unit/data/csv_source_test.cpp",
    "data/json_lines_source_options.hpp": "plain data: tests/unit/data/json_lines_source_test.cpp",
    "data/tar_source_options.hpp": "plain data: tests/unit/data/tar_source_test.cpp",
    "core/version.hpp": "tests/compile_fail and tests/consumers",
    "core/world.hpp": "plain data",
    "train/scaling_config.hpp": "tests/unit/train/run_config_test.cpp",
}
# Headers that may have state of the whole process, or thread: registries of what the process has only once. Elsewhere it
# would be shared by two shared libraries, or doubled where they hide their symbols (TRAPS 28).
PROCESS_STATE = {
    "core/detail/waiting.hpp",
    "workers/detail/launcher_bulletin.hpp",
    "workers/detail/signal_watch.hpp",
    "workers/detail/stack_teller.hpp",
    "workers/detail/tls.hpp",
    "torch/detail/pool_allocator.hpp",
    "torch/detail/worker_gpu.hpp",
}
STATE = re.compile(r"((inline|extern) (?!const)|\s+(inline )?static (?!const|inline const)(thread_local )?)[^()]*[;={]")
# Two releases in one program are told apart by a namespace of their own each (TRAPS 29).
RELEASE = re.search(r'version = "(\d+)\.(\d+)\.', VERSION.read_text())
NAMESPACE = f"namespace railyard::inline v{RELEASE[1]}_{RELEASE[2]} {{"

# What headers of torch/ include first of LibTorch, unless one of their own room does: clang 14 rejects the rest of
# LibTorch 1.13 without it.
FIRST_OF_LIBTORCH = "ATen/core/ivalue.h"

problems = []


def problem(path, line, text):
    problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def check_include(path, line, name, room, relative):
    if name.startswith("railyard/"):
        if not (INCLUDE / name).is_file():
            problem(path, line, f"there is no {name}")
        target = name.split("/")[1]
        if room != "railyard.hpp" and target != room and target not in MAY_INCLUDE[room]:
            problem(path, line, f"{room}/ may not include {target}/ ({name})")
        return
    for prefix, allowed in THIRD_PARTY.items():
        if name.startswith(prefix):
            if not any(relative.startswith(place) for place in allowed):
                problem(path, line, f"{name} may be included by {', '.join(allowed)} only")
            return
    if "/" not in name and not name.endswith(".h"):
        return  # the standard library's
    may_use_system = room in POSIX_ROOMS or relative in CORE_POSIX
    if name not in COMPILER and (not POSIX.match(name) or not may_use_system):
        problem(path, line, f"{room} may not include {name}")


def begins_with_version(path):
    """Whether a compiler that comes to the header knows what the library needs of it before anything else."""
    if path == VERSION or not path.is_file():
        return True
    first = re.search(r'^#include ["<]([^">]+)[">]', path.read_text(), re.M)
    return first is not None and first[1].startswith("railyard/") and begins_with_version(INCLUDE / first[1])


def check_header(path):
    relative = str(path.relative_to(INCLUDE / "railyard"))
    room = relative.split("/")[0]
    lines = path.read_text().splitlines()
    if room != "railyard.hpp" and room not in MAY_INCLUDE:
        problem(path, 1, f"{room}/ is no room of the table in tools/check_layers.py")
        return
    if len(lines) > LIMIT_LINES:
        problem(path, len(lines), f"{len(lines)} lines; {LIMIT_LINES} is the limit: divide it by type")
    if lines[0] != "// SPDX-License-Identifier: MIT" or not lines[1].startswith("// "):
        problem(path, 1, "starts with the licence line and a sentence that says what it is for")
    if "#pragma once" not in lines:
        problem(path, 1, "lacks #pragma once")
    included = [match[1] for text in lines if (match := re.match(r'#include ["<]([^">]+)[">]', text))]
    libtorch = [name for name in included if re.match("(ATen|torch)/", name)]
    if libtorch and libtorch[0] != FIRST_OF_LIBTORCH and not any(name.startswith("railyard/torch/") for name in included):
        problem(path, 1, f"includes {FIRST_OF_LIBTORCH} before the rest of LibTorch")
    conditions = 0
    if not begins_with_version(path):
        problem(path, 1, "includes core/version.hpp first, itself or by another: what that says of the compiler comes late")
    for number, text in enumerate(lines, 1):
        if re.match(r"\s*#\s*if", text):
            conditions += 1
        elif re.match(r"\s*#\s*endif", text):
            conditions -= 1
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', text)
        if match and (path, match[2]) != (VERSION, NO_FILE):
            ours = match[2].startswith("railyard/")
            if ours != (match[1] == '"') and room != "railyard.hpp":
                problem(path, number, "our headers are included by \"...\", all others by <...>")
            if ours and conditions and room != "railyard.hpp":
                problem(path, number, "only the umbrella has #if around our own headers")
            check_include(path, number, match[2], room, relative)
        if match := re.match(r"\s*#\s*define\s+(\w+)", text):
            if not match[1].startswith("RAILYARD_") and f"#undef {match[1]}" not in lines:
                problem(path, number, f"macro {match[1]}: ours are named RAILYARD_*, helpers are undefined again")
        if re.match(r"using\s+namespace\s", text):
            problem(path, number, "using-directives reach into the user's code")
        if STATE.match(text) and relative not in PROCESS_STATE:
            problem(path, number, "state of the whole process: let an object have it, or see PROCESS_STATE")
        if text.startswith("namespace railyard") and text != NAMESPACE:
            problem(path, number, f"names of this release stand in {NAMESPACE} }}")
        if re.match(r"(static |namespace \{)", text):
            problem(path, number, "static and unnamed namespaces give every file a copy: write inline")


def check_tests(headers):
    for path in headers:
        relative = path.relative_to(INCLUDE / "railyard")
        if str(relative) in TESTED_ELSEWHERE or "detail" in relative.parts:
            continue
        name = str(relative).removesuffix(".hpp").split("/", 1)[-1].replace("/", "_")
        folders = [ROOT / "tests" / "unit" / relative.parts[0], ROOT / "tests" / "conformance"]
        if not any(list(folder.glob(f"{name}*_test.cpp")) for folder in folders):
            problem(path, 1, f"has no test tests/unit/{relative.parts[0]}/{name}_test.cpp")


def check_umbrella(headers):
    umbrella = INCLUDE / "railyard" / "railyard.hpp"
    if not umbrella.is_file():
        problem(INCLUDE / "railyard", 1, "there is no railyard.hpp")
        return
    listed = re.findall(r'#\s*include\s*["<]railyard/([^">]+)[">]', umbrella.read_text())
    public = {str(path.relative_to(INCLUDE / "railyard")) for path in headers}
    public = {name for name in public if "/detail/" not in name and name != "railyard.hpp"}
    for name in sorted(public.symmetric_difference(listed)):
        problem(umbrella, 1, f"{name} is {'not listed' if name in public else 'listed and no public header'}")
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        problem(umbrella, 1, f"{name} is listed twice")


def main():
    headers = sorted((INCLUDE / "railyard").rglob("*.hpp"))
    for path in headers:
        check_header(path)
    check_tests(headers)
    check_umbrella(headers)
    for path in sorted(path for folder in ("tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.cpp")):
        lines = len(path.read_text().splitlines())
        if lines > LIMIT_LINES:
            problem(path, lines, f"{lines} lines; {LIMIT_LINES} is the limit")
    print("\n".join(problems) if problems else f"{len(headers)} headers keep to the table of floors")
    return 1 if problems else 0


sys.exit(main())
