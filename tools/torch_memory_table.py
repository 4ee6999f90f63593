"""The CSVs that torch_memory.py writes, their statistics, and the figures as text."""

import csv
import math
import statistics

from common import Failed, columns, write_csv

COLUMNS = "part,job,allocator,measure,rounds,median,low,high,ratio,ratio_low,ratio_high".split(",")
NOTE = (
    "median, low, high: of the rounds, and the 95 % interval of the median. ratio: to that of the reference, mlpool, in the "
    "same round, with its interval. limit_mib: the least memory with which a job finished each time; low: one with which it did not."
)
REFERENCE = "mlpool"
STEPS = ["allocator", "step", "reserved_mib", "allocated_mib"]


def interval(values):
    """The bounds of a 95 % interval of the median, or two empty texts for fewer than six values.

    They are values themselves: the k-th from either end, with the largest k that a sign test allows. So nothing is
    assumed of the distribution."""
    n, inside, below = len(values), None, 0.0
    for k in range((n + 1) // 2):
        below += math.comb(n, k) / 2**n
        if 2 * below > 0.05:
            break
        inside = k
    if inside is None:
        return "", ""
    return sorted(values)[inside], sorted(values)[n - 1 - inside]


def row_of(part, job, allocator, measure, values, reference=()):
    """A row of the figures of all rounds; the reference has as many, measured in the same rounds."""
    row = dict(zip(COLUMNS, [part, job, allocator, measure, len(values), statistics.median(values), *interval(values)]))
    if allocator != REFERENCE and len(reference) == len(values) and all(reference):
        ratios = [value / other for value, other in zip(values, reference)]
        row |= dict(zip(COLUMNS[8:], [statistics.median(ratios), *interval(ratios)]))
    return row


def rows_of(part, job, figures):
    """The rows of figures: allocator -> measure -> the value of each round."""
    rows = []
    for allocator, measures in figures.items():
        for measure, values in measures.items():
            rows.append(row_of(part, job, allocator, measure, values, figures.get(REFERENCE, {}).get(measure, ())))
    return rows


def limit_rows(job, found, rounds):
    """The rows of the limits in MiB: allocator -> the largest known to fail and the smallest known to suffice."""
    rows = []
    for allocator, (fails, suffices) in found.items():
        row = dict(zip(COLUMNS, ["limits", job, allocator, "limit_mib", rounds, suffices, fails, suffices]))
        if allocator != REFERENCE and REFERENCE in found:
            other_fails, other = found[REFERENCE]
            row |= dict(zip(COLUMNS[8:], [suffices / other, fails / other, suffices / other_fails]))
        rows.append(row)
    return rows


def ranked(row):
    """Reports whether the interval of the ratio excludes 1."""
    return row["ratio_low"] != "" and (float(row["ratio_low"]) > 1 or float(row["ratio_high"]) < 1)


class Results:
    """The CSV. A part that is measured replaces what the file has of it."""

    def __init__(self, path):
        self.path, self.rows, self.notes = path, [], []
        if not path.absolute().parent.is_dir():
            raise Failed(f"the folder of {path} does not exist")
        if not path.exists():
            return
        lines = path.read_text().splitlines()
        table = csv.DictReader(line for line in lines if not line.startswith("#"))
        self.rows = list(table)
        if table.fieldnames != COLUMNS or any(None in row or None in row.values() for row in self.rows):
            raise Failed(f"{path} was not written by this script: name another file")
        self.notes = [line[2:] for line in lines if line.startswith("# ") and line[2:] != NOTE]

    def replace(self, part, notes, rows):
        """Puts rows in the place of those of the same part and jobs, and writes the file."""
        jobs = list(dict.fromkeys(row["job"] for row in rows))

        def replaced(note):
            of, _, others = note.partition(": ")[0].partition(" of ")
            return of == part and set(others.split(", ")) <= set(jobs)

        self.rows = [row for row in self.rows if row["part"] != part or row["job"] not in jobs]
        self.rows += [{k: row.get(k, "") for k in COLUMNS} for row in rows]
        self.notes = [note for note in self.notes if not replaced(note)] + [f"{part} of {', '.join(jobs)}: {note}" for note in notes]
        write_csv(self.path, [NOTE, *self.notes], COLUMNS, self.rows)


def write_steps(path, notes, answers):
    """Writes the memory after each step of one job: allocator -> the answer of a worker."""
    rows = []
    for allocator, answer in answers.items():
        for step, (reserved, allocated) in enumerate(zip(answer["reserved"], answer["allocated"]), 1):
            rows.append(dict(zip(STEPS, [allocator, step, reserved, allocated])))
    write_csv(path, notes, STEPS, rows)


def table_of(rows):
    """The medians as text, a column for each allocator. A ratio to the reference stands in brackets if it is sure."""
    blocks = []
    for part, measure in dict.fromkeys((row["part"], row["measure"]) for row in rows):
        chosen = {(row["job"], row["allocator"]): row for row in rows if (row["part"], row["measure"]) == (part, measure)}
        names = list(dict.fromkeys(allocator for _, allocator in chosen))
        lines = [[f"{part}: {measure}", *names]]
        for job in dict.fromkeys(job for job, _ in chosen):
            lines.append([job] + [cell(chosen.get((job, name))) for name in names])
        blocks.append("\n".join(columns(lines)))
    return "\n\n".join(blocks)


def cell(row):
    if row is None:
        return "–"
    text = f"{float(row['median']):.5g}"
    return f"{text} ({float(row['ratio']):.3f})" if ranked(row) else text
