#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes all that goes through a device of this network to a file, until it is told to end: overhear.py DEVICE FILE"""
import signal
import socket
import sys

ALL_PROTOCOLS = 3
SO_RCVBUFFORCE = 33  # of Linux


def main():
    is_over = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    ear.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    ear.bind((sys.argv[1], 0))
    ear.settimeout(0.1)
    with open(sys.argv[2], "wb") as file:
        print("listens", flush=True)
        while not is_over:
            try:
                file.write(ear.recv(1 << 17))
            except TimeoutError:
                pass


main()
