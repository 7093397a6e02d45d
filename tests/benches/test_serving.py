from __future__ import annotations

import sys

import pytest

from serving import main


def test_less_than_one_run_is_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serving.py", "--repeat", "0"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "--repeat must be at least 1, not 0" in capsys.readouterr().err
