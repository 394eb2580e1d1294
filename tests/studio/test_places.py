"""Nothing outside of the folder is shown, whatever a name, an address or a link says."""

from __future__ import annotations

import pytest
from studio_runs import all_kinds, owner

from cloister.studio.places import NotThere, Places

NAMES = (
    *("..", "../secret", "one/../../secret", "one/..", ".", "one/.", "/etc", "//etc", "one//", "~", "one\\..\\x"),
    *("link", "link/..", "linked-file", "nothing", "one\0", "one\n", ".hidden", "one/metrics.jsonl", "\u202eone"),
)
ENCODED = ("..%2f..%2fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "..%5csecret", "one/%2e%2e/%2e%2e/secret", "%00")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = all_kinds(tmp_path_factory.mktemp("places"))
    (found / ".hidden").mkdir()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_inside(runs, name):
    with pytest.raises(NotThere, match=r"Expected .* found "):
        Places(runs).inside(name)


def test_what_is_inside_is_found_also_by_links_that_stay_there(runs):
    places = Places(runs)
    (runs / "same").symlink_to(runs / "one") if not (runs / "same").exists() else None
    assert places.inside("one") == runs / "one"
    assert places.inside("same").resolve() == (runs / "one").resolve()
    assert places.inside("") == runs
    assert places.name(places.inside("study/seed-0")) == "study/seed-0"
    (runs / "same").unlink()


@pytest.mark.parametrize("address", ["run", "study", "certificate", "report", "api/agreement", "api/follow"])
def test_addresses_stay_inside(runs, address):
    client = owner(runs)
    secret = (runs.parent / "secret" / "metrics.jsonl").read_text().splitlines()[0]
    for name in (*ENCODED, "link", "linked-file", "link/", "nothing"):
        answer = client.get(f"/{address}/{name}")
        assert answer.status_code == 404, name
        assert secret[:40] not in answer.text
    assert client.get("/overlay?run=../secret").status_code == 404
    assert client.get("/overlay?run=one&run=link").status_code == 404


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "studio.css%00", "base.html.j2", "%2fetc%2fpasswd"])
def test_static_files_are_those_that_are_known(runs, name):
    assert owner(runs).get(f"/static/{name}").status_code == 404
