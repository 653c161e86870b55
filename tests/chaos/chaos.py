#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kills processes of training runs at random moments, and looks after each kill whether anything is lost or left.

Usage: chaos.py PROGRAM FOLDER KILLS SEED [launched]. The last line is `chaos N kills, 0 lost, 0 left, weights equal`.
launched: this script starts the processes of a run as an engine would, and starts all of them again when one has ended."""
import collections
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

# A short run is killed at its ends only, a long one in between.
SHORT, LONG = 20, 150
PHASES = {
    SHORT: ("start", "tear-down"),
    LONG: ("step", "update", "snapshot", "commit", "retention", "restart"),
}
EVERY_PHASE = sum(PHASES.values(), ())
LETTERS = {b"s": "step", b"u": "update", b"c": "snapshot"}
ENTRY = struct.Struct("@ic3x")  # of a rank in the file of phases: its process, and a letter
LONGEST_RUN = 120  # seconds
LONGEST_END = 30  # seconds, of processes that nothing keeps any more
MOMENT = 2  # seconds
TEMPFAIL = 75  # a process that wants to be started again
MANY, ENOUGH = 160, 20  # from so many kills on, each phase must have had so many


class Run:
    """A run that is started again whenever its program has died."""

    other_ends = ()  # statuses with which a process may end besides
    patience = 2  # seconds, until it is in a phase that is waited for

    def __init__(self, program, storage, name, epochs):
        self.phases = storage / f"{name}.phases"
        self.command = [program, "train", str(storage), name, str(self.phases), str(epochs)]
        self.program = program
        self.path = storage / name
        self.whole = storage / f"whole-{epochs}"
        self.wanted = PHASES[epochs]
        self.log = open(storage / f"{name}.log", "ab")
        self.processes = []
        self.members = set()  # all that the strikes have found
        self.rubbish = []  # what programs have left that died, for the next start to remove
        self.has_begun = False  # some rank has begun with a step
        self.newest = 0  # the step of the newest checkpoint that has been seen

    def start(self):
        self.phases.write_bytes(bytes(2 * ENTRY.size))
        self.rubbish = self.unfinished()
        self.processes = [subprocess.Popen(self.command, stdout=self.log, stderr=self.log, env=dict(os.environ, **more))
                          for more in self.environments()]

    def environments(self):
        """What each process of the run finds in its environment besides."""
        return [{}]

    def is_running(self):
        return bool(self.processes) and all(process.poll() is None for process in self.processes)

    def has_succeeded(self):
        return bool(self.processes) and all(process.poll() == 0 for process in self.processes)

    def wait(self, timeout):
        """Waits until all processes have ended. Throws: subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.wait(timeout=max(0, deadline - time.monotonic()))

    def family(self):
        """The processes of the run, by what they are."""
        found = {"supervisor": [process.pid for process in self.processes]}
        for supervisor in found["supervisor"]:
            for pid in children(supervisor):
                found.setdefault("zygote", []).append(pid)
                found.setdefault("worker", []).extend(children(pid))
        self.members.update(sum(found.values(), []))
        return found

    def unfinished(self):
        """Files and folders that are there only while somebody writes or removes them."""
        found = [path for path in self.path.glob("checkpoints/.*")]
        return found + [path for path in self.path.glob("*.json.*") if path.suffix[1:].isdigit()]

    def check_swept(self):
        """Once there are workers, nothing is left of programs that died before this start."""
        left = [str(path) for path in self.rubbish if path.exists()]
        if left:
            fail(f"the start has left what an earlier one had not finished: {left}", self)
        self.rubbish = []

    def check_gone(self):
        """Of a program that has ended, no process stays for long."""
        deadline = time.monotonic() + LONGEST_END
        while left := [pid for pid in self.members if is_of(pid, self.program)]:
            if time.monotonic() > deadline:
                fail(f"processes are left of a program that has ended: {left}", self)
            time.sleep(0.001)
        self.members.clear()

    def phase(self):
        """What the run is doing, as far as its files tell."""
        ranks = list(ENTRY.iter_unpack(self.phases.read_bytes()[:2 * ENTRY.size]))
        if any(letter == b"e" and pid != 0 for pid, letter in ranks):
            return "tear-down"
        if any(letter not in LETTERS or not is_alive(pid) for pid, letter in ranks):
            return "restart" if self.has_begun else "start"
        self.has_begun = True
        self.check_swept()
        names = os.listdir(self.path / "checkpoints") if (self.path / "checkpoints").exists() else []
        if any(name.startswith(".trash") for name in names):
            return "retention"
        if any(name.startswith(".staging") for name in names):
            return "commit"
        return LETTERS[GLANCES.choice(ranks)[1]]

    def forget(self, killed):
        """Takes note that those processes are dead, even while the system has not yet."""
        with open(self.phases, "r+b") as file:
            for rank in range(2):
                file.seek(rank * ENTRY.size)
                if ENTRY.unpack(file.read(ENTRY.size))[0] in killed:
                    file.seek(rank * ENTRY.size)
                    file.write(bytes(4))

    def verify(self):
        """Opens all checkpoints and verifies the newest, which is never older than it was."""
        result = subprocess.run([self.program, "verify", str(self.path)], capture_output=True, text=True)
        if result.returncode != 0:
            fail(f"a checkpoint is damaged: {result.stdout}{result.stderr}", self)
        step = int(result.stdout.split()[1]) if result.stdout else 0
        if step < self.newest:
            fail(f"the newest checkpoint was of step {self.newest} and is of step {step} now", self)
        self.newest = step

    def check_end(self):
        """A program that has ended was killed: it finds nothing that it could not go on from."""
        for process in self.processes:
            if process.returncode not in (0, -signal.SIGKILL, *self.other_ends):
                fail(f"the program has ended with status {process.returncode}", self)
        self.check_gone()


class LaunchedRun(Run):
    """The same, of two processes with a worker each, as an engine starts them that knows of one host. When one has
    ended it sees to it that the other one ends as well, and starts both again."""

    other_ends = (TEMPFAIL, -signal.SIGTERM)
    patience = 20  # its processes are programs that begin anew

    def check_end(self):
        try:
            self.wait(MOMENT)  # who had met the other one knows that it is lost
        except subprocess.TimeoutExpired:
            for process in self.processes:
                process.send_signal(signal.SIGTERM)
        try:
            self.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            print(stacks_of(self))
            fail(f"a process has gone on for {LONGEST_END} s after it was told to end", self)
        super().check_end()

    def environments(self):
        folder = self.path.parent / f"{self.path.name}.runtime"
        folder.mkdir(mode=0o700, exist_ok=True)
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29433",
                  "XDG_RUNTIME_DIR": str(folder)}
        return [dict(common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid):
    try:
        return pid != 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_of(pid, program):
    """Whether a process that runs this program is alive by that number."""
    try:
        return is_alive(pid) and os.readlink(f"/proc/{pid}/exe") == program
    except OSError:
        return False


def fail(text, run=None):
    print("the last strikes, and when in the run's phases:", *STRIKES[-10:], sep="\n  ")
    if run is not None:
        print("".join(Path(run.log.name).read_text(errors="replace").splitlines(True)[-20:]), end="")
        text += f"; see {run.path}"
    print(f"chaos failed: {text} (seed {SEED})")
    sys.exit(1)


def wait_for_phase(run, wanted, chances):
    """Waits until the run is in that phase, and for a random moment in it; gives up after a while, or when the run is
    over. Returns in which phase it is."""
    # A restart follows upon a strike at once, or not at all.
    deadline = time.monotonic() + (0.02 if wanted == "restart" else run.patience)
    longest = {"start": 0.3, "restart": 0.1}.get(wanted, 0.003)
    pause = chances.choice((0, chances.uniform(0, longest)))
    while time.monotonic() < deadline and run.is_running():
        if run.phase() == wanted:
            time.sleep(pause)
            if run.is_running() and run.phase() == wanted:
                return wanted
        time.sleep(0.0003)
    return run.phase()


def strike(run, chances):
    """Sends a signal to one of the run's processes, or to all; returns what it has struck."""
    family = run.family()
    what = chances.choices(["worker", "zygote", "supervisor", "all", "stop"], [6, 1, 2, 1, 1])[0]
    if not family.get("worker") and what == "worker":
        what = "supervisor"
    if what == "stop":  # any of them, the one that writes checkpoints and the one that makes workers included
        pid = chances.choice(sum(family.values(), []))
        send(pid, signal.SIGSTOP)
        time.sleep(chances.uniform(0, 0.2))
        send(pid, signal.SIGCONT)
        return what
    pids = sum(family.values(), []) if what == "all" else family.get(what, [])
    if what != "all" and pids:
        pids = [chances.choice(pids)]
    for pid in pids:
        send(pid, signal.SIGKILL)
    run.forget(pids)
    return what if pids else None


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Torment:
    """Starts runs and kills them, in the phase that has had least of it, until there were enough kills."""

    def __init__(self, program, storage, kind):
        self.program = program
        self.storage = storage
        self.kind = kind
        self.coverage = collections.Counter()
        self.struck = collections.Counter()
        self.num_runs = 0

    def least(self, phases, chances):
        fewest = min(self.coverage[phase] for phase in phases)
        return chances.choice([phase for phase in phases if self.coverage[phase] == fewest])

    def begin(self):
        self.num_runs += 1
        wanted = self.least(EVERY_PHASE, random.Random(f"{SEED} run {self.num_runs}"))
        epochs = next(epochs for epochs, phases in PHASES.items() if wanted in phases)
        return self.kind(self.program, self.storage, f"run-{self.num_runs}", epochs)

    def hurt(self, run):
        """Has the run go on and strikes it once, unless it is over before."""
        if not run.is_running():
            run.check_end()
            run.start()
        # Each strike has chances of its own: what a seed gives does not depend on how often somebody has looked.
        chances = random.Random(f"{SEED} strike {self.num_kills() + 1}")
        impossible = "start" if run.has_begun else "restart"
        wanted = self.least([phase for phase in run.wanted if phase != impossible], chances)
        phase = wait_for_phase(run, wanted, chances)
        if not run.is_running():
            return
        what = strike(run, chances)
        if what is None:
            return
        self.coverage[phase] += 1
        self.struck[what] += 1
        STRIKES.append(f"{self.num_kills()}: {what} of {run.path.name} in {phase} (wanted: {wanted})")
        run.verify()

    def num_kills(self):
        return sum(self.struck.values())

    def lacking(self, kills):
        """The phases that have not had enough, for a torment of so many kills."""
        return [phase for phase in EVERY_PHASE if kills >= MANY and self.coverage[phase] < ENOUGH]

    def is_enough(self, kills):
        """Whether there were so many kills, and enough in each phase; some phases are short, and missed at times."""
        return self.num_kills() >= (2 * kills if self.lacking(kills) else kills)

    def go_on(self, kills):
        while not self.is_enough(kills):
            run = self.begin()
            while not self.is_enough(kills) and not run.has_succeeded():
                self.hurt(run)
            finish(run)
            compare(run)


def finish(run):
    """Has the run go on to its end, which takes seconds."""
    while not run.has_succeeded():
        if not run.is_running():
            run.check_end()
            run.start()
        try:
            run.wait(LONGEST_RUN)
        except subprocess.TimeoutExpired:
            print(stacks_of(run))
            fail(f"the run that nobody hurts any more has stood still for {LONGEST_RUN} s", run)


def stacks_of(run):
    """What the run's processes are at, as far as a debugger is there to tell."""
    lines = []
    for what, pids in run.family().items():
        for pid in pids:
            lines.append(f"{what} {pid}: {Path(f'/proc/{pid}/wchan').read_text()}")
            if shutil.which("gdb"):
                command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 30"]
                lines.append(subprocess.run(command, capture_output=True, text=True).stdout)
    return "\n".join(lines)


def compare(run):
    """The weights and metrics must be those of the run that nobody has touched, and nothing may be left over."""
    if run.unfinished():
        fail(f"something is left: {run.unfinished()}", run)
    names = sorted(os.listdir(run.path / "checkpoints"))
    if not all(name.startswith("checkpoint-") for name in names):
        fail(f"something is left: {names}", run)
    last = sorted(os.listdir(run.whole / "checkpoints"))[-1]
    for file in ("net.safetensors", "optimizer.rank-0.safetensors", "optimizer.rank-1.safetensors"):
        if (run.path / "checkpoints" / names[-1] / file).read_bytes() != (run.whole / "checkpoints" / last / file).read_bytes():
            fail(f"{file} differs from that of the run that nobody has touched", run)
    if metrics_of(run.path) != metrics_of(run.whole):
        fail("the metrics differ from those of the run that nobody has touched", run)


def metrics_of(path):
    """The lines of a run's metrics without the seconds, which differ. Each epoch has used each sample once."""
    lines = [line.split(", ", 2) for line in (path / "metrics.jsonl").read_text().splitlines()]
    if not lines or not all('"each_sample_once": true' in line[2] for line in lines):
        fail(f"an epoch of {path} has left a sample out, or used it twice")
    return [[line[0], line[2]] for line in lines]


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
    for epochs in PHASES:
        whole = Run(program, storage, f"whole-{epochs}", epochs)
        whole.start()
        whole.wait(LONGEST_RUN)
        if not whole.has_succeeded():
            fail("the run that nobody touches has failed", whole)
    torment = Torment(program, storage, LaunchedRun if sys.argv[5:] == ["launched"] else Run)
    torment.go_on(kills)
    print("phases: " + ", ".join(f"{phase} {torment.coverage[phase]}" for phase in EVERY_PHASE))
    print("struck: " + ", ".join(f"{what} {count}" for what, count in sorted(torment.struck.items())))
    if torment.lacking(kills):
        fail(f"fewer than {ENOUGH} kills in {', '.join(torment.lacking(kills))}")
    deadline = time.monotonic() + 10
    while left_over(program) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left_over(program):
        fail(f"processes are left: {left_over(program)}")
    print(f"chaos {torment.num_kills()} kills, 0 lost, 0 left, weights equal")


SEED = int(sys.argv[4])
GLANCES = random.Random(SEED)  # which of the ranks is looked at
STRIKES = []
main()
