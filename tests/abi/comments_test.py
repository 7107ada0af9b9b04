#!/usr/bin/env python3
"""Each function of annulus.h says in one form what its buffers hold, units, ownership, threads and errors: in its own
comment, or in that of its section for all functions there."""

import re
import sys
import unittest

HEADINGS = ["Shapes", "Units", "Ownership", "Threads", "Errors"]
HEADING = re.compile(r"^ \*   (\w+): +(\S.*)$", re.MULTILINE)
SECTION = re.compile(r"^/\* -- (.+?) -+ \*/$", re.MULTILINE)
TOKEN = re.compile(r"/\*(?P<comment>.*?)\*/|ANNULUS_API [^;]*?(?P<name>annulus_\w+)\([^;]*\);", re.DOTALL)


def headings(comment):
    """The headings of a comment, in its order."""
    return [match.group(1) for match in HEADING.finditer("\n *" + comment.lstrip("/*") if "\n" not in comment else comment)]


def functions(text):
    """(name, section's headings, own comment or None) of each function."""
    found = []
    pieces = SECTION.split(text[text.index("/* -- Library") :])
    for body in pieces[2::2]:
        section, comment, first = [], None, True
        for match in TOKEN.finditer(body):
            if match.group("comment") is not None:
                own = headings("/*" + match.group("comment"))
                # The first comment of a section is the section's, when another one or nothing but functions follows.
                if first:
                    section, comment = own, None
                else:
                    comment = match.group("comment")
                first = False
            else:
                first = False
                found.append((match.group("name"), section, comment))
    return found


class Comments(unittest.TestCase):
    def setUp(self):
        with open(sys.argv[1], encoding="utf-8") as file:
            # A comment that begins with a heading has it on its first line.
            self.text = re.sub(r"^/\*(   \w+: )", r"/*\n *\1", file.read(), flags=re.MULTILINE)

    def test_every_function_has_every_heading(self):
        found = functions(self.text)
        self.assertEqual(len(found), self.text.count("\nANNULUS_API "))
        missing = []
        for name, section, comment in found:
            own = headings(comment or "")
            missing += [f"{name}: {heading}" for heading in HEADINGS if heading not in own and heading not in section]
        self.assertEqual(missing, [])

    def test_headings_are_known_and_in_one_order(self):
        for comment in re.findall(r"/\*.*?\*/", self.text, re.DOTALL):
            order = [HEADINGS.index(heading) for heading in headings(comment)]
            self.assertEqual(order, sorted(set(order)), comment)

    def test_a_function_without_a_comment_is_a_form_of_the_one_above_it_or_of_its_section(self):
        bare = [name for name, section, comment in functions(self.text) if comment is None and not section]
        self.assertEqual(bare, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
