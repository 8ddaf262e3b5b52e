"""What holds for every format."""

import inspect

import pytest

from cbjax.workload import formats, read_trace


@pytest.mark.parametrize("name", formats.names)
def test_a_missing_file_says_where_such_files_come_from(name, tmp_path):
    module = formats.get(name)
    assert list(inspect.signature(module.read).parameters)[:2] == ["path", "wanted"]
    assert len(module.DOWNLOAD) > 40
    for path, text in ((None, "path = None: no file is named"),
                       (tmp_path / "none", "path = .*: there is no such file")):
        with pytest.raises(FileNotFoundError, match=text) as raised:
            read_trace(path, name)
        assert module.DOWNLOAD in str(raised.value)


def test_impossible_arguments_name_field_value_and_remedy(tmp_path):
    with pytest.raises(ValueError, match="^format = 'azur': did you mean azure"):
        read_trace(tmp_path, "azur")
    with pytest.raises(ValueError, match="^options.model = 'x': .*leave it out"):
        read_trace(tmp_path, "azure", model="x")
    with pytest.raises(ValueError, match="^on_bad_row = 'ignore': use one of"):
        read_trace(tmp_path, "azure", on_bad_row="ignore")
    with pytest.raises(ValueError, match="^limit = 0: use at least 1"):
        read_trace(tmp_path, "azure", limit=0)
