#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/prefix.sh: packages in a user's folder. The packages are small ones made here, and apt-get is an imitation.

A whole quickstart in a bare Debian, from real packages: tools/bare_test --prefix.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUARD = 600  # s: ends hung tests

# Says what would be installed (the package, what it needs, and a newer C library), and gives the packages.
APT = """#!/bin/sh
echo "$@" >> "$POOL/calls"
case " $* " in
  *" --simulate "*) printf 'Inst %s (1.0 Debian [amd64])\\n' fake-dev fake-base libc6 ;;
  *" download "*) [ ! -e "$POOL/away" ] || exit 100; cp "$POOL"/*.deb . ;;
esac
"""


PC = "prefix=/usr\nName: fake\nDescription: none\nVersion: 7\nCflags: -I${prefix}/include\n"


class Prefix(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="prefix_test_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.pool, self.dir = f"{self.folder}/pool", f"{self.folder}/deps"
        self.triplet = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, check=True).stdout.strip()
        self.write("pool/apt-get", APT)
        os.chmod(f"{self.pool}/apt-get", 0o755)
        self.lib = f"usr/lib/{self.triplet}"
        self.deb("fake-dev", {"usr/include/fake.h": "#define FAKE 7\n",
                              f"{self.lib}/pkgconfig/fake.pc": PC, f"{self.lib}/cmake/fake.cmake": self.cmake(""),
                              f"{self.lib}/libscript.so": f"GROUP ( /{self.lib}/libfake.so.1 /{self.lib}/libc.so.6 )\n"},
                 {f"{self.lib}/libfake.so": f"/{self.lib}/libfake.so.1", f"{self.lib}/libmine.so": "libc.so.6"})
        self.deb("fake-base", {f"{self.lib}/libfake.so.1": "", "usr/share/doc/fake/long": ""}, {})

    def cmake(self, folder):
        """Returns lines of a file of CMake: of the second path, the system has the file; the last lines stay as they are."""
        return (f'set(a "{folder}/{self.lib}/libfake.so.1")\nset(b /usr/bin/env)\nset(c ${{d}}/usr/lib)\n'
                f"f(_realOrig /{self.lib}/libfake.so.1)\n")

    def write(self, name, text):
        path = f"{self.folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def read(self, name):
        with open(f"{self.folder}/{name}", encoding="utf-8") as f:
            return f.read()

    def deb(self, name, files, links):
        for path, text in files.items():
            self.write(f"{name}/{path}", text)
        for path, target in links.items():
            os.symlink(target, f"{self.folder}/{name}/{path}")
        self.write(f"{name}/DEBIAN/control", f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: none\nDescription: none\n")
        subprocess.run(["dpkg-deb", "-Znone", "--build", f"{self.folder}/{name}", f"{self.pool}/{name}.deb"], check=True,
                       capture_output=True)

    def shell(self, commands, code=0):
        """Returns the output of commands after both files were read."""
        done = subprocess.run(["bash", "-c", f". tools/packages.sh; . tools/prefix.sh; {commands}"], cwd=SOURCE, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=GUARD,
                              env={**os.environ, "POOL": self.pool, "PATH": f"{self.pool}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def use(self, then="true", code=0):
        return self.shell(f"use_prefix {self.dir} bash fake-dev && {then}", code)

    def test_unpacks_and_mends(self):
        output = self.use("echo int f = FAKE\\; | g++ $CXXFLAGS -xc++ -include fake.h -fsyntax-only - && pkg-config --cflags fake")
        self.assertIn(f"unpacking 1 and what they need into {self.dir}: fake-dev\n", output)
        self.assertTrue(output.endswith(f"-I{self.dir}/usr/include \n") or output.endswith(f"-I{self.dir}/usr/include\n"), output)
        calls = self.read("pool/calls").splitlines()
        self.assertEqual([next(w for w in ("update", "--simulate", "download") if w in c.split()) for c in calls],
                         ["update", "--simulate", "download"])
        self.assertTrue(calls[2].endswith(" fake-base fake-dev"), "the system keeps its C library")
        lib = f"{self.dir}/{self.lib}"
        self.assertEqual(os.readlink(f"{lib}/libfake.so"), f"{lib}/libfake.so.1")
        self.assertEqual(os.path.realpath(f"{lib}/libmine.so"), os.path.realpath(f"/{self.lib}/libc.so.6"))
        self.assertEqual(self.read(f"deps/{self.lib}/libscript.so"), f"GROUP ( {lib}/libfake.so.1 /{self.lib}/libc.so.6 )\n")
        self.assertEqual(self.read(f"deps/{self.lib}/cmake/fake.cmake"),
                         self.cmake(self.dir))
        self.assertFalse(os.path.exists(f"{self.dir}/usr/share/doc"))
        # A second start asks nobody.
        self.assertEqual(self.use("echo $CMAKE_PREFIX_PATH"), f"packages all 2 installed or in {self.dir}\n{self.dir}/usr\n")
        self.assertEqual(self.read("pool/calls").splitlines(), calls)
        # Files name the folder's path.
        os.rename(self.dir, self.folder + "/moved")
        output = self.shell(f"use_prefix {self.folder}/moved bash fake-dev", 1)
        self.assertIn(f"error: {self.folder}/moved was {self.dir} when it was filled", output)

    def test_an_interrupted_start_begins_again(self):
        self.write("pool/away", "")
        self.assertIn("error: apt-get download failed", self.use(code=1))
        os.remove(f"{self.pool}/away")
        self.assertIn("packages unpacked 2 in", self.use())

    def test_refusals(self):
        self.assertIn("may have letters, digits and /._+- only", self.shell(f"use_prefix '{self.folder}/a b' bash", 1))
        done = subprocess.run([f"{SOURCE}/tools/quickstart", "--prefix"], capture_output=True, text=True, timeout=GUARD)
        self.assertEqual((done.returncode, done.stderr), (1, "error: quickstart stopped: --prefix needs a folder\n"))


if __name__ == "__main__":
    if not all(map(shutil.which, ("dpkg-deb", "flock", "g++", "pkg-config"))):
        print("skipped: no dpkg-deb, flock, g++ or pkg-config here")
        sys.exit(77)
    unittest.main(verbosity=2)
