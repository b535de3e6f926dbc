"""What `--set` may say to an engine other than DeepSpeed, and what becomes of it. Nothing is launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from zerotrace.capture.engine_settings import check_settings
from zerotrace.capture.engines import ENGINES
from zerotrace.capture.plan import CapturePlan
from zerotrace.capture.torchrun import runner_command
from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("bucket_cap=2", "setting_unknown", "bucket_cap_mb"),
        ("zero_optimization.stage=2", "setting_unknown", "bucket_cap_mb, gradient_as_bucket_view, static_graph"),
        ("static_graph=1", "setting_value", "static_graph=false"),
        ("bucket_cap_mb=true", "setting_value", "Leave it out"),
        ("bucket_cap_mb=-1", "setting_value", "Leave it out"),
        ("bucket_cap_mb=NaN", "setting_value", "Leave it out"),
        ("bucket_cap_mb=1e300", "setting_value", "Leave it out"),
        ("bucket_cap_mb=big", "setting_value", "Leave it out"),
        ("static_graph=True", "setting_invalid", "static_graph=true"),
    ],
)
def test_what_an_engine_cannot_be_told_is_refused_with_what_it_can(words: str, code: str, said: str) -> None:
    done = CliRunner().invoke(capture, ["--engine", "ddp", "--gpus", "2", "--device", "cpu", "--set", words])
    assert isinstance(done.exception, CaptureError), done.output
    assert done.exception.code == code
    assert said in str(done.exception.hint)


def test_the_last_value_of_a_setting_holds() -> None:
    settings = [("bucket_cap_mb", 1), ("static_graph", True), ("bucket_cap_mb", 2.5)]
    assert check_settings(ENGINES["ddp"], settings) == {"bucket_cap_mb": 2.5, "static_graph": True}


def test_settings_become_options_of_the_runner(make_plan: Callable[..., CapturePlan]) -> None:
    settings = {"bucket_cap_mb": 2.5, "static_graph": True, "gradient_as_bucket_view": False}
    plan = make_plan(engine="ddp", stage=None, ds_config=None, engine_settings=settings)
    command = runner_command(plan, "unused")
    assert command[0].endswith("runners/ddp.py")
    assert command[-4:] == ["--bucket-cap-mb", "2.5", "--static-graph", "--no-gradient-as-bucket-view"]
    with pytest.raises(ValueError, match="engine_settings has 'bucket_cap'"):
        make_plan(engine="ddp", stage=None, ds_config=None, engine_settings={"bucket_cap": 1})


def test_what_this_torch_or_nobody_has_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(engine: str) -> CaptureError:
        done = CliRunner().invoke(capture, ["--engine", engine, "--gpus", "2", "--device", "cpu"])
        assert isinstance(done.exception, CaptureError), done.output
        return done.exception

    assert refused("nanotron-zero1").code == "engine_unavailable"
    assert "import each other in a circle" in str(refused("nanotron-zero1"))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1+cu124")
    assert refused("fsdp2").code == "torch_too_old"
    assert "needs torch 2.6 or newer; this is torch 2.5.1" in str(refused("fsdp2"))


def test_a_torch_engine_needs_no_stage_but_ranks() -> None:
    done = CliRunner().invoke(capture, ["--engine", "ddp", "--device", "cpu"])
    assert done.exit_code == 2
    assert "Missing option '--gpus'" in done.output
