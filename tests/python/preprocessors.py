#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Our preprocessors give what scikit-learn's give: preprocessors.py PROGRAM FOLDER

PROGRAM is what tests/python/preprocessors.cpp becomes, FOLDER a place for packages and files. scikit-learn is installed
into FOLDER where it is not there already."""
import subprocess
import sys
import warnings
from pathlib import Path

from packages import provide


def tables(numpy):
    """Tables of numbers by name; NaN is missing."""
    random = numpy.random.default_rng(6)
    normal = random.normal(3, 2, (5000, 4))
    heavy = numpy.exp(random.normal(0, 3, (777, 3))) * random.choice([-1, 1], (777, 3))
    rounded = numpy.round(random.normal(0, 2, (2000, 5)), 1)
    offset = random.normal(1e8, 1, (1000, 2))
    constant = numpy.column_stack([numpy.full(300, 0.1), numpy.full(300, -7.0), random.uniform(size=300)])
    for table in (normal, heavy, rounded):
        table[random.uniform(size=table.shape) < 0.2] = numpy.nan
    return {"normal": normal, "heavy": heavy, "rounded": rounded, "offset": offset, "constant": constant,
            "one sample": numpy.array([[3.0, -4.0]]), "two samples": numpy.array([[1.0, 5.0], [2.0, numpy.nan]])}


def expected(numpy, table, texts, integers):
    """What scikit-learn gives for each preprocessor of the program."""
    from sklearn import impute, preprocessing
    mean = impute.SimpleImputer().fit_transform(table)
    results = {
        "standard": preprocessing.StandardScaler().fit_transform(table),
        "min_max": preprocessing.MinMaxScaler((-1, 2)).fit_transform(table),
        "max_abs": preprocessing.MaxAbsScaler().fit_transform(table),
        "robust": preprocessing.RobustScaler(quantile_range=(10, 85)).fit_transform(table),
        "mean": mean,
        "median": impute.SimpleImputer(strategy="median").fit_transform(table),
        "most_frequent": impute.SimpleImputer(strategy="most_frequent").fit_transform(table),
    }
    for norm in ("l1", "l2", "max"):
        results[norm] = preprocessing.normalize(mean, norm)
    for name, values in (("texts", numpy.array(texts, dtype=object)), ("integers", integers)):
        column = values.reshape(-1, 1)
        results["one_hot_" + name] = preprocessing.OneHotEncoder().fit_transform(column).toarray()
        results["ordinal_" + name] = preprocessing.OrdinalEncoder().fit_transform(column)
        results["label_" + name] = preprocessing.LabelEncoder().fit_transform(values)
    return results


def compare(numpy, program, folder, name, table):
    random = numpy.random.default_rng(len(table))
    texts = list(random.choice(["oslo", "bern", "évry", "Zürich", "a b", "東京", "😀", "z"], len(table)))
    integers = random.choice(numpy.array([-5, 0, 7, 2**53 + 1, 2**53 + 3, 2**62]), len(table))
    table.tofile(folder / "numbers.f64")
    integers.tofile(folder / "integers.i64")
    (folder / "texts.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    results = expected(numpy, table, texts, integers)
    # scikit-learn's own formulas lose digits where numbers are large and close together.
    spread = 1 + numpy.nanmax(numpy.abs(numpy.nanmean(table, 0)) / numpy.maximum(numpy.nanstd(table, 0), 1))
    tolerance = 1e-12 * spread
    worst = 0.0
    for workers in (1, 3):
        subprocess.run([program, folder, str(table.shape[1]), str(workers)], check=True)
        for what, wanted in results.items():
            ours = numpy.fromfile(folder / (what + ".f64")).reshape(wanted.shape)
            assert (numpy.isnan(ours) == numpy.isnan(wanted)).all(), f"{name}, {workers} workers, {what}: NaN differ"
            error = numpy.nan_to_num(numpy.abs(ours - wanted) / numpy.maximum(1, numpy.abs(wanted))).max()
            assert error <= tolerance, f"{name}, {workers} workers, {what}: differs by {error}, allowed: {tolerance}"
            worst = max(worst, error)
    print(f"{name}: {len(results)} preprocessors differ by at most {worst:.1e} (allowed: {tolerance:.1e})")


def main():
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    provide(folder / "packages", ["scikit-learn"], ["sklearn"])
    import sklearn
    import numpy
    warnings.simplefilter("ignore")
    print(f"scikit-learn {sklearn.__version__}")
    for name, table in tables(numpy).items():
        compare(numpy, program, folder, name, table)


if __name__ == "__main__":
    main()
