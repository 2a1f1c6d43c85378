"""Graphs to be read: as text, for Graphviz, and as a small SVG picture.

Values have names: ``t0`` is a buffer that exists in the graph alone; other memory has the name that
``Graph.name`` gave it, or else is ``y0`` if the graph writes it and ``x0`` if not. ``x0+64`` begins 64 bytes
behind the first byte of ``x0`` that the graph uses.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import pairwise
from typing import NamedTuple

from ._fusion import Rewrite
from ._layout import Layout, is_row_major
from ._memory import MemoryReport
from ._program import Node, Op, Range, buffer_at, covers

# ---- names -------------------------------------------------------------------------------------------------


class Region(NamedTuple):
    """Memory with a name: ranges that meet each other are one."""

    name: str
    range: Range


class Names:
    """What to call the memory of some nodes. `held` are arrays that are known as a whole, `given` the names
    of some; of several names of the same memory the first one counts.
    """

    def __init__(self, nodes: Sequence[Node], held: Iterable[Range], given: Mapping[str, Range]) -> None:
        ranges = list(dict.fromkeys(what for node in nodes for what in node.ranges))
        wholes = _merged({*ranges, *_whole_buffers(ranges), *held, *given.values()})
        starts = [_place(whole) for whole in wholes]

        def whole_of(what: Range) -> Range:
            return wholes[bisect_right(starts, _place(what)) - 1]

        named: dict[Range, str] = {}
        for name, what in given.items():
            named.setdefault(whole_of(what), name)
        written = {whole_of(what) for node in nodes for what in node.writes}
        counts = {"x": 0, "y": 0}
        self._found: dict[Range, Region] = {}
        regions: dict[Range, Region] = {}
        for what in ranges:
            whole = whole_of(what)
            if whole not in regions:
                name = named.get(whole) or _new_name(whole, whole in written, counts, given)
                regions[whole] = Region(name, whole)
            self._found[what] = regions[whole]

    def region(self, what: Range) -> Region:
        """Where an operand lies."""
        return self._found[what]

    def operand(self, node: Node, i: int) -> str:
        """The name of an operand, and how far into that memory it begins."""
        region = self.region(node.ranges[i])
        offset = node.addresses[i] - region.range.low
        return f"{region.name}+{offset}" if offset else region.name


def _new_name(whole: Range, is_written: bool, counts: dict[str, int], taken: Container[str]) -> str:
    k = buffer_at(whole.low)
    letter = "t" if k is not None else "y" if is_written else "x"
    if k is None:
        k = counts[letter]
        counts[letter] += 1
    name = f"{letter}{k}"
    while name in taken:
        name = f"_{name}"
    return name


def _place(what: Range) -> tuple[str, int]:
    return str(what.device), what.low


def _whole_buffers(ranges: Iterable[Range]) -> list[Range]:
    """What is used of each buffer that exists in the graph alone, and all between."""
    found: dict[int, Range] = {}
    for one in ranges:
        if (k := buffer_at(one.low)) is not None:
            known = found.get(k, one)
            found[k] = one._replace(low=min(one.low, known.low), high=max(one.high, known.high))
    return list(found.values())


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """The fewest ranges that hold all of these, and of which none meets another one."""
    out: list[Range] = []
    for one in sorted(ranges, key=lambda what: (*_place(what), what.high)):
        if out and (out[-1].holds(one) or out[-1].meets(one)):
            out[-1] = out[-1]._replace(high=max(out[-1].high, one.high))
        else:
            out.append(one)
    return out


def layout_text(layout: Layout) -> str:
    """``F32[2, 3]``, and the strides in elements where they are not row-major."""
    dtype, shape, strides = layout
    text = f"{dtype.name}{list(shape)}"
    if is_row_major(layout) or 0 in shape:
        return text
    if any(stride % dtype.itemsize for stride in strides):
        return f"{text} strides {list(strides)} bytes"
    return f"{text} strides {[stride // dtype.itemsize for stride in strides]}"


@cache
def _scalar_defaults(op: type[Op]) -> list[tuple[str, object]]:
    """Names and defaults of the scalars of an operator, as its constructor has them."""
    parameters = list(inspect.signature(op).parameters.values())[len(op.operand_names) :]
    return [(one.name, one.default) for one in parameters]


def scalars_text(node: Node) -> list[str]:
    """``alpha=2`` for each scalar that is not the operator's default."""
    values = (*node.params, *node.scalars)
    known = _scalar_defaults(node.op)
    if len(known) != len(values):
        return [f"{value:g}" for value in values]
    return [f"{name}={value:g}" for (name, default), value in zip(known, values) if value != default]


def call_text(node: Node, names: Names) -> str:
    """A call on one line, outputs first."""
    operands = [
        f"{role}={names.operand(node, i)} {layout_text(node.layouts[i])}"
        for i, role in enumerate(node.op.operand_names)
    ]
    own = [] if node.foreign is None else ["an implementation of its own"]
    return "  ".join([*operands, *scalars_text(node), *own])


# ---- text --------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """Calls, and the numbers they were recorded under."""

    nodes: Sequence[Node]
    numbers: Sequence[int]

    @property
    def bytes(self) -> int:
        return sum(node.bytes for node in self.nodes)

    @property
    def flops(self) -> int:
        return sum(node.flops for node in self.nodes)


def explain(
    mode: str,
    recorded: Program,
    fused: Program,
    rewrites: Sequence[Rewrite],
    names: Names,
    reports: Sequence[MemoryReport],
) -> str:
    """A graph before and after fusion, what was rewritten, and what that saves."""
    lines = [f"as recorded: {_calls(len(recorded.nodes))}", *_call_lines(recorded, names), ""]
    if rewrites:
        lines += [f'after fusion ("{mode}"): {_calls(len(fused.nodes))}', *_call_lines(fused, names), ""]
        lines.append("rewrites:")
        for rewrite in rewrites:
            which = [f"#{n} {recorded.nodes[n].name}" for n in rewrite.nodes]
            gone = f"{which[0]} is gone" + (f" into {', '.join(which[1:])}" if which[1:] else "")
            lines.append(f"  {rewrite.rule}: {gone}; saves {_cost(rewrite.bytes, rewrite.flops)}")
    else:
        lines.append(f'fusion ("{mode}"): nothing is rewritten')
    saved = recorded.bytes - fused.bytes, recorded.flops - fused.flops
    lines += [
        "",
        f"{'':14}{'calls':>7}{'bytes moved':>18}{'FLOPs':>18}",
        _sums("as recorded", len(recorded.nodes), recorded.bytes, recorded.flops),
        _sums("after fusion", len(fused.nodes), fused.bytes, fused.flops),
        _sums("saved", len(recorded.nodes) - len(fused.nodes), *saved),
        "",
        *(str(report).partition("\n")[0] for report in reports),
    ]
    return "\n".join(lines).rstrip()


def _calls(n: int) -> str:
    return f"{n} call{'s' * (n != 1)}"


def _cost(nbytes: int, flops: int) -> str:
    return f"{nbytes:,} bytes" + (f", {flops:,} FLOPs" if flops else "")


def _sums(what: str, calls: int, nbytes: int, flops: int) -> str:
    return f"{what:14}{calls:>7,}{nbytes:>18,}{flops:>18,}"


def _call_lines(program: Program, names: Names) -> Iterator[str]:
    width = max((len(node.name) for node in program.nodes), default=0)
    for n, node in zip(program.numbers, program.nodes):
        yield f"  {f'#{n}':>5}  {node.name:{width}}  {call_text(node, names)}"


# ---- as a picture ------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """A call or a value in a picture: lines of text, and more of it for who asks."""

    is_call: bool
    lines: tuple[str, ...]
    title: str


class Picture(NamedTuple):
    """Calls and values, and edges between them in data order: (from, to, what the edge means)."""

    items: list[Item]
    edges: list[tuple[int, int, str]]


def picture(program: Program, names: Names) -> Picture:
    """Calls and the values between them. Memory that is written holds a new value then, which also comes
    from the old one where some of that stays.
    """
    items: list[Item] = []
    edges: dict[tuple[int, int, str], None] = {}
    latest: dict[Region, int] = {}  # the value that memory holds
    versions: dict[Region, int] = {}

    def value(region: Region, layout: Layout) -> int:
        version = versions[region] = versions.get(region, 0) + 1
        name = region.name if version == 1 else f"{region.name} ({version})"
        items.append(Item(False, (name, layout_text(layout)), f"{name}, {region.range.device}"))
        latest[region] = len(items) - 1
        return latest[region]

    def current(region: Region, layout: Layout) -> int:
        return latest[region] if region in latest else value(region, layout)

    for n, node in zip(program.numbers, program.nodes):
        scalars = scalars_text(node)
        outputs = range(node.n_outputs)
        reads_all = len(node.reads) == len(node.ranges)
        sources: dict[int, str] = {}
        for i in range(len(node.layouts)):
            if i >= node.n_outputs or reads_all:
                found = current(names.region(node.ranges[i]), node.layouts[i])
                role = node.op.operand_names[i]
                sources[found] = f"{sources[found]}, {role}" if found in sources else role
        for i in outputs:
            region = names.region(node.ranges[i])
            whole = covers(*node.operand(i), region.range.low, region.range.high - region.range.low)
            if not whole and region in latest:
                sources.setdefault(latest[region], "the rest")
        items.append(
            Item(
                True,
                (f"#{n} {node.name}", *([", ".join(scalars)] if scalars else [])),
                call_text(node, names),
            )
        )
        call = len(items) - 1
        edges.update({(source, call, role): None for source, role in sources.items()})
        made: dict[Region, int] = {}
        for i in outputs:
            region = names.region(node.ranges[i])
            if region not in made:
                made[region] = value(region, node.layouts[i])
            edges[call, made[region], node.op.operand_names[i]] = None
    return Picture(items, list(edges))


def _quoted(text: str) -> str:
    """A string of the DOT language. A line break in it is the two characters that mean one there."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def dot(drawn: Picture) -> str:
    """The picture in the DOT language of Graphviz."""
    lines = [
        "digraph graph_of_calls {",
        '  node [fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=8];',
    ]
    for k, item in enumerate(drawn.items):
        shape = "box" if item.is_call else "ellipse"
        lines.append(
            f"  n{k} [shape={shape}, label={_quoted(chr(10).join(item.lines))}, "
            f"tooltip={_quoted(item.title)}];"
        )
    lines += [f"  n{i} -> n{j} [label={_quoted(role)}];" for i, j, role in drawn.edges]
    return "\n".join([*lines, "}", ""])


# ---- SVG ---------------------------------------------------------------------------------------------------

_CHARACTER, _LINE = 6.7, 14.0  # of the font, in pixels
_PADDING, _GAP, _LAYER_GAP = 10.0, 18.0, 26.0
_BEND = 14.0  # width of the place of an edge that passes a layer
_SWEEPS = 8

_STYLE = (
    "text{font:11px monospace;text-anchor:middle;fill:#222}"
    ".call{fill:#dbe8f8;stroke:#3b6ea5}.value{fill:#fbf3dd;stroke:#b08d3c}"
    ".edge{fill:none;stroke:#888}"
)


class _Layers:
    """Every item has a layer, one below all it comes from. An edge that passes layers has a place in each, so
    that no box lies in its way.
    """

    def __init__(self, drawn: Picture) -> None:
        n = len(drawn.items)
        depth = [0] * n
        for i, j, _ in sorted(drawn.edges, key=lambda edge: edge[1]):  # items come after their sources
            depth[j] = max(depth[j], depth[i] + 1)
        has_source = {j for _, j, _ in drawn.edges}
        for i in range(n):  # what comes from nowhere stands above the first that needs it
            readers = [depth[j] for one, j, _ in drawn.edges if one == i]
            if i not in has_source and readers:
                depth[i] = min(readers) - 1
        self.depth = depth
        self.width = [
            2 * _PADDING + _CHARACTER * max(map(len, item.lines)) * (1.0 if item.is_call else 1.15)
            for item in drawn.items
        ]
        self.height = [_LINE * len(item.lines) + (8.0 if item.is_call else 14.0) for item in drawn.items]
        self.paths: list[list[int]] = []
        for i, j in dict.fromkeys((i, j) for i, j, _ in drawn.edges):
            path = [i]
            for between in range(depth[i] + 1, depth[j]):
                path.append(len(self.depth))
                self.depth.append(between)
                self.width.append(_BEND)
                self.height.append(0.0)
            self.paths.append([*path, j])
        self.layers: list[list[int]] = [[] for _ in range(max(self.depth, default=-1) + 1)]
        for k, at in enumerate(self.depth):
            self.layers[at].append(k)
        self.above: list[list[int]] = [[] for _ in self.depth]
        self.below: list[list[int]] = [[] for _ in self.depth]
        for path in self.paths:
            for one, other in pairwise(path):
                self.above[other].append(one)
                self.below[one].append(other)
        self.x = [0.0] * len(self.depth)
        for layer in self.layers:
            self._place(layer, self.x)
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in self.layers if down else reversed(self.layers):
                self._align(layer, self.above if down else self.below)
        left = min((x - width / 2 for x, width in zip(self.x, self.width)), default=0.0)
        self.x = [x - left + _GAP for x in self.x]
        self.y: list[float] = []  # of the middle of each layer
        bottom = _GAP
        for layer in self.layers:
            height = max(self.height[k] for k in layer)
            self.y.append(bottom + height / 2)
            bottom += height + _LAYER_GAP
        self.size = (
            max((x + width / 2 for x, width in zip(self.x, self.width)), default=0.0) + _GAP,
            bottom - _LAYER_GAP + _GAP,
        )

    def _align(self, layer: list[int], neighbours: list[list[int]]) -> None:
        """Order a layer by the middle of each one's neighbours, and put them as near to that as they fit."""
        wanted = list(self.x)
        for k in layer:
            if neighbours[k]:
                wanted[k] = sum(self.x[other] for other in neighbours[k]) / len(neighbours[k])
        layer.sort(key=lambda k: wanted[k])  # in place: equal ones keep their order
        self._place(layer, wanted)

    def _place(self, layer: list[int], wanted: list[float]) -> None:
        """The places nearest to those wanted, in this order and without overlap: of neighbours that would
        overlap, all move together to where they are nearest on average.
        """
        start: list[float] = []  # of each from the left end of all, were they packed
        end = 0.0
        for k in layer:
            start.append(end + self.width[k] / 2)
            end += self.width[k] + _GAP
        groups: list[tuple[float, int]] = []  # sum of what the members would shift by, number of members
        for k, packed in zip(layer, start):
            groups.append((wanted[k] - packed, 1))
            while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
                (one, n), (other, m) = groups.pop(), groups.pop()
                groups.append((one + other, n + m))
        shifts = [shift / n for shift, n in groups for _ in range(n)]
        for k, packed, shift in zip(layer, start, shifts):
            self.x[k] = packed + shift


def _xml(text: str) -> str:
    """Text of an XML document, in which not even escaped control characters may stand."""
    return escape(re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def svg(drawn: Picture) -> str:
    """The picture as a document of its own."""
    laid = _Layers(drawn)
    width, height = laid.size
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0L8,4L0,8z" fill="#888"/></marker>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    out += [_edge(laid, path) for path in laid.paths]
    for k, item in enumerate(drawn.items):
        x, y, w, h = laid.x[k], laid.y[laid.depth[k]], laid.width[k], laid.height[k]
        out.append(f"<g><title>{_xml(item.title)}</title>")
        if item.is_call:
            out.append(
                f'<rect class="call" x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" '
                f'height="{h:.1f}" rx="3"/>'
            )
        else:
            out.append(
                f'<ellipse class="value" cx="{x:.1f}" cy="{y:.1f}" rx="{w / 2:.1f}" ry="{h / 2:.1f}"/>'
            )
        first = y - _LINE * (len(item.lines) - 1) / 2 + 4
        out += [
            f'<text x="{x:.1f}" y="{first + _LINE * i:.1f}">{_xml(text)}</text>'
            for i, text in enumerate(item.lines)
        ]
        out.append("</g>")
    return "\n".join([*out, "</svg>", ""])


def _edge(laid: _Layers, path: Sequence[int]) -> str:
    first, last = path[0], path[-1]
    x, y = laid.x[first], laid.y[laid.depth[first]] + laid.height[first] / 2
    steps = [f"M{x:.1f},{y:.1f}"]
    for k in path[1:]:
        to_x, to_y = laid.x[k], laid.y[laid.depth[k]] - (laid.height[k] / 2 if k == last else 0.0)
        middle = (y + to_y) / 2
        steps.append(f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    return f'<path class="edge" d="{"".join(steps)}" marker-end="url(#tip)"/>'
