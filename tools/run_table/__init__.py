# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/runs: finding and reading many run directories, the table, and the page with all curves."""
