# SPDX-License-Identifier: MIT
"""Parts the library in one file into a header in which functions are only declared and a source that defines them, for
programs of many source files. What must be seen by its users (templates, constexpr, deduced types), and what is small,
stays in the header. Used by amalgamate.py."""
import re
import sys

SMALL = 90  # characters of a body that stays where it is seen

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<directive>(?<![^\n])[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
      | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)")
      | (?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=>|->\*|\.\.\.|->|::|&&|\|\||==|!=|<=|>=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<=|\+\+|--|<<|\[\[|.)""",
    re.VERBOSE | re.DOTALL,
)
INLINE = re.compile(r"\binline\s+")
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*)", re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}", "[[": "]"}
# A function with one of these before its name is for the eyes of its users.
STAYS = {"constexpr", "consteval", "friend", "template", "extern", "__attribute__", "gnu", "requires", "typedef", "using", "concept"}
SPECIFIERS = {"inline", "static", "virtual", "explicit"}

HEADER_HEAD = """// SPDX-License-Identifier: MIT
// Railyard for programs of many source files, made by tools/amalgamate.py: functions are declared here, and defined in
// railyard.cpp, which is compiled once and with the same RAILYARD_WITH_... as whatever includes this.
"""
SOURCE_HEAD = """// SPDX-License-Identifier: MIT
// What railyard/railyard.hpp beside this declares, made by tools/amalgamate.py. Compile it once.
#include "railyard/railyard.hpp"
"""


class Token:
    def __init__(self, text, begin, end):
        self.text = text
        self.begin = begin
        self.end = end


class Reader:
    """Finds the functions of a header whose bodies can stand elsewhere."""

    def __init__(self, text):
        self.text = text
        self.tokens = []
        self.conditions = []  # where, and the conditions from there on
        self.undefined = set(re.findall(r"^#undef (\w+)", text, re.MULTILINE))
        self.functions = []
        self.declared = []  # begin, end and name of what is declared before it is defined
        self.read_tokens()
        self.partner = self.pair()

    def read_tokens(self):
        open_conditions = []
        place = 0
        while place < len(self.text):
            match = TOKEN.match(self.text, place)
            # A line of the preprocessor begins where spaces may have been read before it.
            if match.lastgroup == "space" and "\n" in match[0] and not match[0].lstrip().startswith("/"):
                end = match[0].rindex("\n") + 1
                place += end
                continue
            place = match.end()
            if match.lastgroup == "directive":
                if found := CONDITION.match(match[0]):
                    self.change(open_conditions, found[1], found[2].strip())
                    self.conditions.append((match.start(), tuple(open_conditions)))
            elif match.lastgroup != "space":
                self.tokens.append(Token(match[0], match.start(), match.end()))

    @staticmethod
    def change(conditions, word, rest):
        if word == "if":
            conditions.append(f"({rest})")
        elif word == "ifdef":
            conditions.append(f"defined({rest})")
        elif word == "ifndef":
            conditions.append(f"!defined({rest})")
        elif word == "elif":
            conditions[-1] = f"(!{conditions[-1]} && ({rest}))"
        elif word == "else":
            conditions[-1] = f"!{conditions[-1]}"
        else:
            conditions.pop()

    def pair(self):
        """Returns where each bracket is closed. In branches that exclude one another all are, each for itself."""
        partner = {}
        stack = []
        for i, token in enumerate(self.tokens):
            if token.text in CLOSING:
                for bracket in token.text:
                    stack.append((i, CLOSING[bracket]))
            elif token.text in (")", "]", "}"):
                begin, closing = stack.pop()
                if closing != token.text:
                    line = self.text.count("\n", 0, token.begin) + 1
                    sys.exit(f"line {line} of the single header: {token.text} closes what is no {closing}")
                partner[begin] = i
        return partner

    def conditions_at(self, place):
        found = ()
        for begin, conditions in self.conditions:
            if begin > place:
                break
            found = conditions
        return found

    def scope(self, i, end, namespaces, classes):
        """Reads the declarations of a namespace or a class."""
        while i < end:
            text = self.tokens[i].text
            if text in ("public", "private", "protected") and self.tokens[i + 1].text == ":":
                i += 2
            elif text == ";":
                i += 1
            else:
                i = self.declaration(i, end, namespaces, classes)

    def declaration(self, begin, end, namespaces, classes):
        """Reads one declaration and returns where the next one begins."""
        words = set()
        parameters = None  # where the list of a function's begins
        is_value = False
        i = begin
        while i < end:
            text = self.tokens[i].text
            if text == ";":
                if "inline" in words and parameters is not None and not classes:
                    self.declared.append((self.tokens[begin].begin, self.tokens[i].end, self.tokens[parameters - 1].text))
                return i + 1
            if text == "[[":
                words.update(token.text for token in self.tokens[i : self.partner[i]])
                i = self.partner[i] + 1
            elif text == "[":
                i = self.partner[i] + 1
            elif text == "template" and parameters is None:
                words.add(text)
                i = self.behind_angles(i + 1)
            elif text == "operator" and parameters is None:
                words.add(text)
                i += 1
                if self.tokens[i].text in ("(", "["):
                    i = self.partner[i] + 1
                while self.tokens[i].text != "(":
                    i += 1
            elif text == "(":
                if self.tokens[i - 1].text in ("decltype", "alignas", "__attribute__", "explicit", "requires"):
                    pass
                elif parameters is None and not is_value and self.tokens[self.partner[i] + 1].text != ">":
                    parameters = i  # and not of a type, as in std::function<void()>
                i = self.partner[i] + 1
            elif text == "=":
                is_value = True
                i += 1
            elif text == ":" and parameters is not None and not is_value:
                i = self.behind_initializers(i)
            elif text == "{":
                close = self.partner[i]
                if "namespace" in words:
                    name = self.text[self.tokens[begin].begin : self.tokens[i - 1].end]
                    self.scope(i + 1, close, namespaces + [name], classes)
                    return close + 1
                if "enum" in words or is_value:
                    i = close + 1
                elif words & {"class", "struct", "union"} and parameters is None:
                    if not words & {"template"} and (name := self.name_of_class(begin, i)):
                        self.scope(i + 1, close, namespaces, classes + [name])
                    i = close + 1
                elif parameters is not None:
                    self.function(begin, parameters, i, words, namespaces, classes)
                    return close + 1
                else:
                    if self.tokens[begin].text == "extern":
                        return close + 1
                    i = close + 1
            else:
                words.add(text)
                i += 1
        return end

    def behind_angles(self, i):
        depth = 0
        while True:
            text = self.tokens[i].text
            if text in CLOSING:
                i = self.partner[i]
            depth += (text == "<") - (text == ">")
            i += 1
            if depth == 0:
                return i

    def behind_initializers(self, i):
        """Returns where the body of a constructor begins."""
        while True:
            i += 1
            while self.tokens[i].text not in ("(", "{"):
                i = self.behind_angles(i) if self.tokens[i].text == "<" else i + 1
            i = self.partner[i] + 1
            if self.tokens[i].text == "...":
                i += 1
            if self.tokens[i].text != ",":
                return i

    def name_of_class(self, begin, end):
        while self.tokens[begin].text not in ("class", "struct", "union"):
            begin += 1
        i = begin + 1
        while self.tokens[i].text in ("alignas", "[["):
            i = self.partner[i + (self.tokens[i].text == "alignas")] + 1
        name = ""
        while i < end and re.match(r"\w|::", self.tokens[i].text) and self.tokens[i].text != "final":
            name += self.tokens[i].text
            i += 1
        return name

    def function(self, begin, parameters, body, words, namespaces, classes):
        close = self.partner[body]
        text = self.text[self.tokens[body].begin : self.tokens[close].end]
        head = [token.text for token in self.tokens[begin:body]]
        returns = "->" in head[self.partner[parameters] - begin :]
        if words & STAYS or ("auto" in words and not returns) or "try" in head:
            return
        if not classes and "inline" not in words:
            return
        if any(word in self.undefined for word in re.findall(r"\w+", text)):
            return
        conditions = self.conditions_at(self.tokens[begin].begin)
        if any(word in self.undefined for each in conditions for word in re.findall(r"\w+", each)):
            return
        if len(text) <= SMALL and text.count(";") <= 1:
            return
        self.functions.append(Function(self, begin, parameters, body, namespaces, classes, conditions))


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

    def declared(self):
        """Returns begin, end and text of what takes the function's place in the header."""
        tokens = self.reader.tokens
        text = self.slice(self.begin, self.tail_end) + ";"
        if tokens[self.name - 1].text == "::":  # it is declared in its class
            text = ""
        elif not self.classes:
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
        body = self.slice(self.body, self.reader.partner[self.body] + 1)
        return head + (f" {rest}" if rest else "") + " " + body


def separate(single):
    """Returns the text of the header and of the source."""
    reader = Reader(single)
    reader.scope(0, len(reader.tokens), [], [])
    changes = [function.declared() for function in reader.functions]
    names = {function.slice(function.name, function.parameters) for function in reader.functions if not function.classes}
    for begin, end, name in reader.declared:
        if name in names:
            changes.append((begin, end, INLINE.sub("", single[begin:end], count=1)))
    header = []
    place = 0
    for begin, end, text in sorted(changes):
        header += [single[place:begin], text]
        place = end
    header.append(single[place:])
    source = []
    before = ((), ())  # namespaces and conditions
    for function in reader.functions:
        now = (tuple(function.namespaces), function.conditions)
        if now != before:
            source += [*closing(before), *opening(now)]
            before = now
        source.append("\n" + function.defined() + "\n")
    source += closing(before)
    return HEADER_HEAD + "".join(header).split("\n", 1)[1], SOURCE_HEAD + "".join(source)


def opening(now):
    namespaces, conditions = now
    return [*(f"\n#if {each}\n" for each in conditions), *(f"\n{each} {{" for each in namespaces), "\n"]


def closing(now):
    namespaces, conditions = now
    return [*("\n}" for _ in namespaces), "\n", *("\n#endif\n" for _ in conditions)]
