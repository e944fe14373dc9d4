# SPDX-License-Identifier: Apache-2.0
"""Refused decks: the line of a problem in a deck, and a program that ends at once and creates nothing."""
import os

import harness


class DeckTest(harness.RunTest):
    def refuse(self, text, *fragments, args=()):
        """Exit 2, as fast as a good deck is found valid."""
        path, good = self.deck(text), self.deck(name="good.toml")
        self.assert_no_slower(lambda: self.expect(2, *fragments, args=[path, "--validate", *args]),
                              lambda: self.expect(0, args=[good, "--validate"]), factor=3)
        self.expect(2, *fragments, args=[path, *args])
        self.assertFalse(os.path.exists(self.dir), "a refused deck must create nothing")

    def line_of(self, text, part):
        return text[: text.index(part)].count("\n") + 1

    def changed_line(self, text):
        """The first line that is not as in the good deck."""
        for number, (a, b) in enumerate(zip(text.split("\n"), self.good.split("\n")), 1):
            if a != b:
                return number
        raise AssertionError("the deck is the good one")
