"""Edits of a run's settings.toml by a program."""

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.runs.snapshot import edit_setting, write_changes
from trackmania_rl.settings import SettingsError, load_settings


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_value_is_changed_and_nothing_else(snapshot, line_break):
    text = snapshot.read_text().replace(
        "evaluation_weights_decay = 0.998\n", "evaluation_weights_decay = 0.998  # mine\n"
    )
    snapshot.write_bytes(text.replace("\n", line_break).encode())
    before = snapshot.read_bytes()
    assert edit_setting(snapshot.parent, "evaluation_weights_decay", "0.8") == {
        "evaluation_weights_decay": (0.998, 0.8)
    }
    assert snapshot.read_bytes() == before.replace(
        b"evaluation_weights_decay = 0.998", b"evaluation_weights_decay = 0.8"
    )
    assert [file.name for file in snapshot.parent.glob(".*")] == []


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lr_schedule", "((0, 1e-3), (9, 1e-4))", ((0, 1e-3), (9, 1e-4))),
        ("lr_schedule", "[[0, 0.5]]", ((0, 0.5),)),
        ("lr_schedule", "0.25", ((0, 0.25),)),
        ("random_action_throttle_probability", "None", None),
        ("random_action_throttle_probability", "none", None),
        ("use_ddqn", "true", True),
        ("keep_driver_every_s", "60.0", 60.0),
        ("constant_reward_per_ms", "-1", -1.0),
    ],
)
def test_values_are_written_as_they_are_typed(snapshot, name, text, value):
    edit_setting(snapshot.parent, name, text)
    assert load_settings(snapshot).flat()[name] == value


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("evaluation_weights_decay", "7", "evaluation_weights_decay = 7: input should be less than 1"),
        (
            "evaluation_weights_decay",
            "__import__('os').system('true')",
            "evaluation_weights_decay = \"__import__('os').system('true')\"",
        ),
        ("__builtins__", "0.8", "__builtins__ is no known setting"),
        ("batch_size\nseed", "0.8", "write it as name=value"),
        ("n_collectors", "2", "n_collectors waits for the next start"),
    ],
)
def test_a_wrong_edit_changes_nothing(snapshot, name, text, told):
    before = snapshot.read_bytes()
    with pytest.raises(SettingsError) as refused:
        edit_setting(snapshot.parent, name, text)
    assert told in str(refused.value)
    assert ".edited" not in str(refused.value)
    assert snapshot.read_bytes() == before
    assert [file.name for file in snapshot.parent.glob(".*")] == []


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("is_saved_later", [False, True])
def test_a_file_that_an_editor_is_saving_in_place_is_not_written(snapshot, share, is_saved_later):
    text = snapshot.read_text()

    def save(_=None):
        snapshot.write_text(text[: text.index("\n", int(len(text) * share)) + 1])

    if not is_saved_later:
        save()
    with pytest.raises(UserError, match=r"[Tt]ry again"):
        edit_setting(snapshot.parent, "batch_size", "7", save)
    assert text.startswith(snapshot.read_text()), "nothing was written"
    assert snapshot.with_name("settings.toml.last_good").read_text() == text


def test_an_edit_that_the_caller_refuses_changes_nothing_and_one_by_another_program_is_not_lost(snapshot):
    def edit_meanwhile(_):
        write_changes(snapshot, {"prio_alpha": 0.25})

    def refuse(settings):
        raise UserError(f"not with {settings.agent.evaluation_weights_decay}")

    before = snapshot.read_bytes()
    with pytest.raises(UserError, match=r"not with 0\.5"):
        edit_setting(snapshot.parent, "evaluation_weights_decay", "0.5", refuse)
    assert snapshot.read_bytes() == before
    with pytest.raises(UserError, match="edited by another program"):
        edit_setting(snapshot.parent, "evaluation_weights_decay", "0.5", edit_meanwhile)
    assert load_settings(snapshot).replay.prio_alpha == 0.25
    assert load_settings(snapshot).agent.evaluation_weights_decay == 0.998
