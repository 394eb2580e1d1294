"""Who gets in: nobody without the token, nobody from another host, and nobody who would change anything."""

from __future__ import annotations

import pytest
from studio_runs import ADDRESS, PORT, all_kinds, owner, stranger

ADDRESSES = (
    *("/", "/planner", "/run/one", "/study/study", "/overlay?run=one", "/api/list", "/api/agreement/one"),
    *("/api/follow/one", "/api/plan?clients=3", "/certificate/one", "/report/one", "/static/plotly.min.js", "/nothing"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return all_kinds(tmp_path_factory.mktemp("access"))


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_is_shown_without_the_token(runs, address):
    client, access = stranger(runs)
    for cookie in ("", f"cloister-studio-{PORT}=guess", f"cloister-studio-{PORT}={access.token}", "=;;="):
        answer = client.get(address, headers={"cookie": cookie} if cookie else {})
        assert answer.status_code == 401
        assert "Expected the address that `cloister studio` printed" in answer.text
        assert "set-cookie" not in answer.headers


def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_sites_cannot_have(runs):
    client, access = stranger(runs)
    answer = client.get("/", params={"token": access.token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert access.token not in name, "who reads the cookie file does not learn the token"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert client.get("/").status_code == 200
    assert access.token not in client.get("/").text


@pytest.mark.parametrize("token", ["", "x", "é", "a" * 10_000])
def test_a_wrong_token_is_refused(runs, token):
    client, access = stranger(runs)
    assert client.get("/", params={"token": token}).status_code == 401
    assert client.get("/", params={"token": [token, access.token]}).status_code == 401
    assert client.get("/planner", params={"token": access.token}).status_code == 401
    assert client.get("/").status_code == 401


def test_the_token_for_a_browser_that_is_started_works_once(runs):
    client, access = stranger(runs)
    once = access.one_time_token()
    assert client.get("/", params={"token": once}).status_code == 303
    assert client.get("/", params={"token": once}).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((f"127.0.0.1:{PORT}", 200), (f"localhost:{PORT}", 200), (f"[::1]:{PORT}", 200)),
        *(("127.0.0.1", 403), ("127.0.0.1:1", 403), (f"evil.example:{PORT}", 403), (f"127.0.0.1.evil:{PORT}", 403)),
        *(("", 403), (f"0.0.0.0:{PORT}", 403)),
    ],
)
def test_only_loopback_names_are_answered(runs, host, status):
    """A site whose name resolves to 127.0.0.1 has another Host, whatever cookies it could make the browser send."""
    client = owner(runs)
    cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
    assert client.get("/", headers={"host": host, **cookie}).status_code == status


def test_two_hosts_are_refused(runs):
    client = owner(runs)
    answer = client.get("/", headers=[("host", f"127.0.0.1:{PORT}"), ("host", "evil.example")])
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_nothing_but_reading_is_possible(runs, method):
    client = owner(runs)
    for address in ("/", "/run/one", "/api/plan", "/nothing"):
        answer = client.request(method, address)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert stranger(runs)[0].request(method, "/").status_code == 401


@pytest.mark.parametrize("address", [address for address in ADDRESSES if "follow" not in address])
def test_every_answer_has_its_headers(runs, address):
    answer = owner(runs).get(address, headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")], "no other site may read it"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    rules = dict(rule.strip().partition(" ")[::2] for rule in answer.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules.get("script-src", "")
    assert rules["frame-ancestors"] == "'self'"
    assert "*" not in answer.headers["content-security-policy"]
    if address.startswith(("/certificate", "/report")):
        assert "allow-same-origin" not in rules["sandbox"], "what is inside can ask nothing of this server"
    for inline in ("onclick=", "javascript:", "<script>"):
        assert address.startswith("/report") or "plotly" in address or inline not in answer.text


def test_addresses_of_pages_name_no_other_host(runs):
    for address in ("/", "/run/one", "/study/study", "/planner"):
        page = owner(runs).get(address).text
        assert "//" not in page.replace("http://www.w3.org", "").replace(ADDRESS, "").split("<body>")[0]
        assert 'src="http' not in page
        assert 'href="http' not in page


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        *(("same-site", "no-cors", 403), ("cross-site", "no-cors", 403), ("same-site", "cors", 403)),
        *(("same-origin", "cors", 200), ("none", "navigate", 200), ("same-site", "navigate", 200)),
    ],
)
def test_pages_of_other_ports_can_ask_for_nothing(runs, site, mode, status):
    """To cookies all ports of a machine are one site."""
    sent = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": "document" if mode == "navigate" else ""}
    assert owner(runs).get("/api/list", headers=sent).status_code == status


def test_whoever_takes_the_token_of_a_browser_is_shut_out_when_the_browser_comes(runs):
    thief, access = stranger(runs)
    once = access.one_time_token()
    assert thief.get("/", params={"token": once}).status_code == 303
    assert thief.get("/").status_code == 200
    assert "found one that was" in thief.get("/", params={"token": once}, headers={"cookie": ""}).text
    assert thief.get("/").status_code == 401
    assert thief.get("/", params={"token": access.token}).status_code == 303
    assert thief.get("/").status_code == 200
