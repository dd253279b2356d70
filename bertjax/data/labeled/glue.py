"""GLUE files (Wang et al., 2019, arXiv 1804.07461) in their published layout."""

# {task: (text column, second text column, label column)}; numbers are columns in files without a header.
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
    """Return the file name for a task's development set; MNLI's is the one that matches its training genres."""
    return "dev_matched.tsv" if task == "MNLI" else "dev.tsv"
