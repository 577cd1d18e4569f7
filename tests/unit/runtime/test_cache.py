from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.kube.kinds import DEPLOYMENT, DSV4_DEPLOYMENT, LEADER_WORKER_SET, SERVICE
from dsv4_operator.runtime.cache import ObjectCache, ObjectKey


def obj(
    name: str, revision: int, *, uid: str = "u", owner: str | None = "demo", namespace: str = "ns", **more: Any
) -> dict[str, Any]:
    labels = {"serving.dsv4.dev/deployment": owner} if owner else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(revision),
            "labels": labels,
            "managedFields": [{"manager": "x" * 1000}],
        },
    } | more


def names(found: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in found]


def test_returns_fresh_copies_without_managed_fields() -> None:
    cache, original = ObjectCache(), obj("a", 5, spec={"replicas": 1})
    assert cache.put(DEPLOYMENT, original)
    first = cache.get(DEPLOYMENT, "ns", "a")
    assert first is not None
    assert "managedFields" not in first["metadata"]
    first["spec"]["replicas"] = 9
    assert cache.get(DEPLOYMENT, "ns", "a")["spec"] == {"replicas": 1}  # type: ignore[index]
    assert "managedFields" in original["metadata"], "the caller's object stays as it was"
    assert cache.get(SERVICE, "ns", "a") is None


@pytest.mark.parametrize(
    ("second", "taken"),
    [
        pytest.param(obj("a", 4), False, id="older"),
        pytest.param(obj("a", 5), False, id="equal"),
        pytest.param(obj("a", 6), True, id="newer"),
        pytest.param(obj("a", 100), True, id="newer as a number though not as text"),
        pytest.param(obj("a", 6, uid="other"), True, id="recreated"),
        pytest.param(obj("a", 4, uid="before"), False, id="a late event of a predecessor"),
    ],
)
def test_put_takes_only_news(second: dict[str, Any], taken: bool) -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("a", 5))
    assert cache.put(DEPLOYMENT, second) is taken
    kept = cache.get(DEPLOYMENT, "ns", "a")
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == (second["metadata"]["resourceVersion"] if taken else "5")


def test_deleted_object_does_not_come_back_from_an_older_list() -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("a", 5))
    assert cache.remove(DEPLOYMENT, obj("a", 8))
    assert cache.replace_all(DEPLOYMENT, [obj("a", 5)], "7") == set()
    assert cache.get(DEPLOYMENT, "ns", "a") is None


def test_object_that_left_the_selector_and_returned_is_taken() -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("a", 5))
    cache.remove(DEPLOYMENT, obj("a", 8))  # to a watch with a selector, losing the label looks like a deletion
    assert cache.put(DEPLOYMENT, obj("a", 9))


def test_late_delete_of_a_predecessor_leaves_the_successor() -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("a", 9, uid="new"))
    assert not cache.remove(DEPLOYMENT, obj("a", 8, uid="old"))
    assert cache.get(DEPLOYMENT, "ns", "a") is not None


def test_list_prunes_what_vanished_without_an_event() -> None:
    cache = ObjectCache()
    for name in ("kept", "vanished", "changed"):
        cache.put(DEPLOYMENT, obj(name, 5, uid=name))
    cache.put(DEPLOYMENT, obj("newer-than-the-list", 21, uid="n"))
    listed = [obj("kept", 5, uid="kept"), obj("changed", 11, uid="changed"), obj("appeared", 12, uid="a")]
    changed = cache.replace_all(DEPLOYMENT, listed, "20")
    assert changed == {ObjectKey(DEPLOYMENT, "ns", name) for name in ("vanished", "changed", "appeared")}
    assert names(cache.list(DEPLOYMENT)) == ["appeared", "changed", "kept", "newer-than-the-list"]
    assert names(cache.children_of("ns", "demo")) == names(cache.list(DEPLOYMENT))


def test_list_of_one_namespace_leaves_the_others() -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("a", 5, namespace="one"))
    cache.put(DEPLOYMENT, obj("a", 6, namespace="two", uid="v"))
    assert cache.replace_all(DEPLOYMENT, [], "20", namespace="one") == {ObjectKey(DEPLOYMENT, "one", "a")}
    assert cache.keys(DEPLOYMENT) == {ObjectKey(DEPLOYMENT, "two", "a")}


def test_a_namespace_that_is_left_out_is_dropped_and_never_taken_again() -> None:
    cache = ObjectCache()
    for namespace in ("one", "two"):
        cache.put(DSV4_DEPLOYMENT, obj("demo", 1, uid=f"{namespace}-1", namespace=namespace, owner=None))
        cache.put(DEPLOYMENT, obj("child", 2, uid=f"{namespace}-2", namespace=namespace))
    assert cache.leave_out("one") == {("one", "demo")}
    assert not cache.put(DEPLOYMENT, obj("child", 3, uid="one-2", namespace="one"))
    assert cache.children_of("one", "demo") == []
    assert {key.namespace for kind in (DSV4_DEPLOYMENT, DEPLOYMENT) for key in cache.keys(kind)} == {"two"}
    assert names(cache.children_of("two", "demo")) == ["child"]


def test_children_are_indexed_by_label_across_kinds_and_follow_it() -> None:
    cache = ObjectCache()
    cache.put(DEPLOYMENT, obj("z", 1, uid="1"))
    cache.put(SERVICE, obj("a", 2, uid="2"))
    cache.put(SERVICE, obj("b", 3, uid="3", owner="other"))
    cache.put(SERVICE, obj("c", 4, uid="4", namespace="elsewhere"))
    cache.put(SERVICE, obj("d", 5, uid="5", owner=None))
    assert names(cache.children_of("ns", "demo")) == ["z", "a"]
    cache.put(DEPLOYMENT, obj("z", 9, uid="1", owner="other"))
    assert names(cache.children_of("ns", "demo")) == ["a"]
    assert names(cache.children_of("ns", "other")) == ["z", "b"]
    cache.discard(DEPLOYMENT, "ns", "z")
    assert names(cache.children_of("ns", "other")) == ["b"]


def test_owner_of_an_object_whose_label_was_taken_away() -> None:
    cache = ObjectCache()
    cache.put(SERVICE, obj("a", 2))
    assert cache.owner_of(SERVICE, obj("a", 3, owner=None)) == ("ns", "demo")
    assert cache.owner_of(SERVICE, obj("b", 3, owner=None)) is None
    assert cache.owner_of(DSV4_DEPLOYMENT, obj("me", 3, owner=None)) == ("ns", "me")


def test_synced_only_after_every_kind_was_listed() -> None:
    cache = ObjectCache()
    assert not cache.synced(DEPLOYMENT)
    cache.replace_all(DEPLOYMENT, [], "1")
    assert cache.synced(DEPLOYMENT)
    assert not cache.synced(DEPLOYMENT, LEADER_WORKER_SET)
    cache.mark_synced(LEADER_WORKER_SET)
    assert cache.synced(DEPLOYMENT, LEADER_WORKER_SET)


def test_tombstones_are_bounded() -> None:
    cache = ObjectCache(max_tombstones=10)
    for number in range(100):
        cache.put(DEPLOYMENT, obj("a", 2 * number, uid=str(number)))
        cache.remove(DEPLOYMENT, obj("a", 2 * number + 1, uid=str(number)))
    assert len(cache) == 0
    assert len(cache._gone) == 10


def test_versions_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        ObjectCache().put(DEPLOYMENT, obj("a", 1) | {"metadata": {"name": "a", "resourceVersion": "x1"}})


def test_eight_thousand_objects_stay_small() -> None:
    cache = ObjectCache()
    spec = {"template": {"containers": [{"name": f"c{n}", "image": "registry/image:tag"} for n in range(40)]}}
    for number in range(8000):
        cache.put(DEPLOYMENT, obj(f"d{number}", number + 1, uid=str(number), owner=f"o{number // 8}", spec=spec))
    stored = sum(len(entry.data) for entry in cache._entries[DEPLOYMENT].values())
    assert len(cache) == 8000
    assert stored < 8000 * 2500
    assert len(cache.children_of("ns", "o999")) == 8


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, int, str]], list[int]]:
    """A true history of one name (write or delete at growing revisions), and an order of delivery with repeats."""
    revisions = draw(st.lists(st.integers(1, 99), min_size=1, max_size=12, unique=True).map(sorted))
    history, uid, alive = [], 0, False
    for revision in revisions:
        if alive and draw(st.booleans()):
            history.append(("delete", revision, str(uid)))
            alive = False
        else:
            uid += not alive
            history.append(("write", revision, str(uid)))
            alive = True
    order = draw(st.lists(st.integers(0, len(history) - 1), max_size=20))
    return history, [*order, *range(len(history))] if draw(st.booleans()) else [*range(len(history)), *order]


@settings(max_examples=300, deadline=None)
@given(histories())
def test_any_order_of_delivery_ends_at_the_truth(case: tuple[list[tuple[str, int, str]], list[int]]) -> None:
    history, order = case
    cache = ObjectCache()
    for index in order:
        what, revision, uid = history[index]
        (cache.put if what == "write" else cache.remove)(DEPLOYMENT, obj("a", revision, uid=uid))
    what, revision, _ = history[-1]
    found = cache.get(DEPLOYMENT, "ns", "a")
    if what == "delete":
        assert found is None
        assert cache.children_of("ns", "demo") == []
    else:
        assert found is not None
        assert found["metadata"]["resourceVersion"] == str(revision)


def test_list_snapshots_in_between_never_bring_back_the_dead() -> None:
    """Every list of a small history, delivered after the whole history, changes nothing."""
    history = [("write", 1), ("write", 3), ("delete", 5)]
    for revision in range(1, 8):
        cache = ObjectCache()
        for what, at in history:
            (cache.put if what == "write" else cache.remove)(DEPLOYMENT, obj("a", at))
        seen = list(itertools.takewhile(lambda step: step[1] <= revision, history))  # noqa: B023
        listed = [obj("a", seen[-1][1])] if seen and seen[-1][0] == "write" else []
        assert cache.replace_all(DEPLOYMENT, listed, str(revision)) == set()
        assert len(cache) == 0
