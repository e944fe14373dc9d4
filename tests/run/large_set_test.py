#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sets of many shards: a start reads a list, and its calls do not grow with the shards. A shard that has changed is named when
it is due."""
import glob
import os
import shutil
import unittest

import harness
import large_set


class LargeSet(harness.RunTest):
    def start(self, shards, name, *args, code=0, ranks=0, want=("done     exit=0",)):
        deck = large_set.deck(f"{self.folder}/set{shards}", shards - 1, f"{self.folder}/{name}").replace(
            "total_steps = 3", 'total_steps = 3, shuffle = "none"')
        self.expect(code, *want, args=[self.deck(deck), *args], ranks=ranks)

    def losses(self, name):
        return [row["loss"] for row in self.rows(folder=f"{self.folder}/{name}")]

    def test_start_reads_a_list(self):
        large_set.make(f"{self.folder}/set300", 300, 4)
        lists = f"{self.folder}/set300/.*.list"
        self.start(300, "first", ranks=2)
        self.assertEqual(len(glob.glob(lists)), 1)
        self.start(300, "second", "--set", "loader.index_mb=7", ranks=2)
        self.assertEqual(self.losses("second"), self.losses("first"))
        self.start(300, "first", "--set", "train.total_steps=5", ranks=2)  # continues what began without a list
        # The first shard is looked at. The second one is not, and has other bytes of equal length.
        shard = f"{self.folder}/set300/s-000001.tar"
        with open(shard, "rb") as f:
            data = f.read()
        os.remove(shard)
        with open(shard, "wb") as f:
            f.write(data.replace(b"a red house", b"A RED HOUSE"))
        self.start(300, "changed", code=4, ranks=2, want=("s-000001.tar", "has changed since it was indexed", "start again"))
        self.assertEqual(glob.glob(lists), [])
        shutil.rmtree(f"{self.folder}/changed")
        self.start(300, "changed", ranks=2)
        self.assertEqual(len(glob.glob(lists)), 1)

    @unittest.skipUnless(shutil.which("strace"), "needs strace")
    def test_calls_do_not_grow_with_the_shards(self):
        counts = []
        for shards in (300, 900):
            folder = f"{self.folder}/set{shards}"
            large_set.make(folder, shards, 4)
            large_set.run(folder, shards - 1, "first", "train.shuffle=none")
            large_set.run(folder, shards - 1, "again", "train.shuffle=none", trace=f"{folder}/trace")
            counts.append(large_set.calls(f"{folder}/trace", folder))
        # Batches that are read ahead differ, by a few shards.
        few, many = (sum(c.values()) for c in counts)
        self.assertLess(abs(many - few), 60, counts)
        self.assertLess(many, 250, counts)
        self.assertGreater(few, 0)


harness.main()
