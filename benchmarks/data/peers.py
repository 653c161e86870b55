# SPDX-License-Identifier: MIT
# What Python's libraries do with the same data: peers.py WHAT [ARGUMENT]. Prints what it has measured, in seconds.
#   pandas FILE, pyarrow FILE   parse a CSV file, on one core, where memory is warm: once before what is measured
#   dataloader N                an epoch of N small pictures in batches of 64, by two workers of PyTorch's DataLoader
#   photographs FOLDER          makes 1000 pictures in two folders of it
#   jpeg FOLDER                 an epoch of them, cut to 224 x 224, in batches of 64, by two workers of DataLoader
#   ray FILE                    an epoch of a CSV file in batches of 256, by Ray Data's iter_torch_batches
import os
import sys
import time


def stay_on_one_core():
    """Before a library counts the cores that there are for its threads."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def second_seconds(read):
    """How long it takes the second time. What was read stands in memory while that is measured."""
    read()
    begin = time.perf_counter()
    table = read()
    seconds = time.perf_counter() - begin
    del table
    return seconds


def pandas_seconds(path):
    stay_on_one_core()
    import pandas

    return second_seconds(lambda: pandas.read_csv(path, engine="c"))


def pyarrow_seconds(path):
    stay_on_one_core()
    import pyarrow
    import pyarrow.csv

    pyarrow.set_cpu_count(1)
    options = pyarrow.csv.ReadOptions(use_threads=False)
    return second_seconds(lambda: pyarrow.csv.read_csv(path, read_options=options))


def epoch_seconds(dataset):
    """An epoch in batches of 64, by two workers of PyTorch's DataLoader."""
    import torch

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in loader:  # the workers exist from now on
        pass
    begin = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begin


def dataloader_seconds(count):
    import torch

    class Pictures(torch.utils.data.Dataset):
        def __init__(self):
            self.pixels = torch.randint(0, 256, (int(count), 28, 28), dtype=torch.uint8)

        def __len__(self):
            return len(self.pixels)

        def __getitem__(self, index):
            return self.pixels[index].float() / 255, index % 10

    return epoch_seconds(Pictures())


def photographs(folder):
    """Smooth shapes with some noise, as large on disk as photographs of that size are."""
    import numpy
    from PIL import Image

    begin = time.perf_counter()
    random = numpy.random.default_rng(1)
    for number in range(1000):
        path = os.path.join(folder, f"class-{number % 2}")
        os.makedirs(path, exist_ok=True)
        shapes = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=numpy.uint8)).resize((500, 375), Image.BICUBIC)
        pixels = numpy.asarray(shapes, dtype=numpy.int16) + random.integers(-12, 13, (375, 500, 3), dtype=numpy.int16)
        picture = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
        picture.save(os.path.join(path, f"{number:04}.jpg"), quality=85)
    return time.perf_counter() - begin


def jpeg_seconds(folder):
    import numpy
    import torch
    from PIL import Image

    paths = sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)

    class Photographs(torch.utils.data.Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, index):
            with Image.open(paths[index]) as file:
                picture = file.convert("RGB")
            scale = 224 / min(picture.size)
            width, height = (max(224, round(side * scale)) for side in picture.size)
            picture = picture.resize((width, height), Image.BILINEAR)
            left, top = (width - 224) // 2, (height - 224) // 2
            picture = picture.crop((left, top, left + 224, top + 224))
            return torch.from_numpy(numpy.array(picture)), index % 2

    return epoch_seconds(Photographs())


def ray_seconds(path):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_csv(path).select_columns(["age", "balance", "share", "noise"])
    begin = time.perf_counter()
    for _ in data.iter_torch_batches(batch_size=256):
        pass
    return time.perf_counter() - begin


measures = {
    "pandas": pandas_seconds,
    "pyarrow": pyarrow_seconds,
    "dataloader": dataloader_seconds,
    "photographs": photographs,
    "jpeg": jpeg_seconds,
    "ray": ray_seconds,
}
print(measures[sys.argv[1]](*sys.argv[2:]))
