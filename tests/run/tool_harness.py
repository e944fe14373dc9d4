# SPDX-License-Identifier: Apache-2.0
"""Starts tools in the folder of a test, and looks into the tar files that they write."""
import hashlib
import json
import os
import subprocess
import tarfile

import h5py

import harness


class ToolTest(harness.RunTest):
    def tool(self, name, *args, code=0):
        done = subprocess.run([f"{harness.SOURCE}/tools/{name}", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=harness.GUARD, cwd=self.folder, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout

    def show(self, *extra):
        self.expect(0, "show     ", args=[self.deck(), "--mode", "show", "--dir", self.dir, *extra])
        with h5py.File(self.dir + "/show.h5") as f:
            return {n: f["model"][n][()] for n in f["model"]}, json.loads(f["examples"][()]), dict(f.attrs)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def digests(self, folder):
        out = {}
        for name in sorted(os.listdir(self.path(folder))):
            with open(f"{self.path(folder)}/{name}", "rb") as f:
                out[name] = hashlib.sha256(f.read()).hexdigest()
        return out

    def members(self, path):
        with tarfile.open(self.path(path)) as tar:
            return {m.name: tar.extractfile(m).read() for m in tar}

    def deck_of(self, out, fields='image = "png", text = "txt"', shards="train-00000.tar"):
        return self.deck(self.changed(('path       = "%s/train-{000..001}.tar"' % self.data, f'path = "{self.path(out)}/{shards}"'),
                                      ('image = "png", text = "txt"', fields)))
