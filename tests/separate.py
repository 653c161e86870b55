#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks tools/separate.py on a small header that has whatever a header can have: tests/separate.py COMPILER FOLDER."""
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from separate import separate  # noqa: E402

LONG = 'std::string note = "a body that is too long to stay where it is seen: {, ) and ;"; calls += static_cast<int>(note.size() > 1);'

HEADER = f"""#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>
namespace toy::inline v1 {{
inline int calls = 0;
inline int moved_forward(int value = 1, std::vector<int> more = {{}});
class Base {{
 public:
  virtual ~Base() = default;
  [[nodiscard]] virtual int moved_virtual(int add) const = 0;
}};
class Shape final : public Base {{
 public:
  using Sizes = std::map<std::string, int>;
  struct Inner;
  explicit Shape(std::vector<int> values, Sizes sizes = Sizes{{{{"a", 1}}, {{"b", 2}}}}) : values_{{std::move(values)}}, sizes_(std::move(sizes)) {{ {LONG} }}
  ~Shape() override {{ {LONG} }}
  [[nodiscard]] int moved_virtual(int add) const override {{ {LONG} return add + values_[0]; }}
  static Sizes moved_static(int begin = 3, std::vector<int> more = {{1, 2}}, int end = 4) {{ {LONG} return {{{{"sum", begin + end + more[1]}}}}; }}
  operator bool() const noexcept {{ {LONG} return !values_.empty(); }}
  int operator()(int value) & {{ {LONG} return value; }}
  friend bool stays_friend(const Shape&) {{ {LONG} return true; }}
  auto stays_deduced() {{ {LONG} return 1; }}
  template <class T>
  T stays_template(T value) {{ {LONG} return value; }}
  std::function<int()> moved_of_type(int value) noexcept(false) {{ {LONG} return [value] {{ return value; }}; }}
  int stays_with_auto(const auto& value, int more = 0) const {{ {LONG} return static_cast<int>(value.size()) + more; }}
  int stays_small() const {{ return values_[0]; }}
  auto moved_trailing() const -> const Sizes& {{ {LONG} return sizes_; }}

 private:
  std::vector<int> values_;
  Sizes sizes_;
}};
struct Shape::Inner {{
  int moved_inner() {{ {LONG} return 7; }}
  int moved_outside();
}};
inline int Shape::Inner::moved_outside() {{ {LONG} return 8; }}
template <class T>
struct Box {{
  int stays_of_template() {{ {LONG} return 9; }}
}};
constexpr int stays_constant(int value) {{ if (value > 1000) {{ value = 1000; }} if (value < 0) {{ value = 0; }} return value; }}
#if defined(WITH_MORE) && WITH_MORE
inline int moved_under_condition() {{ {LONG} return 10; }}
#elif defined(WITH_OTHER)  // and nothing else
inline int moved_elsewhere() {{ {LONG} return 13; }}
#else
inline int moved_otherwise() {{ {LONG} return 11; }}
#endif
#define GONE 12
inline int stays_with_macro() {{ {LONG} return GONE; }}
#undef GONE
inline int moved_forward(int value, std::vector<int> more) {{ {LONG} return value + static_cast<int>(more.size()); }}
namespace other {{
inline int moved_forward = 0;  // a variable of that name
}}
template <class = void>
class Lazy {{
 public:
  [[nodiscard]] int moved_of_lazy() const {{ {LONG} return static_cast<int>(names_.size()) + 2; }}
  template <class List>
  int stays_required(const List& list) const requires requires {{ list.size(); }}
  {{ {LONG} return static_cast<int>(list.size()); }}
  template <class = void>
  [[nodiscard]] static Lazy moved_lazily() {{ {LONG} return {{}}; }}
  static Lazy<> moved_with_copy(const Lazy<>& from) {{ return from; }}

 private:
  std::vector<std::string> names_{{}};
  int count_{{}};
}};
template <class = void>
[[nodiscard]] int moved_of_no_class() {{ {LONG} return Lazy<>::template moved_lazily<>().moved_of_lazy(); }}
namespace detail {{
// Of the unseen: this goes with it.
class Unseen {{
 public:
  [[nodiscard]] int moved_unseen() const {{ {LONG} return 3; }}
  [[nodiscard]] int number() const {{ return 4; }}

 private:
  std::vector<int> numbers_{{}};
}};
struct OnlyUnseen {{
  Unseen unseen{{}};
}};
inline int operator+(const Unseen& left, const Unseen& right) {{ return left.number() + right.number(); }}
inline int moved_of_unseen() {{ {LONG} return Unseen{{}} + OnlyUnseen{{}}.unseen; }}
static_assert(sizeof(Unseen) > 0);
enum class Kind {{ first, second }};
struct Seen {{
  Kind kind = Kind::second;
}};
constexpr bool operator!(const Seen& seen) {{ return seen.kind == Kind::first; }}
constexpr std::pair<int, int> seen_numbers[2] = {{{{1, 2}}, {{3, 4}}}};
template <class T>
concept SeenSum = requires(T left) {{ left + left; }};
}}  // namespace detail
template <class T>
requires detail::SeenSum<T>
int stays_seen(T value) {{ const detail::Seen seen; return !seen ? 0 : static_cast<int>(value + value) + detail::seen_numbers[1].first; }}
inline int moved_with_unseen() {{ return detail::moved_of_unseen(); }}
static_assert(detail::SeenSum<int>);
}}  // namespace toy::inline v1
"""

PROGRAM = """#include "toy.hpp"
int main() {
  toy::Shape shape{{5}};
  const toy::Base& base = shape;
  toy::Shape::Inner inner;
  const int sum = base.moved_virtual(1) + toy::Shape::moved_static().at("sum") + shape(2) + shape.moved_of_type(3)() +
                  inner.moved_inner() + inner.moved_outside() + toy::moved_forward() + toy::stays_with_macro() +
                  shape.stays_with_auto(std::string{}) + toy::other::moved_forward +
                  toy::MORE() + shape.moved_trailing().at("b") + shape.stays_small() + toy::stays_constant(-4) +
                  shape.stays_template(0) + shape.stays_deduced() + toy::Box<int>{}.stays_of_template() + toy::Lazy{}.stays_required(std::string(3, 'a')) +
                  toy::Lazy::moved_with_copy(toy::Lazy::moved_lazily()).moved_of_lazy() + toy::moved_of_no_class() +
                  toy::stays_seen(2) + toy::moved_with_unseen();
  return shape && stays_friend(shape) ? sum : 0;
}
"""


def main():
    compiler, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    header, detail, source = separate(HEADER)
    for name in re.findall(r"\b(?:moved|stays)_\w+", HEADER):
        is_moved = re.search(rf"\b{name}\([^;{{]*(?:{{[^;]*}}[^;]*)?{{", source) is not None
        assert is_moved == name.startswith("moved") or name == "moved_virtual", f"{name}: {header}\n{source}"
    for unseen in ("nseen", "operator+", "static_assert", "<class = void>", "names_{}"):
        assert unseen not in header.replace("moved_with_unseen", ""), f"{unseen}: {header}"
    for seen in ("Seen", "Kind", "operator!", "seen_numbers", "SeenSum", "count_{}"):
        assert seen in header and seen not in detail.replace("detail::SeenSum<int>", ""), f"{seen}: {header}\n{detail}"
    (folder / "toy.hpp").write_text(header)
    (folder / "detail.hpp").write_text(detail.replace("railyard.hpp", "toy.hpp"))
    (folder / "toy.cpp").write_text(source.replace("railyard/detail.hpp", "detail.hpp"))
    for name, flags, expected in (("moved_under_condition", ["-DWITH_MORE=1"], 97), ("moved_elsewhere", ["-DWITH_OTHER"], 100),
                                  ("moved_otherwise", [], 98)):
        (folder / "main.cpp").write_text(PROGRAM.replace("MORE", name))
        subprocess.run(
            [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", *flags, "main.cpp", "toy.cpp", "-o", name], cwd=folder, check=True
        )
        status = subprocess.run([f"./{name}"], cwd=folder, check=False).returncode
        assert status == expected, f"{name}: {status} instead of {expected}"
    return 0


sys.exit(main())
