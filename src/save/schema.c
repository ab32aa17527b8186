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
    "CREATE INDEX items_response ON items (response, turn, number) WHERE response IS NOT NULL;"
    "CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "INSERT INTO totals VALUES ('bytes', 0);"
    "CREATE TRIGGER threads_add AFTER INSERT ON threads BEGIN"
    "  UPDATE totals SET value = value + NEW.bytes WHERE name = 'bytes'; END;"
    "CREATE TRIGGER threads_change AFTER UPDATE OF bytes ON threads BEGIN"
    "  UPDATE totals SET value = value + NEW.bytes - OLD.bytes WHERE name = 'bytes'; END;"
    "CREATE TRIGGER threads_remove AFTER DELETE ON threads BEGIN"
    "  UPDATE totals SET value = value - OLD.bytes WHERE name = 'bytes'; END;";

/* Files have their content in parts, or it is the replies of a batch: those of status 200 (side 0), or the others (side 1).
 * A batch is one of OpenAI's (api 0) or Anthropic's (1); its times are 0 until they come. A line has no status until it is
 * done; then it has a reply, a whole line of an output, and no body. */
static const char version_2[] =
    "CREATE TABLE files ("
    "  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key INTEGER NOT NULL,"
    "  created INTEGER NOT NULL, expires INTEGER, name TEXT NOT NULL, purpose TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL, batch INTEGER, side INTEGER);"
    "CREATE INDEX files_key ON files (key, number);"
    "CREATE INDEX files_expires ON files (expires) WHERE expires IS NOT NULL;"
    "CREATE TABLE file_parts ("
    "  file INTEGER NOT NULL REFERENCES files ON DELETE CASCADE, part INTEGER NOT NULL,"
    "  data TEXT NOT NULL, PRIMARY KEY (file, part)) WITHOUT ROWID;"
    "CREATE TABLE batches ("
    "  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key INTEGER NOT NULL,"
    "  api INTEGER NOT NULL, status TEXT NOT NULL, endpoint TEXT NOT NULL, input TEXT,"
    "  output TEXT, failures TEXT, window TEXT, metadata TEXT, errors TEXT,"
    "  created INTEGER NOT NULL, expires INTEGER NOT NULL, started INTEGER NOT NULL DEFAULT 0,"
    "  cancelling INTEGER NOT NULL DEFAULT 0, finalizing INTEGER NOT NULL DEFAULT 0,"
    "  ended INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0,"
    "  completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX batches_key ON batches (key, number);"
    "CREATE INDEX batches_open ON batches (number) WHERE ended = 0;"
    "CREATE TABLE batch_lines ("
    "  batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, number INTEGER NOT NULL,"
    "  custom_id TEXT NOT NULL, body TEXT, status INTEGER, reply TEXT,"
    "  PRIMARY KEY (batch, number)) WITHOUT ROWID;"
    "CREATE UNIQUE INDEX batch_lines_id ON batch_lines (batch, custom_id);"
    "CREATE INDEX batch_lines_todo ON batch_lines (batch, number) WHERE status IS NULL;";

const char *const schema_versions[] = {version_1, version_2};
const int schema_count = sizeof schema_versions / sizeof *schema_versions;
