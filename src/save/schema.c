#include "save/schema.h"

/* A key is a number made of its digest, the same for ever; 0 is a client without a key. `number` and `name` are those of the
 * file of keys, as the server last read it; NULL = it is not there.
 *
 * Usage has no prompts and no answers. A day is a number: days since 1970 in UTC.
 *
 * A thread is what is kept and removed together: a conversation, or responses that go on from each other. An item belongs to
 * a thread. The response that it came with is NULL where a client added it to a conversation; `listed`: it is an item of the
 * conversation. `turn`: 0 = what the client sent, 1 = what the model answered. The bytes of all threads are in totals. */
static const char version_1[] =
    "CREATE TABLE keys ("
    "  key INTEGER PRIMARY KEY, number INTEGER, name TEXT);"
    "CREATE TABLE usage ("
    "  day INTEGER NOT NULL, key INTEGER NOT NULL, model TEXT NOT NULL,"
    "  requests INTEGER NOT NULL, errors INTEGER NOT NULL, read INTEGER NOT NULL,"
    "  cached INTEGER NOT NULL, written INTEGER NOT NULL,"
    "  PRIMARY KEY (day, key, model)) WITHOUT ROWID;"
    "CREATE TABLE threads ("
    "  number INTEGER PRIMARY KEY, key INTEGER NOT NULL, used INTEGER NOT NULL,"
    "  bytes INTEGER NOT NULL DEFAULT 0, id TEXT UNIQUE, created INTEGER, metadata TEXT);"
    "CREATE INDEX threads_used ON threads (used);"
    "CREATE TABLE responses ("
    "  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key INTEGER NOT NULL,"
    "  thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE, previous INTEGER,"
    "  running INTEGER NOT NULL, body TEXT, events TEXT);"
    "CREATE INDEX responses_thread ON responses (thread);"
    "CREATE INDEX responses_running ON responses (number) WHERE running;"
    "CREATE TABLE items ("
    "  number INTEGER PRIMARY KEY, id TEXT NOT NULL, body TEXT NOT NULL,"
    "  thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE, response INTEGER,"
    "  turn INTEGER NOT NULL, listed INTEGER NOT NULL);"
    "CREATE INDEX items_thread ON items (thread, number);"
    "CREATE INDEX items_response ON items (response, turn, number);"
    "CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "INSERT INTO totals VALUES ('bytes', 0);"
    "CREATE TRIGGER threads_add AFTER INSERT ON threads BEGIN"
    "  UPDATE totals SET value = value + NEW.bytes WHERE name = 'bytes'; END;"
    "CREATE TRIGGER threads_change AFTER UPDATE OF bytes ON threads BEGIN"
    "  UPDATE totals SET value = value + NEW.bytes - OLD.bytes WHERE name = 'bytes'; END;"
    "CREATE TRIGGER threads_remove AFTER DELETE ON threads BEGIN"
    "  UPDATE totals SET value = value - OLD.bytes WHERE name = 'bytes'; END;";

const char *const schema_versions[] = {version_1};
const int schema_count = sizeof schema_versions / sizeof *schema_versions;
