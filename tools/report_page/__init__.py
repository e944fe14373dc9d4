# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/report: reading runs, drawing curves and pictures, and the page around them."""
