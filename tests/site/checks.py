# SPDX-License-Identifier: Apache-2.0
"""ReFrame's checks of a site, for after a maintenance (tests/README.md, "At a site").

    reframe -C tests/site/settings.py -c tests/site/checks.py -r -S trainer=/path/to/trainer -S launch='srun -n' -S ranks=8

Each check is one start of steps.sh in a folder of its own, in a job with as many tasks as ranks.
"""
import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher
from reframe.core.builtins import performance_function, run_after, run_before, sanity_function, variable

SITE = os.path.dirname(os.path.abspath(__file__))


class Check(rfm.RunOnlyRegressionTest):
    trainer = variable(str, value=os.environ.get("TRAINER", os.path.join(SITE, "../../build/trainer")))
    launch = variable(str, value=os.environ.get("LAUNCH", "mpirun -np"))
    ranks = variable(int, value=int(os.environ.get("RANKS", "2")))
    step = variable(str)
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    executable = os.path.join(SITE, "steps.sh")
    time_limit = "20m"
    maintainers = ["the site"]

    @run_after("init")
    def name_step(self):
        self.executable_opts = [self.step]
        self.num_tasks = self.ranks
        self.descr = f"steps.sh {self.step}"

    @run_after("setup")
    def start_once(self):
        """The steps start the ranks."""
        self.job.launcher = getlauncher("local")()

    @run_before("run")
    def set_environment(self):
        self.env_vars = {"TRAINER": os.path.abspath(self.trainer), "LAUNCH": f"'{self.launch}'", "RANKS": str(self.ranks)}

    @sanity_function
    def passed(self):
        return sn.all([sn.assert_eq(self.job.exitcode or 0, 0), sn.assert_found(rf"^passed {self.step}$", self.stdout),
                       sn.assert_not_found(r"^failed ", self.stdout)])


class Measured(Check):
    """A check that also keeps a number, which settings of a site may hold against their own (reference)."""

    @performance_function("share")
    def share(self):
        return sn.extractsingle(r"share=([\d.]+)$", self.stdout, 1, float)


@rfm.simple_test
class Starts(Check):
    step = "starts"


@rfm.simple_test
class Bits(Check):
    step = "bits"


@rfm.simple_test
class Checkpoint(Check):
    step = "checkpoint"


@rfm.simple_test
class Killed(Check):
    step = "killed"


@rfm.simple_test
class Products(Measured):
    step = "products"


@rfm.simple_test
class Exchange(Measured):
    step = "exchange"


@rfm.simple_test
class Selftest(Check):
    step = "selftest"


@rfm.simple_test
class Script(Check):
    step = "script"
