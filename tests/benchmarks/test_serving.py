"""The benchmark of the server: medians, the most requests within the bound, and the committed lines on the page."""

from pathlib import Path

from benchmarks import serving
from benchmarks.resumable import finished

CPU = {arm: dict(zip(serving.CPU, (0.5, part, 0.25), strict=True)) for arm, part in (("serve", 3.0), ("pool", 6.75))}
ROOT = Path(__file__).parents[2]
LINES = finished(ROOT / "benchmarks" / "results" / "serving.jsonl")


def line(serve: dict[str, tuple[float, float]], pool: dict[str, tuple[float, float]]) -> dict:
    """Return a round: {clients: (requests a second, p99)} of each arm."""
    arms = {"serve": serve, "pool": pool}
    named = {
        arm: {
            count: {"requests_per_second": rate, "p50": 1.0, "p99": p99} | CPU[arm] for count, (rate, p99) in of.items()
        }
        for arm, of in arms.items()
    }
    return {"arms": named}


def test_what_counts_is_within_the_bound():
    one = line({"1": (100, 10), "8": (400, 49.9), "32": (900, 50.1)}, {"1": (90, 10), "8": (200, 60), "32": (210, 200)})
    assert (serving.best_of(one, "serve"), serving.best_of(one, "pool")) == (400, 90)
    assert serving.best_of(line({"1": (10, 80)}, {"1": (10, 80)}), "serve") == 0


def test_the_table_has_the_medians_of_the_rounds():
    lines = [line({"1": (rate, 10)}, {"1": (rate / 2, 20)}) for rate in (100, 500, 300)]
    table = serving.markdown(lines).splitlines()
    assert table[2] == "| 1 | 300 | 1.0, 10.0 | 150 | 1.0, 20.0 |"
    assert table[3] == "| p99 below 50 ms | 300 | | 150 (2.00 times) | |"
    assert table[-1] == "| 1 | 0.50, 3.00, 0.25 | 0.50, 6.75, 0.25 | 2.00 |"


def test_the_page_shows_the_committed_lines():
    page = (ROOT / "docs" / "guides" / "serve.md").read_text()
    assert not LINES or serving.markdown(LINES) in page
