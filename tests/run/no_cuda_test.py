#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The program of a build without CUDA (TRAINER_CUDA=OFF): it trains, saves, continues, evaluates and refuses GPUs.

TRAINER is that program here. Most users' machines have no CUDA toolkit, while those that run the tests may have one.
"""
import harness


class NoCuda(harness.RunTest):
    def test_works_without_cuda(self):
        self.expect(0, "cuda=no nccl=no", args=["--version"])
        self.expect(0, "step=8 ", args=[self.deck(), "--set", "train.total_steps=8"], ranks=2)
        self.assertEqual(self.checkpoints()[-1], "0000000008.h5")
        self.expect(0, "step=12 ", args=[self.deck()], ranks=1)
        self.assertEqual([row["step"] for row in self.rows("eval")], [6, 8, 12])
        self.expect(0, "perplexity", args=[self.deck(), "--mode", "eval"], ranks=2)

    def test_refuses_gpus(self):
        self.expect(3, 'run.device = "cuda"', "this build has no CUDA back end (cmake -DTRAINER_CUDA=ON)",
                    args=[self.deck(), "--set", "run.device=cuda"])

    def test_plans_for_gpus(self):
        self.expect(0, "memory", args=[self.deck(), "--mode", "plan", "--ranks", "4"])


harness.main()
