"""The golden files are what the rules give, all of them and nothing else."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import golden, registry

RECIPES = [
    pytest.param(recipe, id=recipe.file.removesuffix(".textproto"))
    for protocol in golden.SHAPES
    for recipe in golden.recipes(protocol)
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_file_is_what_the_rule_gives(recipe: golden.Recipe) -> None:
    derived = golden.derive(recipe)
    assert golden.load(recipe) == derived
    text = golden.render(derived, registry.protocol(recipe.protocol).title, recipe.name)
    assert (golden.folder() / recipe.file).read_text("utf-8") == text


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_yields_as_many_tokens_as_it_says(recipe: golden.Recipe) -> None:
    messages = golden.derive(recipe).messages
    events = [registry.protocol(recipe.protocol).to_event(message) for message in messages]
    ids = [token.id for event in events if getattr(event, "index", None) == 0 for token in getattr(event, "tokens", ())]
    assert len(ids) == (recipe.size if recipe.request.streaming else 0)


def test_folder_holds_no_file_without_a_recipe() -> None:
    known = {recipe.file for protocol in golden.SHAPES for recipe in golden.recipes(protocol)}
    there = [path for path in golden.folder().rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(golden.folder()).as_posix() for path in there} == known | {"__init__.py"}


def test_each_shape_comes_in_each_size() -> None:
    shapes = {protocol: {recipe.name for recipe in golden.recipes(protocol)} for protocol in golden.SHAPES}
    assert shapes == {
        "openengine": {
            f"{shape}-{size}"
            for shape in ("plain", "logprobs", "two-sequences", "stop-string", "split-characters")
            for size in (1, 17, 257)
        },
        "smg": {
            f"{shape}-{size}"
            for shape in ("streaming", "non-streaming", "logprobs", "two-sequences")
            for size in (1, 17, 257)
        },
    }


def test_protocol_without_goldens_has_none() -> None:
    assert list(golden.recipes("somebody-else's")) == []


def test_text_that_looks_like_a_line_end_stays_in_its_line() -> None:
    wire = registry.protocol("openengine")
    odd = wire.generate.response(request_id="a\u2028b\x85c\x0bd\r\ne")
    first = golden.Golden("odd", wire.generate.request(request_id="odd"), (odd, odd))
    assert golden.parse(golden.render(first, wire.title, "odd"), wire, "odd") == first
