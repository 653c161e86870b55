#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kills processes of a training run at random moments, and looks after each kill whether anything is lost or left.

Usage: chaos.py PROGRAM FOLDER KILLS SEED. The last line is `chaos N kills, 0 lost, 0 left, weights equal`."""
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PHASES = {"start": 2, "step": 3, "update": 2, "snapshot": 3, "commit": 3, "retention": 1, "restart": 2, "tear-down": 1}
LETTERS = {"s": "step", "u": "update", "c": "snapshot", "e": "tear-down", ".": "start"}


class Run:
    """A run that is started again whenever its program has died."""

    def __init__(self, program, storage, name):
        self.command = [program, "train", str(storage), name]
        self.program = program
        self.path = storage / name
        self.phases = storage / f"{name}.phases"
        self.log = open(storage / f"{name}.log", "ab")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command + [str(self.phases)], stdout=self.log, stderr=self.log)

    def is_running(self):
        return self.process.poll() is None

    def family(self):
        """The processes of the run, by what they are."""
        found = {"supervisor": [self.process.pid]}
        for pid in children(self.process.pid):
            found.setdefault("zygote", []).append(pid)
            found.setdefault("worker", []).extend(children(pid))
        return found

    def phase(self):
        """What the run is doing, as far as its files tell."""
        names = os.listdir(self.path / "checkpoints") if (self.path / "checkpoints").exists() else []
        if any(name.startswith(".trash") for name in names):
            return "retention"
        if any(name.startswith(".staging") for name in names):
            return "commit"
        letters = self.phases.read_bytes()[:2] if self.phases.exists() else b""
        return LETTERS.get(RANDOM.choice(letters.decode("latin1") or "."), "start")

    def verify(self):
        result = subprocess.run([self.program, "verify", str(self.path)], capture_output=True, text=True)
        if result.returncode != 0:
            fail(f"a checkpoint is damaged: {result.stdout}{result.stderr}")
        return int(result.stdout.split()[1]) if result.stdout else 0


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def fail(text):
    print(f"chaos failed: {text} (seed {SEED})")
    sys.exit(1)


def wait_for_phase(run, wanted, began):
    """Waits until the run is in that phase; gives up after a while, or when it is over."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and run.is_running():
        now = time.monotonic() - began
        if wanted in ("start", "restart") and now < 0.5:
            time.sleep(RANDOM.uniform(0, 0.08))
            return wanted
        if run.phase() == wanted:
            return wanted
        time.sleep(0)
    return run.phase() if run.is_running() else "tear-down"


def strike(run):
    """Sends a signal to one of the run's processes, or to all."""
    family = run.family()
    what = RANDOM.choices(["worker", "zygote", "supervisor", "all", "stop"], [6, 1, 2, 1, 1])[0]
    if what == "stop" and family.get("worker"):
        pid = RANDOM.choice(family["worker"])
        send(pid, signal.SIGSTOP)
        time.sleep(RANDOM.uniform(0, 0.2))
        send(pid, signal.SIGCONT)
        return what
    pids = sum(family.values(), []) if what == "all" else family.get(what, [])
    if what != "all" and pids:
        pids = [RANDOM.choice(pids)]
    for pid in pids:
        send(pid, signal.SIGKILL)
    return what if pids else None


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def torment(program, storage, kills):
    coverage = collections.Counter()
    targets = collections.Counter()
    run_number = 0
    run = None
    newest = 0
    while sum(targets.values()) < kills:
        if run is None:
            run_number += 1
            newest = 0
            run = Run(program, storage, f"run-{run_number}")
        if run.process is None or not run.is_running():
            if run.process is not None and run.process.returncode == 0:
                compare(run, storage)
                run = None
                continue
            check_end(run)
            run.start()
            began = time.monotonic()
            is_restart = newest > 0
        wanted = RANDOM.choices(list(PHASES), list(PHASES.values()))[0]
        phase = wait_for_phase(run, wanted, began)
        what = strike(run)
        began = time.monotonic()
        if what is None:
            continue
        coverage["restart" if phase == "start" and is_restart else phase] += 1
        targets[what] += 1
        if RANDOM.random() < 0.3:
            step = run.verify()
            if step < newest:
                fail(f"the newest checkpoint was of step {newest} and is of step {step} now")
            newest = step
    while run is not None and finish(run):
        pass
    if run is not None:
        compare(run, storage)
    return coverage, targets


def check_end(run):
    """A program that has ended was killed: it finds nothing that it could not go on from."""
    if run.process is not None and run.process.returncode not in (None, 0, -signal.SIGKILL):
        fail(f"the program has ended with status {run.process.returncode}: see {run.log.name}")


def finish(run):
    """Lets the run go on; returns whether it has to be started again."""
    if not run.is_running():
        run.start()
    run.process.wait()
    check_end(run)
    return run.process.returncode != 0


def compare(run, storage):
    """The weights and metrics must be those of the run that nobody has touched, and nothing may be left over."""
    names = sorted(os.listdir(run.path / "checkpoints"))
    if not all(name.startswith("checkpoint-") for name in names):
        fail(f"something is left in {run.path}: {names}")
    whole = storage / "whole"
    last = sorted(os.listdir(whole / "checkpoints"))[-1]
    for file in ("net.safetensors", "optimizer.rank-0.safetensors", "optimizer.rank-1.safetensors"):
        if (run.path / "checkpoints" / names[-1] / file).read_bytes() != (whole / "checkpoints" / last / file).read_bytes():
            fail(f"{file} of {run.path} differs from that of the run that nobody has touched")
    without_seconds = [[line.split(", ", 2)[0], line.split(", ", 2)[2]] for line in
                       (run.path / "metrics.jsonl").read_text().splitlines()]
    expected = [[line.split(", ", 2)[0], line.split(", ", 2)[2]] for line in
                (whole / "metrics.jsonl").read_text().splitlines()]
    if without_seconds != expected:
        fail(f"the metrics of {run.path} differ from those of the run that nobody has touched")


def left_over(program):
    """Processes of the program that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "exe") == program:
                    found.append(entry.name)
            except OSError:
                pass
    return found


def main():
    program = os.path.realpath(sys.argv[1])
    storage = Path(sys.argv[2])
    shutil.rmtree(storage, ignore_errors=True)
    storage.mkdir(parents=True)
    kills = int(sys.argv[3])
    whole = Run(program, storage, "whole")
    whole.start()
    if whole.process.wait() != 0:
        fail("the run that nobody touches has failed")
    coverage, targets = torment(program, storage, kills)
    print("phases: " + ", ".join(f"{phase} {coverage[phase]}" for phase in PHASES))
    print("struck: " + ", ".join(f"{what} {count}" for what, count in sorted(targets.items())))
    deadline = time.monotonic() + 10
    while left_over(program) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left_over(program):
        fail(f"processes are left: {left_over(program)}")
    print(f"chaos {kills} kills, 0 lost, 0 left, weights equal")


SEED = int(sys.argv[4])
RANDOM = random.Random(SEED)
main()
