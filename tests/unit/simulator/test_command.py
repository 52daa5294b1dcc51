"""The command `zonewise simulate`: every output format, and one-line errors for bad input without leftover files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from support.cli.output import described
from zonewise.cli.main import cli, main
from zonewise.simulator.decide.datasets import RANGED
from zonewise.simulator.decide.plots import PLOTS

CSV = "name,nodes.a,nodes.b,endpoints.a,endpoints.b\nshop,3,1,5,6\ncart,1,1,0,2\n"
ALGORITHMS = ["balanced", "local", "local-shared", "local-weighted", "local-opt", "optimal"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.csv"
    file.write_text(CSV)
    return file


def simulate(*arguments: object, checkpoint: Path) -> Result:
    result = CliRunner().invoke(cli, ["simulate", "--checkpoint", str(checkpoint), *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_representative_inputs_are_the_default(tmp_path: Path) -> None:
    output = simulate(checkpoint=tmp_path).output
    assert output.startswith("representative: 21 inputs")
    assert all(f"\n{name} " in output for name in ALGORITHMS)


def test_json_has_a_row_per_algorithm_and_the_total_of_every_input(own: Path, tmp_path: Path) -> None:
    (table,) = described("simulate", simulate("-f", own, "-o", "json", checkpoint=tmp_path).output)["tables"]
    assert table["inputs"] == 2
    assert [row["algorithm"] for row in table["rows"]] == ALGORITHMS
    assert all({"total", "inZone", "overload", "slices", "cpuSeconds"} <= set(row) for row in table["rows"])
    assert [judged["name"] for judged in table["judged"]] == ["shop", "cart"]
    assert table["judged"][1]["totals"]["balanced"] == pytest.approx(77.5)


def test_csv_has_a_line_per_input_and_algorithm(own: Path, tmp_path: Path) -> None:
    output = simulate("-f", own, "-o", "csv", "--algorithms", "local, optimal", checkpoint=tmp_path).output
    lines = [(line["input"], line["algorithm"]) for line in csv.DictReader(io.StringIO(output))]
    assert lines == [("shop", "local"), ("shop", "optimal"), ("cart", "local"), ("cart", "optimal")]


def test_report_is_written_completely(own: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    simulate("-f", own, "-o", "html", "--out", report, checkpoint=tmp_path)
    assert report.read_text().count("<svg") == 3
    assert report.read_text().endswith("</html>\n")


def test_output_to_a_device_does_not_replace_it(own: Path, tmp_path: Path) -> None:
    simulate("-f", own, "--out", "/dev/null", checkpoint=tmp_path)
    assert Path("/dev/null").is_char_device()


def test_pictures_are_written_as_svg(own: Path, tmp_path: Path) -> None:
    simulate("-f", own, "--pictures", tmp_path, checkpoint=tmp_path / "kept")
    drawn = {file.name: file.read_text() for file in tmp_path.glob("own-*.svg")}
    assert {f"own-{name}.svg" for name in PLOTS} == set(drawn)
    assert all(text.startswith("<svg ") and text.endswith("</svg>\n") for text in drawn.values())


def test_other_weights_and_thresholds_change_the_scores(own: Path, tmp_path: Path) -> None:
    plain = simulate("-f", own, "-o", "csv", checkpoint=tmp_path).output
    slices_only = simulate("-f", own, "-o", "csv", "--weights", "0,0,0,100", checkpoint=tmp_path).output
    late = simulate("-f", own, "-o", "csv", "--starting-threshold", "12", checkpoint=tmp_path).output
    totals = [next(csv.DictReader(io.StringIO(output)))["total"] for output in (plain, slices_only)]
    assert float(totals[1]) == 100 != float(totals[0])
    assert late != plain


def test_user_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "walk.yaml"
    trace.write_text("nodes: {a: 1, b: 1}\nendpoints: {a: 5, b: 5}\nsteps: [{add: {a: 1}, repeat: 3}]\n")
    churns = described("simulate", simulate("--trace", trace, "-o", "json", checkpoint=tmp_path).output)["churn"]
    assert {(churn["algorithm"], churn["way"]) for churn in churns} == {
        (algorithm, way) for algorithm in ALGORITHMS[1:] for way in ("full", "padded", "lazy")
    }
    assert all(churn["steps"] == 3 and churn["slicesWritten"] >= 0 for churn in churns)


def test_data_sets_have_the_published_numbers_of_inputs() -> None:
    assert {name: dataset.inputs for name, dataset in RANGED.items()} == {
        "small": 390_080,
        "medium": 5_187_720,
        "large": 39_273_145,
        "all-pairings": 226_666_000,
    }


HEADER = "nodes.a,endpoints.a\n"


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        pytest.param(["-f", "own"], HEADER + "1,-1\n", "own:2: endpoints.a is '-1'", id="negative"),
        pytest.param(["-f", "own"], HEADER + "1,1\n1,0\n", "own:3: no zone has an endpoint", id="empty zones"),
        pytest.param(["-f", "own"], HEADER + "1,1.5\n", "own:2: endpoints.a is '1.5'", id="not whole"),
        pytest.param(["-f", "own"], HEADER + f"1,{'9' * 5000}\n", "own:2: endpoints.a is 999", id="huge"),
        pytest.param(["-f", "own"], "zone,count\n1,1\n", "own:1: unknown column 'zone'", id="wrong columns"),
        pytest.param(["-f", "own"], HEADER + "1\n", "own:2: 1 values for 2 columns", id="a column short"),
        pytest.param(["-f", "own"], "", "own:1: no zone", id="empty file"),
        pytest.param(["-f", "own"], "kind: Node\nmetadata: {name: n}\n", "own", id="a dump without Services"),
        pytest.param(["-f", "absent"], "", "absent can't be read: No such file", id="no file"),
        pytest.param(["-f", "."], "", "can't be read: Is a directory", id="a directory"),
        pytest.param(["--trace", "absent"], "", "absent can't be read", id="no trace"),
        pytest.param(
            ["--trace", "own"], "nodes: {a: 1}\nendpoints: {a: -4}\nsteps: []", "endpoints: a is -4", id="trace"
        ),
        pytest.param(
            ["--algorithms", "local,best"], "", "unknown algorithm 'best'; choose from balanced", id="algorithm"
        ),
        pytest.param(["--algorithms", ""], "", "unknown algorithm ''", id="no algorithm"),
        pytest.param(["--weights", "45,20,20"], "", "write four numbers", id="three weights"),
        pytest.param(["--weights", "45,20,20,16"], "", "adds up to 101; it must be 100", id="weights over 100"),
        pytest.param(["--weights", "60,-20,45,15"], "", "write four numbers", id="negative weight"),
        pytest.param(["--weights", "nan,20,20,15"], "", "write four numbers", id="weight is not a number"),
        pytest.param(["--overload-threshold", "0"], "", "--overload-threshold is '0'; write a share", id="overload"),
        pytest.param(["--starting-threshold", "x3"], "", "--starting-threshold is 'x3'; write a number", id="start"),
        pytest.param(["small", "-f", "own"], HEADER + "1,1\n", "small and -f both say what to judge", id="two sources"),
        pytest.param(
            ["churn", "-f", "own"], HEADER + "1,1\n", "churn and -f both say what to judge", id="churn of rows"
        ),
        pytest.param(
            ["--reproduce", "--weights", "25,25,25,25"], "", "it takes no --weights", id="reproduce with other weights"
        ),
        pytest.param(
            ["all-pairings", "--out", "absent/it"], "", "absent is not there", id="no directory for the output"
        ),
        pytest.param(["--out", "."], "", "can't be written: it is a directory", id="out is a directory"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_files(
    arguments: list[str],
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").write_text(text)
    if "--out" not in arguments:
        arguments = [*arguments, "--out", "result"]
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", "--checkpoint", "kept", *arguments])
    output = capsys.readouterr()
    assert stopped.value.code == 2
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert {file.name for file in tmp_path.iterdir()} <= {"own", "kept"}
    assert not list(Path("kept").glob("*"))
