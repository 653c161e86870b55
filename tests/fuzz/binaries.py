#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes small files of every binary format, as inputs to begin with: binaries.py FOLDER PICTURES"""
import base64
import gzip
import io
import json
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path


def npy(descr, shape, data, fortran=False):
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def npz(method):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("x.npy", npy("<f4", (2, 3), bytes(24)))
        archive.writestr("y.npy", npy("|u1", (2,), b"\x01\x02"))
    return file.getvalue()


def tensors():
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                         "y": {"dtype": "BOOL", "shape": [2], "data_offsets": [8, 10]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(10)


def tar(form):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in (("n" * 120 + "/0.jpg", b"jpeg"), ("n" * 120 + "/0.cls", b"7"), ("1.cls", b"8")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue().rstrip(b"\0") + bytes(512)


def window(content):
    packed = zlib.compress(content)
    return len(content).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed


def cache():
    """Two samples of two bytes and a text, each made of one by flat_map(), as SampleFile has them."""
    def numbers(*values):
        return b"".join(value.to_bytes(8, "little") for value in values)

    data = b"abcdhello"
    index = numbers(1) + b"w" + numbers(0, 0, 1) + numbers(2, 2, 0, 4, 2, 0, 2, 2, 5, 2, 6, 7, 2, 8, 9)
    return bytes([len(data)]) + data + index


def with_size(point):
    return point + bytes([len(point)])


def png(color, channels, interlaced):
    def chunk(name, data):
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = (5).to_bytes(4, "big") + (4).to_bytes(4, "big") + bytes([8, color, 0, 0, interlaced])
    pixels = zlib.compress(bytes(200 * channels))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", bytes(6)) * (color == 3) + chunk(b"IDAT", pixels) + \
        chunk(b"IEND", b"")


# 16 x 16 grey pixels.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////"
    "////wAALCAAQABABAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EACEQAAECBgIDAAAAAAAAAAAAAAEAYREhMXGBkUHRobHw/9oACAEBAAA/AEoM0hk/"
    "BOG0OzbSX81wKD0k4vs9C2l//9k=")

PICTURES = [png(0, 1, 0), png(2, 3, 1), png(3, 1, 0), png(4, 2, 0), png(6, 4, 0), JPEG]
FILES = [
    (0, npy("<f4", (2, 3), bytes(24))), (0, npy(">i2", (2, 2, 2), bytes(range(16)), True)),
    (1, bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])), (1, bytes([0, 0, 11, 1, 0, 0, 0, 1, 1, 2])),
    (2, npz(zipfile.ZIP_STORED)), (2, npz(zipfile.ZIP_DEFLATED)), (3, tensors()), (4, bytes([3, 50]) + bytes(3072)),
    (6, gzip.compress(b"n\n1\n" * 50, mtime=0) + with_size(bytes([1, 250]))),
    (6, gzip.compress(b"n\n1\n" * 50, mtime=0) + with_size(bytes([0, 3]) + bytes(8) + window(b"n\n1\n" * 9) + bytes([99]))),
    (8, cache()), (7, b"1 0 18446744073709551615"), (7, b"3 7:AAAAAAAAAAAA 1"),
    (5, tar(tarfile.USTAR_FORMAT)), (5, tar(tarfile.GNU_FORMAT)), (5, tar(tarfile.PAX_FORMAT)),
]
for number, (kind, content) in enumerate(FILES):
    (Path(sys.argv[1]) / str(number)).write_bytes(bytes([kind]) + content)
for number, content in enumerate(PICTURES):
    (Path(sys.argv[2]) / str(number)).write_bytes(bytes([number]) + content)
