"""The plan as text, Mermaid and SVG; and of a flow that was run, its counters and its bottleneck."""

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
from raceway.flow.analyze import Recorder
from raceway.flow.explain import Plan, actors_in

SVG = "{http://www.w3.org/2000/svg}"


class Worker:
    def sample(self) -> bytes:
        return b"12345678"

    def slow(self) -> bytes:
        time.sleep(0.004)
        return b"12345678"

    def never(self) -> None:
        time.sleep(20)

    def set_weights(self, weights: float) -> None:
        pass


class Slow:
    """An operator that takes its time."""

    def __init__(self, result: Any = None) -> None:
        self.result = result or (lambda x: x)

    def __call__(self, item: Any) -> Any:
        time.sleep(0.004)
        return self.result(item)


class Tell:
    """An operator that sends messages."""

    def __init__(self, actors: list[Actor]) -> None:
        self.actors = actors
        self.version = 0

    def __call__(self, item: Any) -> Any:
        self.version += 1
        for actor in self.actors:
            send_msg(actor, "set_weights", 0.5, version=self.version)
        return item


def same(item: Any) -> Any:
    return item


def listed(item: Any) -> list[Any]:
    return [item]


@pytest.fixture(scope="module", params=["inline", "process"])
def team(request: pytest.FixtureRequest) -> Iterator[list[Actor]]:
    """Three actors on every engine."""
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


def plain(text: str) -> str:
    """Leave out where operators were added, and trailing blanks."""
    text = re.sub(r"  test_explain.py:\d+ *", "  @  ", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def figures(text: str) -> dict[str, list[str]]:
    """Return the columns of a plan that was run, from the items on, by label."""
    found = {}
    for line in text.splitlines()[1:]:
        label, *cells = re.split(r" {2,}", line.lstrip("│├└─~ "))
        found[re.sub(r"^\w+: ", "", label)] = cells[2:]
    return found


# Text.


def test_text_of_a_chain(workers: list[Actor]) -> None:
    flow = create(workers, "sample").for_each(same).gather_async().for_each(Tell(workers)).for_each(str)
    assert plain(str(flow)) == (
        "for_each(str)                         driver                @\n"
        "└─ for_each(Tell)                     driver                @  messages to create(sample, shards=4)\n"
        "   └─ gather_async(num_async=1)       driver                @\n"
        "      └~ for_each(same)               4 shards on 4 actors  @\n"
        "         └─ create(sample, shards=4)  4 shards on 4 actors  @\n"
        "─ in step  ~ asynchronous"
    )


def test_text_of_branches(workers: list[Actor]) -> None:
    source = create(workers[:2], "sample", num_shards=4).gather_sync()
    ppo, dqn = source.split("ppo", "dqn")
    learner = dqn.for_each(same, on="thread").for_each(same, on=workers[3])
    assert plain(str(union(ppo.batch(2), learner, dqn=Iter.from_range(3)))) == (
        "union(0, 1, dqn)                            driver                @\n"
        "├─ 0: batch(2)                              driver                @\n"
        "│  └─ ppo: split(ppo, dqn)                  driver                @\n"
        "│     └─ gather_sync                        driver                @\n"
        "│        └─ create(sample, shards=4)        4 shards on 2 actors  @\n"
        "├─ 1: for_each(same, on=worker-3, queue=2)  actor worker-3        @\n"
        "│  └~ for_each(same, on=thread, queue=2)    thread                @\n"
        "│     └~ dqn: split(ppo, dqn), as above\n"
        "└─ dqn: from_range(3)                       driver                @\n"
        "─ in step  ~ asynchronous"
    )


def test_printing_a_flow_runs_nothing_and_says_where_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    flow, line = Iter.from_items(lambda: pytest.fail("it ran")), frame.f_lineno
    print(flow)
    assert capsys.readouterr().out == f"from_items(<lambda>)  driver  test_explain.py:{line}\n"
    assert repr(flow) == str(flow) == flow.explain()


def test_a_branch_by_itself_is_shown() -> None:
    branch, _ = Iter.from_range(3).split("left", "right")
    assert plain(str(branch)).splitlines()[0] == "branch(left)           driver  @"


def test_a_shard_and_an_actor_are_one(workers: list[Actor]) -> None:
    assert "1 shard on 1 actor  " in str(create(workers[:1], "sample"))


# Messages.


def test_handles_are_found_wherever_a_function_holds_them(workers: list[Actor]) -> None:
    one, two, three, four = workers

    def function(item: Any, to: Any = (two,), *, also: Any = three) -> Any:
        return one, to, also

    class Operator:
        def method(self, item: Any) -> Any:
            return self.actors  # type: ignore[attr-defined]

    operator = Operator()
    operator.actors = {"deep": [(four,)]}  # type: ignore[attr-defined]
    assert set(actors_in(function)) == {one, two, three}
    assert set(actors_in(operator.method)) == {four}
    assert set(actors_in(functools.partial(same, one, key=[two]))) == {one, two}
    assert not set(actors_in(one.engine))
    assert not set(actors_in(same))


def test_a_global_that_a_function_uses_is_found(workers: list[Actor]) -> None:
    space = {"workers": workers, "others": [1]}
    exec("def function(item): return workers[0]", space)  # as in a script
    assert set(actors_in(space["function"])) == set(workers)


def test_messages_go_to_sources_and_to_strangers(workers: list[Actor]) -> None:
    flow = create(workers[:1], "sample").gather_async().for_each(Tell(workers))
    plan = Plan(flow._node)
    sent = [(edge.start.label, edge.end.label) for edge in plan.edges if edge.kind == "message"]
    stranger = "worker-1, worker-2, worker-3"
    assert sent == [("for_each(Tell)", "create(sample, shards=1)"), ("for_each(Tell)", stranger)]
    assert f"messages to create(sample, shards=1), {stranger}" in str(flow)


# Drawings.


def apex(workers: list[Actor], replay: list[Actor]) -> Iter[Any]:
    store = create(workers, "sample").gather_async().for_each(Tell(replay)).for_each(Tell(workers))
    learn = create(replay, "sample").gather_async(2).for_each(lambda x: x, on="thread").for_each(Tell(replay))
    return union_async(store=store, replay=learn).for_each(same)


def drawn(flow: Any) -> tuple[ElementTree.Element, dict[str, int]]:
    """Return a picture and how many of what it has, without the legend's."""
    root = ElementTree.fromstring(flow.explain("svg"))
    groups = [group.get("class") or "" for group in root.iter(f"{SVG}g")]
    return root, {kind: groups.count(kind) - (kind in ("in-step", "asynchronous", "message")) for kind in set(groups)}


def test_svg_has_every_operator_and_arrow(workers: list[Actor]) -> None:
    root, counts = drawn(apex(workers[:2], workers[2:]))
    assert counts == {"parallel": 2, "driver": 7, "apart": 1, "asynchronous": 5, "in-step": 4, "message": 3}
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    for node in Plan(apex(workers[:2], workers[2:])._node).boxes:
        assert any(title.startswith(node.label) and "added at test_explain.py:" in title for title in titles)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"store", "replay", "<lambda>", "Tell", "message to actors"} <= texts


def rectangles(root: ElementTree.Element) -> list[tuple[float, ...]]:
    """Return the front boxes of operators: left, top, right, bottom."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") in ("parallel", "driver", "apart", "actors"):
            x, y, width, height = (
                float(group.findall(f"{SVG}rect")[-1].get(k, "")) for k in ("x", "y", "width", "height")
            )
            found.append((x, y, x + width, y + height))
    return found


def plans(workers: list[Actor]) -> list[Any]:
    a, b, c = create(workers, "sample").gather_async().split("a", "b", "c")
    wide = union(a.for_each(Tell(workers)).batch(2).for_each(same), b, c.for_each(Tell(workers)), Iter.from_range(3))
    pars = ParIter.from_range(9, workers[:2]).union(ParIter.from_range(9, workers[2:])).for_each(same)
    return [
        apex(workers[:2], workers[2:]),
        wide.for_each(Tell(workers)),
        pars,
        pars.gather_sync().for_each(Tell(workers)),
        Iter.from_range(3),
        Iter.from_range(3).for_each(Tell(workers)),
        union(
            *(Iter.from_range(3).for_each(Tell(workers[:2])) for _ in range(4)), create(workers, "sample").gather_sync()
        ),
    ]


def test_boxes_do_not_touch_and_messages_do_not_run_through_them(workers: list[Actor]) -> None:
    for flow in plans(workers):
        root, _ = drawn(flow)
        boxes = rectangles(root)
        for place, (left, top, right, bottom) in enumerate(boxes):
            for other in boxes[:place]:
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
    flow = create(workers, "sample").gather_async().for_each(Tell(workers)).for_each(lambda x: x)
    shown = flow.explain("mermaid").splitlines()
    assert shown[:12] == [
        "flowchart TD",
        '  subgraph n0g["4 shards on 4 actors"]',
        '    n0["create(sample, shards=4)"]',
        "  end",
        '  subgraph n1g["driver"]',
        '    n1["gather_async(num_async=1)"]',
        '    n2["for_each(Tell)"]',
        '    n3["for_each(#lt;lambda#gt;)"]',
        "  end",
        "  n0 ==> n1",
        "  n1 --> n2",
        "  n2 --> n3",
    ]
    assert shown[12] == "  n2 -.-> n0"
    assert any(line.startswith("  linkStyle 0,3 stroke:#") for line in shown)


def test_mermaid_names_branches_and_counts_arrows(workers: list[Actor]) -> None:
    shown = apex(workers[:2], workers[2:]).explain("mermaid")
    assert (shown.count(" ==>"), shown.count(" -->"), shown.count(" -.->")) == (5, 4, 3)
    assert '==>|"store"| ' in shown
    assert shown.count("  subgraph ") == shown.count("  end\n") == 3


def test_labels_are_escaped() -> None:
    def function(item: Any) -> Any:
        return item

    function.__name__ = '<b> & "quotes" ]{|}'
    flow = Iter.from_range(3).for_each(function)
    root = ElementTree.fromstring(flow.explain("svg"))
    assert any(function.__name__ in (title.text or "") for title in root.iter(f"{SVG}title"))
    assert 'n1["for_each(#lt;b#gt; #amp; #quot;quotes#quot; ]{|})"]' in flow.explain("mermaid")


@pytest.mark.parametrize("format", ["text", "mermaid", "svg"])
def test_a_file_is_written(format: str, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    shown = Iter.from_range(3).for_each(lambda x: x).explain(format, path=path)
    assert path.read_text(encoding="utf-8") == shown + "\n"


# Errors.


def test_errors(workers: list[Actor]) -> None:
    flow = Iter.from_range(3)
    with pytest.raises(ConfigError, match=r"unknown format of a plan 'mermade'\. Did you mean 'mermaid'\?"):
        flow.explain("mermade")
    with pytest.raises(ConfigError, match="Gather it first"):
        create(workers, "sample").explain(analyze=True)
    with pytest.raises(ConfigError, match="only analyze=True does"):
        flow.explain(items=3)
    with pytest.raises(ConfigError, match="items must be a whole number from 1, not 0"):
        flow.explain(analyze=True, items=0)
    with pytest.raises(ConfigError, match="seconds must be a number above 0, not -1"):
        flow.explain(analyze=True, seconds=-1)


def test_an_operator_that_fails_says_so(team: list[Actor]) -> None:
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        ParIter.from_range(9, team).for_each(lambda x: 1 // x).gather_async().explain(analyze=True)


# Counters.


def test_items_at_every_node_of_a_finite_flow(team: list[Actor]) -> None:
    numbers = ParIter.from_range(40, team[:2]).filter(lambda x: x % 4 < 2).on_failure("raise").gather_async()
    left, right = numbers.split("left", "right")
    flow = union(
        left.batch(2).for_each(same), right.for_each(str, on="thread").for_each(repr, on=team[2]), weights=[1, 2]
    )
    found = figures(flow.explain(analyze=True, items=100))
    items = {label: cells[0] if cells else None for label, cells in found.items()}
    expected = {
        "from_range(40, shards=2)": "40",
        "filter(<lambda>)": "40",
        "on_failure(raise)": None,
        "gather_async(num_async=1)": "20",
        "split(left, right)": "20",
        "batch(2)": "20",
        "for_each(same)": "10",
        "for_each(str, on=thread, queue=2)": "20",
        "for_each(repr, on=worker-2, queue=2)": "20",
        "union(0: 1, 1: 2)": "30",
    }
    assert {label: items[label] for label in expected} == expected
    for label in ("from_range(40, shards=2)", "gather_async(num_async=1)", "for_each(same)"):
        assert re.fullmatch(r"[1-9].* (B|kB)", found[label][4]), found[label]


def test_counters_of_shards_that_are_closed_early(team: list[Actor]) -> None:
    found = figures(create(team, "sample").gather_sync().take(3).explain(analyze=True))
    assert [found[label][0] for label in ("create(sample, shards=3)", "gather_sync", "take(3)")] == ["9", "9", "3"]


def test_items_limit_the_run(team: list[Actor]) -> None:
    found = figures(create(team, "sample").gather_sync().explain(analyze=True, items=5))
    assert found["gather_sync"][0] == "15"
    assert figures(create(team, "sample").gather_sync().explain(analyze=True))["gather_sync"][0] == "300"


def test_seconds_limit_the_run(team: list[Actor]) -> None:
    begin = time.perf_counter()
    found = figures(create(team, "slow").gather_async().for_each(same).explain(analyze=True, seconds=0.3))
    assert 0.3 <= time.perf_counter() - begin < 20
    assert int(found["for_each(same)"][0]) > 1


def test_a_shard_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raceway.flow.analyze.PATIENCE", 0.2)
    engine = make_engine("process")
    try:
        begin = time.perf_counter()
        text = create([engine.spawn(Worker)], "never").gather_async().explain(analyze=True, seconds=0.3)
        assert time.perf_counter() - begin < 15
        assert "1 shard did not answer in the end" in text
    finally:
        engine.close()


def test_staleness(team: list[Actor]) -> None:
    flow = create(team[:2], "sample").gather_async(num_async=2).for_each(Tell(team[:2]))
    found = figures(flow.explain(analyze=True, items=40))
    assert re.fullmatch(r"[\d.]+ / [1-9]\d*", found["gather_async(num_async=2)"][5])
    assert figures(Iter.from_range(3).explain(analyze=True))["from_range(3)"][5] == "-"


def test_drawings_show_the_counters_and_the_bottleneck(workers: list[Actor]) -> None:
    flow = create(workers, "sample").gather_sync().for_each(Slow()).for_each(same)
    root = ElementTree.fromstring(flow.explain("svg", analyze=True, items=5))
    marked = [group for group in root.iter(f"{SVG}g") if "bottleneck" in [text.text for text in group]]
    assert [(group[0].text or "").partition(",")[0] for group in marked] == ["for_each(Slow)"]
    assert any((text.text or "").startswith("20 items · ") for text in root.iter(f"{SVG}text"))
    shown = flow.explain("mermaid", analyze=True, items=5)
    assert re.search(r"  style n2 stroke:#\w+,stroke-width:4px", shown)
    assert "<br/>20 items, " in shown


# The bottleneck.

POSITIONS = (
    "source", "shard for_each", "shard filter", "shard flat_map", "shard combine", "driver for_each", "driver filter",
    "driver flat_map", "driver combine", "thread", "actor", "left branch", "right branch", "result",
)  # fmt: skip


def planted(position: str, team: list[Actor], union: Any, gather: str) -> Iter[Any]:
    """Return a flow with one slow operator."""

    def at(name: str, result: Any = same) -> Any:
        return Slow(result) if name == position else result

    shards = create(team[:2], "slow" if position == "source" else "sample").for_each(at("shard for_each"))
    shards = shards.filter(at("shard filter", bool)).flat_map(at("shard flat_map", listed))
    shards = shards.combine(at("shard combine", listed))
    flow = shards.gather_async() if gather == "async" else shards.gather_sync().flatten()
    flow = flow.for_each(at("driver for_each")).filter(at("driver filter", bool))
    flow = flow.flat_map(at("driver flat_map", listed)).combine(at("driver combine", listed))
    flow = flow.for_each(at("thread"), on="thread").for_each(at("actor"), on=team[2])
    left, right = flow.split("left", "right")
    return union(left.for_each(at("left branch")), right.for_each(at("right branch"))).for_each(at("result"))


@pytest.mark.parametrize(("join", "gather"), [(union, "sync"), (union_async, "async")], ids=["in step", "async"])
@pytest.mark.parametrize("position", POSITIONS)
def test_the_bottleneck_is_found_wherever_it_is(position: str, join: Any, gather: str, team: list[Actor]) -> None:
    text = planted(position, team, join, gather).explain(analyze=True, items=40)
    verdict = text.splitlines()[-1]
    assert re.search(r"Bottleneck: \w+\((Slow|slow)\b", verdict), text


def test_the_reader_can_be_the_bottleneck(team: list[Actor]) -> None:
    flow = create(team, "sample").gather_async().take(20)
    plan = Plan(flow._node)
    with flow.start(measure=True) as run:
        recorder = Recorder(run)
        for _ in run:
            time.sleep(0.004)
    recorder.note(plan)
    assert plan.bottleneck is None
    assert "Bottleneck: the program that reads the flow, busy" in plan.verdict
