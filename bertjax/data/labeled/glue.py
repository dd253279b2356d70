"""The files of GLUE (Wang et al., 2019, arXiv 1804.07461) as their authors publish them."""

# {task: columns of the text, of the second text, of the label}; a number is a column of a file without a header.
COLUMNS = {
    "CoLA": ("3", "", "1"),
    "SST-2": ("sentence", "", "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "STS-B": ("sentence1", "sentence2", "score"),
    "RTE": ("sentence1", "sentence2", "label"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "MNLI": ("sentence1", "sentence2", "gold_label"),
    "QNLI": ("question", "sentence", "label"),
    "WNLI": ("sentence1", "sentence2", "label"),
}


def heldout_file(task: str) -> str:
    """Return the name of a task's development set: MNLI has one of the genres of its training file."""
    return "dev_matched.tsv" if task == "MNLI" else "dev.tsv"
