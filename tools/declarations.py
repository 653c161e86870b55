# SPDX-License-Identifier: MIT
"""Reads the declarations of a header in C++: where they begin and end, what they are called, and which are functions with a
body. Used by separate.py."""
import re
import sys

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
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*)", re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}", "[[": "]"}
CLASSES = {"class", "struct", "union"}


class Token:
    def __init__(self, text, begin, end):
        self.text = text
        self.begin = begin
        self.end = end


class Reader:
    """Goes through a header. What derives from it is told of each declaration by declared(), and of each function with a
    body, other than in templates of classes, by function()."""

    def __init__(self, text):
        self.text = text
        self.tokens = []
        self.conditions = []  # where, and the conditions from there on
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
                    self.conditions.append((match.start(), tuple(self.text_of(each) for each in open_conditions)))
            elif match.lastgroup != "space":
                self.tokens.append(Token(match[0], match.start(), match.end()))

    @staticmethod
    def change(conditions, word, rest):
        """Keeps of each condition that is open the branches so far; of an #else there is none."""
        rest = re.sub(r"\s*(//.*|/\*.*?\*/\s*)$", "", rest)
        if word == "if":
            conditions.append((f"({rest})",))
        elif word == "ifdef":
            conditions.append((f"defined({rest})",))
        elif word == "ifndef":
            conditions.append((f"!defined({rest})",))
        elif word == "elif":
            conditions[-1] += (f"({rest})",)
        elif word == "else":
            conditions[-1] += ("",)
        else:
            conditions.pop()

    @staticmethod
    def text_of(branches):
        """Returns what holds in the last of these branches."""
        return " && ".join([*(f"!{each}" for each in branches[:-1]), *filter(None, branches[-1:])])

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
                begin = i
                i = self.declaration(begin, end, namespaces, classes)
                if not self.is_namespace(begin, i):
                    self.declared(begin, i, namespaces, classes)

    def is_namespace(self, begin, end):
        """Whether it is one, and not a second name of one."""
        words = [token.text for token in self.tokens[begin : min(begin + 3, end)]]
        return words[0] == "namespace" and "=" not in words or words[:2] == ["inline", "namespace"]

    def declaration(self, begin, end, namespaces, classes):
        """Reads one declaration and returns where the next one begins."""
        words = set()
        parameters = None  # where the list of a function's begins
        is_value = False
        i = begin
        while i < end:
            text = self.tokens[i].text
            if text == ";":
                return i + 1
            if text == "[[":
                words.update(token.text for token in self.tokens[i : self.partner[i]])
                i = self.partner[i] + 1
            elif text == "[":
                i = self.partner[i] + 1
            elif text == "template" and parameters is None:
                words.add(text)
                i = self.behind_angles(i + 1)
            elif text == "requires":
                words.add(text)
                i = self.behind_requirement(i + 1)
            elif text == "operator" and parameters is None:
                words.add(text)
                i += 1
                if self.tokens[i].text in ("(", "["):
                    i = self.partner[i] + 1
                while self.tokens[i].text != "(":
                    i += 1
            elif text == "(":
                if parameters is None and not is_value and not self.is_part_of_type(i):
                    parameters = i
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
                elif words & CLASSES and parameters is None:
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
        while self.tokens[begin].text not in CLASSES:
            begin += 1
        i = begin + 1
        while self.tokens[i].text in ("alignas", "[["):
            i = self.partner[i + (self.tokens[i].text == "alignas")] + 1
        name = ""
        while i < end and re.match(r"\w|::", self.tokens[i].text) and self.tokens[i].text != "final":
            name += self.tokens[i].text
            i += 1
        return name

    def behind_requirement(self, i):
        """Returns where what is required ends, from behind the word."""
        while True:
            if self.tokens[i].text == "requires":
                i += 1
                if self.tokens[i].text == "(":
                    i = self.partner[i] + 1
                i = self.partner[i] + 1
            elif self.tokens[i].text == "(":
                i = self.partner[i] + 1
            else:
                i += 1 + (self.tokens[i].text == "!")
                while self.tokens[i].text in ("<", "::"):
                    i = self.behind_angles(i) if self.tokens[i].text == "<" else i + 2
            if self.tokens[i].text not in ("&&", "||"):
                return i
            i += 1

    def behind_template(self, i):
        """Returns where what is declared begins, behind the parameters of a template and attributes."""
        while self.tokens[i].text in ("template", "requires", "[["):
            if self.tokens[i].text == "template":
                i = self.behind_angles(i + 1)
            elif self.tokens[i].text == "requires":
                i = self.behind_requirement(i + 1)
            else:
                i = self.partner[i] + 1
        return i

    def name_of(self, begin, end):
        """Returns what a declaration at namespace level is called: of a member that is defined there, its class. It is ""
        for an operator and for what declares nothing."""
        begin = self.behind_template(begin)
        words = [token.text for token in self.tokens[begin:end]]
        if words[0] in CLASSES:
            return self.name_of_class(begin, end).split("::")[0]
        if words[0] in ("concept", "namespace"):
            return words[1]
        if words[0] == "enum":
            return words[1 + (words[1] in CLASSES)]
        if words[0] == "using":
            return words[1] if "=" in words else words[-2]
        if words[0] in ("static_assert", "extern"):
            return ""
        i = 0
        while i < len(words) and words[i] not in ("=", "{", ";", "operator"):
            if words[i] == "(" and not self.is_part_of_type(begin + i):
                break
            i = self.partner[begin + i] + 1 - begin if words[i] in ("(", "[[") else i + 1
        if i == len(words) or words[i] == "operator":
            return ""
        i -= 1
        while words[i] == "]":
            i = next(k for k in range(i) if self.partner.get(begin + k) == begin + i) - 1
        while i > 1 and words[i - 1] == "::":
            i -= 2
            if words[i] == ">":
                depth = 0
                while True:
                    depth += (words[i] == ">") - (words[i] == "<")
                    i -= 1
                    if depth == 0:
                        break
        return words[i]

    def is_part_of_type(self, i):
        """Whether a bracket begins no parameters of what is declared."""
        before = self.tokens[i - 1].text
        return before in ("decltype", "alignas", "__attribute__", "explicit", "requires") or self.tokens[self.partner[i] + 1].text == ">"
