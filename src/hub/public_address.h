/* Is an address one that anybody on the Internet can reach? Not loopback, not a private or local network, not a range for
 * documentation or tests, not multicast; an IPv6 address that holds an IPv4 one is judged by that. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

bool address_is_public(const struct sockaddr *a);
