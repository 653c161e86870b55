# SPDX-License-Identifier: MIT
# The contestant for restarts: Ray Train with the model, the optimizer and the two workers of ../durable.cpp, and a
# checkpoint as often. A worker is killed at random moments; the median of the milliseconds until progress passes the
# step at which it was, without the lost steps' own time, goes to the file that is the argument.
import itertools
import mmap
import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

WIDTHS = (1024, 4096, 3072, 512, 10)
EVERY_STEPS = 4
NUM_KILLS = 3


class Notes:
    """What workers tell the program that started them: numbers by name, in a mapped file."""

    NAMES = ("pid0", "pid1", "steps", "resumed", "attempt", "is_enough", "step_us")

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8 * len(self.NAMES))

    def __getitem__(self, name):
        return struct.unpack_from("q", self.memory, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.memory, 8 * self.NAMES.index(name), value)


def make_net():
    layers = []
    for width, following in zip(WIDTHS, WIDTHS[1:]):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def save(net, optimizer, step):
    """Reports the step, with a checkpoint of it from rank 0."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{folder}/state.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def train(config):
    torch.set_num_threads(1)
    notes = Notes(config["notes"])
    rank = ray.train.get_context().get_world_rank()
    notes[f"pid{rank}"] = os.getpid()
    net = ray.train.torch.prepare_model(make_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    done = 0
    if ray.train.get_checkpoint():
        with ray.train.get_checkpoint().as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    if rank == 0:
        notes["resumed"] = done
        notes["steps"] = done
        notes["attempt"] += 1
    data = torch.randn(64, WIDTHS[0])
    target = torch.randint(WIDTHS[-1], (64,))
    times = []
    for step in itertools.count(done + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data), target).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        if rank == 0:
            notes["steps"] = step
            notes["step_us"] = int(statistics.median(times) * 1e6)
        if step % EVERY_STEPS == 0:
            is_enough = torch.tensor(notes["is_enough"])
            torch.distributed.all_reduce(is_enough, torch.distributed.ReduceOp.MAX)
            save(net, optimizer, step)
            if is_enough:
                return


def kill_often(notes, recovered):
    for _ in range(NUM_KILLS):
        begin = notes["steps"]
        while notes["steps"] < begin + 12:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 4) * notes["step_us"] / 1e6)
        attempt, killed_at, step_ms = notes["attempt"], notes["steps"], notes["step_us"] / 1e3
        killed = time.perf_counter()
        os.kill(notes[f"pid{random.randrange(2)}"], signal.SIGKILL)
        while notes["attempt"] == attempt or notes["steps"] <= killed_at:
            time.sleep(0.0002)
        waited_ms = (time.perf_counter() - killed) * 1e3
        recovered.append(waited_ms - (killed_at + 1 - notes["resumed"]) * step_ms)
        print(f"Ray Train has recovered in {recovered[-1]:.0f} ms", file=sys.stderr)
    notes["is_enough"] = 1


def main():
    random.seed(1)
    path = os.path.abspath("ray_notes")
    with open(path, "wb") as file:
        file.truncate(8 * len(Notes.NAMES))
    notes = Notes(path)
    recovered = []
    killer = threading.Thread(target=kill_often, args=(notes, recovered), daemon=True)
    killer.start()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"notes": path},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=os.path.abspath("ray_runs"),
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    killer.join()
    with open(sys.argv[1], "w") as file:
        print(statistics.median(recovered), file=file)


main()
