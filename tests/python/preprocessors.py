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


def real_tables():
    """Data sets that come with scikit-learn, as they were measured."""
    from sklearn import datasets
    return {"breast cancer": datasets.load_breast_cancer().data, "wine": datasets.load_wine().data,
            "iris": datasets.load_iris().data, "digits": datasets.load_digits().data,
            "diabetes": datasets.load_diabetes(scaled=False).data, "linnerud": datasets.load_linnerud().data}


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
    return {**real_tables(), "normal": normal, "heavy": heavy, "rounded": rounded, "offset": offset, "constant": constant,
            "one sample": numpy.array([[3.0, -4.0]]), "two samples": numpy.array([[1.0, 5.0], [2.0, numpy.nan]])}


def categories(numpy, random, count, are_new):
    """Texts and integers; among new ones are some that the others never are."""
    texts = ["oslo", "bern", "évry", "Zürich", "a b", "東京", "😀", "z"] + ["aaa", "Oslo", "😃"] * are_new
    integers = [-5, 0, 7, 2**53 + 1, 2**53 + 3, 2**62] + [-6, 2**53 + 2, 2**62 + 1] * are_new
    return list(random.choice(texts, count)), random.choice(numpy.array(integers), count)


def write(folder, prefix, table, texts, integers):
    table.tofile(folder / (prefix + "numbers.f64"))
    integers.tofile(folder / (prefix + "integers.i64"))
    (folder / (prefix + "texts.txt")).write_text("".join(text + "\n" for text in texts), encoding="utf-8")


def expected(numpy, samples, fresh):
    """What scikit-learn gives for each preprocessor of the program: of the samples that it learns from, or of fresh
    ones."""
    from sklearn import impute, pipeline, preprocessing
    table, texts, integers = samples
    # Of f32, too, it is to compute in f64: in f32 its sums lose the digits that are compared.
    floats = table.astype(numpy.float32).astype(float)
    mean = impute.SimpleImputer().fit_transform(table)
    results = {
        "standard": preprocessing.StandardScaler().fit_transform(table),
        "centered": preprocessing.StandardScaler(with_std=False).fit_transform(table),
        "scaled": preprocessing.StandardScaler(with_mean=False).fit_transform(table),
        "standard_f32": preprocessing.StandardScaler().fit_transform(floats),
        "standard_fresh": preprocessing.StandardScaler().fit(table).transform(fresh[0]),
        "min_max": preprocessing.MinMaxScaler((-1, 2)).fit_transform(table),
        "min_max_f32": preprocessing.MinMaxScaler((-1, 2)).fit_transform(floats),
        "clipped": preprocessing.MinMaxScaler((-1, 2), clip=True).fit(table).transform(fresh[0]),
        "max_abs": preprocessing.MaxAbsScaler().fit_transform(table),
        "robust": preprocessing.RobustScaler(quantile_range=(10, 85)).fit_transform(table),
        "mean": mean,
        "mean_f32": impute.SimpleImputer().fit_transform(floats),
        "median": impute.SimpleImputer(strategy="median").fit_transform(table),
        "most_frequent": impute.SimpleImputer(strategy="most_frequent").fit_transform(table),
        "constant": impute.SimpleImputer(strategy="constant", fill_value=-1.5).fit_transform(table),
    }
    for norm in ("l1", "l2", "max"):
        results[norm] = preprocessing.normalize(mean, norm)
    for name, values, new in (("texts", numpy.array(texts, dtype=object), numpy.array(fresh[1], dtype=object)),
                              ("integers", integers, fresh[2])):
        column, new = values.reshape(-1, 1), new.reshape(-1, 1)
        results["one_hot_" + name] = preprocessing.OneHotEncoder().fit_transform(column).toarray()
        results["ordinal_" + name] = preprocessing.OrdinalEncoder().fit_transform(column)
        results["label_" + name] = preprocessing.LabelEncoder().fit_transform(values)
        results["one_hot_unseen_" + name] = \
            preprocessing.OneHotEncoder(handle_unknown="ignore").fit(column).transform(new).toarray()
        results["ordinal_unseen_" + name] = preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-7).fit(column).transform(new)
    chain = pipeline.make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler(),
                                   preprocessing.MinMaxScaler()).fit(table)
    results["chain"], results["chain_fresh"] = chain.transform(table), chain.transform(fresh[0])
    results["joined"] = numpy.hstack([results["one_hot_texts"], preprocessing.StandardScaler().fit_transform(mean),
                                      results["ordinal_integers"]])
    return results


def compare(numpy, program, folder, name, table):
    random = numpy.random.default_rng(len(table))
    samples = (table, *categories(numpy, random, len(table), are_new=False))
    fresh = (numpy.concatenate([2 * table, numpy.flipud(table)]), *categories(numpy, random, 2 * len(table), are_new=True))
    write(folder, "", *samples)
    write(folder, "new_", *fresh)
    table.astype(numpy.float32).tofile(folder / "floats.f32")
    results = expected(numpy, samples, fresh)
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
            allowed = 2.0**-24 + tolerance if what.endswith("_f32") else tolerance
            assert error <= allowed, f"{name}, {workers} workers, {what}: differs by {error}, allowed: {allowed}"
            if not what.endswith("_f32"):
                worst = max(worst, error)
    print(f"{name}: {len(results)} preprocessors differ by at most {worst:.1e} (allowed: {tolerance:.1e}), those of f32 "
          "by the rounding of f32")


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
