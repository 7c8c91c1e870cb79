"""The example of a logger writes a run's figures into a table."""

from pathlib import Path

from trackmania_rl.checkpoints import RunFolder
from trackmania_rl.settings import load_settings
from trackmania_rl.telemetry.loggers.opening import open_loggers


def test_each_figure_is_a_line(repository_root: Path, tmp_path: Path) -> None:
    named = {"loggers": "examples.table_logger:TableLogger", "seed": 7}
    settings = load_settings(repository_root / "config_files" / "config.py", named)
    folder = RunFolder.create(tmp_path, "told")
    for frames in (100, 200):
        (logger,) = open_loggers(settings, folder, resumed_at_frame=frames - 100)
        logger.log_figures({"learner/loss": 0.25, "meters/explored/valley": 30.0}, frames)
        logger.close()
    lines = (folder.path / "figures.txt").read_text().splitlines()
    assert lines.count("setting\tseed\t7") == 2
    assert [line for line in lines if not line.startswith("setting")] == [
        f"{frames}\t{figure}"
        for frames in (100, 200)
        for figure in ("learner/loss\t0.25", "meters/explored/valley\t30")
    ]
