"""Graphs to be read: ``explain``, the language of Graphviz, and SVG."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import infiniop_py as ip

Array = np.ndarray[Any, Any]
NASTY = 'a "b" <c> & \\d\ne\x00\ud800'
SVG = "{http://www.w3.org/2000/svg}"


def ones(*shape: int) -> Array:
    return np.ones(shape, "f4")


def chain() -> tuple[ip.Graph, Any]:
    """A copy that is absorbed, a product, a result that nobody needs, and one written again in part."""
    x, w = ones(4, 3), ones(4, 5)
    out = np.zeros((3, 5), "f4")
    with ip.Graph() as g:
        g.name(weights=w)
        ip.gemm_(out, ip.rearrange(x.T), w, 0.5)
        _ = ip.mul(x, x)
        del _
        ip.mul_(out[1:], out[1:], out[1:])
    return g, out


def rewrite_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "; saves " in line]


# ---- explain -----------------------------------------------------------------------------------------------


def test_explain_shows_both_graphs() -> None:
    g, _ = chain()
    before, after = g.explain().split('after fusion ("exact"): 2 calls\n')
    assert before.splitlines()[:5] == [
        "as recorded: 4 calls",
        "     #0  rearrange  y=t0 F32[3, 4]  x=x0 F32[3, 4] strides [1, 3]",
        "     #1  gemm       c=y0 F32[3, 5]  a=t0 F32[3, 4]  b=weights F32[4, 5]  alpha=0.5",
        "     #2  mul        c=t1 F32[4, 3]  a=x0 F32[4, 3]  b=x0 F32[4, 3]",
        "     #3  mul        c=y0+20 F32[2, 5]  a=y0+20 F32[2, 5]  b=y0+20 F32[2, 5]",
    ]
    assert after.splitlines()[:2] == [
        "     #1  gemm  c=y0 F32[3, 5]  a=x0 F32[3, 4] strides [1, 3]  b=weights F32[4, 5]  alpha=0.5",
        "     #3  mul   c=y0+20 F32[2, 5]  a=y0+20 F32[2, 5]  b=y0+20 F32[2, 5]",
    ]
    assert rewrite_lines(after) == [
        "  copy: #0 rearrange is gone into #1 gemm; saves 96 bytes",
        "  dead: #2 mul is gone; saves 144 bytes, 12 FLOPs",
    ]
    assert f"CPU:0: arena of 0 bytes for {2 * 48}, 0 %" in after


@pytest.mark.parametrize("fuse", ["exact", "fast", "none"])
def test_what_the_rewrites_save_is_what_is_saved(fuse: str) -> None:
    x, w = ones(6, 8), ones(8, 8)
    with ip.Graph(fuse=fuse) as g:
        y, residual = ip.add_rms_norm(x, x, w[0])
        for _ in range(3):
            h = ip.mul(ip.gemm(ip.rearrange(y), w), ip.gemm(y, ip.rearrange(w.T)))
            residual = ip.gemm(h, w, 1.0, 1.0, c=residual)
            y = ip.add(residual, ip.gemm(h, w))
        del h, residual
    text = g.explain()
    table = {
        match[1]: [int(number.replace(",", "")) for number in match[2].split()]
        for line in text.splitlines()
        if (match := re.fullmatch(r"(as recorded|after fusion|saved) ([-\d, ]+)", line))
    }
    assert table["as recorded"][0] == len(g)
    before, after = table["as recorded"], table["after fusion"]
    assert table["saved"] == [one - other for one, other in zip(before, after)]
    saved = [re.search(r"saves ([-\d,]+) bytes(?:, ([-\d,]+) FLOPs)?", line) for line in rewrite_lines(text)]
    assert sum(int(match[1].replace(",", "")) for match in saved if match) == table["saved"][1]
    assert sum(int((match[2] or "0").replace(",", "")) for match in saved if match) == table["saved"][2]
    assert len(saved) == table["saved"][0]
    assert (f'fusion ("{fuse}"): nothing is rewritten' in text) == (not saved) == (fuse == "none")
    assert y.shape == (6, 8)


def test_names_are_those_given_and_never_mean_two_things() -> None:
    x, z, out = ones(4), ones(4), np.zeros(4, "f4")
    with ip.Graph(fuse="none") as g:
        g.name(t0=x, x0=z[1:])
        ip.add_(out, ip.mul(x, z), x[:1])
    assert "#0  mul  c=_t0 F32[4]  a=t0 F32[4]  b=x0 F32[4]" in g.explain()
    assert "#1  add  c=y0 F32[4]  a=_t0 F32[4]  b=t0 F32[1]" in g.explain()
    g.bind(t0=3 * x)
    assert "a=t0 F32[4]" in g.explain()


def test_parts_of_one_array_have_one_name() -> None:
    x, out = ones(4, 4), np.zeros((4, 4), "f4")
    with ip.Graph() as g:
        whole = ip.Tensor.empty((2, 4))
        ip.add_(whole[:1], x[:1], x[1:2])
        ip.mul_(whole[1:], x[2:3], x[3:])
        ip.add_(out[:, ::-1], x, x)
        del whole
    text = g.explain()
    for part in ("a=x0 F32[1, 4]", "b=x0+16 F32[1, 4]", "a=x0+32 F32[1, 4]", "b=x0+48 F32[1, 4]"):
        assert part in text
    assert "c=y0 F32[1, 4]" in text and "c=y0+16 F32[1, 4]" in text
    assert "c=y1+12 F32[4, 4] strides [4, -1]" in text


def test_an_empty_graph_is_shown() -> None:
    with ip.Graph() as g:
        pass
    assert g.explain().startswith("as recorded: 0 calls")
    assert ElementTree.fromstring(g.to_svg()).findall(f"{SVG}g") == []
    assert g.to_dot().startswith("digraph")


@pytest.mark.parametrize("method", ["explain", "to_dot", "to_svg"])
def test_only_what_is_recorded_is_shown(method: str) -> None:
    g = ip.Graph()
    with pytest.raises(ip.GraphError, match=f"Graph.{method}: the graph is new, needs to be recorded"):
        getattr(g, method)()
    with g, pytest.raises(ip.GraphError, match=f"Graph.{method}: the graph is recording"):
        getattr(g, method)()


# ---- Graphviz ----------------------------------------------------------------------------------------------

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NODE = re.compile(rf"  (n\d+) \[shape=(box|ellipse), label=({_STRING}), tooltip={_STRING}\];")
_EDGE = re.compile(rf"  (n\d+) -> (n\d+) \[label=({_STRING})\];")


def parsed(dot: str) -> tuple[dict[str, tuple[str, str]], list[tuple[str, str, str]]]:
    """The nodes, id -> (shape, label), and the edges; every line must be one of the few kinds there are."""
    first, *lines, last = dot.rstrip("\n").split("\n")
    assert first == "digraph graph_of_calls {" and last == "}"
    nodes, edges = {}, []
    for line in lines:
        if match := _NODE.fullmatch(line):
            assert match[1] not in nodes
            nodes[match[1]] = (match[2], match[3][1:-1])
        elif match := _EDGE.fullmatch(line):
            edges.append((match[1], match[2], match[3][1:-1]))
        else:
            assert line.strip().startswith(("node [", "edge ["))
    return nodes, edges


def test_dot_has_calls_values_and_edges_in_data_order() -> None:
    g, _ = chain()
    nodes, edges = parsed(g.to_dot())
    named = {key: label.split("\\n")[0] for key, (_, label) in nodes.items()}
    assert {(named[i], named[j], role) for i, j, role in edges} == {
        ("x0", "#1 gemm", "a"),
        ("weights", "#1 gemm", "b"),
        ("#1 gemm", "y0", "c"),
        ("y0", "#3 mul", "a, b"),  # which is where the rest comes from, too
        ("#3 mul", "y0 (2)", "c"),
    }
    assert {shape for key, (shape, _) in nodes.items() if named[key].startswith("#")} == {"box"}
    assert "#2 mul" not in named.values()
    recorded, _ = parsed(g.to_dot(fused=False))
    assert sum(shape == "box" for shape, _ in recorded.values()) == 4


def test_what_stays_of_a_value_is_an_edge() -> None:
    x, out = ones(4), np.zeros(8, "f4")
    with ip.Graph() as g:
        ip.add_(out, ones(8), ones(8))
        ip.add_(out[:4], x, x)
        ip.mul_(out, ones(8), ones(8))
    nodes, edges = parsed(g.to_dot())
    named = {key: label.split("\\n")[0] for key, (_, label) in nodes.items()}
    into = {(named[i], named[j]): role for i, j, role in edges}
    assert into["y0", "#1 add"] == "the rest"
    assert ("y0 (2)", "#2 mul") not in into and ("#2 mul", "y0 (3)") in into


def test_a_product_that_adds_reads_its_output() -> None:
    c = ones(2, 2)
    with ip.Graph() as g:
        ip.gemm_(c, ones(2, 3), ones(3, 2), 1.0, 0.5)
    nodes, edges = parsed(g.to_dot())
    (call,) = (key for key, (shape, _) in nodes.items() if shape == "box")
    assert nodes[call][1] == "#0 gemm\\nbeta=0.5"
    assert sum(j == call and role == "c" for _, j, role in edges) == 1


def test_nasty_names_are_quoted() -> None:
    x = ones(4)
    with ip.Graph() as g:
        g.name(**{NASTY: x})
        y = ip.add(x, x)
    nodes, _ = parsed(g.to_dot())
    assert any(label.startswith('a \\"b\\" <c> & \\\\d\\ne') for _, label in nodes.values())
    shown = "".join(ElementTree.fromstring(g.to_svg()).itertext())
    assert 'a "b" <c> & \\d\ne\ufffd\ufffd' in shown and y.shape == (4,)


def test_graphviz_reads_it() -> None:
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    g, _ = chain()
    for fused in (False, True):
        command = ["dot", "-Tplain"]
        done = subprocess.run(
            command, input=g.to_dot(fused), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert sum(line.startswith("node ") for line in done.stdout.splitlines()) == len(
            parsed(g.to_dot(fused))[0]
        )


# ---- SVG ---------------------------------------------------------------------------------------------------


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each call and value."""
    found = []
    for group in ElementTree.fromstring(svg).findall(f"{SVG}g"):
        for kind, names in (("rect", "x y width height"), ("ellipse", "cx cy rx ry")):
            for shape in group.findall(SVG + kind):
                x, y, w, h = (float(shape.attrib[name]) for name in names.split())
                found.append((x, y, x + w, y + h) if kind == "rect" else (x - w, y - h, x + w, y + h))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_nothing_overlaps_in_the_picture(seed: int) -> None:
    rng = random.Random(seed)
    values = [ip.ones((4, 4)) for _ in range(3)]
    with ip.Graph(fuse=rng.choice(["none", "exact"])) as g:
        for _ in range(rng.randrange(1, 50)):
            operator = rng.choice([ip.add, ip.mul, ip.gemm])
            values.append(operator(rng.choice(values[-6:]), rng.choice(values)))
            if rng.random() < 0.2:
                ip.mul_(values[-1][:2], values[-1][:2], values[0][2:])
    for fused in (False, True):
        svg = g.to_svg(fused=fused)
        places = boxes(svg)
        nodes, edges = parsed(g.to_dot(fused))
        assert len(places) == len(nodes)
        root = ElementTree.fromstring(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert len(root.findall(f"{SVG}path")) == len({(i, j) for i, j, _ in edges})
        for k, (left, top, right, bottom) in enumerate(places):
            assert 0 <= left < right <= width and 0 <= top < bottom <= height
            for other in places[:k]:
                apart = left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
                assert apart, (places[k], other)
        order = {key: places[n] for n, key in enumerate(nodes)}
        assert all(order[i][3] < order[j][1] for i, j, _ in edges), "an edge goes up"


def test_svg_is_written_where_asked(tmp_path: Path) -> None:
    g, _ = chain()
    path = tmp_path / "graph.svg"
    text = g.to_svg(path)
    assert path.read_text(encoding="utf-8") == text == g.to_svg()
    titles = [title.text for title in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert any(title and "c=y0+20 F32[2, 5]" in title for title in titles)
