#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the configuration: one message names all missing libraries, HDF5 is found wherever a
site has it, builds with and without CUDA share their objects, and warnings stop the build of the tested compiler."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARIES = {  # as the message names them: their packages of apt, dnf, spack and conda
    "OpenMP": "libomp-dev libomp-devel llvm-openmp llvm-openmp",
    "MPI": "libopenmpi-dev openmpi-devel openmpi openmpi",
    "fmt": "libfmt-dev fmt-devel fmt fmt",
    "spdlog": "libspdlog-dev spdlog-devel spdlog spdlog",
    "toml++": "libtomlplusplus-dev tomlplusplus-devel tomlplusplus tomlplusplus",
    "JSON for Modern C++": "nlohmann-json3-dev json-devel nlohmann-json nlohmann_json",
    "CLI11": "libcli11-dev cli11-devel cli11 cli11",
    "OpenSSL": "libssl-dev openssl-devel openssl openssl",
    "libpng": "libpng-dev libpng-devel libpng libpng",
    "giflib": "libgif-dev giflib-devel giflib giflib",
    "libarchive": "libarchive-dev libarchive-devel libarchive libarchive",
    "oneDNN": "libdnnl-dev onednn-devel onednn onednn-cpu-omp",
    "xxHash": "libxxhash-dev xxhash-devel xxhash xxhash",
    "libjpeg-turbo": "libturbojpeg0-dev turbojpeg-devel libjpeg-turbo libjpeg-turbo",
    "libwebp": "libwebp-dev libwebp-devel libwebp libwebp-base",
    "SentencePiece": "libsentencepiece-dev sentencepiece-devel sentencepiece libsentencepiece",
    "HDF5": "libhdf5-openmpi-dev hdf5-openmpi-devel hdf5+mpi 'hdf5=*=mpi_openmpi*'",
    "GoogleTest": "libgtest-dev gtest-devel googletest gtest",
}
HIDDEN = "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF", "-DPKG_CONFIG_EXECUTABLE=/nowhere"
WITHOUT_PKG_CONFIG = "-DPKG_CONFIG_EXECUTABLE=/nowhere/pkg-config"


class Configure(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trainer_configure_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.build = self.folder + "/build"

    def write(self, name, text=""):
        path = f"{self.folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def configure(self, *args, code=0, **environment):
        """Returns CMake's output of a new configuration. The cached checks of the compiler are
        kept."""
        if os.path.exists(self.build + "/CMakeCache.txt"):
            os.remove(self.build + "/CMakeCache.txt")
        ninja = shutil.which("ninja")
        command = [shutil.which("cmake"), "-S", SOURCE, "-B", self.build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
                   f"-DCMAKE_CXX_COMPILER={shutil.which(os.environ.get('CXX', 'g++'))}"]
        if not any("TRAINER_CUDA" in a or "--preset" in a for a in args):
            command.append("-DTRAINER_CUDA=OFF")  # takes seconds to configure
        clean = {k: v for k, v in os.environ.items() if k not in ("HDF5_ROOT", "CXXFLAGS")}
        done = subprocess.run([*command, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
                              env={**clean, **environment}, cwd=SOURCE)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def missing(self, output):
        """Returns {name: text beside it} of the message."""
        found = re.search(r"Missing libraries: (\d+)\n(.*?)Their packages, all in one command:(.*)", output, re.S)
        self.assertTrue(found, output)
        rows = {}
        for line in found[2].splitlines():
            row = re.match(r" {4}(\S.*?)  +(\S.*)$", line)
            if row:
                rows[row[1]] = row[2]
            elif line.strip():
                last = list(rows)[-1]
                rows[last] += "; " + line.strip()
        self.assertEqual(len(rows), int(found[1]), output)
        self.commands = {line.split()[0]: line for line in found[3].splitlines() if re.match(r" +(apt-get|dnf|spack|conda) ", line)}
        for name in rows:
            for package, line in zip(LIBRARIES[name].split(), self.commands.values()):
                self.assertIn(" " + package, line, name)
        return rows

    def test_all_that_is_missing_at_once(self):
        # The system's libraries, MPI's wrapper and pkg-config are hidden. Unsuitable versions are
        # beside them.
        self.write("fmt/fmt-config.cmake", "")
        self.write("fmt/fmt-config-version.cmake", "set(PACKAGE_VERSION 7.1.3)\n")
        self.write("other/oneapi/dnnl/dnnl_version.h", "#define DNNL_VERSION_MAJOR 1\n")
        self.write("old/xxhash.h", "#define XXH_VERSION_MINOR 6\n")
        library = self.write("lib/any.so")
        rows = self.missing(self.configure(
            *HIDDEN, "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON", f"-Dfmt_DIR={self.folder}/fmt",
            f"-DTRAINER_DNNL__dnnl_INCLUDE={self.folder}/other", f"-DTRAINER_DNNL__dnnl_LIBRARY={library}",
            f"-DTRAINER_trainer__xxhash_INCLUDE={self.folder}/old", f"-DTRAINER_trainer__xxhash_LIBRARY={library}",
            f"-DTRAINER_trainer__webp_LIBRARY={library}", code=1))
        self.assertEqual(sorted(rows), sorted(LIBRARIES))
        self.assertEqual(sorted(self.commands), ["apt-get", "conda", "dnf", "spack"])
        for name in ("MPI", "fmt", "oneDNN", "HDF5", "SentencePiece"):
            self.assertRegex(rows[name], r"\d\.\d", "the version")
        self.assertIn("found: version 7.1.3", rows["fmt"])
        self.assertIn(f"found: another version, {self.folder}/other/oneapi", rows["oneDNN"])
        self.assertIn(f"found: another version, {self.folder}/old/xxhash.h", rows["xxHash"])
        self.assertIn(f"found: {library}, but no header webp/decode.h", rows["libwebp"])
        self.assertNotIn("found", rows["spdlog"])
        # Debian's names are those that tools/packages.sh installs.
        with open(SOURCE + "/tools/packages.sh", encoding="utf-8") as f:
            scripts = f.read()
        for package in self.commands["apt-get"].split()[2:]:
            self.assertTrue(package == "libomp-dev" or re.search(rf"[ (]{re.escape(package)}\s", scripts), package)

    def test_lists_of_sites(self):
        """The environments of conda and Spack hold what the message names."""
        for packager, file in ((2, "spack.yaml"), (3, "conda.yml")):
            with open(f"{SOURCE}/jobs/sites/{file}", encoding="utf-8") as f:
                listed = {re.split("[=<>@+]", name)[0] for name in re.findall(r"^ +- (\S+)", f.read(), re.M)}
            for name, packages in LIBRARIES.items():
                wanted = re.split("[=@+]", packages.split()[packager].strip("'"))[0]
                if (name, packager) != ("OpenMP", 2):  # GCC has its own
                    self.assertIn(wanted, listed, f"{name} in {file}")

    def test_names_only_what_is_missing(self):
        rows = self.missing(self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON", code=1))
        self.assertEqual(sorted(rows), ["CLI11", "MPI"])
        self.assertIn("openmpi-bin", self.commands["apt-get"])
        self.assertNotIn("libfmt-dev", self.commands["apt-get"])
        # Only tests need GoogleTest.
        hidden = "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"
        self.assertEqual(list(self.missing(self.configure(hidden, code=1))), ["GoogleTest"])
        # oneDNN 3 will do as well.
        self.write("three/oneapi/dnnl/dnnl_version.h", "#define DNNL_VERSION_MAJOR 3\n")
        self.configure(hidden, "-DTRAINER_TESTS=OFF", f"-DTRAINER_DNNL__dnnl_INCLUDE={self.folder}/three",
                       f"-DTRAINER_DNNL__dnnl_LIBRARY={self.write('lib/any.so')}")

    def test_builds_without_some_libraries(self):
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("GIF", "LibArchive")]
        absent += [f"-DTRAINER_trainer__{name}_INCLUDE=/nowhere" for name in ("webp", "sentencepiece")]
        rows = self.missing(self.configure(*absent, code=1))
        self.assertEqual(sorted(rows), ["SentencePiece", "giflib", "libarchive", "libwebp"])
        output = self.configure(*absent, "-DTRAINER_WITHOUT=gif;webp;sentencepiece;archive;lzf")
        self.assertIn("Built without: gif;webp;sentencepiece;archive;lzf", output)
        self.assertIn("lzf: none", output)
        with open(self.build + "/build.ninja", encoding="utf-8") as f:
            text = f.read()
        for name in ("gif", "webp", "sentencepiece", "archive", "lzf"):
            self.assertNotRegex(text, rf"lib{name}\.(so|a)")
        for name in ("data/images/no_gif", "data/images/no_webp", "data/tokenizers/no_sentencepiece", "checkpoint/no_archive"):
            self.assertIn(f"{name}.cpp.o:", text)
        for name in ("data/images/gif", "data/images/webp", "data/tokenizers/sentencepiece", "checkpoint/npz_reader"):
            self.assertNotIn(f"{name}.cpp.o:", text)
        self.assertIn("TRAINER_WITHOUT names jpeg; it may name", self.configure("-DTRAINER_WITHOUT=jpeg", code=1))

    def hdf5(self, prefix, include, library, edit=lambda text: text):
        """Makes an HDF5 in its own folder, as Spack, conda and modules do, from the system's."""
        os.makedirs(f"{self.folder}/{prefix}/include")
        for header in glob.glob(include + "/H5*.h") + [include + "/hdf5.h"]:
            with open(header, encoding="utf-8", errors="replace") as f:
                self.write(f"{prefix}/include/{os.path.basename(header)}", edit(f.read()))
        os.makedirs(f"{self.folder}/{prefix}/lib")
        os.symlink(os.path.realpath(library), f"{self.folder}/{prefix}/lib/libhdf5.so")
        os.chmod(self.write(f"{prefix}/bin/h5pcc"), 0o755)
        return f"{self.folder}/{prefix}"

    def test_hdf5_wherever_it_is(self):
        # Debian's HDF5 is found without pkg-config.
        library = re.search(r"HDF5: (/\S*hdf5\S*\.so)", self.configure(WITHOUT_PKG_CONFIG, "-DTRAINER_TESTS=OFF"))[1]
        include = os.path.dirname(glob.glob("/usr/include/**/hdf5/openmpi/hdf5.h", recursive=True)[0])
        # An HDF5 in its own folder is named, or found by the h5pcc in PATH.
        own = self.hdf5("own", include, library)
        want = f"HDF5: {own}/lib/libhdf5.so"
        self.assertIn(want, self.configure("-DTRAINER_TESTS=OFF", HDF5_ROOT=own))
        self.assertIn(want, self.configure(WITHOUT_PKG_CONFIG, "-DTRAINER_TESTS=OFF", PATH=f"{own}/bin:" + os.environ["PATH"]))
        # A serial one is as good, unless checkpoint.driver = "mpio" is wanted. An old one is refused.
        serial = self.hdf5("serial", include, library, lambda text: text.replace("#define H5_HAVE_PARALLEL 1", "/* serial */"))
        self.assertIn(want + " (parallel)", self.configure("-DTRAINER_TESTS=OFF", f"-DHDF5_ROOT={own}"))
        self.assertIn(f"HDF5: {serial}/lib/libhdf5.so (serial)", self.configure("-DTRAINER_TESTS=OFF", f"-DHDF5_ROOT={serial}"))
        with open(self.build + "/build.ninja", encoding="utf-8") as f:
            self.assertNotIn("TRAINER_HDF5_MPIO", f.read())
        # A serial one beside a parallel one: the latter is taken, wherever each of them is.
        os.chmod(self.write("serial/bin/h5cc"), 0o755)
        both = self.configure(WITHOUT_PKG_CONFIG, "-DTRAINER_TESTS=OFF", f"-DTRAINER_H5CC={serial}/bin/h5cc")
        self.assertRegex(both, rf"HDF5: (?!{serial})\S+ \(parallel\)")
        old = self.hdf5("old", include, library, lambda text: text.replace("H5Dget_chunk_info_by_coord", "H5Dget_nothing"))
        self.assertIn("too old", self.missing(self.configure(f"-DHDF5_ROOT={old}", code=1))["HDF5"])

    def commands(self, *args):
        """Returns {object: command} of a configuration, without libraries of C calls (tests/inject)."""
        self.configure(*args)
        with open(self.build + "/compile_commands.json", encoding="utf-8") as f:
            found = {e["command"].split(" -o ")[1].split()[0]: e["command"] for e in json.load(f)}
        return {name: command for name, command in found.items() if not re.search(r"/(inject|rest|slow|machine|mpi_faults)\.dir/", name)}

    def test_warnings_stop_the_build_of_the_tested_compiler(self):
        for file, command in self.commands().items():
            self.assertNotIn("Werror", command, file)
        version = subprocess.run([os.environ.get("CXX", "g++"), "-dumpversion"], capture_output=True, text=True, check=True).stdout
        if version.partition(".")[0].strip() != "12":
            self.skipTest(f"the compiler is {version.strip()}; the project's tests run with GCC 12")
        for file, command in self.commands("--preset", "release").items():
            self.assertIn("-Wall", command, file)
            self.assertIn("-Werror", command, file)
            if file.endswith(".cu.o") and "nvcc" in command:
                for flag in ("--Werror=all-warnings", "-Wextra,-Werror", "--warn-on-local-memory-usage,-Werror"):
                    self.assertIn(flag, command, file)

    def test_builds_share_their_objects(self):
        # The program of tools/quickstart has the objects of tools/test.
        for tool in ("quickstart", "test"):
            with open(f"{SOURCE}/tools/{tool}", encoding="utf-8") as f:
                self.assertRegex(f.read(), "\nbuild_preset release ")
        # CUDA only adds objects: those of its own sources.
        without = self.commands("--preset", "release", "-DTRAINER_CUDA=OFF")
        self.assertTrue(any(name.endswith("/no_cuda.cpp.o") for name in without))
        cuda = self.commands("--preset", "release", "-DTRAINER_CUDA=AUTO")
        for name, command in without.items():
            self.assertEqual(command, cuda.pop(name, None))
        for name in cuda:
            self.assertRegex(name, r"^CMakeFiles/trainer_gpu\.dir/|^tests/CMakeFiles/(gpu_libraries|plan_\w+)\.dir/")


if __name__ == "__main__":
    if not shutil.which("cmake") or not shutil.which("ninja"):
        print("skipped: no cmake or ninja in PATH")
        sys.exit(77)
    unittest.main()
