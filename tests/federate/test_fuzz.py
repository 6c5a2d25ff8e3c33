"""Mutated replies: each is taken or refused with a reason, and none costs more memory than an honest one."""

from pathlib import Path

import pytest
from flwr.common.serde import recorddict_to_proto
from fuzz import Fuzzer, mutate, peak
from local_federation import local_federation

from fedgen.federate import wire
from helpers import small_setup


def test_thousands_of_mutated_replies_are_taken_or_refused(tmp_path: Path) -> None:
    server, _ = local_federation(tmp_path, small_setup("fedgen", users=3, active=3, rounds=1))
    fuzzer = Fuzzer(server, seed=1)
    fuzzer.run(600)
    before = peak()
    fuzzer.run(3000)
    assert peak() - before < 100
    for way in ("object", "records", "array", "announcement"):
        assert fuzzer.found[f"{way}: refused"] > 50, "mutations reach every level"
    assert fuzzer.found["announcement: taken"] > 0, "a field that does not matter"
    assert fuzzer.found["array: taken"] > 0, "another number is a reply like any other"


def test_the_fuzzer_finds_what_comes_out_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = local_federation(tmp_path, small_setup("fedgen", users=3, active=3, rounds=1))
    fuzzer = Fuzzer(server, seed=1)
    assert mutate(b"some bytes", fuzzer.random) != mutate(b"some bytes", fuzzer.random)
    monkeypatch.setattr(wire, "whole_size", lambda content: recorddict_to_proto(content).ByteSize())
    with pytest.raises(AssertionError, match="out of range"):  # a shape of 2**40, which Flower's messages cannot hold
        fuzzer.run(3000)
