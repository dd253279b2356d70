"""The commands of a row of the compression benchmark run, in single steps and with a very small teacher."""

import importlib
import json
import signal

import pytest

from benchmarks.compression import Cell, make, prepare_teacher
from benchmarks.compression_speed import in_one_step
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import WEIGHTS, Export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.runtime.command_line import exit_code_of
from bertjax.training.program import Program
from tests import runs

# The rows name layers 0, 2 and 4, keep 6 heads and 768 neurons, and a BiLSTM reads 512.
SIZES = {"layers": 6, "width": 48, "heads": 12, "feedforward": 800, "max_positions": 512}
# Analyzes, shuffles the importance, cuts and trains: more commands than any other row.
ROW = "narrow"


class Table:
    """The folders of the benchmark. `run(*command)` runs a command in this process."""

    def __init__(self, folder):
        self.folder, self.corpus = folder, runs.write_corpus(folder / "corpus.txt", documents=200)
        text = self.corpus.read_text()
        tokens = tokenizer.train([text], TokenizerConfig(kind="wordpiece", vocab_size=400, lowercase=True))
        config = from_dict({"model": SIZES, "stages": [{"seq_len": 128}]})
        program = Program(config, tokens.vocab_size)
        model = Export(to_dict(config), program.encoder, program.init_state()["params"], tokens, {})
        export.write(folder / "converted", model)
        data = self.place(Cell("teacher", "SST-2", 0)).data
        data.mkdir(parents=True)
        sentences = [sentence.strip() for sentence in text.replace("\n", " ").split(".") if sentence.strip()][:64]
        for split in ("train", "heldout"):
            records = [{"sentence": text, "label": str(number % 2)} for number, text in enumerate(sentences)]
            (data / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (data / "texts.txt").write_text("\n".join(sentences))
        prepare_teacher("SST-2", self.place(Cell("teacher", "SST-2", 0)), folder / "unused", self.run)

    def place(self, cell):
        return cell.place(self.folder, str(self.corpus))

    def run(self, *command):
        module, *flags = in_one_step(list(command))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            assert (
                exit_code_of(lambda: importlib.import_module(module.replace("bertjax.", "bertjax.cli.")).main(flags))
                == 0
            ), command
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@pytest.mark.slow
def test_the_commands_of_a_row_leave_its_model(tmp_path):
    table, cell = Table(tmp_path), Cell(ROW, "SST-2", 0)
    assert (make(cell, table.place(cell), table.run) / WEIGHTS).exists()
