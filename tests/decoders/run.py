# SPDX-License-Identifier: Apache-2.0
"""`make test-decoders`: every system call with ordinary, odd and bad arguments, the recorder's lines beside strace's.

One line a syscall with its share of lines that are equal by letter; the last line has the means. `--docs FILE` writes
the table of docs/decoders.md. `--at-least N`: exit 1 when the mean share is below N percent, or when names and results
are right in less than 95 percent. strace is recorded in the same run as what it traces, and left out.

What it is not: it has no expected line; strace is the oracle (jobs.py makes the calls, caller.c does them).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from jobs import Job, all_jobs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

HERE = Path(__file__).parent
NOBODY = 65534
CALLS_A_RUN = 2000  # strace's own calls fill the rings too: about ten for each call that it traces
RECORD = ["--on", "always", "--window", "all", "--per-cpu-bytes", "64MiB", "--format", "otlp_proto"]
AS_STRACE = ["--no-fd-names", "-s", "32", "--buffers", "content"]
MARK = "prctl(PR_SET_NAME, NULL)"
LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
RESULT = re.compile(r"\) += (.*)")
UNFINISHED = " <unfinished ...>"
JOB = re.compile(r'execve\("./caller", \["./caller", "(\w+)"\]')
HEAD = re.compile(r"(\w+)\(")


@dataclass
class Score:
    """One syscall: lines compared, equal by letter, right in name and result; those that differ."""

    compared: int = 0
    equal: int = 0
    right: int = 0
    different: list[tuple[str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Equal lines of all, 0 to 1."""
        return self.equal / self.compared if self.compared else 0.0


def strace_lines(text: str) -> dict[int, list[str]]:
    """Each thread's calls, the two halves of an interrupted line joined."""
    threads: dict[int, list[str]] = {}
    pending: dict[int, str] = {}
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if not found:
            continue
        thread, rest = int(found[1]), found[2]
        if rest.startswith(("---", "+++")):
            continue
        if rest.endswith(UNFINISHED):
            pending[thread] = rest.removesuffix(UNFINISHED)
            continue
        resumed = RESUMED.fullmatch(rest)
        if resumed:
            rest = pending.pop(thread, "") + resumed[1]
        threads.setdefault(thread, []).append(rest)
    return threads


def recorded_lines(data: bytes) -> dict[int, list[str]]:
    """Each thread's calls out of the Collector's framed protobuf, in their order; those of strace left out."""
    threads: dict[int, list[tuple[int, str]]] = {}
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        for entry in ExportLogsServiceRequest.FromString(data[at + 4 : end]).resource_logs:
            names = [
                pair.value.string_value for pair in entry.resource.attributes if pair.key == "process.executable.name"
            ]
            if names == ["strace"]:
                continue
            for item in (item for scope in entry.scope_logs for item in scope.log_records):
                if item.event_name != "perfbuf.syscall":
                    continue
                numbers = {pair.key: pair.value.int_value for pair in item.attributes}
                threads.setdefault(numbers["thread.id"], []).append(
                    (numbers["perfbuf.sequence"], item.body.string_value)
                )
        at = end
    return {thread: [text for _, text in sorted(lines)] for thread, lines in threads.items()}


def jobs_lines(lines: Sequence[str]) -> Iterator[str]:
    """The call behind each mark."""
    for mark, line in pairwise(lines):
        if mark.startswith(MARK):
            yield line


def without_padding(line: str) -> str:
    """strace's line without its spaces in front of the result."""
    head, sign, tail = line.rpartition(" = ")
    return f"{head.rstrip()}{sign}{tail}"


def right(ours: str, theirs: str) -> bool:
    """Same name and result, whatever stands between."""
    names = HEAD.match(ours), HEAD.match(theirs)
    results = RESULT.findall(ours), RESULT.findall(theirs)
    return bool(
        names[0]
        and names[1]
        and names[0][1] == names[1][1]
        and results[0]
        and results[1]
        and results[0][-1] == results[1][-1]
    )


def run(folder: Path, jobs: Sequence[Job]) -> Iterator[tuple[str, Score]]:
    """Records one run over those jobs; the score of each."""
    for job in jobs:
        (folder / job.name).write_bytes(job.encode())
    output, dump = folder / "strace.out", folder / "dump.binpb"
    names = [job.name for job in jobs]
    command = [
        sys.executable,
        "-m",
        "otel_perfbuf",
        "record",
        *RECORD,
        *AS_STRACE,
        "-o",
        dump,
        "--",
        "strace",
        "-f",
        "-a1",
        "-s",
        "32",
        "-qq",
        "-o",
        output,
        "./caller",
        "-r",
        str(NOBODY),
        *names,
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=900, capture_output=True)
    traced, recorded = strace_lines(output.read_text(errors="replace")), recorded_lines(dump.read_bytes())
    for lines in traced.values():
        first = re.match(r'execve\("./caller", \["./caller", "(\w+)"\]', lines[0]) if lines else None
        first = first or next(
            filter(None, (re.match(r'execve\("./caller", \["./caller", "(\w+)"\]', x) for x in lines)), None
        )
        if first is None:
            continue
        thread = next(number for number, own in traced.items() if own is lines)
        yield first[1], compare(list(jobs_lines(recorded.get(thread, []))), list(jobs_lines(lines)))


def compare(ours: Sequence[str], theirs: Sequence[str]) -> Score:
    """Line by line in their order."""
    score = Score(compared=len(theirs))
    for our, their in zip(ours, map(without_padding, theirs), strict=False):
        if their.startswith("syscall_0x"):
            score.compared -= 1  # newer than this strace
            continue
        score.equal += our == their
        score.right += right(our, their)
        if our != their:
            score.different.append((our, their))
    return score


def batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Jobs of about CALLS_A_RUN calls."""
    batch: list[Job] = []
    for job in jobs:
        batch.append(job)
        if sum(len(one.calls) for one in batch) >= CALLS_A_RUN:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> int:
    """Runs, prints, decides."""
    parser = argparse.ArgumentParser(description="the recorder's lines beside strace's, for every system call")
    parser.add_argument("names", nargs="*", help="only these system calls")
    parser.add_argument("--different", type=int, default=0, metavar="N", help="show N lines that differ, of each")
    parser.add_argument("--at-least", type=float, metavar="PERCENT", help="of equal lines, the mean over all syscalls")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args()
    scores: dict[str, Score] = {}
    with tempfile.TemporaryDirectory(prefix="decoders") as name:
        folder = Path(name)
        folder.chmod(0o777)
        subprocess.run(["cc", "-O2", "-Wall", "-static", "-o", folder / "caller", HERE / "caller.c"], check=True)
        chosen = [job for job in all_jobs() if not options.names or job.name in options.names]
        for batch in batches(chosen):
            scores.update(run(folder, batch))
            for job in batch:
                report(job.name, scores.get(job.name, Score()), options.different)
    shares = [score.share for score in scores.values() if score.compared]
    compared, correct = sum(s.compared for s in scores.values()), sum(s.right for s in scores.values())
    mean, results = 100 * sum(shares) / len(shares), 100 * correct / compared
    print(
        f"{len(shares)} syscalls, {compared} lines: mean {mean:.1f} % equal by letter,"
        f" {results:.1f} % right in name and result"
    )
    if options.docs:
        write_table(options.docs, scores, mean, results)
    return int(options.at_least is not None and (mean < options.at_least or results < 95))


def report(name: str, score: Score, most: int) -> None:
    """One line, and what differs."""
    print(f"{name:26} {score.compared:5} lines {100 * score.share:6.1f} %", flush=True)
    for our, their in score.different[:most]:
        print(f"    strace {their}\n    ours   {our}")


def write_table(path: Path, scores: dict[str, Score], mean: float, results: float) -> None:
    """The documents' table: what is not equal yet, the worst first."""
    text = path.read_text()
    head = text[: text.index("<!-- table -->") + len("<!-- table -->")]
    compared = sum(score.compared for score in scores.values())
    whole = sorted(name for name, score in scores.items() if score.compared and score.equal == score.compared)
    rows = sorted(((s.share, name, s.compared) for name, s in scores.items() if s.compared and s.equal < s.compared))
    lines = [
        f"{len(scores)} system calls, {compared} lines: {mean:.1f} % equal by letter (mean over the calls),"
        f" {results:.1f} % right in name and result.",
        "",
        "| system call | lines | equal |",
        "|---|---:|---:|",
        *(f"| {name} | {count} | {100 * share:.1f} % |" for share, name, count in rows),
        "",
        f"Every line equal ({len(whole)}): {', '.join(whole)}.",
        "",
    ]
    path.write_text(head + "\n\n" + "\n".join(lines))


if __name__ == "__main__":
    raise SystemExit(main())
