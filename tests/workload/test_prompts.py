"""Prompt files: formats, fields, and rows that hold no prompt."""

import gzip
import json

import pytest

from cbjax.workload import builtin_prompts, read_prompts


def write(path, rows) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_text_files_hold_one_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffHello\r\n\r\n  日本\u2028語 \r\n".encode())
    read = read_prompts(path)
    assert [prompt.content for prompt in read.prompts] == ["Hello", "日本\u2028語"]
    assert read.blank_lines == 1 and read.bad_rows == ()


@pytest.mark.parametrize(
    ("row", "content"),
    [
        ({"prompt": "a"}, "a"),
        ({"text": "a"}, "a"),
        ({"question": "a", "answer": "b"}, "a"),
        ({"turns": ["a", "b"]}, "a"),
        ({"prompt": None, "text": "a"}, "a"),
        ({"prompt": [3, 4]}, (3, 4)),
        ('"a"', "a"),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                          {"role": "assistant", "content": "b"},
                          {"role": "user", "content": "c"}]},
            ({"role": "system", "content": "s"}, {"role": "user", "content": "a"}),
        ),
    ],
)
def test_json_rows_in_the_forms_in_use(tmp_path, row, content):
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", [row])).prompts
    assert prompt.content == content and prompt.class_name == "default"


def test_class_and_bound_beside_the_prompt(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"prompt": "a", "category": "math", "max_tokens": 7}])
    (prompt,) = read_prompts(path, class_field="category").prompts
    assert (prompt.class_name, prompt.max_tokens) == ("math", 7)
    assert read_prompts(path).prompts[0].class_name == "default"


def test_gzipped_files_and_limits(tmp_path):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n{"prompt": "b"}\nbroken\n'))
    assert [prompt.content for prompt in read_prompts(path, limit=2).prompts] == ["a", "b"]


BAD_ROWS = [
    "{not json", "17", '{"answer": "x"}', '{"prompt": ""}', '{"prompt": "  "}', '{"prompt": 5}',
    '{"turns": []}', '{"turns": [5]}', '{"messages": [{"role": "system", "content": "s"}]}',
    '{"messages": ["x"]}', '{"messages": [{"role": "user", "content": [1]}]}',
    '{"prompt": "\\ud800"}', '{"prompt": "a", "max_tokens": 0}', '{"prompt": [1, -2]}',
    '{"prompt": "a", "max_tokens": true}',
]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_line_and_the_way_out(tmp_path, row):
    path = write(tmp_path / "p.jsonl", ['{"prompt": "a"}', row])
    with pytest.raises(ValueError, match=r"(?s)^path = .*1 bad rows.*line 2: .*on_bad_row='skip'"):
        read_prompts(path)


def test_skipped_rows_are_counted_and_shown(tmp_path):
    path = write(tmp_path / "p.jsonl", [*BAD_ROWS, '{"prompt": "a"}'])
    with pytest.warns(UserWarning, match=rf"{len(BAD_ROWS)} bad rows"):
        read = read_prompts(path, on_bad_row="skip")
    assert len(read.prompts) == 1
    assert [row.line for row in read.bad_rows] == list(range(1, len(BAD_ROWS) + 1))


def test_a_bad_character_spoils_its_own_line_only(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"one\n\xff\xfe\ntwo\n")
    with pytest.warns(UserWarning, match="line 2: not UTF-8"):
        read = read_prompts(path, on_bad_row="skip")
    assert [prompt.content for prompt in read.prompts] == ["one", "two"]


def test_impossible_arguments_name_field_value_and_remedy(tmp_path):
    good = write(tmp_path / "p.jsonl", ['{"prompt": "a"}'])
    with pytest.raises(FileNotFoundError, match="^path = .*no such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="^path = .*no prompts"):
        read_prompts(write(tmp_path / "empty.jsonl", [""]))
    with pytest.raises(ValueError, match="^format = None: p.csv"):
        read_prompts(write(tmp_path / "p.csv", ["a"]))
    with pytest.raises(ValueError, match="^on_bad_row = 'ignore'"):
        read_prompts(good, on_bad_row="ignore")
    with pytest.raises(ValueError, match="^limit = 0"):
        read_prompts(good, limit=0)
    assert read_prompts(write(tmp_path / "p.csv", ["a"]), format="text").prompts[0].content == "a"


def test_builtin_prompts_cover_classes_and_languages():
    prompts = builtin_prompts(chat=False)
    assert len(prompts) == 40 and len({prompt.content for prompt in prompts}) == 40
    for language in ("en", "ja"):
        for name, most in (("short_answer", 24), ("long_prompt", 64), ("long_generation", 192)):
            some = builtin_prompts(name, language=language, chat=False)
            assert len(some) >= 4
            assert {(prompt.class_name, prompt.max_tokens) for prompt in some} == {(name, most)}
            letters = [len(prompt.content.encode()) for prompt in some]
            assert min(letters) > 800 if name == "long_prompt" else max(letters) < 300


def test_builtin_prompts_are_chat_messages_unless_plain():
    (first, *_) = builtin_prompts("short_answer", language="en")
    ((message),) = first.content
    assert message["role"] == "user" and "Portugal" in message["content"]
    with pytest.raises(ValueError, match="^class_name = 'chat': use one of"):
        builtin_prompts("chat")
    with pytest.raises(ValueError, match="^language = 'fr': use one of"):
        builtin_prompts(language="fr")
