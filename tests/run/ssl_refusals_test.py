#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input of self-supervised models and probes: each message names key, value and way out, and nothing is trained."""
from ssl_harness import SelfSupervised, head

import harness


class Refusals(SelfSupervised, harness.RunTest):
    def setUp(self):
        super().setUp()
        self.make_images()

    def refuse(self, name, changes, *fragments, code=2, args=(), ranks=0):
        """Refuses the deck of a kind with (old, new) replaced, or keys set."""
        self.use(name)
        words = [word for change in changes if isinstance(change, str) for word in ("--set", change)]
        text = self.changed(*(change for change in changes if not isinstance(change, str)))
        with self.subTest(name, changes=changes):
            self.expect(code, *fragments, args=[self.deck(text), "--dir", f"{self.dir}_{name}", *words, *args], ranks=ranks)
            self.assertNotIn("step=1 loss", self.output)

    def test_views_that_do_not_fit(self):
        check = ["--validate"]
        self.refuse("simclr", [("copies(2)", "copies(3)")], "data.train.preprocess", "[3,16,16,3]", "[2,16,16,3]", "model.views",
                    "copies(2) | random_resized_crop(16)", args=check)
        self.refuse("swav", [("[2, 2], [16, 8]) |", "[2, 2], [16, 12]) |")], "[2,12,12,3]", "[2,8,8,3]",
                    "multi_crop([2, 2], [16, 8])", args=check)
        self.refuse("dino", ["model.views=[2, 2, 1]"], "model.image_size", "has 2 sizes for 3 groups of views", "give one for each",
                    args=check)
        self.refuse("dino", ['data.train.preprocess=decode | resize(16) | value_range(-1, 1) | keep("image")'], 'needs "image1"',
                    "multi_crop([2, 2], [16, 8])", args=check)
        self.refuse("swav", ["model.loss.assign_views=[0, 4]"], "model.loss.assign_views", "view 4 is not among the 4", args=check)
        self.refuse("moco", ["model.views=[3]"], "model.views", "must be [2]", args=check)

    def test_queues(self):
        self.refuse("moco", ["model.loss.queue_size=36"], "model.loss.queue_size = 36 is not a multiple of train.global_batch = 8",
                    "such as 32", ranks=2)
        self.refuse("swav", ["model.loss.queue_length=20"], "model.loss.queue_length = 20 is not a multiple of train.global_batch = 8",
                    "or 0 for no queue")

    def test_labels_and_places(self):
        self.refuse("linear_probe", ["model.num_classes=4", ("layers = [5], batch", "layers = [4], batch"),
                                     ("layers = [5] }", "layers = [4] }")],
                    "'label' holds 4, which is not in [0, 4) (model.num_classes)", "repair the sample or leave it out",
                    code=4, ranks=2)
        self.refuse("deepcluster_v2", ["model.loss.clusters=[41]"], "model.loss.clusters", "41 clusters are more than the 40 samples",
                    args=["--validate"])
        self.refuse("deepcluster_v2", ["model.loss.memory_views=[2]"], "model.loss.memory_views", "view 2 is not among the 2",
                    args=["--validate"])
        self.refuse("pirl", [("patches = 4", "patches = 3")], "model.views", "image_and_patches with patches = 4", args=["--validate"])
        self.refuse("pirl", ["model.loss.loss_weights=[1]"], "model.loss", args=["--validate"])
        for name in ("clip", "step", "schedule1"):
            self.refuse("combined", [f'model.loss[1].name="{name}"'], "model.loss", f'name = "{name}" is already the name of another value',
                        "choose another name", args=["--validate"])
        self.refuse("rotnet", ["model.angles=8"], "gives 4 values, but model.angles = 8", "change the width of its last layer",
                    args=["--validate"])
        self.refuse("rotnet", [('"image", "rotation"', '"image"')], 'needs "rotation"', "as by rotate(4)", args=["--validate"])
        self.refuse("rotnet", [("rotate |", "rotate(8) |")], "model.angles", args=["--validate"])
        self.refuse("jigsaw", [("towers = 4", "towers = 2")], "model.views", "towers = 4", args=["--validate"])
        self.refuse("npid", ["model.loss.samples=20"], "not in [0, 20) (model.loss.samples)", "repair the sample or leave it out", code=4)

    def test_groups_of_batch_norm(self):
        whole = [("width = 4, group_examples = 2", "width = 4")]
        self.refuse("simclr", whole, "model.trunk.group_examples = 0", "accumulation splits into 2 passes",
                    "set it to 2, or train.micro_batch to 4", ranks=2)
        self.refuse("simclr", [("width = 4, group_examples = 2", "width = 4, group_examples = 3")],
                    "model.trunk.group_examples = 3 does not divide the batch into equal groups", "set it to 2 or 4", ranks=2)
        self.refuse("barlow_twins", [("on = true, group_examples = 2", "on = true")], "model.head[0].batch_norm.group_examples = 0",
                    "accumulation splits into 4 passes")

        self.refuse("linear_probe", [("group_examples = 2", "group_examples = 3")],
                    "model.probe[0].head.batch_norm.group_examples = 3 does not divide the batch into equal groups")
        self.refuse("moco", ["model.shuffle=true"], "model.shuffle = true draws an order of the whole global batch",
                    "splits into 4 passes", "set train.micro_batch to 8")

    def test_heads_that_do_not_fit(self):
        check, swav = ["--validate"], head("swav", "layers = [8]\nprototypes = [9]\n")
        for name in ("moco", "npid"):
            keys = ["model.loss.loss_weights=[1, 1]"] if name == "npid" else []
            self.refuse(name, [(head("mlp", "layers = [8]\n"), swav), *keys], 'model.head[0].kind = "swav": has ', "outputs of 8, 9 values"
                        if name == "npid" else "outputs, of 8, 9 values", "end with a head of kind mlp", args=check)
        self.refuse("swav", [('kind = "swav"\nlayers = [16, 8]\nprototypes = [9]', 'kind = "mlp"\nlayers = [16, 8]')],
                    'model.head[0].kind = "mlp": has no prototypes', "end with a head of kind swav", args=check)
        self.refuse("simclr", [('kind = "mlp"', 'kind = "eval_mlp"\nchannels = 7')], "model.head[0].channels = 7, but the head reads 32",
                    args=check)
        towers = head("siamese_concat_view", "towers = {}\n")
        self.refuse("simclr", [("[[model.head]]", towers.format(2) + "[[model.head]]")], "model.views", "one view", args=check)
        self.refuse("npid", [("[[model.head]]", towers.format(2) + "[[model.head]]"), "model.views=[3]"],
                    "towers = 2 does not divide the 3 views", args=check)
        self.refuse("moco", [("[[model.head]]", towers.format(1) + "[[model.head]]"), "model.head.0.towers=2"],
                    "leave that head out", args=check)

    def test_taps(self):
        self.refuse("linear_probe", [('tap = "res4"', 'tap = "res6"')], 'model.probe "res6"', 'there is no tap "res6"', "did you mean",
                    "the model has conv1, res1, res2", args=["--validate"])
        taps = '\n[eval.few]\nkind = "fewshot"\ndata = "train"\ntrain_data = "train"\ntap = "layer4"\nshots = [2]\nevery_steps = 8\n'
        self.refuse("linear_probe", [("[checkpoint]", taps + "[checkpoint]")], "eval.few", 'there is no tap "layer4"',
                    "the model has conv1, res1, res2", args=["--validate"])

    def test_trunk_of_another_depth(self):
        self.use("simclr")
        self.expect(0, args=[self.deck(), "--dir", self.folder + "/trunk", "--set", "train.total_steps=1"])
        init = f'\n[init]\nfrom = "{self.folder}/trunk"\nmap = {{ "trunk" = "params/trunk" }}\n[checkpoint]'
        self.refuse("linear_probe", [("depth = 18", "depth = 34"), ("[checkpoint]", init)], "init.from", "model.trunk.depth = 34",
                    "the file holds a ResNet-18", "make model.trunk the same", ranks=2)


harness.main()
