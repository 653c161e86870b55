# SPDX-License-Identifier: MIT
# The contestant for checkpoints: async_save() of PyTorch's distributed checkpoint, the model with Adam of ../durable.cpp
# in two ranks over Gloo, one thread each. Runs under torchrun; rank 0 writes `stall_ms stall_reused_ms durable_ms` to
# the file that is the argument. Stall: how long async_save() holds a rank up, as it is by default and with one stager
# for all saves, which keeps its memory. Durable: until its future is done too; the writer syncs its files.
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

WIDTHS = (1024, 4096, 3072, 512, 10)
NUM_SAVES = 8


def make_net():
    layers = []
    for width, following in zip(WIDTHS, WIDTHS[1:]):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def save(model, optimizer, stager, group):
    """Returns for how long the save has held this rank up, and after how long it was done."""
    weights, moments = get_state_dict(model, optimizer)
    dist.barrier()
    begin = time.perf_counter()
    future = dcp.async_save(
        {"net": weights, "adam": moments},
        storage_writer=dcp.FileSystemWriter("dcp", sync_files=True),
        async_stager=stager,
        process_group=group,
    )
    stall = time.perf_counter() - begin
    future.result()
    durable = time.perf_counter() - begin
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree("dcp")
    dist.barrier()
    return stall * 1e3, durable * 1e3


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = dist.new_group()  # the saves' own: they talk from another thread
    model = DistributedDataParallel(make_net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(64, WIDTHS[0])
    target = torch.randint(WIDTHS[-1], (64,))
    results = []
    for stager in (None, DefaultStager(StagingOptions(False, False, False, False))):
        taken = []
        for _ in range(NUM_SAVES + 1):
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data), target).backward()
                optimizer.step()
            taken.append(save(model, optimizer, stager, group))
        results.append([statistics.median(column) for column in zip(*taken[1:])])  # the first save makes the memory
    if dist.get_rank() == 0:
        (stall, durable), (stall_reused, durable_reused) = results
        with open(sys.argv[1], "w") as file:
            print(stall, stall_reused, min(durable, durable_reused), file=file)
    dist.destroy_process_group()


main()
