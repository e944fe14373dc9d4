# SPDX-License-Identifier: Apache-2.0
"""The refusal of a model that a library cannot express. Not a tool itself."""
from console import Failure


class Lacking(Failure):
    """Says what the library lacks. The tool adds the libraries that take the model (library_folders.py), and then `more`."""

    def __init__(self, text, more=""):
        super().__init__(text)
        self.more = more
