/* Notifications to systemd (sd_notify): ready, stopping, watchdog. Without systemd they do nothing. */
#pragma once

/* A socket to $NOTIFY_SOCKET, whose name `path` is (NULL = none); -1 where there is none. Before the sandbox closes. */
int notify_open(const char *path);
/* "READY=1", "STOPPING=1", "WATCHDOG=1" */
void notify_say(int fd, const char *state);
