# SPDX-License-Identifier: MIT
# The contestant that users of LibTorch have today: DistributedDataParallel over NCCL, the networks of nets.hpp. Runs in
# the folder of the benchmark, which sends a line `case warm_up steps` for each turn (ddp.rank0) and reads
# `microseconds loss` (ddp.results).
import contextlib
import gc
import os
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

LEARNING_RATE = 0.01


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def draw_batch(self):
        data = torch.randn(64, 64)
        return data, torch.randint(0, 10, (64,))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        layers = []
        for a, b, kernel, step in (
            (channels, width, 1, 1),
            (width, width, 3, stride),
            (width, 4 * width, 1, 1),
        ):
            layers += [nn.ReLU()] if layers else []
            layers += [nn.Conv2d(a, b, kernel, stride=step, padding=kernel // 2, bias=False), nn.BatchNorm2d(b)]
        self.body = nn.Sequential(*layers)
        self.shortcut = None
        if stride != 1 or channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return torch.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


class Cnn(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        layers += [nn.MaxPool2d(3, stride=2, padding=1)]
        channels = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers += [Bottleneck(channels, 64 << stage, 2 if stage > 0 and block == 0 else 1)]
                channels = 4 * (64 << stage)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))

    def draw_batch(self):
        data = torch.randn(64, 3, 224, 224)
        return data, torch.randint(0, 1000, (64,))


class Gpt(nn.Module):
    BATCH, TOKENS, WIDTH, HEADS, LAYERS, KINDS = 8, 512, 768, 12, 12, 50304

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

    def draw_batch(self):
        data = torch.randint(0, self.KINDS, (self.BATCH, self.TOKENS))
        return data, torch.randint(0, self.KINDS, (self.BATCH, self.TOKENS))

    def forward(self, data):
        shape = (self.BATCH, self.TOKENS, self.HEADS, self.WIDTH // self.HEADS)
        x = self.embedding(data) + self.position
        for layer in self.layers:
            q, k, v = (part.view(shape).transpose(1, 2) for part in layer["qkv"](layer["norm_a"](x)).chunk(3, -1))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](mixed.transpose(1, 2).reshape(self.BATCH, self.TOKENS, self.WIDTH))
            x = x + layer["down"](gelu(layer["up"](layer["norm_b"](x))))
        return self.head(x).view(-1, self.KINDS)


# Whether it computes in bf16.
CASES = {"mlp": (Mlp, False), "cnn": (Cnn, False), "gpt": (Gpt, True)}


def take_turn(case, warm_up, steps):
    make, in_bf16 = CASES[case]
    torch.manual_seed(1)
    net = make()
    torch.manual_seed(100)
    data, target = (tensor.cuda() for tensor in net.draw_batch())
    model = DistributedDataParallel(net.cuda(), device_ids=[0], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if in_bf16 else contextlib.nullcontext():
            loss = cross_entropy(model(data), target.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        loss = step()
    loss = loss.item()  # waits for the device
    return (time.perf_counter() - begin) * 1e6 / steps, loss


def main():
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    rank = os.environ["RANK"]
    with open(f"ddp.rank{rank}") as commands, open("ddp.results", "w") as results:
        for line in commands:
            case, warm_up, steps = line.split()
            us, loss = take_turn(case, int(warm_up), int(steps))
            gc.collect()
            torch.cuda.empty_cache()  # the others use the same device
            print(us, loss, file=results, flush=True)
    torch.distributed.destroy_process_group()


main()
