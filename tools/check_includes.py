#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks in seconds, by their text, what compiling each header alone (tests/run.sh headers) proves in many minutes: that
a header includes, itself or by others of ours, what declares each name that it uses: of the standard library, of fmt, of
LibTorch's operators, and of ours."""
import re
import sys
from pathlib import Path

from declarations import Reader

ROOT = Path(__file__).parent.parent.resolve()
INCLUDE = ROOT / "include"

# Header of the standard library: what of namespace std is declared there. What several declare stands with each.
STANDARD = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal fill fill_n find "
    "find_first_of find_if find_if_not for_each is_permutation is_sorted lower_bound max max_element min min_element "
    "minmax_element mismatch none_of remove_if replace replace_if reverse rotate shuffle sort stable_sort transform unique "
    "upper_bound",
    "array": "array get tuple_size_v",
    "atomic": "atomic atomic_ref atomic_signal_fence atomic_thread_fence memory_order_acquire memory_order_relaxed memory_order_release "
    "memory_order_seq_cst",
    "bit": "bit_cast bit_width countl_zero countr_zero endian popcount",
    "charconv": "from_chars to_chars",
    "chrono": "chrono chrono_literals",
    "cmath": "abs ceil cos exp hypot ilogb isfinite isnan ldexp llround log log1p pow sin sqrt",
    "concepts": "constructible_from convertible_to copy_constructible copyable default_initializable derived_from "
    "floating_point integral invocable movable move_constructible predicate same_as semiregular swap",
    "condition_variable": "condition_variable",
    "csetjmp": "jmp_buf longjmp",
    "csignal": "signal",
    "cstddef": "byte ptrdiff_t size_t to_integer",
    "cstdint": "int16_t int32_t int64_t int8_t intmax_t intptr_t uint16_t uint32_t uint64_t uint8_t uintmax_t uintptr_t",
    "cstdio": "FILE fflush fprintf rename setvbuf size_t snprintf",
    "cstdlib": "abs atexit atoi free getenv malloc srand strtol strtoull",
    "cstring": "memchr memcmp memcpy memmove memset size_t strerror strncpy",
    "ctime": "strftime time time_t tm",
    "deque": "deque erase erase_if",
    "exception": "current_exception exception exception_ptr nested_exception rethrow_exception throw_with_nested "
    "uncaught_exceptions",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream",
    "functional": "function greater hash invoke less multiplies not_fn plus",
    "future": "async future future_status launch promise",
    "initializer_list": "initializer_list",
    "iosfwd": "istream ostream",
    "iostream": "cerr clog cout",
    "istream": "istream ws",
    "iterator": "back_inserter default_sentinel_t distance input_iterator_tag make_move_iterator next prev",
    "limits": "numeric_limits",
    "list": "erase_if list",
    "locale": "locale numpunct",
    "map": "erase_if map multimap",
    "memory": "construct_at destroy_at dynamic_pointer_cast enable_shared_from_this hash make_shared "
    "make_shared_for_overwrite make_unique make_unique_for_overwrite shared_ptr static_pointer_cast unique_ptr weak_ptr",
    "mutex": "lock_guard mutex once_flag scoped_lock unique_lock",
    "new": "bad_alloc launder",
    "numbers": "numbers",
    "numeric": "accumulate iota",
    "optional": "in_place nullopt optional",
    "ostream": "ostream",
    "random": "mt19937_64 normal_distribution random_device uniform_random_bit_generator",
    "ranges": "ranges",
    "set": "erase_if set",
    "span": "as_bytes as_writable_bytes span",
    "sstream": "istringstream ostringstream",
    "stdexcept": "runtime_error",
    "string": "char_traits erase erase_if getline hash stod stoull string to_string",
    "string_view": "hash string_view",
    "system_error": "errc error_code generic_category system_error",
    "thread": "this_thread thread",
    "tuple": "apply get tie tuple tuple_size_v",
    "type_traits": "conditional_t decay_t false_type index_sequence integral_constant invoke_result_t is_abstract_v "
    "is_aggregate_v is_arithmetic_v is_base_of_v is_class_v is_const_v is_convertible_v is_copy_constructible_v is_enum_v "
    "is_floating_point_v is_integral_v is_invocable_v is_member_pointer_v is_pointer_v is_same_v is_signed_v "
    "is_trivially_copyable_v is_unsigned_v is_void_v remove_const_t remove_cvref_t remove_reference_t true_type",
    "typeinfo": "type_info",
    "unordered_map": "erase_if unordered_map",
    "unordered_set": "erase_if unordered_set",
    "utility": "as_const declval exchange forward get in_place in_place_t index_sequence index_sequence_for "
    "make_index_sequence move pair swap tuple_size_v",
    "variant": "get get_if hash holds_alternative variant variant_alternative_t visit",
    "vector": "erase erase_if vector",
}
# Headers that include others, as the standard says.
ALSO = {"sstream": "istream ostream", "fstream": "istream ostream", "iostream": "istream ostream", "ranges": "initializer_list"}
# Functions of LibTorch that are no operators, and the headers where they stand; and headers that
# include all of LibTorch.
NO_OPERATORS = {"get_num_threads": "ATen/Parallel.h", "globalContext": "ATen/Context.h", "set_num_threads": "ATen/Parallel.h"}
WHOLE_LIBTORCH = re.compile(r"torch/(torch|types|nn/module|nn/pimpl|nn/modules/.*|utils|optim/schedulers/.*|csrc/autograd/.*)\.h$")


class Names(Reader):
    """What a header declares in its namespaces, other than classes that it only says exist."""

    def __init__(self, text):
        super().__init__(text)
        self.defined = set()
        self.scope(0, len(self.tokens), [], [])

    def function(self, begin, parameters, body, words, namespaces, classes):
        pass  # declared() is told of it too

    def declared(self, begin, end, namespaces, classes):
        del namespaces
        if classes or self.tokens[begin].text == "static_assert":
            return
        words = [token.text for token in self.tokens[self.behind_template(begin) : end]]
        name = self.name_of(begin, end)
        if name and (words[0] not in ("class", "struct") or "{" in words):
            self.defined.add(name)


class Header:
    def __init__(self, path):
        self.path = path
        text = path.read_text()
        self.includes = re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', text, re.M)
        self.names = Names(text)
        self.tokens = self.names.tokens
        self.text = text
        self.introduced = self.introduced_names()

    def introduced_names(self):
        """Types within classes, parameters of templates, and what is only said to exist."""
        words = [token.text for token in self.tokens]
        pairs = list(zip(words, words[1:]))
        found = {word for before, word in pairs if before in ("class", "struct", "enum", "using", "typename", "...")}
        for i, word in enumerate(words):
            if word == "template" and words[i + 1] == "<":
                parameters = pairs[i + 1 : self.names.behind_angles(i + 1)]
                found |= {word for before, word in parameters if re.match(r"[\w>]", before) and re.match(r"\w", word)}
        return found

    def line_of(self, token):
        return self.text.count("\n", 0, token.begin) + 1


def closure(name, headers, found):
    """All that a header includes, of ours and of others, itself among it."""
    if name not in found:
        found.add(name)
        if name in headers:
            for each in headers[name].includes:
                closure(each, headers, found)
    return found


def main():
    headers = {str(path.relative_to(INCLUDE)): Header(path) for path in sorted((INCLUDE / "railyard").rglob("*.hpp"))}
    of_standard = {}
    for header, names in STANDARD.items():
        for name in names.split():
            of_standard.setdefault(name, set()).add(header)
    for header, others in ALSO.items():
        for other in others.split():
            for name in STANDARD[other].split():
                of_standard[name].add(header)
    of_ours = {}
    for name, header in headers.items():
        for each in header.names.defined:
            of_ours.setdefault(each, set()).add(name)

    problems = {}
    for name, header in headers.items():
        reached = closure(name, headers, set())
        words = [token.text for token in header.tokens]
        known = header.names.defined.union(*(headers[each].introduced for each in reached if each in headers))

        def lacks(token, what, places):
            line = f"{header.path.relative_to(ROOT)}:{header.line_of(token)}"
            problems.setdefault((name, what), f"{line}: {what} is declared by {' or '.join(sorted(places))}, not included here")

        for i, token in enumerate(header.tokens):
            if not re.match(r"[A-Za-z_]", token.text) or (i > 0 and words[i - 1] in (".", "->")):
                continue
            scope = words[i - 2] if i > 1 and words[i - 1] == "::" else ""
            if scope == "std":
                places = of_standard.get(token.text)
                if places is None:
                    problems.setdefault(token.text, f"tools/check_includes.py: say what declares std::{token.text}")
                elif not places & reached:
                    lacks(token, f"std::{token.text}", {f"<{place}>" for place in places})
            elif scope == "fmt":
                if "fmt/format.h" not in reached:
                    lacks(token, f"fmt::{token.text}", {"<fmt/format.h>"})
            elif scope == "at" and re.match(r"[a-z_]\w+$", token.text) and words[i + 1] == "(":
                place = NO_OPERATORS.get(token.text, f"ATen/ops/{re.sub('_$|_out$', '', token.text)}.h")
                if place not in reached and not any(map(WHOLE_LIBTORCH.match, reached)):
                    lacks(token, f"at::{token.text}", {f"<{place}>"})
            elif scope in ("", "detail", "railyard") and token.text not in known:
                places = of_ours.get(token.text)
                is_type = re.match(r"[A-Z][a-z]", token.text)
                if places and is_type and not places & reached:
                    lacks(token, token.text, places)
    print("\n".join(problems.values()) if problems else f"{len(headers)} headers include what they use")
    return 1 if problems else 0


sys.exit(main())
