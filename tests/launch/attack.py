#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Attacks a run until it is told to end: attack.py ADDRESS PORT RATE

Connects so many times a second to the port, and to whatever else listens in this network, and does what those do who do
not know the run's secret. Prints how many connections there were.
"""
import os
import select
import signal
import socket
import struct
import sys
import time

AT_LENGTH, BY_TLS, BETWEEN_RANKS, RANKS_BY_TLS = b"RAILYRD1", b"RAILYRE1", b"RAILYRP1", b"RAILYRQ1"
TLS_HELLO = bytes.fromhex("160301006b010000670303") + bytes(32) + bytes.fromhex("000002130101000034") + bytes(52)


def listening_ports():
    """Returns the ports at which anybody listens here."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for fields in (line.split() for line in lines):
                if fields[3] == "0A":
                    ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def attack(address, port, number, kept):
    """Connects once, and leaves what is to stay open in kept."""
    end = socket.socket()
    end.settimeout(1)
    end.connect((address, port))
    kind = number % 10
    if kind == 0:  # a scan
        end.close()
        return
    if kind == 1:  # a scan that leaves with a reset
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
        return
    if kind == 2:
        end.sendall(os.urandom(4096))
    if kind == 3:
        end.sendall(b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n")
    if kind == 4:
        end.sendall(TLS_HELLO)
    if kind in (5, 6):  # the first words of the protocol, and then what makes no sense
        end.sendall((AT_LENGTH if kind == 5 else BY_TLS) + os.urandom(32))
        if select.select([end], [], [], 0.2)[0]:
            end.sendall(struct.pack("I", 100) + os.urandom(1000) if kind == 5 else TLS_HELLO)
    if kind in (7, 8):
        end.sendall((BETWEEN_RANKS if kind == 7 else RANKS_BY_TLS) + os.urandom(40))
        if select.select([end], [], [], 0.2)[0]:
            end.sendall(os.urandom(32) + TLS_HELLO)
    end.setblocking(False)
    kept.append(end)  # and the tenth says nothing at all


def trickle(kept):
    """Sends a byte more on a few of the connections that are open, and gives up the oldest of too many."""
    for end in kept[-20:]:
        try:
            end.send(b"R")
        except OSError:
            pass
    while len(kept) > 400:
        kept.pop(0).close()


def main():
    address, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    is_over = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    count, kept, number = 0, [], 0
    begin = time.monotonic()
    while not is_over:
        time.sleep(max(begin + number / rate - time.monotonic(), 0))
        number += 1
        for one in {port} if number % 2 else listening_ports() | {port}:
            try:
                attack(address, one, number // 2, kept)
                count += 1
            except OSError:  # nobody listens yet, or nobody any more
                pass
        trickle(kept)
    print(count)


main()
