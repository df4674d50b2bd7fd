"""Plans as text, Mermaid and SVG; and with `analyze`, the counters and the bottleneck."""

import functools
import inspect
import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.errors import ConfigError, OperatorError
from raceway.flow import Iter, ParIter, create, send_msg, union, union_async
from raceway.flow.analyze import CounterRecorder
from raceway.flow.explain import PlanView, actors_in

SVG = "{http://www.w3.org/2000/svg}"


class Worker:
    def sample(self) -> bytes:
        return b"12345678"

    def slow(self) -> bytes:
        time.sleep(0.004)
        return b"12345678"

    def hang(self) -> None:
        time.sleep(20)

    def set_weights(self, weights: float) -> None:
        pass


class Slow:
    """An operator that takes 4 ms."""

    def __init__(self, result: Any = None) -> None:
        self.result = result or (lambda x: x)

    def __call__(self, item: Any) -> Any:
        time.sleep(0.004)
        return self.result(item)


class SendWeights:
    """An operator that sends messages."""

    def __init__(self, actors: list[Actor]) -> None:
        self.actors = actors
        self.version = 0

    def __call__(self, item: Any) -> Any:
        self.version += 1
        for actor in self.actors:
            send_msg(actor, "set_weights", 0.5, version=self.version)
        return item


def identity(item: Any) -> Any:
    return item


def in_list(item: Any) -> list[Any]:
    return [item]


@pytest.fixture(scope="module", params=["inline", "process"])
def team(request: pytest.FixtureRequest) -> Iterator[list[Actor]]:
    """Three actors, on the inline and on the process engine."""
    engine = make_engine(request.param)
    actors = [engine.spawn(Worker, name=f"worker-{number}") for number in range(3)]
    for actor in actors:
        actor.ready.result()
    yield actors
    engine.close()


@pytest.fixture
def workers() -> Iterator[list[Actor]]:
    engine = make_engine("inline")
    yield [engine.spawn(Worker, name=f"worker-{number}") for number in range(4)]
    engine.close()


def without_lines(text: str) -> str:
    """Replace the lines where operators were added, and remove trailing blanks."""
    text = re.sub(r"  test_explain.py:\d+ *", "  @  ", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def counter_cells(text: str) -> dict[str, list[str]]:
    """Return the counters in the text of a plan that was run, by label."""
    rows = {}
    for line in text.splitlines()[1:]:
        label, *cells = re.split(r" {2,}", line.lstrip("│├└─~ "))
        rows[re.sub(r"^\w+: ", "", label)] = cells[2:]
    return rows


# Text.


def test_text_of_a_chain(workers: list[Actor]) -> None:
    flow = create(workers, "sample").for_each(identity).gather_async().for_each(SendWeights(workers)).for_each(str)
    assert without_lines(str(flow)) == (
        "for_each(str)                         driver                @\n"
        "└─ for_each(SendWeights)              driver                @  messages to create(sample, shards=4)\n"
        "   └─ gather_async(num_async=1)       driver                @\n"
        "      └~ for_each(identity)           4 shards on 4 actors  @\n"
        "         └─ create(sample, shards=4)  4 shards on 4 actors  @\n"
        "─ synchronous  ~ asynchronous"
    )


def test_text_of_branches(workers: list[Actor]) -> None:
    source = create(workers[:2], "sample", num_shards=4).gather_sync()
    ppo, dqn = source.split("ppo", "dqn")
    learner = dqn.for_each(identity, on="thread").for_each(identity, on=workers[3])
    assert without_lines(str(union(ppo.batch(2), learner, dqn=Iter.from_range(3)))) == (
        "union(0, 1, dqn)                                driver                @\n"
        "├─ 0: batch(2)                                  driver                @\n"
        "│  └─ ppo: split(ppo, dqn)                      driver                @\n"
        "│     └─ gather_sync                            driver                @\n"
        "│        └─ create(sample, shards=4)            4 shards on 2 actors  @\n"
        "├─ 1: for_each(identity, on=worker-3, queue=2)  actor worker-3        @\n"
        "│  └~ for_each(identity, on=thread, queue=2)    thread                @\n"
        "│     └~ dqn: split(ppo, dqn), as above\n"
        "└─ dqn: from_range(3)                           driver                @\n"
        "─ synchronous  ~ asynchronous"
    )


def test_printing_a_flow_runs_nothing_and_shows_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    flow, line = Iter.from_items(lambda: pytest.fail("it ran")), frame.f_lineno
    print(flow)
    assert capsys.readouterr().out == f"from_items(<lambda>)  driver  test_explain.py:{line}\n"
    assert repr(flow) == str(flow) == flow.explain()


def test_text_of_a_branch() -> None:
    branch, _ = Iter.from_range(3).split("left", "right")
    assert without_lines(str(branch)).splitlines()[0] == "branch(left)           driver  @"


def test_one_shard_on_one_actor(workers: list[Actor]) -> None:
    assert "1 shard on 1 actor  " in str(create(workers[:1], "sample"))


# Messages.


def test_actor_handles_are_found_in_functions_and_objects(workers: list[Actor]) -> None:
    first, second, third, fourth = workers

    def function(item: Any, to: Any = (second,), *, also: Any = third) -> Any:
        return first, to, also

    class Operator:
        def method(self, item: Any) -> Any:
            return self.actors  # type: ignore[attr-defined]

    operator = Operator()
    operator.actors = {"deep": [(fourth,)]}  # type: ignore[attr-defined]
    assert set(actors_in(function)) == {first, second, third}
    assert set(actors_in(operator.method)) == {fourth}
    assert set(actors_in(functools.partial(identity, first, key=[second]))) == {first, second}
    assert not set(actors_in(first.engine))
    assert not set(actors_in(identity))


def test_actor_handles_are_found_in_globals(workers: list[Actor]) -> None:
    namespace = {"workers": workers, "others": [1]}
    exec("def function(item): return workers[0]", namespace)  # as in a script
    assert set(actors_in(namespace["function"])) == set(workers)


def test_messages_to_actors_inside_and_outside_the_plan(workers: list[Actor]) -> None:
    flow = create(workers[:1], "sample").gather_async().for_each(SendWeights(workers))
    plan = PlanView(flow._node)
    messages = [(edge.start.label, edge.end.label) for edge in plan.edges if edge.kind == "message"]
    outside = "worker-1, worker-2, worker-3"
    assert messages == [("for_each(SendWeights)", "create(sample, shards=1)"), ("for_each(SendWeights)", outside)]
    assert f"messages to create(sample, shards=1), {outside}" in str(flow)


# Diagrams.


def apex(workers: list[Actor], replay: list[Actor]) -> Iter[Any]:
    store = create(workers, "sample").gather_async().for_each(SendWeights(replay)).for_each(SendWeights(workers))
    learn = create(replay, "sample").gather_async(2).for_each(lambda x: x, on="thread").for_each(SendWeights(replay))
    return union_async(store=store, replay=learn).for_each(identity)


def parse_svg(flow: Any) -> tuple[ElementTree.Element, dict[str, int]]:
    """Return a diagram, and the number of its nodes and arrows by kind, without the legend."""
    root = ElementTree.fromstring(flow.explain("svg"))
    groups = [group.get("class") or "" for group in root.iter(f"{SVG}g")]
    return root, {
        kind: groups.count(kind) - (kind in ("synchronous", "asynchronous", "message")) for kind in set(groups)
    }


def test_svg_has_every_operator_and_arrow(workers: list[Actor]) -> None:
    root, counts = parse_svg(apex(workers[:2], workers[2:]))
    assert counts == {"parallel": 2, "driver": 7, "offloaded": 1, "asynchronous": 5, "synchronous": 4, "message": 3}
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    for node in PlanView(apex(workers[:2], workers[2:])._node).nodes:
        assert any(title.startswith(node.label) and "added at test_explain.py:" in title for title in titles)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"store", "replay", "<lambda>", "SendWeights", "message to actors"} <= texts


def rectangles(root: ElementTree.Element) -> list[tuple[float, ...]]:
    """Return the boxes of the nodes: left, top, right, bottom."""
    boxes = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") in ("parallel", "driver", "offloaded", "actors"):
            x, y, width, height = (
                float(group.findall(f"{SVG}rect")[-1].get(k, "")) for k in ("x", "y", "width", "height")
            )
            boxes.append((x, y, x + width, y + height))
    return boxes


def plans(workers: list[Actor]) -> list[Any]:
    a, b, c = create(workers, "sample").gather_async().split("a", "b", "c")
    wide = union(
        a.for_each(SendWeights(workers)).batch(2).for_each(identity),
        b,
        c.for_each(SendWeights(workers)),
        Iter.from_range(3),
    )
    pars = ParIter.from_range(9, workers[:2]).union(ParIter.from_range(9, workers[2:])).for_each(identity)
    return [
        apex(workers[:2], workers[2:]),
        wide.for_each(SendWeights(workers)),
        pars,
        pars.gather_sync().for_each(SendWeights(workers)),
        Iter.from_range(3),
        Iter.from_range(3).for_each(SendWeights(workers)),
        union(
            *(Iter.from_range(3).for_each(SendWeights(workers[:2])) for _ in range(4)),
            create(workers, "sample").gather_sync(),
        ),
    ]


def test_nodes_do_not_overlap_and_messages_do_not_cross_them(workers: list[Actor]) -> None:
    for flow in plans(workers):
        root, _ = parse_svg(flow)
        boxes = rectangles(root)
        for index, (left, top, right, bottom) in enumerate(boxes):
            for other in boxes[:index]:
                assert right < other[0] or other[2] < left or bottom < other[1] or other[3] < top
        left, top, width, height = (float(number) for number in root.get("viewBox", "").split())
        assert all(left <= box[0] and box[2] <= left + width and top <= box[1] for box in boxes)
        for path in root.iter(f"{SVG}path"):
            for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.get("d", "")):
                assert path.get("transform") or (left <= float(x) <= left + width and top <= float(y) <= top + height)
        for group in list(root.iter(f"{SVG}g")):
            if group.get("class") == "message":
                path = group[0].get("d", "")
                points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"-?[\d.]+,-?[\d.]+", path)]
                for (x, y), (to_x, to_y) in pairwise(points):
                    for left, top, right, bottom in boxes:
                        across = min(x, to_x) < right - 1 and max(x, to_x) > left + 1
                        assert not (across and min(y, to_y) < bottom - 1 and max(y, to_y) > top + 1), path


def test_mermaid(workers: list[Actor]) -> None:
    flow = create(workers, "sample").gather_async().for_each(SendWeights(workers)).for_each(lambda x: x)
    lines = flow.explain("mermaid").splitlines()
    assert lines[:12] == [
        "flowchart TD",
        '  subgraph n0g["4 shards on 4 actors"]',
        '    n0["create(sample, shards=4)"]',
        "  end",
        '  subgraph n1g["driver"]',
        '    n1["gather_async(num_async=1)"]',
        '    n2["for_each(SendWeights)"]',
        '    n3["for_each(#lt;lambda#gt;)"]',
        "  end",
        "  n0 ==> n1",
        "  n1 --> n2",
        "  n2 --> n3",
    ]
    assert lines[12] == "  n2 -.-> n0"
    assert any(line.startswith("  linkStyle 0,3 stroke:#") for line in lines)


def test_mermaid_of_branches(workers: list[Actor]) -> None:
    text = apex(workers[:2], workers[2:]).explain("mermaid")
    assert (text.count(" ==>"), text.count(" -->"), text.count(" -.->")) == (5, 4, 3)
    assert '==>|"store"| ' in text
    assert text.count("  subgraph ") == text.count("  end\n") == 3


def test_labels_are_escaped() -> None:
    def function(item: Any) -> Any:
        return item

    function.__name__ = '<b> & "quotes" ]{|}'
    flow = Iter.from_range(3).for_each(function)
    root = ElementTree.fromstring(flow.explain("svg"))
    assert any(function.__name__ in (title.text or "") for title in root.iter(f"{SVG}title"))
    assert 'n1["for_each(#lt;b#gt; #amp; #quot;quotes#quot; ]{|})"]' in flow.explain("mermaid")


@pytest.mark.parametrize("format", ["text", "mermaid", "svg"])
def test_explain_writes_a_file(format: str, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    text = Iter.from_range(3).for_each(lambda x: x).explain(format, path=path)
    assert path.read_text(encoding="utf-8") == text + "\n"


# Errors.


def test_invalid_arguments(workers: list[Actor]) -> None:
    flow = Iter.from_range(3)
    with pytest.raises(ConfigError, match=r"unknown format of a plan 'mermade'\. Did you mean 'mermaid'\?"):
        flow.explain("mermade")
    with pytest.raises(ConfigError, match="Gather it first"):
        create(workers, "sample").explain(analyze=True)
    with pytest.raises(ConfigError, match="Use them with analyze=True"):
        flow.explain(items=3)
    with pytest.raises(ConfigError, match="items must be a whole number from 1, not 0"):
        flow.explain(analyze=True, items=0)
    with pytest.raises(ConfigError, match="seconds must be a number above 0, not -1"):
        flow.explain(analyze=True, seconds=-1)


def test_an_operator_that_fails_under_analyze(team: list[Actor]) -> None:
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        ParIter.from_range(9, team).for_each(lambda x: 1 // x).gather_async().explain(analyze=True)


# Counters.


def test_items_at_every_node_of_a_finite_flow(team: list[Actor]) -> None:
    numbers = ParIter.from_range(40, team[:2]).filter(lambda x: x % 4 < 2).on_failure("raise").gather_async()
    left, right = numbers.split("left", "right")
    flow = union(
        left.batch(2).for_each(identity), right.for_each(str, on="thread").for_each(repr, on=team[2]), weights=[1, 2]
    )
    rows = counter_cells(flow.explain(analyze=True, items=100))
    items = {label: cells[0] if cells else None for label, cells in rows.items()}
    expected = {
        "from_range(40, shards=2)": "40",
        "filter(<lambda>)": "40",
        "on_failure(raise)": None,
        "gather_async(num_async=1)": "20",
        "split(left, right)": "20",
        "batch(2)": "20",
        "for_each(identity)": "10",
        "for_each(str, on=thread, queue=2)": "20",
        "for_each(repr, on=worker-2, queue=2)": "20",
        "union(0: 1, 1: 2)": "30",
    }
    assert {label: items[label] for label in expected} == expected
    for label in ("from_range(40, shards=2)", "gather_async(num_async=1)", "for_each(identity)"):
        assert re.fullmatch(r"[1-9].* (B|kB)", rows[label][4]), rows[label]


def test_counters_of_shards_that_are_closed_early(team: list[Actor]) -> None:
    rows = counter_cells(create(team, "sample").gather_sync().take(3).explain(analyze=True))
    assert [rows[label][0] for label in ("create(sample, shards=3)", "gather_sync", "take(3)")] == ["9", "9", "3"]


def test_analyze_stops_after_items(team: list[Actor]) -> None:
    rows = counter_cells(create(team, "sample").gather_sync().explain(analyze=True, items=5))
    assert rows["gather_sync"][0] == "15"
    assert counter_cells(create(team, "sample").gather_sync().explain(analyze=True))["gather_sync"][0] == "300"


def test_analyze_stops_after_seconds(team: list[Actor]) -> None:
    start = time.perf_counter()
    rows = counter_cells(create(team, "slow").gather_async().for_each(identity).explain(analyze=True, seconds=0.3))
    assert 0.3 <= time.perf_counter() - start < 20
    assert int(rows["for_each(identity)"][0]) > 1


def test_analyze_does_not_wait_for_an_unresponsive_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raceway.flow.analyze.REPORT_TIMEOUT", 0.2)
    engine = make_engine("process")
    try:
        start = time.perf_counter()
        text = create([engine.spawn(Worker)], "hang").gather_async().explain(analyze=True, seconds=0.3)
        assert time.perf_counter() - start < 15
        assert "1 shard did not answer at the end" in text
    finally:
        engine.close()


def test_staleness_is_shown(team: list[Actor]) -> None:
    flow = create(team[:2], "sample").gather_async(num_async=2).for_each(SendWeights(team[:2]))
    rows = counter_cells(flow.explain(analyze=True, items=40))
    assert re.fullmatch(r"[\d.]+ / [1-9]\d*", rows["gather_async(num_async=2)"][5])
    assert counter_cells(Iter.from_range(3).explain(analyze=True))["from_range(3)"][5] == "-"


def test_diagrams_show_the_counters_and_the_bottleneck(workers: list[Actor]) -> None:
    flow = create(workers, "sample").gather_sync().for_each(Slow()).for_each(identity)
    root = ElementTree.fromstring(flow.explain("svg", analyze=True, items=5))
    bottlenecks = [group for group in root.iter(f"{SVG}g") if "bottleneck" in [text.text for text in group]]
    assert [(group[0].text or "").partition(",")[0] for group in bottlenecks] == ["for_each(Slow)"]
    assert any((text.text or "").startswith("20 items · ") for text in root.iter(f"{SVG}text"))
    text = flow.explain("mermaid", analyze=True, items=5)
    assert re.search(r"  style n2 stroke:#\w+,stroke-width:4px", text)
    assert "<br/>20 items, " in text


# The bottleneck.

POSITIONS = (
    "source", "shard for_each", "shard filter", "shard flat_map", "shard combine", "driver for_each", "driver filter",
    "driver flat_map", "driver combine", "thread", "actor", "left branch", "right branch", "result",
)  # fmt: skip


def flow_with_bottleneck(position: str, team: list[Actor], union: Any, gather: str) -> Iter[Any]:
    """Return a flow with a slow operator at a position."""

    def at(name: str, result: Any = identity) -> Any:
        return Slow(result) if name == position else result

    shards = create(team[:2], "slow" if position == "source" else "sample").for_each(at("shard for_each"))
    shards = shards.filter(at("shard filter", bool)).flat_map(at("shard flat_map", in_list))
    shards = shards.combine(at("shard combine", in_list))
    flow = shards.gather_async() if gather == "async" else shards.gather_sync().flatten()
    flow = flow.for_each(at("driver for_each")).filter(at("driver filter", bool))
    flow = flow.flat_map(at("driver flat_map", in_list)).combine(at("driver combine", in_list))
    flow = flow.for_each(at("thread"), on="thread").for_each(at("actor"), on=team[2])
    left, right = flow.split("left", "right")
    return union(left.for_each(at("left branch")), right.for_each(at("right branch"))).for_each(at("result"))


@pytest.mark.parametrize(("join", "gather"), [(union, "sync"), (union_async, "async")], ids=["sync", "async"])
@pytest.mark.parametrize("position", POSITIONS)
def test_the_bottleneck_is_named(position: str, join: Any, gather: str, team: list[Actor]) -> None:
    text = flow_with_bottleneck(position, team, join, gather).explain(analyze=True, items=40)
    summary = text.splitlines()[-1]
    assert re.search(r"Bottleneck: \w+\((Slow|slow)\b", summary), text


def test_the_consumer_can_be_the_bottleneck(team: list[Actor]) -> None:
    flow = create(team, "sample").gather_async().take(20)
    plan = PlanView(flow._node)
    with flow.start(measure=True) as run:
        recorder = CounterRecorder(run)
        for _ in run:
            time.sleep(0.004)
    recorder.add_to(plan)
    assert plan.bottleneck is None
    assert "Bottleneck: the program that reads the flow, busy" in plan.summary
