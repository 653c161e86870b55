#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is a slow network that loses packets, between two networks of this kernel, until it is told to end:
slow_network.py NETWORK ADDRESS OTHER_NETWORK OTHER_ADDRESS DELAY_MS LOSS

Each of the networks gets a device "slow0" with that address. What is sent to one comes out of the other so many
milliseconds later; of any 1 / LOSS packets about one is lost, always the same ones. Says "ready", and in the end how many
packets it has passed on and how many it has lost."""
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1400


def enter(path):
    """Makes the network that the file stands for that of this thread."""
    with open(path, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"entering {path}")


def make_device(network, own, other):
    """Returns the descriptor by which packets go to the device's other end. Whoever reads from it gets whole packets."""
    enter(f"/run/netns/{network}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"slow0", IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "address", "add", own, "peer", other, "dev", "slow0"], check=True)
    subprocess.run(["ip", "link", "set", "slow0", "mtu", str(MTU), "up"], check=True)
    return device


def main():
    network, own, other_network, other, delay_ms, loss = sys.argv[1:]
    is_over = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    ends = [make_device(network, own, other), make_device(other_network, other, own)]
    across = {ends[0]: ends[1], ends[1]: ends[0]}
    chance = random.Random(1)
    under_way, num_passed, num_lost = [], 0, 0
    print("ready", flush=True)
    while not is_over:
        wait = max(under_way[0][0] - time.monotonic(), 0) if under_way else 0.1
        for end in select.select(ends, [], [], wait)[0]:
            packet = os.read(end, 1 << 16)
            if chance.random() < float(loss):
                num_lost += 1
                continue
            num_passed += 1
            heapq.heappush(under_way, (time.monotonic() + float(delay_ms) / 1000, num_passed, across[end], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(under_way)
            try:
                os.write(end, packet)
            except OSError:  # the device has no room: one more is lost
                num_lost += 1
    print(num_passed, num_lost)


main()
