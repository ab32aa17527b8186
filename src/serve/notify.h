/* What systemd wants to hear from a service (sd_notify): that it is ready, that it ends, that it is alive. Without
 * systemd nothing happens. */
#pragma once

/* A socket to $NOTIFY_SOCKET, whose name `path` is (NULL = none); -1 where there is none. Before the sandbox closes. */
int notify_open(const char *path);
/* "READY=1", "STOPPING=1", "WATCHDOG=1" */
void notify_say(int fd, const char *state);
