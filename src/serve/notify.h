/* What systemd wants to hear from a service (sd_notify): that it is ready, that it ends, that it is alive. Without
 * systemd nothing happens. */
#pragma once

/* "READY=1", "STOPPING=1", "WATCHDOG=1": a datagram to $NOTIFY_SOCKET, whose name `path` is (NULL = none). */
void notify_say(const char *path, const char *state);
