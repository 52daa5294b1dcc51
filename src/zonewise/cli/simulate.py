"""`zonewise simulate`: compares the routing algorithms on data sets, on a cluster, and under churn."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import dumps
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.routing.algorithms import Algorithm, Weights
    from zonewise.routing.tuning import StartingPoint
    from zonewise.simulator.decide.inputs import NamedInput
    from zonewise.simulator.decide.published import Publication
    from zonewise.simulator.decide.results import ResultTable
    from zonewise.simulator.decide.tasks import Partial, Rules, Task
    from zonewise.simulator.runners import Runner

CHURN = "churn"
DATASETS = ("representative", "small", "medium", "large", "all-pairings", CHURN)
ALGORITHMS = ("balanced", "require", "local", "local-shared", "local-weighted", "local-opt", "optimal")
DEFAULT_ALGORITHMS = ",".join(name for name in ALGORITHMS if name != "require")
FIXED_BY_PUBLICATION = ("algorithms", "starting_threshold", "overload_threshold", "weights")
"""Options that --reproduce does not take."""
FORMATS = ("table", "json", "csv", "html")


@click.command(
    epilog="""\b
Examples:
  zonewise simulate                            representative shapes, all algorithms
  zonewise simulate large --jobs 2             39 million inputs
  zonewise simulate --reproduce                the two published tables next to our results
  zonewise simulate -f services.csv            your own numbers: columns nodes.ZONE and endpoints.ZONE
  zonewise simulate -f dump.yaml -o html > report.html
  zonewise simulate --from-cluster             every Service of the current cluster
  zonewise simulate churn                      cost of changes, and savings by padding and laziness
""",
)
@click.argument("dataset", type=click.Choice(DATASETS), required=False)
@click.option("--algorithms", default=DEFAULT_ALGORITHMS, show_default=True, help="Algorithms, separated by commas.")
@click.option(
    "--starting-threshold",
    default="3x",
    show_default=True,
    help="Number of endpoints below which `local` is balanced; 3x means three per zone.",
)
@click.option(
    "--overload-threshold", default="50%", show_default=True, help="Highest load of an endpoint above an even share."
)
@click.option(
    "--weights",
    default="45,20,20,15",
    show_default=True,
    help="Weights in percent of in-zone traffic, highest overload, mean overload and slices.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Number of processes.")
@click.option("--dask", metavar="ADDRESS", help="Address of a Dask scheduler to run the sweep on.")
@click.option(
    "--reproduce",
    type=click.Choice(["all", "large", "small"]),
    is_flag=False,
    flag_value="all",
    help="Reproduce the published tables: algorithms on `large`, starting thresholds on `small`, or both.",
)
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path),
    help="Read your own inputs: CSV, or a dump of a cluster; - for stdin.",
)
@click.option("--from-cluster", is_flag=True, help="Read the Services of a live cluster.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Path of the kubeconfig, with --from-cluster.")
@click.option("--context", help="Context of the kubeconfig, with --from-cluster.")
@click.option("--trace", "trace", metavar="FILE|NAME", help="Replay one trace: a file, or a built-in one by name.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the state of interrupted sweeps. [default: the user's cache]",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format.")
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    help="Also write plots of every data set to this directory, as SVG files.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the output to this file instead of stdout.")
def simulate(dataset: str | None, **options: Any) -> None:
    """Compare the routing algorithms: the share of traffic that stays in its zone, overload, and number of slices.

    Run the same command again to continue an interrupted sweep.
    """
    _check_single_source(dataset, options)
    if options["out"]:
        _check_writable(options["out"])
    if dataset == CHURN or options["trace"]:
        _deliver(_churn(options), options["out"])
        return
    tables = tuple(_tables(dataset or "representative", options))
    if options["pictures"]:
        _draw(tables, options["pictures"])
    _deliver(_rendered(tables, options["output"]), options["out"])


def _check_single_source(dataset: str | None, options: dict[str, Any]) -> None:
    names = {"file": "-f", "from_cluster": "--from-cluster", "reproduce": "--reproduce", "trace": "--trace"}
    given = ([dataset] if dataset else []) + [flag for name, flag in names.items() if options[name]]
    if len(given) > 1 and given != [CHURN, "--trace"]:
        raise UsageError(f"{given[0]} and {given[1]} both say what to judge: use only one of them")
    changed = [f"--{name.replace('_', '-')}" for name in FIXED_BY_PUBLICATION if _is_given(name)]
    if options["reproduce"] and changed:
        raise UsageError(f"--reproduce uses the settings of the publication: it takes no {changed[0]}")


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def _tables(dataset: str, options: dict[str, Any]) -> Iterator[ResultTable]:
    import asyncio

    from zonewise.simulator.decide.datasets import RANGED, REPRESENTATIVE
    from zonewise.simulator.decide.inputs import read
    from zonewise.simulator.decide.published import PUBLICATIONS
    from zonewise.simulator.decide.tasks import dataset_tasks, own_tasks

    if options["reproduce"]:
        names = PUBLICATIONS if options["reproduce"] == "all" else [options["reproduce"]]
        yield from (_published(PUBLICATIONS[name], options) for name in names)
        return
    rules = _rules(options)
    if options["file"]:
        source = dumps.source_of(str(options["file"]))
        yield _swept(own_tasks(read(_text(options["file"]), source), rules), source, "", rules, options)
    elif options["from_cluster"]:
        inputs = asyncio.run(_read_cluster(options["kubeconfig"], options["context"]))
        yield _swept(own_tasks(inputs, rules), "cluster", "Services with ready endpoints", rules, options)
    elif dataset in RANGED:
        chosen = RANGED[dataset]
        yield _swept(dataset_tasks(chosen, rules), chosen.name, chosen.about, rules, options)
    else:
        yield _swept(own_tasks(REPRESENTATIVE, rules), dataset, "Hand-picked shapes", rules, options)


def _published(publication: Publication, options: dict[str, Any]) -> ResultTable:
    from zonewise.simulator.decide.tally import with_published
    from zonewise.simulator.decide.tasks import dataset_tasks

    chosen, rules = publication.dataset, publication.rules
    table = _swept(dataset_tasks(chosen, rules), chosen.name, chosen.about, rules, options)
    return with_published(table, publication.published)


def _swept(tasks: Sequence[Task], name: str, about: str, rules: Rules, options: dict[str, Any]) -> ResultTable:
    from zonewise.simulator.cache import directory
    from zonewise.simulator.checkpoint import file_for, sweep
    from zonewise.simulator.decide.tally import tally

    run = _runner(tasks, options)
    file = file_for(tasks, options["checkpoint"] or directory())
    with _progress(name, sum(task.inputs for task in tasks)) as notice:
        try:
            partials = sweep(tasks, run, file, notice)
        except KeyboardInterrupt:
            click.echo(f"stopped; run the same command to continue ({file})", err=True)
            sys.exit(130)
        except OSError as error:
            raise UsageError(
                f"{file.parent} can't be used for checkpoints: {error.strerror}; choose another --checkpoint"
            ) from error
    return tally(name, about, rules, partials)


def _runner(tasks: Sequence[Task], options: dict[str, Any]) -> Runner:
    from zonewise.simulator.runners import in_processes, on_dask, one_by_one

    if options["dask"]:
        return on_dask(options["dask"])
    if any(task.chunk for task in tasks):
        _compile(tasks[0].rules)
    return in_processes(options["jobs"]) if options["jobs"] > 1 and len(tasks) > 1 else one_by_one


def _compile(rules: Rules) -> None:
    """Compiles before the progress bar starts, once for all processes, which read the filled cache."""
    from zonewise.simulator.chunk_worker import warm

    begin = time.monotonic()
    announced = False
    for contestant in rules.contestants:
        if not announced and time.monotonic() - begin > 3 and sys.stderr.isatty():
            click.echo("compiling the algorithms, once for this version ...", err=True)
            announced = True
        warm(contestant.algorithm)


@contextmanager
def _progress(name: str, inputs: int) -> Iterator[Callable[[Partial], None]]:
    """A bar with rate and time left, on a terminal only. Results of an earlier run count at once."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.completed:,.0f} of {task.total:,.0f}  {task.fields[rate]}")
    bar = Progress(
        TextColumn(name), BarColumn(), rate, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    )
    with bar:
        line = bar.add_task(name, total=inputs, rate="")

        def notice(partial: Partial) -> None:
            bar.advance(line, partial.inputs)
            speed = bar.tasks[line].finished_speed or bar.tasks[line].speed
            bar.update(line, rate=f"{speed:,.0f}/s" if speed else "")

        yield notice


def _churn(options: dict[str, Any]) -> str:
    from zonewise.simulator.decide import tables, traces
    from zonewise.simulator.decide.churn import ChurnMode, replay
    from zonewise.simulator.decide.html_report import html
    from zonewise.simulator.decide.results import Results

    source = options["trace"]
    if source is None:
        replayed = [traces.built_in(name) for name in traces.BUILT_IN]
    elif source in traces.BUILT_IN:
        replayed = [traces.built_in(source)]
    else:
        replayed = [traces.read(_text(Path(source)), source)]
    preferring = [
        algorithm for algorithm in _algorithms(options["algorithms"]) if algorithm not in ("balanced", "require")
    ]
    _, overload = _tuning(options)
    reports = [replay(trace, one, mode, overload) for trace in replayed for one in preferring for mode in ChurnMode]
    match options["output"]:
        case "json":
            return tables.as_json(Results((), tuple(reports)))
        case "csv":
            return tables.churn_csv(reports)
        case "html":
            return html(Results(()), reports)
        case _:
            return tables.churn_text(reports)


def _rendered(result_tables: tuple[ResultTable, ...], output: str) -> str:
    from zonewise.simulator.decide import tables
    from zonewise.simulator.decide.results import Results

    results = Results(result_tables)
    match output:
        case "json":
            return tables.as_json(results)
        case "csv":
            return tables.as_csv(results)
        case "html":
            from zonewise.simulator.decide.html_report import html

            return html(results)
        case _:
            return tables.text(results)


def _draw(result_tables: tuple[ResultTable, ...], directory: Path) -> None:
    from zonewise.simulator.decide.plots import PLOTS

    for table in result_tables:
        for name, plot in PLOTS.items():
            _deliver(plot(table.rows) + "\n", directory / f"{Path(table.dataset).stem}-{name}.svg")


def _check_writable(out: Path) -> None:
    """Fails before minutes of work, not after them."""
    if out.is_dir():
        raise UsageError(f"{out} can't be written: it is a directory")
    if not os.access(out if out.exists() and not out.is_file() else out.parent, os.W_OK):
        raise UsageError(f"{out} can't be written: {out.parent} is not there or not writable")


def _deliver(text: str, out: Path | None) -> None:
    """Replaces the file at once, so that no reader sees half of it."""
    if out is None:
        click.echo(text, nl=False)
        return
    # A device or a pipe is never replaced.
    part = out if out.exists() and not out.is_file() else out.with_name(f".{out.name}.part")
    try:
        part.write_text(text)
        part.replace(out)
    except OSError as error:
        if part is not out:
            with suppress(OSError):
                part.unlink()
        raise UsageError(f"{out} can't be written: {error.strerror}") from error


def _text(file: Path) -> str:
    try:
        return dumps.bytes_of(str(file)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{dumps.source_of(str(file))} can't be read: not UTF-8 at byte {error.start}") from error


async def _read_cluster(config: Path | None, context: str | None) -> list[NamedInput]:
    from zonewise.kube.client import kubeconfig
    from zonewise.kube.client.client import Client
    from zonewise.objects import ENDPOINT_SLICES, NODES
    from zonewise.simulator.decide.inputs import from_cluster

    async with Client(kubeconfig.find(config, context), wait_for_server=False) as client:
        nodes, slices = await client.list(NODES), await client.list(ENDPOINT_SLICES)
    inputs = from_cluster(nodes.items, slices.items)
    if not inputs:
        raise ZonewiseError("the cluster has no Service with ready endpoints in a zone")
    return inputs


def _rules(options: dict[str, Any]) -> Rules:
    from zonewise.simulator.decide.tasks import Contestant, Rules

    start, overload = _tuning(options)
    contestants = tuple(Contestant(one.value, one, start) for one in _algorithms(options["algorithms"]))
    return Rules(contestants, overload, _weights(options["weights"]))


def _tuning(options: dict[str, Any]) -> tuple[StartingPoint, float]:
    """Parsed like the annotations of a Service."""
    from zonewise.api.names import OVERLOAD_THRESHOLD, STARTING_THRESHOLD
    from zonewise.routing.tuning import read_tuning

    annotations = {STARTING_THRESHOLD: options["starting_threshold"], OVERLOAD_THRESHOLD: options["overload_threshold"]}
    tuning, problems = read_tuning(annotations)
    for problem in problems:
        name = problem.annotation.removeprefix("zonewise.dev/")
        raise UsageError(f"--{name} is {problem.value!r}; write {problem.allowed}")
    assert tuning.overload is not None
    return tuning.start, tuning.overload


def _algorithms(text: str) -> list[Algorithm]:
    from zonewise.routing.algorithms import Algorithm

    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in ALGORITHMS:
            raise UsageError(f"--algorithms: unknown algorithm {name!r}; choose from {', '.join(ALGORITHMS)}")
    return [Algorithm(name) for name in names]


def _weights(text: str) -> Weights:
    from zonewise.routing.algorithms import Weights

    parts = text.split(",")
    if len(parts) != 4 or not all(re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", part.strip()) for part in parts):
        raise UsageError(f"--weights is {text!r}; write four numbers such as 45,20,20,15")
    weights = Weights(*map(float, parts))
    if abs(sum(weights) - 100) > 1e-6:
        raise UsageError(f"--weights is {text!r}, which adds up to {sum(weights):g}; it must be 100")
    return weights
