"""What can be seen of a model without attention."""

import pytest

from bertjax.analysis.parts import PARTS
from bertjax.analysis.running import run_part
from bertjax.analysis.subject import open_subjects
from bertjax.cli import compress
from bertjax.config import export
from bertjax.runtime.errors import UserError
from tests.analysis.conftest import make

MODEL = {"block": {"kind": "lstm"}, "layers": 2, "width": 32, "embeddings": {"positions": "none", "segments": 0}}
ATTENTION = ("patterns", "targets", "identifiability", "disabling", "importance", "fixed", "sentences")


@pytest.fixture(scope="module")
def lstm(tokens, tmp_path_factory):
    """Two bidirectional layers with a masked-LM head; the folder of its export."""
    settings = {
        "model": MODEL,
        "tasks": {"mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}},
        "stages": [{"seq_len": 64}],
    }
    folder = tmp_path_factory.mktemp("lstm") / "export"
    export.write(folder, make(settings, tokens))
    return folder


def test_the_list_is_complete():
    assert set(ATTENTION) < set(PARTS) and set(PARTS) - set(ATTENTION) == {"curvature", "layers", "training"}


@pytest.mark.parametrize("name", ATTENTION)
def test_parts_that_read_attention_refuse_it_in_one_line(lstm, sentences, name):
    with pytest.raises(UserError, match="has model.block.kind=lstm, and this part reads attention; use --parts=layers"):
        run_part(name, open_subjects([lstm]), sentences[:3])


def test_layers_are_read(lstm, sentences):
    subjects = open_subjects([lstm])
    [by_text] = run_part("layers", subjects, sentences[:8]).numbers.values()
    assert "lens" in str(by_text)


@pytest.mark.parametrize("flag, cuts", [("--heads=2", {"heads": 2}), ("--mlp=16", {"mlp": 16})])
def test_what_it_lacks_cannot_be_cut(lstm, tmp_path, flag, cuts):
    with pytest.raises(UserError, match=f"^{flag} cuts .*, which layers of model.block.kind=lstm do not have"):
        compress.run(lstm, tmp_path / "cut", compress.Cuts(**cuts))
