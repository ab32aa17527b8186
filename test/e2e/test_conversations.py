"""Stored responses, conversations and responses in the background, with the real client; keys see only their own."""
import json
import sqlite3
import time

import pytest
from server import Server, until

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def server(binary, tiny, folder):
    (folder / "keys").write_text("alpha\nbeta\n")
    s = Server(binary, *tiny, "--state-dir", folder / "state", "--api-key-file", folder / "keys", "--slots", "4")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client("alpha")


def ask(client, input, **more):
    return client.responses.create(model="tiny", input=input, **({"max_output_tokens": 8} | more))


def texts(items):
    return [i.content[0].text for i in items]


def test_a_chain_of_responses(client):
    first = ask(client, "One.")
    second = ask(client, [{"role": "user", "content": "Two."}], previous_response_id=first.id, stream=False)
    assert second.previous_response_id == first.id and second.store
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    got = list(client.responses.input_items.list(second.id, order="asc"))
    assert texts(got) == ["One.", first.output_text, "Two."] and [i.role for i in got] == ["user", "assistant", "user"]
    page = client.responses.input_items.list(second.id, limit=1)
    assert texts(page.data) == ["Two."] and page.has_more
    assert texts(client.responses.input_items.list(second.id, limit=2, order="desc", after=page.last_id).data) == [
        first.output_text, "One."]
    third = ask(client, "Three.", previous_response_id=second.id)
    # deleting deletes, also from what goes on
    client.responses.delete(first.id)
    assert texts(client.responses.input_items.list(third.id, order="asc")) == ["Two.", second.output_text, "Three."]
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(first.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)


def test_a_conversation(client, folder):
    c = client.conversations.create(items=[{"type": "message", "role": "user", "content": "Bo is my name."}], metadata={"a": "b"})
    assert c.id.startswith("conv_") and c.object == "conversation" and c.metadata == {"a": "b"}
    assert client.conversations.retrieve(c.id) == c
    assert client.conversations.update(c.id, metadata={"c": "d"}).metadata == {"c": "d"}
    r = ask(client, "Hello.", conversation=c.id)
    assert r.conversation.id == c.id
    alone = ask(client, "Hello.")
    assert r.usage.input_tokens > alone.usage.input_tokens
    unstored = ask(client, "Again.", conversation={"id": c.id}, store=False)
    got = list(client.conversations.items.list(c.id, order="asc", limit=2))  # pages of two
    assert texts(got) == ["Bo is my name.", "Hello.", r.output_text, "Again.", unstored.output_text]
    added = client.conversations.items.create(c.id, items=[
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "7"}])
    assert [i.type for i in added.data] == ["function_call", "function_call_output"]
    assert client.conversations.items.list(c.id, limit=1).data[0].type == "function_call_output"
    one = client.conversations.items.retrieve(got[1].id, conversation_id=c.id)
    assert one.content[0].text == "Hello."
    client.conversations.items.delete(got[0].id, conversation_id=c.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(got[0].id, conversation_id=c.id)
    assert client.conversations.delete(c.id).deleted
    for call in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            call(c.id)
    with pytest.raises(openai.NotFoundError):
        ask(client, "Hello.", conversation=c.id)
    assert client.responses.retrieve(r.id).output_text == r.output_text
    with sqlite3.connect(folder / "state" / "quern.db") as db:
        assert not db.execute("SELECT count(*) FROM items WHERE body LIKE '%Bo is my name%'").fetchone()[0]


def test_items_that_are_refused(client, server):
    for items in ([{"type": "nothing"}], [{"role": "user"}], [{"role": "user", "content": "x"}] * 21):
        with pytest.raises(openai.BadRequestError):
            client.conversations.create(items=items)
    c = client.conversations.create()
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        assert server.request("GET", f"/v1/conversations/{c.id}/items?{query}", Authorization="Bearer alpha")[0] == 400
    assert server.request("GET", f"/v1/conversations/{c.id}/items?after=nothing", Authorization="Bearer alpha")[0] == 404


def test_background(client):
    r = ask(client, "A story.", background=True, max_output_tokens=100)
    assert r.status == "queued" and r.background and not r.output
    assert client.responses.retrieve(r.id).status in ("queued", "in_progress", "incomplete")
    until(lambda: client.responses.retrieve(r.id).status == "incomplete")
    done = client.responses.retrieve(r.id)
    assert done.output_text and done.usage.output_tokens == 100
    assert ask(client, "And on.", previous_response_id=r.id).output_text
    assert client.responses.cancel(r.id).status == "incomplete"  # too late: it stays as it is
    long = ask(client, "A long story.", background=True, max_output_tokens=1900)
    until(lambda: client.responses.retrieve(long.id).status == "in_progress")
    cancelled = client.responses.cancel(long.id)
    assert cancelled.status == "cancelled" and client.responses.retrieve(long.id).to_dict() == cancelled.to_dict()
    gone = ask(client, "A long story.", background=True, max_output_tokens=1900)
    client.responses.delete(gone.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(gone.id)


def test_a_stream_is_taken_up_again(client):
    stream = ask(client, "A story.", background=True, stream=True, max_output_tokens=200)
    first = []
    for event in stream:
        first.append(event)
        if event.sequence_number == 12:
            break
    stream.close()
    id = first[0].response.id
    rest = list(client.responses.retrieve(id, stream=True, starting_after=12))
    assert [e.sequence_number for e in first + rest] == list(range(len(first) + len(rest)))
    assert rest[-1].type == "response.incomplete"
    again = list(client.responses.retrieve(id, stream=True))  # from what is stored
    assert [e.to_dict() for e in again] == [e.to_dict() for e in first + rest]
    assert "".join(e.delta for e in again if e.type == "response.output_text.delta") == client.responses.retrieve(id).output_text
    plain = ask(client, "A story.")
    with pytest.raises(openai.BadRequestError):
        list(client.responses.retrieve(plain.id, stream=True))


def test_keys_see_only_their_own(server, client):
    other = server.client("beta")
    r, c = ask(client, "Mine."), client.conversations.create(items=[{"role": "user", "content": "Mine."}])
    running = ask(client, "Mine.", background=True, max_output_tokens=1900)
    item = client.conversations.items.list(c.id).data[0].id
    for call in (lambda: other.responses.retrieve(r.id), lambda: other.responses.delete(r.id),
                 lambda: other.responses.input_items.list(r.id), lambda: ask(other, "x", previous_response_id=r.id),
                 lambda: other.responses.retrieve(running.id), lambda: other.responses.cancel(running.id),
                 lambda: other.responses.delete(running.id),
                 lambda: other.conversations.retrieve(c.id), lambda: other.conversations.delete(c.id),
                 lambda: other.conversations.update(c.id, metadata={}), lambda: other.conversations.items.list(c.id),
                 lambda: other.conversations.items.create(c.id, items=[{"role": "user", "content": "x"}]),
                 lambda: other.conversations.items.delete(item, conversation_id=c.id), lambda: ask(other, "x", conversation=c.id)):
        with pytest.raises(openai.NotFoundError):
            call()
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.conversations.items.list(c.id).data[0].id == item


def test_it_is_all_there_after_a_kill(binary, tiny, tmp_path):
    """Answers that were told, conversations, and one in the background that did not end."""
    start = lambda: Server(binary, *tiny, "--state-dir", tmp_path)
    s = start()
    try:
        client = s.client()
        r = ask(client, "One.")
        c = client.conversations.create(items=[{"role": "user", "content": "Two."}])
        running = ask(client, "Three.", background=True, max_output_tokens=1900)
        s.kill()
        s = start()
        client = s.client()
        assert client.responses.retrieve(r.id).to_dict() == r.to_dict()
        assert texts(client.conversations.items.list(c.id)) == ["Two."]
        failed = client.responses.retrieve(running.id)
        assert failed.status == "failed" and "restarted" in failed.error.message
        assert s.stop() == 0
    finally:
        s.kill()


def test_what_is_kept_is_bounded(binary, tiny, tmp_path):
    """By time, and by bytes: the oldest go."""
    s = Server(binary, *tiny, "--state-dir", tmp_path, "--limit", "responses=1M", "--keep-responses", "1h")
    text = "word " * 4000
    body = {"input": text, "max_output_tokens": 1, "truncation": "auto"}
    try:
        ids = []
        for _ in range(60):
            status, _, raw = s.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": text}]})
            assert status == 200
            ids.append(json.loads(raw)["id"])
        there = lambda id: s.request("GET", f"/v1/conversations/{id}")[0] == 200
        until(lambda: not there(ids[0]))
        assert there(ids[-1])
    finally:
        s.kill()
    s = Server(binary, *tiny, "--state-dir", tmp_path, "--keep-responses", "2s")
    try:
        until(lambda: s.request("GET", f"/v1/conversations/{ids[-1]}")[0] == 404)
    finally:
        s.kill()


def test_in_memory(binary, tiny):
    """--no-state: the same, until the server ends."""
    s = Server(binary, *tiny, "--no-state")
    try:
        client = s.client()
        r = ask(client, "One.")
        assert client.responses.retrieve(r.id).output_text == r.output_text
        assert ask(client, "Two.", previous_response_id=r.id).output_text
        c = client.conversations.create()
        ask(client, "Three.", conversation=c.id)
        assert len(client.conversations.items.list(c.id).data) == 2
        assert s.ask("/usage")["data"][0]["requests"] == 3
        assert s.stop() == 0
    finally:
        s.kill()
