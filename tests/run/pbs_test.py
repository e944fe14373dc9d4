#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/pbs.sh under an IMITATION of PBS (pbs_imitation.py).

Debian has no PBS server, so no real one runs here. This test does not replace a run on a site.
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile

import harness
import place
import processes
from job_harness import ON_NODES
from pbs_imitation import PbsTest

# Replaces ssh to another node: the login shell there knows nothing of the job's environment, and
# /tmp is the node's own.
AGENT = """#!/bin/sh
mkdir -p "$HOME/tmp.$1"
exec env -i PATH="$PATH" HOME="$HOME" TMPDIR="$HOME/tmp.$1" \\
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c 'shift; eval "$*"' sh "$@"
"""

# Replaces the program. At its first start with these words it has no handler for signals yet.
PROBE = """#!/bin/sh
seen=probing.$(echo "$*" | tr -dc 0-9).$OMPI_COMM_WORLD_RANK  # a rank on another node has no PART
[ -e $seen ] || { touch $seen; exec /bin/sleep 60; }
echo "rank=$OMPI_COMM_WORLD_RANK threads=$OMP_NUM_THREADS tmpdir=$TMPDIR mesh=$TRAINER_MESH_SELECTOR words=$*"
"""

# Prints its words, and exits with 75 in the first part.
WORDS = """#!/bin/sh
[ $OMPI_COMM_WORLD_RANK = 0 ] && printf 'part=%s threads=%s<%s>\\n' "${PART:-1}" "$OMP_NUM_THREADS" "$(printf '|%s' "$@")"
[ "${PART:-1}" != 1 ] || exit 75
"""


class Pbs(PbsTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="pbs_test_", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.make_server(folder)
        os.symlink("deck.toml", f"{cls.home}/deck-3.toml")
        for name, text in (("bin/agent", AGENT), ("probe", PROBE), ("words", WORDS)):
            cls.write(name, text)
        for name, test, run, fault in (("bad_test", "echo node1.site", "true", "nomem"), ("bad_run", "true", "echo node0.site", "nomem"),
                                       ("bad_hang", "true", "echo node1.site", f"signal={int(signal.SIGSTOP)}")):
            cls.write(name, ON_NODES.format(names="IMITATED_NODE", test=test, run=run, fault=fault,
                                           ends="rank00001.log" if name == "bad_hang" else "metrics.jsonl"))
        cls.start_plays()

    # The scenarios

    @classmethod
    def run_of(cls, name, *options):
        return dict(DECK="deck.toml", OPTIONS=" ".join([f"--dir runs/{name}", *options]))

    @classmethod
    def slow(cls, name, *options):
        return dict(**cls.run_of(name, *options), TRAINER="./slow", SLOW_PARTS="1")

    @classmethod
    def play_straight(cls):
        return cls.whole("straight", **cls.run_of("straight"))

    @classmethod
    def play_lead(cls):
        first = cls.stopped("lead", **cls.slow("lead"), LEAD="100", MAX_PARTS="5")
        return first, cls.run_successor("lead", first[2], SLOW_PARTS="1")

    @classmethod
    def play_array(cls):
        """The timer of a task of an array asks it to stop, with a shortened lead."""
        first = cls.stopped("array-3", DECK="deck-%a.toml", OPTIONS="--dir runs/array-%a --set run.seed=%a", TRAINER="./slow",
                            SLOW_PARTS="1", index=3)
        return first, cls.run_successor("array-3", first[2], SLOW_PARTS="1")

    @classmethod
    def play_walltime(cls):
        """PBS shows no walltime, so the job gets no warning of its end."""
        job, process = cls.start("walltime", **cls.slow("walltime"), tmpdir=False, tells_walltime=False)
        try:
            cls.trains("walltime", 1)
        finally:
            cls.end_session(process)
        return cls.end(job, process)

    @classmethod
    def play_qalter(cls):
        """The trainer reads its own clock, because the used time is 100 s old. Then the user
        shortens the walltime to save and continue now."""
        words = ("-l", "walltime=00:17:40")
        job, process = cls.start("qalter", *words, **cls.slow("qalter", "--set limits.wall_time=auto --set limits.margin_s=20"), LEAD="0",
                                 started_s_ago=940)
        try:
            cls.trains("qalter", 1)
            cls.tell(job, cls.attributes("jobs/pbs.sh", ["-l", "select=1:ncpus=2:mpiprocs=2", "-l", "walltime=00:15:50"]))
        except BaseException:
            cls.end_session(process)
            raise
        return cls.end(job, process)

    @classmethod
    def play_stale(cls):
        """PBS shows a used time that is up to 120 s old. One rank, because ranks that wait for a slow one
        compute as well."""
        return cls.whole("stale", "-l", "select=1:ncpus=1:mpiprocs=1", "-l", "walltime=00:17:40",
                         **cls.slow("stale", "--set limits.wall_time=auto --set limits.margin_s=15"), LEAD="0",
                         hosts=("localhost",), started_s_ago=950)

    @classmethod
    def play_too_short(cls):
        """The walltime is over before the first step."""
        return cls.whole("too_short", "-l", "walltime=00:01:40", **cls.slow("too_short", "--set limits.wall_time=auto"), LEAD="0",
                         started_s_ago=100)

    @classmethod
    def play_budget(cls):
        return cls.whole("budget", **cls.slow("budget", "--set limits.core_hours=0.0005"))

    @classmethod
    def play_stop_file(cls):
        job, process = cls.start("stop_file", **cls.slow("stop_file"))
        try:
            cls.trains("stop_file", 1)
            open(f"{cls.home}/runs/stop_file/stop", "w").close()
        except BaseException:
            cls.end_session(process)
            raise
        return cls.end(job, process)

    @classmethod
    def play_killed(cls):
        job, process = cls.start("killed", **cls.slow("killed"))
        try:
            cls.trains("killed", 1)
            for pid in processes.descendants(process.pid):
                if processes.words(pid)[:1] == ["build/trainer"]:
                    os.kill(pid, signal.SIGKILL)
                    break
        except BaseException:
            cls.end_session(process)
            raise
        return cls.end(job, process)

    @classmethod
    def probing(cls, name, seed, **more):
        """Asks a job to stop before its program handles signals."""
        job, process = cls.start(name, DECK="deck.toml", OPTIONS=f"--set run.seed={seed}", TRAINER="./probe", **more)
        try:
            for rank in (0, 1):
                cls.wait(f"{name} starts", lambda: os.path.exists(f"{cls.home}/probing.{seed}.{rank}"))
            cls.wake(job)
        except BaseException:
            cls.end_session(process)
            raise
        return cls.end(job, process)

    @classmethod
    def play_limit(cls):
        return cls.probing("limit", 8, PART="1", MAX_PARTS="1")

    # Two imitated nodes must not share memory.
    TCP = dict(OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self", OMPI_MCA_oob_tcp_if_include="lo", OMPI_MCA_btl_tcp_if_include="lo")

    @classmethod
    def play_probe(cls):
        """Runs on two nodes, first with an agent of the site, then by PBS."""
        more = dict(hosts=("node0.site", "node1.site"), tmpdir=False, **cls.TCP)
        first = cls.probing("probe", 7, OMPI_MCA_plm_rsh_agent=f"{cls.home}/bin/agent", LD_LIBRARY_PATH="/nowhere",
                            TRAINER_MESH_SELECTOR="pair", **more)
        return first, cls.run_successor("probe", first[2], **more)

    @classmethod
    def on_three(cls, name, program, spares, *options, **more):
        return cls.whole(name, "-l", "select=3:ncpus=1:mpiprocs=1", "-l", "place=scatter", **cls.run_of(name, *options),
                         TRAINER=f"./{program}", SPARE_NODES=spares, SLOW_BELOW="0.01", RESTART_S="60",
                         hosts=("node0.site", "node1.site", "node2.site"), tmpdir=False, **cls.TCP,
                         **more)

    @classmethod
    def play_spare_tested(cls):
        return cls.on_three("spare_tested", "bad_test", "1")

    @classmethod
    def play_spare_run(cls):
        return cls.on_three("spare_run", "bad_run", "1")

    @classmethod
    def play_spare_hang(cls):
        """Rank 1 stops, in a file that each rank writes."""
        return cls.on_three("spare_hang", "bad_hang", "1", "--set watch.limit_s=4")

    @classmethod
    def play_spare_successor(cls):
        """Without a spare node, the successor must do without the bad one, which PBS gives it again."""
        first = cls.on_three("spare_successor", "bad_test", "0")
        words, variables = first[2]
        return first, cls.run_successor("spare_successor", [words, {**variables, "SPARE_NODES": "1"}], tmpdir=False, **cls.TCP,
                                        hosts=("node0.site", "node1.site", "node2.site"))

    # Uses options with quotes and commas, and everything that the command line can give a job.
    GIVEN = ["-l", "select=1:ncpus=5:mpiprocs=2:mem=16gb+1:ncpus=6:mpiprocs=2:mem=16gb", "-l", "place=free:shared", "-N", "my.run", "-q",
             "short", "-A", "money", "-P", "captions", "-W", "umask=027", "-k", "oe", "-j", "eo"]

    @classmethod
    def play_inherited(cls):
        first = cls.whole("inherited", *cls.GIVEN, DECK="deck.toml", TRAINER="./words",
                          OPTIONS="--set 'train.mixture={a = 1, b = 3}' --set run.notes=\"it's, good\"  --dir runs/a\\ b")
        return first, cls.run_successor("inherited", first[2])

    @classmethod
    def play_routed(cls):
        """The job's queue accepts jobs only through another queue."""
        return cls.whole("routed", "-q", "medium", DECK="deck.toml", TRAINER="./words", IMITATED_REFUSAL="medium")

    @classmethod
    def play_refused(cls):
        return cls.whole("refused", DECK="deck.toml", TRAINER="./words", IMITATED_REFUSAL="workq")

    # Expected results

    def attributes_of(self, job):
        with open(f"{self.home}/server/{job}") as f:
            return f.read()

    def not_continued(self, name, code):
        _, got, successor = self.result(name)
        self.assertEqual((got, successor), (code, None), self.log(name))
        self.assertNotIn("continued", self.log(name))
        self.assertIn(f" part 1 ended with {code} at ", self.log(name))
        return self.log(name)

    def test_straight(self):
        log = self.not_continued("straight", 0)
        for text in ("mpirun    ", "sha256=", "PBS_QUEUE=workq"):
            self.assertIn(text, log)
        self.assertNotIn("do not print this", log)

    def test_lead(self):
        (job, code, (words, variables), seconds), (_, second, none) = self.result("lead")
        log = self.log("lead")
        self.assertEqual((code, second, none), (75, 0, None), log)
        self.assertLessEqual(seconds, 500)
        self.assertNotIn("warning: LEAD", log)
        self.assertEqual(words, ["-q", "workq", "-l", "walltime=00:10:00", "-l", "select=1:ncpus=2:mpiprocs=2:ompthreads=1", "-l",
                                 "place=free", "-N", "trainer", "-j", "oe", "-k", "oed", "-W", "umask=22", "-W",
                                 f"depend=afterany:{job}", "-v", ",".join(variables), "jobs/pbs.sh"])
        self.assertEqual(variables, {"DECK": "deck.toml", "PART": "2", "MAX_PARTS": "5", "LEAD": "100", "BIND": "none", "TRAINER": "./slow",
                                     "SCRIPT": "jobs/pbs.sh", "OPTIONS": "--dir runs/lead", "LOCAL_DIR": f"{self.home}/local"})
        self.assertRegex(log, r"(?s)stopped  step=[1-9].*signal USR1.*part 1 ended with 75.*continued by 1000.*part 2 on .*from=checkpoint")
        # Open MPI prints "aborted" for a job that has saved and exits with 75; the script drops
        # this text.
        for text in ("Primary job", "aborted", "non-zero status"):
            self.assertNotIn(text, log)
        self.assert_same_bits("lead")

    def test_array(self):
        (_, code, (words, variables), seconds), (_, second, none) = self.result("array")
        log = self.log("array-3")
        self.assertEqual((code, second, none), (75, 0, None), log)
        self.assertEqual(variables["INDEX"], "3")
        self.assertFalse([w for w in words if w.startswith("depend")])
        self.assertIn("warning: LEAD=300 s is more than a quarter of the walltime 00:10:00: saving begins 150 s before its end", log)
        self.assertLessEqual(seconds, 450)
        self.assertEqual(len(self.checkpoints("array-3")), 3)
        self.assertNotEqual(self.tensors("array-3"), self.uninterrupted())

    def test_walltime_over(self):
        _, _, successor = self.result("walltime")  # the TERM ends the login shell
        log = self.log("walltime")
        self.assertIsNone(successor)
        self.assertIn("part 1 ended with 1 ", log)  # mpirun's code after a TERM
        self.assertIn("qstat shows no walltime", log)

    def test_own_clock_and_qalter(self):
        _, code, (words, _) = self.result("qalter")
        log = self.log("qalter")
        self.assertEqual(code, 75, log)
        # The job had 120 s left at its start; PBS's used time would give 220 s.
        self.assertRegex(log, r"limits   wall time: (2m0s|1m\d+s|\d+s) left \(pbs\)")
        self.assertEqual(log.count("(pbs has changed the limit)"), 1, log)
        # No save was measured yet, and steps are slow.
        self.assertRegex(log, r"stopped  step=[1-9]\d* of .*: wall time: 0 s left; margin 20 s \+ step (?!0\.0)\S+ s \+ save 0\.5 s; start")
        self.assertIn("walltime=00:17:40", words)

    def test_stale_answers(self):
        _, code, _ = self.result("stale")
        log = self.log("stale")
        self.assertEqual(code, 75, log)
        # The job had 110 s left at its start; PBS's used time would give 220 s.
        self.assertRegex(log, r"limits   wall time: 1m\d+s left \(pbs\)")
        self.assertRegex(log, r"stopped  step=[1-9]\d* of .*: wall time: (1[5-9]|2\d) s left; margin 15 s \+ step ")

    def test_too_short(self):
        log = self.not_continued("too_short", 8)
        self.assertRegex(log, r"stopped  .*: wall time: 0 s left; margin 0 s \(not 120 s: .*give the job at least 00:0\d:\d0 \(")

    def test_budget_and_stop_file_are_not_continued(self):
        self.assertIn("limits.core_hours", self.not_continued("budget", 8))
        self.assertIn("stopped  ", self.not_continued("stop_file", 8))

    def test_only_75_is_continued(self):
        output, code = self.shell("for rc in {0..255}; do if may_continue 1 2; then echo $rc; fi; done")
        self.assertEqual((output.split(), code), (["75"], 0))
        output, _ = self.shell("rc=75; may_continue 4 5 && echo yes; may_continue 5 5 || echo no")
        self.assertRegex(output, r"^yes\nno\n.*part 5 of at most 5")

    def test_killed(self):
        self.assertIn("signal 9", self.not_continued("killed", 137))

    def test_limit_of_parts(self):
        _, code, successor = self.result("limit")
        self.assertEqual((code, successor), (75, None), self.log("limit"))
        self.assertIn("part 1 of at most 1", self.log("limit"))

    def test_refused(self):
        _, code, successor = self.result("refused")
        self.assertEqual((code, successor), (75, None), self.log("refused"))
        self.assertIn("not continued: qsub refused", self.log("refused"))

    def test_probe_on_two_nodes(self):
        (first, code, _), (second, second_code, none) = self.result("probe")
        log = self.log("probe")
        self.assertEqual((code, second_code, none), (75, 0, None), log)
        self.assertIn("asked to stop while starting", log)
        # The script passes on the variables that the other node's shell lacks; the directory is the
        # job's own.
        ranks = re.findall(rf"rank=(\d) threads=1 tmpdir={self.home}/local/trainer-\S+-{second} mesh=pair "
                           "words=deck.toml --set run.seed=7", log)
        self.assertEqual(sorted(ranks), ["0", "1"], log)
        # The site's agent precedes PBS, and PBS precedes ssh. Open MPI removes domains.
        self.assertFalse(os.path.exists(f"{self.home}/pbsdsh.{first}"))
        with open(f"{self.home}/pbsdsh.{second}") as f:
            self.assertEqual(set(f.read().splitlines()), {"pbsdsh 0 node0.site", "pbsdsh 1 node1.site"})

    def test_a_bad_node_is_found_before_the_start(self):
        _, code, successor = self.result("spare_tested")
        log = self.log("spare_tested")
        self.assertEqual((code, successor), (0, None), log)
        self.assertRegex(log, r"node node1.site is bad: locks: host node1.site rank 0: no locks: .*available\n"
                              r"starts on node0.site:1,node2.site:1\n")
        self.assert_same_bits("spare_tested")

    def test_a_node_that_goes_bad_is_replaced(self):
        _, code, successor = self.result("spare_run")
        log = self.log("spare_run")
        self.assertEqual((code, successor), (0, None), log)
        self.assertRegex(log, r"(?s)node node0.site is bad: rank=0 of 2 host=node0.site .* exit=3: .*"
                              r"starts on node1.site:1,node2.site:1\n.*part 1 ended with 0 ")
        self.assert_same_bits("spare_run")

    def test_a_node_that_hangs_is_replaced(self):
        _, code, successor = self.result("spare_hang")
        log = self.log("spare_hang")
        self.assertEqual((code, successor), (0, None), log)
        self.assertRegex(log, r"(?s)node node1.site is bad: rank=1 of 2 host=node1.site .* exit=7: .*"
                              r"starts on node0.site:1,node2.site:1\n.*part 1 ended with 0 ")
        self.assert_same_bits("spare_hang")

    def test_a_successor_leaves_the_bad_node_idle(self):
        (_, code, (_, variables)), (_, second, none) = self.result("spare_successor")
        log = self.log("spare_successor")
        self.assertEqual((code, second, none), (5, 0, None), log)
        self.assertEqual((variables["BAD_HOSTS"], variables["SPARE_NODES"]), ("node1.site", "0"))
        self.assertIn("node node1.site is bad: an earlier part of this job has found that\nstarts on node0.site:1,node2.site:1\n", log)
        self.assert_same_bits("spare_successor")

    def test_bad_nodes(self):
        """Nodes that are slow beside the others, that hang, and a deck that is wrong on every node."""
        report = '{"mode":"selftest","exit":0,"verdict":"","dir":"a\\"b","gflops":%s,"gbytes":9.5,"checks":[]}'
        # `timeout` takes the place of the tests, by their hosts.
        output, code = self.shell(f"""
trainer=x words=(deck.toml --cleanup --mode=train --fast-dev 3 --dir d) binding=() passed_on=() asked=
. jobs/spares.sh; choose_test_words; echo "${{test_words[*]}}"
hosts=(n0 n1 n2 n3) slots=(1 1 1 1) run_dir=''
timeout() {{
  case $* in *n1:1*) return 124 ;; *n2:1*) echo '{report % 20.5}' ;; *) echo '{report % 100.25}' ;; esac
}}
folder=$(mktemp -d); test_nodes $folder; echo "$run_dir: ${{good[*]}}: ${{bad[*]}}"
good=() bad=()
timeout() {{ echo "error: deck"; return 2; }}
test_nodes $folder; echo "$rc: ${{good[*]}}"; rm -r $folder""")
        self.assertEqual(code, 0, output)
        lines = output.splitlines()
        self.assertTrue(lines[0].startswith("deck.toml --dir d --mode selftest --json"), output)
        self.assertIn("node n1 is bad: its test did not end within 300 s", lines)
        self.assertIn("node n2 is bad: slow: 20.5 GFLOP/s of a rank, and the median of the nodes is 100.2", lines)
        self.assertIn('a"b: 0 3: n1 n2', lines)
        self.assertEqual(lines[-2:], ["2: ", "error: deck"], output)  # stderr follows

    def test_successor_is_as_its_job(self):
        (first, code, (words, variables)), (second, second_code, none) = self.result("inherited")
        log = self.log("inherited")
        self.assertEqual((code, second_code, none), (75, 0, None), log)
        self.assertEqual(self.attributes_of(first), self.attributes_of(second))
        for text in ("place = free:shared", "Job_Name = my.run", "queue = short", "Account_Name = money", "project = captions",
                     "umask = 27", "Keep_Files = oe", "Join_Path = eo"):
            self.assertIn(text, self.attributes_of(second))
        # The words must be unchanged. Each rank has 2 threads, from 5 and 6 cores for 2 ranks each,
        # though PBS sets 5.
        words = "|deck.toml|--set|train.mixture={a = 1, b = 3}|--set|run.notes=it's, good|--dir|runs/a b"
        for part in (1, 2):
            self.assertIn(f"part={part} threads=2<{words}>", log)

    def test_routing_queue(self):
        _, code, (words, _) = self.result("routed")
        self.assertEqual((code, words[:2]), (75, ["-q", "workq"]), self.log("routed"))
        self.assertIn("continued by", self.log("routed"))

    def test_threads_of_a_select(self):
        selects = {"2:ncpus=32:mpiprocs=8:ompthreads=4": 4, "2:ncpus=32:mpiprocs=8": 4, "1:ncpus=7:mpiprocs=2": 3,
                   "1:ncpus=2:mpiprocs=4": 1, "3:ncpus=6": 6, "1": 1, "1:ncpus=8:mpiprocs=4:ompthreads=1": 1,
                   "1:ncpus=8:mpiprocs=2+2:ncpus=9:mpiprocs=3:mem=2gb": 3, "1:ncpus=4:ompthreads=2+1:ncpus=8": 2,
                   "1:mem=2gb:mpiprocs=0:ncpus=4": 4}
        output, _ = self.shell("\n".join(f"threads_of {s}" for s in selects))
        self.assertEqual(list(map(int, output.split())), list(selects.values()))

    def test_words(self):
        for text, words in (("", []), ("  ", []), ("a  b", ["a", "b"]),
                            ("--set 'a b' \"c'd\" e\\ f ''", ["--set", "a b", "c'd", "e f", ""]),
                            ("$HOME `id` * -x %a", ["$HOME", "`id`", "*", "-x", "%a"])):
            output, _ = self.shell(f"""split_words {self.quoted(text)}; for w in "${{options[@]}}"; do printf '<%s>' "$w"; done""")
            self.assertEqual(output, "".join(f"<{w}>" for w in words), text)
        output, code = self.shell("split_words \"it's\"; echo not reached")
        self.assertEqual((output, code), ("error: a quote in 'it's' is not closed\n", 2))

    @staticmethod
    def quoted(text):
        return "'" + text.replace("'", "'\\''") + "'"

    def test_numbers_are_checked_first(self):
        for name, value in (("MAX_PARTS", "many"), ("MAX_PARTS", "0"), ("LEAD", "5m"), ("LEAD", "-1"), ("LEAD", "08"), ("PART", "x")):
            with self.subTest(f"{name}={value}"):
                _, code, successor = self.whole("numbers", DECK="deck.toml", TRAINER="./words", **{name: value})
                self.assertEqual((code, successor), (2, None))
                self.assertIn(f"error: {name}={value}; it is a whole number", self.log("numbers"))
        self.assertNotIn(" part ", self.log("numbers"))

    def test_hosts_are_checked_first(self):
        """A job without a list of hosts ends before it calls mpirun."""
        stub = f"{self.home}/stub"
        os.makedirs(stub, exist_ok=True)
        with open(f"{stub}/mpirun", "w") as f:
            f.write(f"#!/bin/sh\ntouch {stub}/called\n")
        os.chmod(f"{stub}/mpirun", 0o755)
        open(f"{stub}/empty", "w").close()
        files = ("", f"{stub}/none", stub, f"{stub}/empty")
        for given in ({}, *({"PBS_NODEFILE": file} for file in files)):
            with self.subTest(given):
                done = subprocess.run(["/bin/bash", "jobs/pbs.sh"], cwd=self.home, capture_output=True, text=True,
                                      env={"PATH": f"{stub}:/usr/bin:/bin", "PBS_O_WORKDIR": self.home, "PBS_JOBID": "12.s",
                                           "DECK": "deck.toml", "TRAINER": "./words", **given})
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"\Aerror: PBS_NODEFILE.*qsub\n\Z")
        self.assertFalse(os.path.exists(f"{stub}/called"))

    def test_what_open_mpi_calls_aborted(self):
        """The script drops Open MPI's texts about 75 and 8, and nothing else."""
        line = "-" * 74
        text = "\n".join(["one", line, "Primary job  terminated normally, but 1 process returned",
                          "a non-zero exit code. Per user-direction, the job has been aborted.", line, line,
                          "mpirun detected that one or more processes exited with non-zero status, thus causing",
                          "the job to be terminated. The first process to do so was:", "", "  Exit code:    CODE", line, "two",
                          line, "There are not enough slots", line, "three"])
        for number in (75, 8, 5, 175, 80):
            with self.subTest(number):
                output, _ = self.shell(f"cat > text.{number} <<'E'\n{text.replace('CODE', str(number))}\nE\n"
                                       f"mpirun() {{ cat text.{number} >&2; return {number}; }}; run_trainer; echo rc=$rc")
                dropped = number in (75, 8)
                self.assertEqual(output.count("exited with non-zero status"), 0 if dropped else 1, output)
                self.assertEqual(output.count("Primary job"), 0)
                self.assertRegex(output, rf"(?s)^(rc={number}\n)?one\n.*two\n-+\nThere are not enough slots\n-+\nthree\n")
                self.assertIn(f"rc={number}\n", output)

    def test_zz_no_directory_is_left(self):
        for name in self.plays:
            self.result(name)
        self.assertEqual(os.listdir(f"{self.home}/local"), [])


# The job script reads mpirun's output through /dev/fd, and the imitated server reads /proc.
place.skip(place.no_processes())

if __name__ == "__main__":
    harness.main()
