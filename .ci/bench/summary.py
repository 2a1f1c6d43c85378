"""Prints the table of README.md's "Numbers" from the tables of `python -m infiniop_py bench` in this folder:
some of their rows, those with two threads, one machine beside the other; the last row counts in how many of
all rows, with one thread too, a peer was ahead by more than 3 %.
"""

from __future__ import annotations

from pathlib import Path

#: A table, and what README calls its machine.
MACHINES = {
    "avx512": "Xeon",
    "amx_bf16": "Xeon, AMX",
    "avx512_bf16": "Zen 4",
    "avx512_bf16_zen5": "Zen 5",
    "avx2": "Zen 3",
}
THREADS = "2"
PEERS = ("numpy", "torch", "torch.upcast", "mkl", "openblas", "numexpr")
#: Operator, dtype, shape and layout, as the tables have them without what marks a row.
ROWS = (
    ("gemm", "F32", "1024x1024x1024", "contiguous"),
    ("gemm", "F32", "4096x4096x4096", "contiguous"),
    ("gemm", "F64", "1024x1024x1024", "contiguous"),
    ("gemm", "BF16", "1024x1024x1024", "contiguous"),
    ("gemm", "F16", "1024x1024x1024", "contiguous"),
    ("gemm", "F32", "16x4096x4096", "contiguous"),
    ("gemm", "F32", "16x4096x4096", "b transposed"),
    ("gemm", "BF16", "16x4096x4096", "b transposed"),
    ("gemm", "F16", "16x4096x4096", "b transposed"),
    ("gemm", "F32", "1x4096x11008", "contiguous"),
    ("gemm", "F32", "1x4096x11008", "b transposed"),
    ("gemm", "BF16", "1x4096x11008", "contiguous"),
    ("gemm", "BF16", "1x4096x11008", "b transposed"),
    ("gemm", "F32", "1x2048x2048", "b transposed"),
    ("gemm", "F32", "300x300x64", "contiguous"),
    ("gemm", "F32", "32x64x128x96", "contiguous"),
    ("gemm", "F32", "16x16x16", "contiguous"),
    ("add", "F32", "1000000", "contiguous"),
    ("add", "BF16", "1000000", "contiguous"),
    ("add", "F32", "64000000", "contiguous"),
    ("add", "F32", "1000x1000", "a transposed"),
    ("add_rms_norm", "F32", "128x4096", "contiguous"),
    ("add_rms_norm", "BF16", "128x4096", "contiguous"),
    ("add_rms_norm", "BF16", "4096x4096", "contiguous"),
    ("rearrange", "F32", "2000x2000", "transpose"),
    ("rearrange", "U8", "2001x2001", "transpose"),
    ("rearrange", "F16", "4096x4096", "transpose"),
    ("rearrange", "F32", "32x128x32x128", "-> (0,2,1,3)"),
    ("rearrange", "F16", "3x4x50x50x5x7", "-> (5,4,3,2,1,0)"),
    ("rearrange", "F32", "3x1000x1000", "-> (1,2,0)"),
)
Row = dict[str, str]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_of(path: Path) -> list[Row]:
    """The rows of a table."""
    lines = [cells(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *body = lines
    return [dict(zip(head, row)) for row in body]


def best(row: Row) -> float:
    """The fastest peer's time over ours."""
    return min(float(row[peer].lstrip("~")) for peer in PEERS if row.get(peer, "-") not in ("-", ""))


def cell(row: Row) -> str:
    ratio = best(row)
    return f"{row['rate']} ({ratio:.2f})" if ratio < 10 else f"{row['rate']} ({ratio:.0f})"


def table() -> str:
    tables = [rows_of(Path(__file__).with_name(f"{name}.md")) for name in MACHINES]
    machines = [
        {
            (row["op"], row["dtype"], row["shape"].rstrip("!+*"), row["layout"]): row
            for row in rows
            if row["threads"] == THREADS
        }
        for rows in tables
    ]
    lines = [
        "| operator | dtype | shape | " + " | ".join(MACHINES.values()) + " |",
        "|---|---|---|" + "--:|" * len(MACHINES),
    ]
    for name in ROWS:
        op, dtype, shape, layout = name
        where = shape if layout == "contiguous" else f"{shape} {layout}"
        lines.append(
            f"| {op} | {dtype} | {where} | " + " | ".join(cell(rows[name]) for rows in machines) + " |"
        )
    behind = [f"{sum(best(row) < 0.97 for row in rows)} of {len(rows)}" for rows in tables]
    return "\n".join([*lines, "| others ahead | | | " + " | ".join(behind) + " |"])


if __name__ == "__main__":
    print(table())
