# SPDX-License-Identifier: Apache-2.0
"""Small decks of every kind of self-supervised model, and of linear probes, on 40 images of five classes."""
import tarfile

import harness

DECK = """format   = 1
run      = {{ name = "test", dir = "{dir}", device = "cpu", threads = 1 }}
profile  = {{ peak_tflops = 0.1 }}
train    = {{ data = "train", total_steps = 16, global_batch = 8, micro_batch = 2 }}
mesh     = {{ replica = 1, fsdp = -1 }}
sharding = {{ parameters = "sharded", optimizer = "sharded" }}
log      = {{ console_every_steps = 1, epoch_means = true }}

[determinism]
level  = "mesh"
slices = 4

[model]
{model}

[optimizer]
kind          = "sgd"
learning_rate = 0.05
momentum      = 0.9

[schedule.default]
kind         = "cosine"
warmup_steps = 3

[data.train]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png", label = "cls" }}
preprocess = 'decode | {ops}'

[checkpoint]
every_steps = 1
keep_last   = 2
"""

TRUNK = 'trunk = { kind = "resnet", depth = 18, width = 4, group_examples = 2 }\n'
NORM = "batch_norm = { on = true, group_examples = 2 }\n"
ONE = 'resize(16) | value_range(-1, 1) | keep("image", "label")'
COPIES = 'copies(2) | random_resized_crop(16) | flip_lr | value_range(-1, 1) | keep("image")'
CROPS = 'multi_crop([2, 2], [16, 8]) | flip_lr | value_range(-1, 1) | keep("image", "image1")'


def head(kind, keys):
    return f'[[model.head]]\nkind = "{kind}"\n{keys}'


def swav(loss, teacher=""):
    return (f'kind = "swav"\nviews = [2, 2]\nimage_size = [16, 8]\n{TRUNK}{teacher}loss = {{ {loss} }}\n'
            + head("swav", "layers = [16, 8]\nprototypes = [9]\n" + NORM), CROPS)


# By name: the tables of [model], and what follows `decode`.
KINDS = {
    "simclr": ('kind = "simclr"\nviews = [2]\nimage_size = [16]\n' + TRUNK
               + head("mlp", "layers = [16, 8]\nrelu = true\n" + NORM), COPIES),
    "moco": ('kind = "moco"\nviews = [2]\nimage_size = [16]\nmomentum = 0.9\nloss = { queue_size = 32 }\n' + TRUNK
             + head("mlp", "layers = [8]\n"), COPIES),
    "swav": swav("queue_length = 32, queue_start_steps = 2"),
    "swav_teacher": swav("queue_length = 0", "teacher = { momentum = 0.9, batch_statistics_steps = 4 }\n"),
    "barlow_twins": ('kind = "barlow_twins"\nviews = [2]\nimage_size = [16]\n' + TRUNK
                     + head("mlp", "layers = [16, 8]\n" + NORM), COPIES),
    "dino": ('kind = "dino"\nviews = [2, 2]\nimage_size = [16, 8]\nmomentum = 0.9\n'
             "loss = { teacher_temperature_warmup_steps = 5 }\n" + TRUNK
             + head("dino", "prototypes = 11\nhidden = 12\nbottleneck = 8\n"), CROPS),
    "npid": ('kind = "npid"\nviews = [1]\nimage_size = [16]\nloss = { negatives = 20 }\n' + TRUNK
             + head("mlp", "layers = [8]\n"), 'resize(16) | index | value_range(-1, 1) | keep("image", "index")'),
    "deepcluster_v2": ('kind = "deepcluster_v2"\nviews = [2]\nimage_size = [16]\nloss = { samples = 40, clusters = [7, 5], '
                       'kmeans_iterations = 2 }\n' + TRUNK + head("mlp", "layers = [8]\n"),
                       'index | copies(2) | random_resized_crop(16) | value_range(-1, 1) | keep("image", "index")'),
    "pirl": ('kind = "pirl"\nviews = [1, 4]\nimage_size = [16, 8]\nloss = { samples = 40, negatives = 20 }\n' + TRUNK
             + head("image_and_patches", "patches = 4\npatch = { layers = [6] }\njoined = { layers = [8] }\nimage = { layers = [8] }\n"),
             'index | multi_crop([1, 1], [16, 20]) | patches(2, 2, key="image1") | shuffle_patches(0, 4, key="image1") '
             '| value_range(-1, 1) | keep("image", "image1", "index")'),
    "rotnet": ('kind = "rotnet"\nviews = [1]\nimage_size = [16]\n' + TRUNK + head("mlp", "layers = [4]\n"),
               'rotate | resize(16) | value_range(-1, 1) | keep("image", "rotation")'),
    "jigsaw": ('kind = "jigsaw"\nviews = [4]\nimage_size = [8]\npermutations = 24\n' + TRUNK
               + head("mlp", "layers = [6]\n" + NORM) + head("siamese_concat_view", "towers = 4\n") + head("mlp", "layers = [24]\n"),
               'resize(20) | patches(2, 2) | shuffle_patches(24, 4) | value_range(-1, 1) | keep("image", "permutation")'),
    "linear_probe": ('kind = "linear_probe"\nimage_size = 16\nnum_classes = 5\ntrunk = { kind = "resnet", depth = 18, width = 4 }\n'
                     '[[model.probe]]\ntap = "res4"\nhead = { kind = "eval_mlp", channels = 16, layers = [5], ' + NORM.strip() + " }\n"
                     '[[model.probe]]\ntap = "flatten"\nhead = { kind = "mlp", layers = [5] }\n', ONE),
    "mae": ('kind = "mae"\nimage_size = 16\ndecoder = { depth = 1, width = 16, heads = 2 }\n'
            'trunk = { kind = "vit", patch = 4, depth = 2, width = 16, mlp = 32, heads = 2, pool = "tok", posemb = "sincos2d_mae" }\n',
            'resize(16) | value_range(-1, 1) | keep("image")'),
    "combined": ('kind = "combined"\nviews = [2]\nimage_size = [16]\n' + TRUNK
                 + '[[model.loss]]\nkind = "simclr"\nweight = 0.7\n[[model.loss]]\nkind = "barlow_twins"\nweight = 0.3\n'
                 'name = "decorrelation"\n' + head("mlp", "layers = [16, 8]\n" + NORM), COPIES),
}


class SelfSupervised:
    """To be mixed into a test of the harness: `use` makes the deck of a kind the good one."""

    def make_images(self):
        with tarfile.open(self.data + "/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(40):
                harness.add_member(tar, f"{i:03}.png", harness.png(i))
                harness.add_member(tar, f"{i:03}.cls", str(i % 5).encode())

    def use(self, name):
        model, ops = KINDS[name]
        self.good = DECK.format(dir=self.dir, data=self.data, model=model, ops=ops)
        return self.good
