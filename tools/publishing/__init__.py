# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/publish: what is new of a run, what was published before, and a receiver for each package."""
