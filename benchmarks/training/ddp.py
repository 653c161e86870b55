# SPDX-License-Identifier: MIT
# The contestant that users of LibTorch have today: DistributedDataParallel over Gloo, one thread per rank, the same
# models as ../training.cpp. Runs in the folder of the benchmark, which sends a line `case warm_up steps` to each rank
# for each turn (ddp.rank0, ddp.rank1, ...) and reads `microseconds loss` of rank 0 (ddp.results).
import gc
import os
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel

LEARNING_RATE = 0.05


class Mlp(nn.Module):
    def __init__(self, widths, batch):
        super().__init__()
        self.widths, self.batch = widths, batch
        layers = []
        for width, following in zip(widths, widths[1:]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def draw_batch(self):
        self.data = torch.randn(self.batch, self.widths[0])
        self.target = torch.randint(0, self.widths[-1], (self.batch,))

    def forward(self):
        return cross_entropy(self.net(self.data), self.target)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        def convolution(channels):
            return nn.Conv2d(channels, 16, 3, padding=1, bias=False)

        def block():
            return nn.Sequential(convolution(16), nn.BatchNorm2d(16), nn.ReLU(), convolution(16), nn.BatchNorm2d(16))

        self.stem = convolution(3)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(16, 10)

    def draw_batch(self):
        self.data = torch.randn(8, 3, 32, 32)
        self.target = torch.randint(0, 10, (8,))

    def forward(self):
        x = self.stem(self.data)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return cross_entropy(self.head(x.mean((2, 3))), self.target)


class Gpt(nn.Module):
    WIDTH, TOKENS, HEADS, KINDS, LAYERS, BATCH = 128, 128, 4, 65, 4, 4

    def __init__(self):
        super().__init__()
        width = self.WIDTH
        self.embedding = nn.Embedding(self.KINDS, width)
        self.position = nn.Parameter(0.02 * torch.randn(self.TOKENS, width))
        self.layers = nn.ModuleList()
        for _ in range(self.LAYERS):
            self.layers.append(
                nn.ModuleDict(
                    dict(
                        norm_a=nn.LayerNorm(width),
                        norm_b=nn.LayerNorm(width),
                        qkv=nn.Linear(width, 3 * width),
                        out=nn.Linear(width, width),
                        up=nn.Linear(width, 4 * width),
                        down=nn.Linear(4 * width, width),
                    )
                )
            )
        self.head = nn.Linear(width, self.KINDS)
        self.mask = torch.full((self.TOKENS, self.TOKENS), -1e9).triu(1)

    def draw_batch(self):
        self.data = torch.randint(0, self.KINDS, (self.BATCH, self.TOKENS))
        self.target = torch.randint(0, self.KINDS, (self.BATCH * self.TOKENS,))

    def forward(self):
        shape = (self.BATCH, self.TOKENS, self.HEADS, self.WIDTH // self.HEADS)
        x = self.embedding(self.data) + self.position
        for layer in self.layers:
            q, k, v = (part.view(shape).transpose(1, 2) for part in layer["qkv"](layer["norm_a"](x)).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-2, -1) * shape[-1] ** -0.5 + self.mask, -1)
            mixed = (weights @ v).transpose(1, 2).reshape(self.BATCH, self.TOKENS, self.WIDTH)
            x = x + layer["out"](mixed)
            x = x + layer["down"](gelu(layer["up"](layer["norm_b"](x))))
        return cross_entropy(self.head(x).view(-1, self.KINDS), self.target)


CASES = {
    "mlp_26k": lambda: Mlp((64, 128, 128, 10), 32),
    "mlp_932k": lambda: Mlp((784, 512, 512, 512, 10), 64),
    "mlp_19m": lambda: Mlp((1024, 4096, 3072, 512, 10), 64),
    "cnn": Cnn,
    "gpt": Gpt,
}


def take_turn(rank, case, warm_up, steps):
    torch.manual_seed(1)
    net = CASES[case]()
    torch.manual_seed(100 + rank)
    net.draw_batch()
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)

    def step():
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(warm_up):
        step()
    torch.distributed.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        loss = step()
    loss = loss.item()
    us = torch.tensor((time.perf_counter() - begin) * 1e6 / steps, dtype=torch.float64)
    torch.distributed.all_reduce(us, torch.distributed.ReduceOp.MAX)
    return us.item(), loss


def main():
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    with open(f"ddp.rank{rank}") as commands, open("ddp.results", "w") as results:
        for line in commands:
            case, warm_up, steps = line.split()
            us, loss = take_turn(rank, case, int(warm_up), int(steps))
            gc.collect()
            if rank == 0:
                print(us, loss, file=results, flush=True)
    torch.distributed.destroy_process_group()


main()
