"""Bad configuration files, settings and flags through the command line: exit code 2, one line, nothing begun.

Each message is pinned once: here if a check belongs to the command line or to no file of its own, else in the file of
tests of its check (tests/config/test_config_checks.py has those of `Config`).
"""

import re

import pytest

SETTINGS = [
    # wrong types
    ("seed=1.5", "seed=1.5 is float; it must be an integer"),
    ("seed=True", "seed=True is bool; it must be an integer"),
    ("seed=", "seed='' is str; it must be an integer"),
    ("seed.x=3", "seed={'x': 3} is dict; it must be an integer"),
    ("model=None", "model=None is nothing; it must be settings by name"),
    ("model=3", "model=3 is int; it must be settings by name"),
    ("model.layers=2.0", "model.layers=2.0 is float; it must be an integer"),
    ("model.layers.x=1", "'layers' is a value and has no settings; see the names in config.json"),
    ("model.dropout=high", "model.dropout='high' is str; it must be a number"),
    ("tasks=[]", "tasks=[] is list; it must be settings by name"),
    ("tasks.bert=3", "tasks.bert=3 is int; it must be settings by name"),
    ("tasks.bert.objective=3", "tasks.bert.objective=3 is int; it must be settings by name"),
    ("tasks.bert.objective.kind=None", "tasks.bert.objective.kind=None is nothing; it must be text"),
    ("tasks.bert.objective.masking=0.15", "masking=0.15 is float; it must be settings by name"),
    ("stages={}", "stages={} is dict; it must be a list"),
    ("stages.0=3", "stages.0=3 is int; it must be settings by name"),
    ("stages.0.steps=many", "stages.0.steps='many' is str; it must be an integer"),
    ("stages.0.frozen=x", "stages.0.frozen='x' is str; it must be a list"),
    (
        "optimizer.frozen=[^encoder/]",  # what a shell makes of ["^encoder/"]
        "optimizer.frozen='[^encoder/]' is str; it must be a list, which a shell needs in single quotes: "
        """'["a", "b"]'""",
    ),
    ("optimizer.bias_correction=yes", "optimizer.bias_correction='yes' is str; it must be True or False"),
    ("optimizer.schedule=linear", "optimizer.schedule='linear' is str; it must be settings by name"),
    ("runtime.unroll=1", "runtime.unroll=1 is int; it must be True or False"),
    ("runtime.mesh=3", "runtime.mesh=3 is int; it must be settings by name"),
    ("data.corpus=3", "data.corpus=3 is int; it must be text"),
    ("data.sources.a=3", "data.sources.a=3 is int; it must be settings by name"),
    ("init_layers=0", "init_layers=0 is int; it must be a list"),
    # unknown names
    ("optimizer.learning_rat=1", "'optimizer.learning_rat'; did you mean 'learning_rate'?"),
    ("corpus=texts", "unknown configuration key 'corpus'; did you mean 'data.corpus'?"),
    (
        "model.block.window=3",
        "'model.block.window'; 'window' is a setting of model.block.kind=modern; add --config.model.block.kind=modern",
    ),
    ("batch=3", "unknown configuration key 'batch'; did you mean 'stages.0.batch'?"),
    ("model.=3", "unknown configuration key 'model.'"),
    (".=3", "unknown configuration key ''"),
    ("stages.1.steps=3", "override 'stages.1.steps': '1' is not an index of a list of 1; use 0 to 0"),
    ("stages.-1.steps=3", "'-1' is not an index of a list of 1"),
    ("stages.x=3", "'x' is not an index of a list of 1"),
    ("tasks.bert.objective.masking.lexicon=x", "unknown configuration key 'tasks.bert.objective.masking.lexicon'"),
    ("tasks.bert.objective.masking.kind=bytes", "masking.kind='bytes' is unknown"),
    ("tasks.bert.objective.kind=mlmm", "objective.kind='mlmm' is unknown; choose one of"),
    ("tasks.bert.objective.kind=no.such:Thing", "objective.kind='no.such:Thing' cannot be imported"),
    ("tasks.bert.objective.kind=:", "objective.kind=':' cannot be imported"),
    ("tasks.bert.objective.kind=..x:Y", "objective.kind='..x:Y' cannot be imported"),
    ("tasks.bert.examples.kind=x", "examples.kind='x' is unknown"),
    ("tasks.a/b.weight=1", "tasks has the name 'a/b'"),
    ("optimizer.schedule.kind=x", "optimizer.schedule.kind='x' is unknown"),
    ("data.tokenizer.kind=x", "data.tokenizer.kind='x' is unknown"),
    ("data.corpus=embedded:xx", "embedded:xx"),
    # out of range, see tests/runtime/test_setting.py
    ("optimizer.b1=1", "optimizer.b1=1.0 must be at least 0 and below 1"),
    (f"seed={10**30}", "must be between 0 and 4294967295"),
    ("pruning.start_share=0.8 --config.pruning.kind=movement", "pruning.start_share=0.8 must be below pruning.end_sh"),
    ("stages.0.seq_len=1", "stages.0.seq_len=1 leaves 1 tokens for an example of tasks.bert, which has at least 5"),
    ("runtime.hooks=['log']", "runtime.hooks has 'log', which must be module:Class, such as mylab.hooks:Mine"),
    ("runtime.keep_at=[100,101]", "runtime.keep_at has the step 101, and the run ends after 100; remove it, or raise"),
    ("runtime.keep_at=[1.5]", "runtime.keep_at.0=1.5 is float; it must be an integer"),
    ("runtime.keep_at=100", "runtime.keep_at=100 is int; it must be a list"),
    ("data.filters.a.kind=shorter", "data.filters.*.kind='shorter' is unknown; choose one of length, gopher_quality"),
    ("data.filters.duplicate.kind=c4", "data.filters has the name 'duplicate', by which others are listed"),
    (f"data.tokenizer.vocab_size={10**12}", "must be between 1 and 16777216"),
    ("data.tokenizer.character_coverage=0", "character_coverage=0.0 must be above 0 and at most 1"),
    # not finite
    ("model.norm_epsilon=1e999", "model.norm_epsilon=inf is not a finite number"),
    ("optimizer.learning_rate=1e999", "optimizer.learning_rate=inf is not a finite number"),
    (f"optimizer.clip_norm={10**400}", "is not a finite number"),
    ("optimizer.learning_rate=nan", "optimizer.learning_rate='nan' is str; it must be a number"),
    ("tasks.bert.examples.max_tokens=1e999", "examples.max_tokens=inf is float; it must be an integer"),
    # contradictions
    ("model.sharing_groups=2", "model.sharing_groups=2 has no effect without model.sharing; set both"),
    ("model.preset=init_from", "model.preset=init_from needs a model to copy the architecture from"),
    ("tasks.bert.examples.max_tokens=2", "leaves 2 tokens for an example of tasks.bert"),
    ("optimizer.frozen=['encoder/embedings']", "matches no parameter; the nearest paths are encoder/embeddings/"),
    ("lora.rank=33", "lora.rank=33 exceeds model.width=32"),
    ("runtime.attention=splash", "runtime.attention=splash runs on TPU v4 and later, and this is cpu"),
    ("data.tokenizer.lowercase=True", "data.tokenizer.lowercase=True has no effect with kind=unigram"),
    # missing files
    ("data.corpus=nowhere.txt", "'nowhere.txt' does not exist"),
    ("data.corpus=", "data.corpus is empty; name a file, a folder or another corpus"),
    ("data.tokenizer.model=nowhere", "nowhere"),
    ("init_from=nowhere", "'nowhere' does not exist; name an export folder (bertjax convert makes"),
    (
        "init_from=google-bert/bert-base",
        "WORKDIR@STEP, or hf:google-bert/bert-base for the model of the Hugging Face Hub",
    ),
]
FLAGS = [
    ("--config=nowhere.py", "configuration file 'nowhere.py' does not exist"),
    ("--config=", "configuration file '' is not a file"),
    ("--config=configs", "configuration file 'configs' is not a file"),
    ("--config=README.md", "configuration file 'README.md' is not Python; its name must end in .py"),
    ("--config=configs/tiny.py:huge", "unknown variant 'huge'; choose smoke"),
    ("--config=tests/small_config.py:x", "cannot be read: TypeError: get_config() takes 0 positional arguments"),
    ("--steps=3", "unknown flag '--steps=3'; did you mean --config.stages.0.steps=3?"),
    ("--optimizer.learning_rate=1", "did you mean --config.optimizer.learning_rate=1?"),
    ("--config.seed", "write --config.seed=VALUE"),
    ("seed=3", "unknown flag 'seed=3'"),
    ("--profile=5:4", "--profile='5:4' must be FIRST:LAST"),
    ("--profile=-1:4", "--profile='-1:4' must be FIRST:LAST"),
    ("--profile=", "--profile='' must be FIRST:LAST"),
    ("--seeds=-1", "--seeds: -1 must be a whole number, at least 1"),
    ("--seeds=1e3", "argument --seeds: 1e3 must be a whole number"),
    ("--sweep=seed", "--sweep=seed has an empty name or value"),
    ("--sweep=optimizer.lerning_rate=1,2", "unknown configuration key 'optimizer.lerning_rate'"),
    ("--platform=tpux", "argument --platform: invalid choice: 'tpux'"),
    ("--workdir=", "--workdir is empty; name a folder, or leave the flag out"),
    ("--workdir=a\0b", "workdir 'a\\x00b' has control characters"),
    ("--workdir=a\nb", "workdir 'a\\nb' has control characters"),
    ("--workdir=gs:/bucket/run", "workdir gs:/bucket/run has one slash after its scheme; write gs://bucket/run"),
    ("--workdir=ftp://host/run", "workdir ftp://host/run is on unknown storage"),
    ("--workdir=README.md/run", "workdir README.md/run cannot be written: Not a directory"),
    ("--longer", "--longer finds no run in"),
]
GET_CONFIG = "def get_config(variant=''):\n    "
FILES = [
    ("def get_config(:", "cannot be read: SyntaxError: "),
    ("", "has no attribute 'get_config'"),
    ("get_config = 3", "cannot be read: TypeError: 'int' object is not callable"),
    ("import nowhere_to_be_found", "cannot be read: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ("import sys\nsys.exit(3)", "cannot be read: SystemExit: 3"),
    ("x = '\xe9'", "cannot be read: SyntaxError: "),
    ("x = 1\0", "cannot be read: SyntaxError: "),
    (GET_CONFIG + "raise ValueError('one\\ntwo')", ": one two"),
    (GET_CONFIG + "return get_config(variant)", "it contains itself, or calls itself"),
    (GET_CONFIG + "c = {'model': {}}\n    c['model']['data'] = c\n    return c", "it contains itself, or calls itself"),
    (GET_CONFIG + "return None", "get_config() returns NoneType; return a ConfigDict or a dict"),
    (GET_CONFIG + "return [{'seed': 1}]", "get_config() returns list"),
    (GET_CONFIG + "return {1: 2}", "the configuration has the name 1; names of settings are texts"),
    (GET_CONFIG + "return {'tasks': {1: {}}}", "tasks has the name 1; names of settings are texts"),
    (GET_CONFIG + "return {'seed': print}", "it must be an integer"),
    (GET_CONFIG + "return {'seed': list(range(10**4))}", "... is list; it must be an integer"),
    (GET_CONFIG + "return {'optimizer': {'learning_rate': float('nan')}}", "learning_rate=nan is not a finite number"),
    (GET_CONFIG + "return {'optimizer': {'frozen': {'a'}}}", "optimizer.frozen={'a'} is set; it must be a list"),
    (
        "from ml_collections import config_dict\n" + GET_CONFIG
        + "return config_dict.ConfigDict({'seed': config_dict.required_placeholder(int)})",
        "None value found in required reference",
    ),
]  # fmt: skip


@pytest.mark.parametrize("setting, complaint", SETTINGS)
def test_a_bad_setting(refused, setting, complaint):
    assert complaint in refused(*re.split(" (?=--config)", f"--config.{setting}"))


def test_no_task_trains_the_embedding_that_finished_models_use(refused):
    line = refused("--config.model.embeddings.task_types=2", "--config.tasks.bert.task_type=1")
    assert "model.embeddings.task_types=2 and no task has task_type=0, which fine-tuning and predict use" in line


@pytest.mark.parametrize("flag, complaint", FLAGS)
def test_a_bad_flag(refused, flag, complaint):
    assert complaint in refused(flag)


@pytest.mark.parametrize("content, complaint", FILES)
def test_a_bad_file(refused, tmp_path, content, complaint):
    (tmp_path / "broken.py").write_text(content, encoding="latin-1")
    assert complaint in refused(f"--config={tmp_path / 'broken.py'}")
