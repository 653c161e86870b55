# SPDX-License-Identifier: MIT
"""Parts the library in one file, for programs of many source files, into a header of what they see, another of what only
railyard::detail sees, and a source that defines the functions of both. What must be seen by its users (templates,
constexpr, deduced types), and what is small, stays in the header. Used by amalgamate.py."""
import re

from declarations import CLOSING, Reader

SMALL = 90  # characters of a body that may stay where it is seen

INLINE = re.compile(r"\binline\s+")
# A function with one of these before its name is for the eyes of its users.
STAYS = {"constexpr", "consteval", "friend", "template", "extern", "__attribute__", "gnu", "requires", "typedef", "using", "concept"}
NUMBER = re.compile(r"\b(?:bool|int|float|double|std::(?:size_t|byte|u?int\d+_t|string_view))$")
SPECIFIERS = {"inline", "static", "virtual", "explicit"}
# What makes a template of a function or a class so that it is compiled only where it is used.
UNUSED_PARAMETER = re.compile(r"template <class = void>\s+(?:\[\[\w+\]\]\s+)*")
# Members of these types are empty without {} as well. With it, all of what destroys them is instantiated.
EMPTY_AT_FIRST = {"deque", "function", "list", "map", "multimap", "optional", "set", "shared_ptr", "string", "unique_ptr"}
EMPTY_AT_FIRST |= {"unordered_map", "unordered_set", "vector", "weak_ptr"}

EMPTY_NAMESPACE = re.compile(r"\nnamespace [^{};/]+ \{\s*\}(?:  // namespace [^\n]*)?\n")

HEADER_HEAD = """// SPDX-License-Identifier: MIT
// Railyard for programs of many source files, made by tools/amalgamate.py: functions are declared here, and defined in
// railyard.cpp, which is compiled once and with the same RAILYARD_WITH_... as whatever includes this.
"""
DETAIL_HEAD = """// SPDX-License-Identifier: MIT
// What of railyard::detail is not seen through railyard.hpp beside this, made by tools/amalgamate.py.
#pragma once
#include "railyard.hpp"
"""
SOURCE_HEAD = """// SPDX-License-Identifier: MIT
// Defines what the headers beside this declare, made by tools/amalgamate.py. Compile it once.
#include "railyard/detail.hpp"
"""


class Function:
    def __init__(self, reader, begin, parameters, body, namespaces, classes, conditions):
        self.reader = reader
        self.begin = begin
        self.parameters = parameters
        self.body = body
        self.namespaces = namespaces
        self.classes = classes
        self.conditions = conditions
        tokens = reader.tokens
        # Where the name begins: an operator, a destructor or a word.
        name = parameters - 1
        for i in range(begin, parameters):
            if tokens[i].text == "operator":
                name = i
                break
        else:
            if name > begin and tokens[name - 1].text == "~":
                name -= 1
        self.name = name
        self.last = reader.partner[parameters]  # of the parameters
        # What follows them up to the initializers or the body.
        self.tail_end = body
        i = self.last + 1
        while i < body:
            if tokens[i].text in CLOSING:
                i = reader.partner[i]
            elif tokens[i].text == ":":
                self.tail_end = i
                break
            i += 1

    def slice(self, begin, end):
        """The text from one token to before another."""
        tokens = self.reader.tokens
        return self.reader.text[tokens[begin].begin : tokens[end - 1].end] if begin < end else ""

    def text(self):
        return self.slice(self.body, self.reader.partner[self.body] + 1)

    def is_outside(self):
        """Whether its class declares it elsewhere."""
        return self.reader.tokens[self.name - 1].text == "::"

    def is_small(self):
        """Whether its body does so little that it can stay, and needs no template for it."""
        text = self.text()
        if len(text) > SMALL or self.tail_end != self.body:
            return False
        returned = self.slice(self.begin, self.name).rstrip()
        if not returned.endswith(("&", "*")) and not NUMBER.search(returned):
            return text in ("{}", "{ }")
        return re.fullmatch(r"\{ return [\w.:]+(?:\.size\(\)|\[\w+\])?(?: (?:==|!=|-|\+|>|<) [\w.:]+)?; \}", text) is not None

    def declared(self):
        """Returns begin, end and text of what takes the function's place in the header."""
        tokens = self.reader.tokens
        text = self.slice(self.begin, self.tail_end) + ";"
        if self.is_outside():
            text = ""
        else:
            text = INLINE.sub("", text, count=1)
        return tokens[self.begin].begin, tokens[self.reader.partner[self.body]].end, text

    def plain_parameters(self):
        """The parameters without their defaults."""
        tokens = self.reader.tokens
        kept = []
        angles = 0
        begin = i = self.parameters
        skipping = False
        while i <= self.last:
            text = tokens[i].text
            if i > self.parameters and text in CLOSING:
                i = self.reader.partner[i] + 1
                continue
            if skipping:
                if text == "<" and re.match(r"\w", tokens[i - 1].text):
                    angles += 1
                elif text == ">" and angles:
                    angles -= 1
                elif (text == "," and angles == 0) or i == self.last:
                    skipping = False
                    begin = i
            elif text == "=":
                kept.append(self.slice(begin, i))
                skipping = True
                angles = 0
            i += 1
        kept.append(self.slice(begin, self.last + 1))
        return "".join(kept)

    def defined(self):
        """Returns the text of the definition, to stand in the function's namespace."""
        tokens = self.reader.tokens
        i = self.begin
        while i < self.name:
            if tokens[i].text == "[[":
                i = self.reader.partner[i] + 1
            elif tokens[i].text == "explicit" and tokens[i + 1].text == "(":
                i = self.reader.partner[i + 1] + 1
            elif tokens[i].text in SPECIFIERS:
                i += 1
            else:
                break
        returned = self.slice(i, self.name)
        name = "::".join([*self.classes, self.slice(self.name, self.parameters)])
        tail_tokens = tokens[self.last + 1 : self.tail_end]
        tail = self.slice(self.last + 1, self.tail_end)
        if self.classes:
            # They end with these, if at all.
            while tail_tokens and tail_tokens[-1].text in ("override", "final"):
                tail_tokens.pop()
            tail = self.reader.text[tail_tokens[0].begin : tail_tokens[-1].end] if tail_tokens else ""
        head = name + self.plain_parameters() + (f" {tail}" if tail else "")
        if returned and self.classes and returned != "auto":
            head = f"auto {head} -> {returned}"
        elif returned:
            head = returned + head if returned.endswith("::") else f"{returned} {head}"
        rest = self.slice(self.tail_end, self.body)
        return head + (f" {rest}" if rest else "") + " " + self.text()


class Declaration:
    """What is declared in a namespace."""

    def __init__(self, reader, begin, end, namespaces):
        self.begin = begin
        self.end = end
        self.namespaces = namespaces
        self.name = reader.name_of(begin, end)
        self.place = self.place_of_comment(reader.text, reader.tokens[begin].begin)
        self.place_end = reader.text.index("\n", reader.tokens[end - 1].end)
        self.conditions = reader.conditions_at(reader.tokens[begin].begin)
        self.is_check = reader.tokens[begin].text == "static_assert"
        self.is_of_detail = any(re.search(r"\bdetail\b", name) for name in namespaces)
        # One that could not be read elsewhere.
        self.is_fixed = (
            reader.conditions_at(reader.tokens[end - 1].end) != self.conditions
            or not reader.can_move(reader.text[self.place : self.place_end], self.conditions)
            or reader.tokens[begin].text == "extern"
        )

    @staticmethod
    def place_of_comment(text, place):
        """Where the comment begins that stands right before a place, or else the line of it."""
        place = text.rindex("\n", 0, place) + 1
        while (before := text.rfind("\n", 0, place - 1) + 1) < place:
            line = text[before:place].strip()
            if not line.startswith("//") or line.startswith("// ----"):
                break
            place = before
        return place


class Separator(Reader):
    """Finds the functions of a header whose bodies can stand elsewhere, and what is declared in its namespaces."""

    def __init__(self, text):
        self.undefined = set(re.findall(r"^#undef (\w+)", text, re.MULTILINE))
        self.functions = []
        self.declarations = []
        self.initial = []  # begin and end of the {} of members
        super().__init__(text)
        self.scope(0, len(self.tokens), [], [])

    def can_move(self, text, conditions):
        """Whether the macros that are spoken of are there at the end as well."""
        return not any(word in self.undefined for each in (text, *conditions) for word in re.findall(r"\w+", each))

    def declared(self, begin, end, namespaces, classes):
        if not classes:
            self.declarations.append(Declaration(self, begin, end, namespaces))
            return
        words = [token.text for token in self.tokens[begin:end]]
        words = words[words[0] == "mutable" :]
        if words[:2] == ["std", "::"] and words[2] in EMPTY_AT_FIRST and words[-4].endswith("_") and words[-3:] == ["{", "}", ";"]:
            self.initial.append((self.tokens[end - 3].begin, self.tokens[end - 2].end, ""))

    def function(self, begin, parameters, body, words, namespaces, classes):
        head = [token.text for token in self.tokens[begin:body]]
        returns = "->" in head[self.partner[parameters] - begin :]
        if words & STAYS or ("auto" in words and not returns) or "try" in head:
            return
        if self.has_auto(parameters):  # a template
            return
        if not classes and "inline" not in words:
            return
        conditions = self.conditions_at(self.tokens[begin].begin)
        function = Function(self, begin, parameters, body, namespaces, classes, conditions)
        if self.can_move(function.text(), conditions) and not function.is_small():
            self.functions.append(function)

    def has_auto(self, parameters):
        """Whether one of the parameters is `auto`: not one of a lambda that is a default."""
        i = parameters + 1
        while i < self.partner[parameters]:
            if self.tokens[i].text == "auto":
                return True
            i = self.partner[i] + 1 if self.tokens[i].text in CLOSING else i + 1
        return False

    def mentioned(self, declaration, moved):
        """Returns the words of a declaration that are no members of something, without those at which `moved` is true."""
        words = set()
        for i in range(declaration.begin, declaration.end):
            if not moved[i] and self.tokens[i - 1].text not in (".", "->"):
                words.add(self.tokens[i].text)
        return words

    def is_function(self, declaration):
        """Whether a declaration with a name declares a function: its parameters follow the name."""
        words = [token.text for token in self.tokens[declaration.begin : declaration.end]]
        return words[words.index(declaration.name) + 1 :][:1] == ["("]

    def hidden(self):
        """Returns the declarations that the header can do without: checks, and what of detail nothing else speaks of."""
        moved = [False] * len(self.tokens)
        for function in self.functions:
            begin = function.begin if function.is_outside() else function.tail_end
            end = self.partner[function.body] + 1
            moved[begin:end] = [True] * (end - begin)
        mentioned = {each: self.mentioned(each, moved) for each in self.declarations}
        named = {}
        for each in self.declarations:
            if each.is_of_detail and each.name:
                named.setdefault(each.name, []).append(each)
        kept = {each for each in self.declarations if each.is_fixed or not (each.is_of_detail or each.is_check)}
        left = list(kept)
        while left:
            for word in mentioned[left.pop()]:
                for each in named.pop(word, ()):
                    if each not in kept:
                        kept.add(each)
                        left.append(each)
        # Operators are there for what they speak of. What has a name is in `named` as long as it is not kept.
        kept.update(each for each in self.declarations if not each.name and not each.is_check and not mentioned[each] & named.keys())
        return [each for each in self.declarations if each not in kept]


def made_plain(single):
    """Returns the text without templates that are such only to be compiled where they are used."""
    names = set()
    parts = []
    place = 0
    for match in UNUSED_PARAMETER.finditer(single):
        rest = single[match.end() : single.index("{", match.end())]
        is_class = re.match(r"(?:class|struct) (\w+)", rest)
        names.add(is_class[1] if is_class else re.search(r"(\w+)\(", rest)[1])
        attributes = re.sub(r"template <class = void>\s+", "", match[0])
        parts += [single[place : match.start()], attributes, "" if is_class else "inline "]
        place = match.end()
    text = "".join([*parts, single[place:]])
    if not names:
        return text
    return re.sub(rf"\b(?:template )?({'|'.join(sorted(names))})<>", r"\1", text)


def with_changes(text, changes, begin, end):
    """Returns the text from a place to another, where each change has a begin, an end, and what takes its place."""
    parts = []
    for from_place, to_place, instead in changes:
        if begin <= from_place < end:
            parts += [text[begin:from_place], instead]
            begin = to_place
    return "".join([*parts, text[begin:end]])


def separate(single):
    """Returns the text of the header, of the header for detail, and of the source."""
    single = made_plain(single)
    reader = Separator(single)
    changes = reader.initial + [function.declared() for function in reader.functions]
    names = {
        (tuple(function.namespaces), function.slice(function.name, function.parameters))
        for function in reader.functions
        if not function.classes
    }
    for each in reader.declarations:
        begin, end = reader.tokens[each.begin].begin, reader.tokens[each.end - 1].end
        if (tuple(each.namespaces), each.name) in names and single[end - 1] == ";" and reader.is_function(each):
            changes.append((begin, end, INLINE.sub("", single[begin:end], count=1)))
    changes.sort()
    hidden = reader.hidden()
    detail = in_namespaces((each, with_changes(single, changes, each.place, each.place_end) + "\n") for each in hidden)
    gone = [(each.place, each.place_end + 1) for each in hidden]
    changes = [each for each in changes if not any(begin <= each[0] and each[1] <= end for begin, end in gone)]
    header = with_changes(single, sorted([*changes, *((begin, end, "") for begin, end in gone)]), 0, len(single))
    found = 1
    while found:  # one of them may have stood alone in another
        header, found = EMPTY_NAMESPACE.subn("\n", header)
    source = in_namespaces((function, "\n" + function.defined() + "\n") for function in reader.functions)
    return HEADER_HEAD + re.sub(r"\n{3,}", "\n\n", header).split("\n", 1)[1], DETAIL_HEAD + detail, SOURCE_HEAD + source


def in_namespaces(texts):
    """Returns texts, each with what has its namespaces and conditions, within these."""
    parts = []
    before = ((), ())
    for place, text in texts:
        now = (tuple(place.namespaces), place.conditions)
        if now != before:
            parts += [*closing(before), *opening(now)]
            before = now
        parts.append(text)
    return "".join([*parts, *closing(before)])


def opening(now):
    namespaces, conditions = now
    return [*(f"\n#if {each}\n" for each in conditions), *(f"\n{each} {{" for each in namespaces), "\n"]


def closing(now):
    namespaces, conditions = now
    return [*("\n}" for _ in namespaces), "\n", *("\n#endif\n" for _ in conditions)]
